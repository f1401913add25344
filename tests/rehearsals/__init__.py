"""The whole of grace-store on the pretend accelerator, by its real commands in processes of their own."""
