"""Registries: things of one kind by name. To add a thing, add a module and its name in one list."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TypeVar

ThingT = TypeVar("ThingT", covariant=True)


class Registry(Mapping[str, ThingT]):
    """A mapping from names to things. A thing is an attribute of the module with its name, imported at first use.

    The attribute has a given name, or without one the name of its module.
    """

    def __init__(self, package: str, attribute: str | None, names: Sequence[str]) -> None:
        self._package = package
        self._attribute = attribute
        self._names = tuple(names)

    def __getitem__(self, name: str) -> ThingT:
        if name not in self._names:
            raise KeyError(name)
        module = name.replace("-", "_")
        thing: ThingT = getattr(import_module(f"{self._package}.{module}"), self._attribute or module)
        return thing

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
