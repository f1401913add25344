"""Does a model, as loaded, give responses that share a prompt the hidden states of each sample by itself?

Asked before any work. Where it does not (a state that runs through all tokens, positions that depend on the whole
length, prompts that look ahead, a cache of another kind), prompts are not shared and nothing else changes.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from grace_store.base.errors import DeviceLost, ModelError
from grace_store.base.metadata import SharedImages, Sharing
from grace_store.model.devices import in_words, is_lost, is_out_of_memory, telling
from grace_store.model.head.own_forward import trial_ids
from grace_store.model.image_features import VisionTower
from grace_store.model.inputs.batches import form_passes
from grace_store.model.inputs.collate import collate, collate_shared
from grace_store.model.inputs.prompt_groups import prompt_lengths
from grace_store.model.inputs.reading import ReadUnit
from grace_store.model.inputs.tokens import NO_SEGMENT, TokenizedSample
from grace_store.model.inputs.vision import images_apart
from grace_store.model.load.length_probe import numbers_named
from grace_store.model.load.probes import Picture, probe
from grace_store.model.proxy import ProxyExtractor

_LOG = logging.getLogger(__name__)

TOLERANCE = 1e-4
"""Largest relative difference of a token's hidden state; what is right is a hundredth of it."""
HALF_TOLERANCE = 1e-1
"""The same of a model that runs in half precision."""
_MOST_TOKENS = 2**20
"""Room for all samples of a trial in one pass."""
_LONGEST_RESPONSE = 9
_SHORT: Mapping[int, tuple[int, ...]] = {7: (4, 9, 2), 12: (6, 3)}
_PICTURES: tuple[tuple[Picture, ...], ...] = ((("red", 64, 48),), (("blue", 40, 90), ("green", 72, 50)), ())
_RESPONSES = ("It is a sum. It is known.", "It is not so. What is known is the sum of both of these.")


class Tried(NamedTuple):
    """What a trial found."""

    difference: float | None = None
    """Largest relative difference of a hidden state; None if none was measured."""
    fault: str | None = None
    """Why it does not hold; None if it does."""


@telling(
    "Whether samples can share prompts cannot be tried here (use a larger or less busy device, or begin a new --signal "
    "with --no-share-prompts)"
)
def try_sharing(extractor: ProxyExtractor, max_length: int, device: torch.device, *, with_images: bool) -> Sharing:
    """Return whether samples of a model as loaded can share prompts and images."""
    prompts = try_prompts(extractor, max_length, with_images=with_images)
    shared, images = try_images(extractor, device) if with_images else (None, Tried())
    return Sharing(
        prompts=prompts.fault is None,
        difference=prompts.difference,
        fault=prompts.fault,
        images=shared,
        images_difference=images.difference,
        images_fault=images.fault,
        allowed=_tolerance(extractor),
    )


def try_prompts(extractor: ProxyExtractor, max_length: int, *, with_images: bool) -> Tried:
    """Return whether samples can share their prompts.

    Several prompts of several responses each are tried, shorter and longer than any window that the model looks back
    at, and with images.
    """
    if not extractor.takes_any_lengths:
        return Tried(fault="what it makes of a token depends on the length of the whole sample")
    worst = 0.0
    try:
        for unit in _trials(extractor, max_length, with_images=with_images):
            worst = max(worst, _apart(extractor, unit))
            if not worst <= _tolerance(extractor):
                break
    except Exception as error:
        if _is_of_the_device(error):
            raise
        if isinstance(error, ModelError):
            return Tried(fault=str(error))
        return Tried(fault=f"it does not run on responses after the keys and values of a prompt ({in_words(error)})")
    return _judged(extractor, worst, "hidden states of responses")


def try_images(extractor: ProxyExtractor, device: torch.device) -> tuple[SharedImages | None, Tried]:
    """Return what may go through the vision tower apart from the model's forward: best each image by itself.

    With it comes what was found of that, or of the last that was tried, and why it is not each image.
    """
    unit = _with_pictures(extractor)
    if not any(each.digests for each in unit.images.values()):
        return None, Tried(fault="no sample with an image is short enough to try it")
    one_by_one = _try_tower(extractor, unit, device, apart=True)
    if one_by_one.fault is None:
        return "image", one_by_one
    together = _try_tower(extractor, unit, device, apart=False)
    if together.fault is None:
        return "sample", Tried(together.difference, one_by_one.fault)
    _LOG.info("each batch runs its own images: %s", together.fault)
    return None, together


