"""An accelerator that is not there, for the tests: see README.md. Processes get it by their environment, never this one."""
