"""The on-disk format: the only room that uses zarr. Imports only the room base."""

import re
from importlib.metadata import version

from grace_store.base.errors import MissingExtra

LOWEST_ZARR = (3, 1, 3)


def check_zarr(installed: str) -> None:
    """Raise MissingExtra for a version of zarr that fails to start or reports intact stores as damaged."""
    if tuple(map(int, re.findall(r"\d+", installed)[:3])) < LOWEST_ZARR:
        lowest = ".".join(map(str, LOWEST_ZARR))
        raise MissingExtra(f"zarr {installed} is too old for grace-store. Run `pip install 'zarr>={lowest}'`.")


check_zarr(version("zarr"))
