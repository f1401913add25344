"""Do all units of a signal share prompts and images alike, whoever computes them? Knows no model library.

Whether a model can is found by a trial when it is loaded, and another machine or library may find otherwise. The first
run keeps what it found, and all others do the same or none of it.
"""

from grace_store.base.errors import Corrupt, ResumeMismatch
from grace_store.base.metadata import SharedImages, Sharing
from grace_store.run.model_door import Extractor
from grace_store.store.keys import sharing_key
from grace_store.store.opened import SignalView
from grace_store.store.unit_writer import keep_sharing

_LEVELS: tuple[SharedImages | None, ...] = (None, "sample", "image")
"""What is shared of images, from nothing on: a model that can do one can do those before it."""


def begin_sharing(view: SignalView, extractor: Extractor) -> None:
    """Keep what a trial found, if no run did before, and follow what is kept; raise Corrupt where that is lost."""
    if extractor.sharing is not None and view.keeps_sharing:
        # In this order: what a run keeps is there before its first commit, so it is lost if it is not there after one.
        if not view.committed_units():
            keep_sharing(view, extractor.sharing)
        elif view.sharing() is None:
            raise Corrupt(
                f"{view.store.location}: {sharing_key(view.name)} is missing, so nothing says whether the units of "
                f"{view.name!r} that are done shared prompts and images. `grace-store repair` does them all again. "
                "Nothing was written."
            )
    follow_sharing(view, extractor)


def follow_sharing(view: SignalView, extractor: Extractor) -> None:
    """Have an extractor share as the units of a signal do; raise ResumeMismatch where it cannot."""
    if (found := extractor.sharing) is None:
        return
    begun = view.sharing() or (found if view.keeps_sharing else _as_before_it_was_kept(found))
    if begun.prompts and not found.prompts:
        raise _mismatch(view, f"shared prompts, and a trial here finds a fault with them: {found.fault}")
    if _LEVELS.index(begun.images) > _LEVELS.index(found.images):
        why = found.images_fault or "the model sees none"
        raise _mismatch(view, f"images that go through the vision tower once, and a trial here finds a fault: {why}")
    if (begun.prompts, begun.images) != (found.prompts, found.images):
        extractor.share_as(begun)


def _as_before_it_was_kept(found: Sharing) -> Sharing:
    """Return how signals share whose stores have no place for it: the images of a sample stay together."""
    return found.model_copy(update={"images": found.images and "sample"})


def _mismatch(view: SignalView, what: str) -> ResumeMismatch:
    return ResumeMismatch(
        f"Signal {view.name!r} of {view.store.location} was begun with {what}. Its vectors must not be of both kinds: "
        "go on with a machine and software like those it was begun with, or give a new --signal NAME. Nothing was "
        "written."
    )
