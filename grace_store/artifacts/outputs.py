"""Where results may be written: never over what they are made from."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from grace_store.base.errors import SettingError
from grace_store.base.files import overlaps
from grace_store.store.backend import is_url
from grace_store.store.opened import Store

Source = tuple[Path, str]
"""A path and what it is, in words."""


def sources_of(store: Store) -> list[Source]:
    """Return the store and the files it was planned from."""
    planned = [(Path(file.path), "which the store was planned from") for file in store.plan.files]
    return [*planned, *place_of(store.location)]


def place_of(location: str) -> list[Source]:
    """Return where a store lies on this machine: nowhere if it is in an object store, which results never go to."""
    return [] if is_url(location) else [(Path(location), "the store")]


def check_results(
    store: Store | str | Path | None, targets: Sequence[Path | None], inputs: Sequence[Path | None] = ()
) -> None:
    """Raise SettingError if files about to be written are the store's, are read for them, or are one file twice."""
    sources = [] if store is None else sources_of(store if isinstance(store, Store) else Store.open(store))
    given = [path for path in targets if path is not None]
    for number, path in enumerate(given):
        if any(overlaps(path, other) for other in given[:number]):
            raise SettingError(f"{path} would be written twice: give each file a name of its own")
    check_outputs(given, [*sources, *((path, "which is read for it") for path in inputs if path is not None)])


def check_outputs(targets: Sequence[Path], sources: Iterable[Source]) -> None:
    """Raise SettingError if a file about to be written is, holds or lies in something it is made from."""
    for source, what in sources:
        for target in targets:
            if overlaps(target, source):
                raise SettingError(
                    f"Writing {target} would replace or change {source}, {what}; choose another --out. "
                    "Nothing was written."
                )
