"""The on-disk format: the only package that knows zarr. Imports nothing of the program above it."""

from importlib.metadata import version

from grace_store.store.layout import check_zarr

check_zarr(version("zarr"))
