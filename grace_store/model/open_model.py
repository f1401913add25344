"""The door to the model layer: from a spec to an extractor, once the model was probed for what the spec needs.

A model must see its images, and each sample only its own, padded or packed. Responses that share a prompt are to get
the hidden states of each sample by itself: where they do not (a state that runs through all tokens, positions that
depend on the whole length, prompts that look ahead, a cache of another kind), prompts are not shared and nothing else
changes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grace_store.base.errors import DeviceLost, ModelError, SettingError
from grace_store.base.metadata import SharedImages, Sharing
from grace_store.base.settings import ExtractSpec, RunOptions
from grace_store.base.states import Reason
from grace_store.data.sample import ImageRef, Sample, Turn
from grace_store.model import devices
from grace_store.model.backbone import numbers_named, probe_ids
from grace_store.model.devices import in_words, is_lost, is_out_of_memory, telling
from grace_store.model.inputs.collate import collate, collate_shared
from grace_store.model.inputs.encode_samples import PreparedUnit
from grace_store.model.inputs.tokens import NO_SEGMENT, TokenizedSample
from grace_store.model.inputs.vision import images_apart
from grace_store.model.load.resolve_spec import load_planned, resolve_spec
from grace_store.model.load.weights import LoadedModel
from grace_store.model.shared_pass import VisionTower
from grace_store.model.unit_extractor import ProxyExtractor

if TYPE_CHECKING:
    from grace_store.model.gradients.gradient_extractor import GradientExtractor

__all__ = ["REFERENCE", "ProxyExtractor", "open_extractor", "resolve_spec"]

_LOG = logging.getLogger(__name__)

REFERENCE = "grace_store.model.autograd_check"

Picture = tuple[str, int, int]
"""An image of a colour, width and height."""

TOLERANCE = 1e-4
"""Largest relative difference of a token's hidden state; what is right is a hundredth of it."""
HALF_TOLERANCE = 1e-1
"""The same of a model that runs in half precision."""
_MOST_TOKENS = 2**20
"""Room for all samples of a probe in one pass."""
_LONGEST_RESPONSE = 9
_SHORT: Mapping[int, tuple[int, ...]] = {7: (4, 9, 2), 12: (6, 3)}
_PICTURES: tuple[tuple[Picture, ...], ...] = ((("red", 64, 48),), (("blue", 40, 90), ("green", 72, 50)), ())
_RESPONSES = ("It is a sum. It is known.", "It is not so. What is known is the sum of both of these.")


def open_extractor(
    model: str,
    spec: ExtractSpec,
    options: RunOptions,
    *,
    adapter: str | None = None,
    images: str | Path | None = None,
) -> ProxyExtractor | GradientExtractor:
    """Return an extractor that makes exactly what the spec says; raise if the model is another. images is a folder."""
    described, loaded = load_planned(model, spec, options, adapter)
    with devices.watching(loaded.device):
        extractor = _extractor(loaded, spec, options, adapter, images)
        sees_images = described.processor is not None and not spec.text_only
        _probe_extractor(extractor, loaded, spec, options, images, sees_images=sees_images)
    return extractor


def _probe_extractor(
    extractor: ProxyExtractor | GradientExtractor,
    loaded: LoadedModel,
    spec: ExtractSpec,
    options: RunOptions,
    images: str | Path | None,
    *,
    sees_images: bool,
) -> None:
    """Raise unless the model sees its images, and keeps packed samples apart; have prompts shared if that is right."""
    # Batches large enough to hold all samples of a probe.
    large = spec.model_copy(update={"batch_tokens": 2**20, "packing": False})
    probing = partial(ProxyExtractor, loaded, options=options, head=extractor.head, images=images)
    if sees_images:
        check_sees_images(probing(large))
    if spec.packing:
        packed = probing(large.model_copy(update={"packing": True}))
        check_packing(packed, probing(large), with_images=sees_images)
    if spec.share_prompts and isinstance(extractor, ProxyExtractor):
        longest = loaded.longest(spec.max_length)
        extractor.share_as(probe_sharing(extractor, longest, loaded.device, with_images=sees_images))


def _extractor(
    loaded: LoadedModel, spec: ExtractSpec, options: RunOptions, adapter: str | None, images: str | Path | None
) -> ProxyExtractor | GradientExtractor:
    if spec.gradient is None:
        return ProxyExtractor(loaded, spec, options, images=images)
    from grace_store.model.gradients.gradient_extractor import GradientExtractor
    from grace_store.model.load.adapters import read_adapter

    assert adapter is not None
    return GradientExtractor(loaded, read_adapter(adapter), spec, options, images=images)


