"""Where units run: in this process, in one process a device, or on a Ray cluster."""
