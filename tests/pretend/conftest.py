"""Keeps pytest from looking for examples in what only processes with the device can import."""

collect_ignore = ["accelerator"]