def _try_tower(extractor: ProxyExtractor, unit: ReadUnit, device: torch.device, *, apart: bool) -> Tried:
    images = {member: each for member, each in unit.images.items() if each.digests}
    batch = collate(list(images), [unit.tokens[member] for member in images])
    if apart and not all(each.keys for each in images.values()):
        return Tried(fault="it is not known which of a sample's inputs belong to which image")
    try:
        tower = VisionTower(extractor.model, device, apart=apart)
        parts = [images_apart(each.inputs(), len(each.told_by(apart=apart))) for each in images.values()]
        with tower.given([tower.run(part) for several in parts for part in several]):
            found = extractor.states_by_member(batch, unit)
    except Exception as error:
        if _is_of_the_device(error):
            raise
        return Tried(fault=in_words(error))
    worst = max(_distance(found[i], each) for i, each in extractor.states_by_member(batch, unit).items())
    return _judged(extractor, worst, "made apart, hidden states")


def _is_of_the_device(error: Exception) -> bool:
    """Tell whether an error says nothing about the model: the device is lost, or its memory full for now."""
    return isinstance(error, DeviceLost) or is_lost(error) or is_out_of_memory(error)


def _judged(extractor: ProxyExtractor, worst: float, what: str) -> Tried:
    if not worst <= _tolerance(extractor):
        return Tried(
            worst if math.isfinite(worst) else None, f"{what} come out otherwise, by {worst:.0e} of their length"
        )
    return Tried(float(f"{worst:.1e}"))


def _tolerance(extractor: ProxyExtractor) -> float:
    return TOLERANCE if next(extractor.model.parameters()).dtype == torch.float32 else HALF_TOLERANCE


def _trials(extractor: ProxyExtractor, max_length: int, *, with_images: bool) -> Iterator[ReadUnit]:
    """Yield units of samples to try, each with several prompts."""
    for lengths in _prompt_lengths(extractor.model, max_length):
        yield ReadUnit(_made_up(extractor.model, lengths))
    if with_images and (unit := _with_pictures(extractor)).tokens:
        yield unit


def _with_pictures(extractor: ProxyExtractor) -> ReadUnit:
    return extractor.reader.read([probe(*each, response=text) for each in _PICTURES for text in _RESPONSES])


def _prompt_lengths(model: Any, max_length: int) -> list[Mapping[int, tuple[int, ...]]]:
    """Return lengths of prompts, each with those of its responses: below and above every window.

    A window that no sample is as long as need not be tried.
    """
    most = max_length - _LONGEST_RESPONSE
    windows = sorted({number for number in numbers_named(model, ("window", "chunk")) if 4 < number < most - 3})
    return [_SHORT, *({window - 2: (9, 2), window + 3: (3, 6)} for window in windows)]


def _made_up(model: Any, lengths: Mapping[int, tuple[int, ...]]) -> dict[int, TokenizedSample]:
    """Return samples of prompts and responses of some lengths, the last token of a prompt not counted."""
    tokens: dict[int, TokenizedSample] = {}
    for number, (prompt, responses) in enumerate(lengths.items()):
        for response in responses:
            parts = trial_ids(model, prompt + 1, 31 + number), trial_ids(model, response, 7 + len(tokens))
            ids = torch.cat(parts, dim=1)[0].cpu().numpy()
            tokens[len(tokens)] = TokenizedSample(ids, np.where(np.arange(len(ids)) > prompt, 0, NO_SEGMENT), 1)
    return tokens


def _apart(extractor: ProxyExtractor, unit: ReadUnit) -> float:
    """Return the largest relative difference between hidden states with shared prompts and without."""
    formed = form_passes(extractor.groups_in(unit), prompt_lengths(unit.tokens), _MOST_TOKENS)
    worst = 0.0
    for position, found in extractor.states_by_member(collate_shared(formed, unit.tokens), unit).items():
        expected = extractor.states_by_member(collate([position], [unit.tokens[position]]), unit)
        worst = max(worst, _distance(found, expected[position]))
    return worst


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest relative difference of a token; infinite if one is not a number."""
    found, expected = found.float(), expected.float()
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max().nan_to_num(torch.inf))
