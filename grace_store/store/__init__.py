"""The on-disk format: the only package that knows zarr. Imports nothing of the program above it."""
