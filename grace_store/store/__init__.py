"""The on-disk format: the only room that uses zarr. Imports only the room base."""

from importlib.metadata import version

from grace_store.store.layout import check_zarr

check_zarr(version("zarr"))