# ---------------------------------------------------------------- what a model is probed for


def probe(*pictures: Picture, text: str = "What is known?", response: str = "It is a sum. It is known.") -> Sample:
    """Return a sample with images among its words; the response's first segment are 13 characters."""
    parts: list[str | ImageRef] = []
    for colour, width, height in pictures:
        buffer = BytesIO()
        Image.new("RGB", (width, height), colour).save(buffer, "PNG")
        parts += [ImageRef(buffer.getvalue()), f"What is {width} plus {height}? "]
    return Sample("probe", (Turn("user", tuple(parts) or (text,)),), response, (0, 13, len(response)))


@telling("This model cannot be run on a probe with images; --text-only leaves them out")
def check_sees_images(extractor: ProxyExtractor) -> None:
    """Raise unless hidden states of a batch of differing images are those of each sample alone, and images count."""
    one, other, two = probe(("red", 64, 48)), probe(("white", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))
    verdict = extractor.prepare([one]).set_aside.get(0)
    if verdict is not None and verdict.reason == Reason.TOO_LONG:
        return  # --max-length leaves next to no room for images
    if verdict is not None:
        raise ModelError(f"This model cannot be asked about an image: {verdict.reason}, {verdict.detail}.")
    if torch.equal(_hidden(extractor, [one]), _hidden(extractor, [other])):
        raise ModelError("This model does not see the images it is given. --text-only leaves them out.")
    probes = [each for each in (one, two, probe()) if not extractor.prepare([each]).set_aside]
    together = _hidden(extractor, probes)
    alone = torch.cat([_hidden(extractor, [each]) for each in probes])
    if bool(torch.isfinite(alone).all()) and not _is_close(together, alone):
        raise ModelError(
            "This model gives a sample with images other hidden states in a batch than alone, so its vectors would "
            "depend on their batch-mates. It cannot be used with images; --text-only leaves them out."
        )


def check_packing(packed: ProxyExtractor, padded: ProxyExtractor, *, with_images: bool) -> None:
    """Raise unless hidden states of samples that lie end to end are those of padded ones."""
    pictures = [probe(("red", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))] if with_images else []
    texts = [probe(), probe(text="Tom has 3 apples and buys 4 more. How many are that?"), probe(text="And now?")]
    probes = [each for each in (*texts, *pictures, texts[0]) if not padded.prepare([each]).set_aside]
    with telling("This model cannot be run on a few words"):
        expected = _hidden(padded, probes)
    try:
        found = _hidden(packed, probes)
    except Exception as error:
        raise SettingError(f"This model takes no packed batches ({in_words(error)}). Leave --packing out.") from error
    if not _is_close(found, expected):
        raise SettingError("This model lets packed samples see each other. Leave --packing out.")


def _is_close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    return bool((found.float() - expected.float()).norm() <= tolerance * expected.float().norm())


def _hidden(extractor: ProxyExtractor, probes: list[Sample]) -> Tensor:
    """Return the hidden states that predict the response tokens of all probes, in their order."""
    prepared = extractor.prepare(probes)
    found: dict[int, Tensor] = {}
    for batch in prepared.batches:
        found.update(extractor.states_by_member(batch, prepared))
    return torch.cat([found[member] for member in sorted(found)])


# ---------------------------------------------------------------- sharing prompts and images


Probed = tuple[float | None, str | None]
"""What a probe found: the largest relative difference of a hidden state, if one was measured, and why it does not hold,
if it does not."""


@telling(
    "Whether samples can share prompts cannot be probed here (use a larger or less busy device, or begin a new "
    "--signal with --no-share-prompts)"
)
def probe_sharing(extractor: ProxyExtractor, max_length: int, device: torch.device, *, with_images: bool) -> Sharing:
    """Return whether samples of a model as loaded can share prompts and images."""
    difference, fault = probe_prompts(extractor, max_length, with_images=with_images)
    images, (images_difference, images_fault) = probe_images(extractor, device) if with_images else (None, (None, None))
    return Sharing(
        prompts=fault is None,
        difference=difference,
        fault=fault,
        images=images,
        images_difference=images_difference,
        images_fault=images_fault,
        allowed=_tolerance(extractor),
    )


