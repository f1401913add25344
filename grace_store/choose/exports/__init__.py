"""The kinds of export by name: a module here for each, with one ``Export``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grace_store.base.registry import Registry

if TYPE_CHECKING:
    from grace_store.choose.exports.export_kind import Export

_NAMES = (
    "source", "ms-swift", "llama-factory", "trl", "axolotl", "datasets", "steps", "ids", "ms-swift-pairs",
    "llama-factory-pairs", "trl-pairs",
)  # fmt: skip
EXPORTS: Registry[Export] = Registry(__name__, "EXPORT", _NAMES)
"""All kinds of export, in the order in which help shows them."""