def probe_prompts(extractor: ProxyExtractor, max_length: int, *, with_images: bool) -> Probed:
    """Return whether samples can share their prompts.

    Several prompts of several responses each are tried, shorter and longer than any window that the model looks back
    at, and with images.
    """
    if not extractor.takes_any_lengths:
        return None, "what it makes of a token depends on the length of the whole sample"
    worst = 0.0
    try:
        for unit in _probes(extractor, max_length, with_images=with_images):
            worst = max(worst, _apart(extractor, unit))
            if not worst <= _tolerance(extractor):
                break
    except Exception as error:
        if _is_of_the_device(error):
            raise
        if isinstance(error, ModelError):
            return None, str(error)
        return None, f"it does not run on responses after the keys and values of a prompt ({in_words(error)})"
    return _judged(extractor, worst, "hidden states of responses")


def probe_images(extractor: ProxyExtractor, device: torch.device) -> tuple[SharedImages | None, Probed]:
    """Return what may go through the vision tower apart from the model's forward: best each image by itself.

    With it comes what was found of that, or of the last that was tried, and why it is not each image.
    """
    unit = _with_pictures(extractor)
    if not any(each.digests for each in unit.images.values()):
        return None, (None, "no sample with an image is short enough to try it")
    one_by_one = _probe_tower(extractor, unit, device, apart=True)
    if (fault := one_by_one[1]) is None:
        return "image", one_by_one
    together = _probe_tower(extractor, unit, device, apart=False)
    if together[1] is None:
        return "sample", (together[0], fault)
    _LOG.info("each batch runs its own images: %s", together[1])
    return None, together


def _probe_tower(extractor: ProxyExtractor, unit: PreparedUnit, device: torch.device, *, apart: bool) -> Probed:
    images = {member: each for member, each in unit.images.items() if each.digests}
    batch = collate(list(images), [unit.tokens[member] for member in images])
    if apart and not all(each.keys for each in images.values()):
        return None, "it is not known which of a sample's inputs belong to which image"
    try:
        tower = VisionTower(extractor.model, device, apart=apart)
        parts = [images_apart(each.inputs(), len(each.told_by(apart=apart))) for each in images.values()]
        with tower.given([tower.run(part) for several in parts for part in several]):
            found = extractor.states_by_member(batch, unit)
    except Exception as error:
        if _is_of_the_device(error):
            raise
        return None, in_words(error)
    worst = max(_distance(found[i], each) for i, each in extractor.states_by_member(batch, unit).items())
    return _judged(extractor, worst, "made apart, hidden states")


def _is_of_the_device(error: Exception) -> bool:
    """Tell whether an error says nothing about the model: the device is lost, or its memory full for now."""
    return isinstance(error, DeviceLost) or is_lost(error) or is_out_of_memory(error)


def _judged(extractor: ProxyExtractor, worst: float, what: str) -> Probed:
    if not worst <= _tolerance(extractor):
        return worst if math.isfinite(worst) else None, f"{what} come out otherwise, by {worst:.0e} of their length"
    return float(f"{worst:.1e}"), None


def _tolerance(extractor: ProxyExtractor) -> float:
    return TOLERANCE if next(extractor.model.parameters()).dtype == torch.float32 else HALF_TOLERANCE


def _probes(extractor: ProxyExtractor, max_length: int, *, with_images: bool) -> Iterator[PreparedUnit]:
    """Yield units of samples to try, each with several prompts."""
    for lengths in _prompt_lengths(extractor.model, max_length):
        yield PreparedUnit(_made_up(extractor.model, lengths))
    if with_images and (unit := _with_pictures(extractor)).tokens:
        yield unit


def _with_pictures(extractor: ProxyExtractor) -> PreparedUnit:
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
            parts = probe_ids(model, prompt + 1, 31 + number), probe_ids(model, response, 7 + len(tokens))
            ids = torch.cat(parts, dim=1)[0].cpu().numpy()
            tokens[len(tokens)] = TokenizedSample(ids, np.where(np.arange(len(ids)) > prompt, 0, NO_SEGMENT), 1)
    return tokens


def _apart(extractor: ProxyExtractor, unit: PreparedUnit) -> float:
    """Return the largest relative difference between hidden states with shared prompts and without."""
    batch = collate_shared(extractor.groups_in(unit), unit.tokens, _MOST_TOKENS)
    worst = 0.0
    for position, found in extractor.states_by_member(batch, unit).items():
        expected = extractor.states_by_member(collate([position], [unit.tokens[position]]), unit)
        worst = max(worst, _distance(found, expected[position]))
    return worst


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest relative difference of a token; infinite if one is not a number."""
    found, expected = found.float(), expected.float()
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max().nan_to_num(torch.inf))
