"""Open a model as an extractor for a spec, after probes of everything that the spec needs.

A model must see its images, and each sample must see only its own images, padded or packed. Responses after a shared
prompt must get the same hidden states as each sample alone. If they do not (a recurrent state, positions that depend on
the whole length, prompts with attention to later tokens, another kind of cache), prompts are not shared. Nothing else
changes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
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
from grace_store.model.inputs.batches import ANY_LENGTHS
from grace_store.model.inputs.collate import collate, collate_shared
from grace_store.model.inputs.encode_samples import PreparedUnit
from grace_store.model.inputs.tokens import NO_SEGMENT, TokenizedSample
from grace_store.model.inputs.vision import images_apart
from grace_store.model.load.resolve_spec import load_planned, resolve_spec
from grace_store.model.shared_pass import VisionTower
from grace_store.model.unit_extractor import ProxyExtractor

if TYPE_CHECKING:
    from grace_store.model.gradients.gradient_extractor import GradientExtractor

__all__ = ["REFERENCE", "ProxyExtractor", "open_extractor", "resolve_spec"]

_LOG = logging.getLogger(__name__)

REFERENCE = "grace_store.model.autograd_check"

Picture = tuple[str, int, int]
"""An image: colour, width and height."""

TOLERANCE = 1e-4
"""Largest relative difference of a token's hidden state. Correct models differ by a hundredth of it."""
HALF_TOLERANCE = 1e-1
"""TOLERANCE for a model in half precision."""
_MOST_TOKENS = 2**20
"""A batch size with room for all samples of a probe."""
_LONGEST_RESPONSE = 9
_SHORT: Mapping[int, tuple[int, ...]] = {7: (4, 9, 2), 12: (6, 3)}
_PICTURES: tuple[tuple[Picture, ...], ...] = ((("red", 64, 48),), (("blue", 40, 90), ("green", 72, 50)), ())
_RESPONSES = ("It is a sum. It is known.", "It is not so. What is known is the sum of both of these.")


def open_extractor(
    model: str, spec: ExtractSpec, options: RunOptions, *, adapter: str | None = None, images: str | Path | None = None
) -> ProxyExtractor | GradientExtractor:
    """Return an extractor for exactly this spec; raise if the spec describes another model. images is a folder."""
    described, loaded = load_planned(model, spec, options, adapter)
    with devices.watching(loaded.device):
        extractor: ProxyExtractor | GradientExtractor
        if spec.gradient is None:
            extractor = ProxyExtractor(loaded, spec, options, images=images)
        else:
            from grace_store.model.gradients.gradient_extractor import GradientExtractor
            from grace_store.model.load.adapters import read_adapter

            assert adapter is not None
            extractor = GradientExtractor(loaded, read_adapter(adapter), spec, options, images=images)
        sees_images = described.processor is not None and not spec.text_only
        large = spec.model_copy(update={"batch_tokens": _MOST_TOKENS, "packing": False})
        probing = partial(ProxyExtractor, loaded, options=options, head=extractor.head, images=images)
        if sees_images:
            check_sees_images(probing(large))
        if spec.packing:
            check_packing(probing(large.model_copy(update={"packing": True})), probing(large), with_images=sees_images)
        if spec.share_prompts and isinstance(extractor, ProxyExtractor):
            longest = loaded.longest(spec.max_length)
            extractor.share_as(probe_sharing(extractor, longest, loaded.device, with_images=sees_images))
    return extractor


def probe(*pictures: Picture, text: str = "What is known?", response: str = "It is a sum. It is known.") -> Sample:
    """Return a sample with images between its words; the first segment of the response has 13 characters."""
    parts: list[str | ImageRef] = []
    for colour, width, height in pictures:
        buffer = BytesIO()
        Image.new("RGB", (width, height), colour).save(buffer, "PNG")
        parts += [ImageRef(buffer.getvalue()), f"What is {width} plus {height}? "]
    return Sample("probe", (Turn("user", tuple(parts) or (text,)),), response, (0, 13, len(response)))


@telling("This model fails on a probe with images (use --text-only to leave images out)")
def check_sees_images(extractor: ProxyExtractor) -> None:
    """Raise unless images change hidden states, and hidden states in a batch equal those of each sample alone."""
    one, other, two = probe(("red", 64, 48)), probe(("white", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))
    set_aside = extractor.prepare([one]).set_aside.get(0)
    if set_aside is not None and set_aside.reason == Reason.TOO_LONG:
        return  # --max-length has almost no room for images
    if set_aside is not None:
        raise ModelError(f"This model cannot be used with images: {set_aside.reason}, {set_aside.detail}.")
    if torch.equal(_hidden(extractor, [one]), _hidden(extractor, [other])):
        raise ModelError("This model ignores its images. Use --text-only to leave images out.")
    probes = [each for each in (one, two, probe()) if not extractor.prepare([each]).set_aside]
    together = _hidden(extractor, probes)
    alone = torch.cat([_hidden(extractor, [each]) for each in probes])
    if bool(torch.isfinite(alone).all()) and not _is_close(together, alone):
        raise ModelError(
            "The hidden states of a sample with images differ between a batch and a run of this sample alone. Its "
            "vectors would depend on the other samples in the batch. Use --text-only to leave images out."
        )


def check_packing(packed: ProxyExtractor, padded: ProxyExtractor, *, with_images: bool) -> None:
    """Raise unless packed samples have the same hidden states as padded samples."""
    pictures = [probe(("red", 64, 48)), probe(("blue", 40, 90), ("green", 72, 50))] if with_images else []
    texts = [probe(), probe(text="Tom has 3 apples and buys 4 more. How many are that?"), probe(text="And now?")]
    probes = [each for each in (*texts, *pictures, texts[0]) if not padded.prepare([each]).set_aside]
    with telling("This model fails on a few words"):
        expected = _hidden(padded, probes)
    try:
        found = _hidden(packed, probes)
    except Exception as error:
        raise SettingError(f"This model cannot run packed batches ({in_words(error)}). Leave --packing out.") from error
    if not _is_close(found, expected):
        raise SettingError("This model lets packed samples see each other. Leave --packing out.")


def _is_close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-3 if expected.dtype == torch.float32 else 5e-2
    return bool((found.float() - expected.float()).norm() <= tolerance * expected.float().norm())


def _hidden(extractor: ProxyExtractor, probes: list[Sample]) -> Tensor:
    """Return the hidden states that predict the response tokens of all probes, in the probes' order."""
    prepared = extractor.prepare(probes)
    found: dict[int, Tensor] = {}
    for batch in prepared.batches:
        found.update(extractor.states_by_member(batch, prepared))
    return torch.cat([found[member] for member in sorted(found)])


Probed = tuple[float | None, str | None]
"""The result of a probe: the largest relative difference of a hidden state (None if none was measured), and the fault
(None if the probe holds)."""


@telling(
    "The probe of shared prompts cannot run here (use a larger or less busy device, or begin a new --signal with "
    "--no-share-prompts)"
)
def probe_sharing(extractor: ProxyExtractor, max_length: int, device: torch.device, *, with_images: bool) -> Sharing:
    """Return whether samples can share prompts and images in this model."""
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

    The probe has several prompts with several responses each: shorter and longer than every attention window of the
    model that a sample can exceed, and with images.
    """
    if extractor.length_rule != ANY_LENGTHS:
        return None, "the model's hidden states depend on the length of the whole sample"
    worst = 0.0
    try:
        most = max_length - _LONGEST_RESPONSE
        windows = {each for each in numbers_named(extractor.model, ("window", "chunk")) if 4 < each < most - 3}
        around_windows = [{window - 2: (9, 2), window + 3: (3, 6)} for window in sorted(windows)]
        units = [PreparedUnit(_made_up(extractor.model, lengths)) for lengths in (_SHORT, *around_windows)]
        if with_images and (unit := _with_pictures(extractor)).tokens:
            units.append(unit)
        for unit in units:
            batch = collate_shared(extractor.groups_in(unit), unit.tokens, _MOST_TOKENS)
            for position, found in extractor.states_by_member(batch, unit).items():
                expected = extractor.states_by_member(collate([position], [unit.tokens[position]]), unit)
                worst = max(worst, _distance(found, expected[position]))
            if not worst <= _tolerance(extractor):
                break
    except Exception as error:
        if _is_of_the_device(error):
            raise
        if isinstance(error, ModelError):
            return None, str(error)
        return None, f"the model cannot run responses after the keys and values of a prompt ({in_words(error)})"
    return _judged(extractor, worst, "hidden states of responses")


def probe_images(extractor: ProxyExtractor, device: torch.device) -> tuple[SharedImages | None, Probed]:
    """Return whether the vision tower can run outside the model's forward: per image, per sample, or not at all.

    The second value has the difference of the chosen way and the fault of running each image alone.
    """
    unit = _with_pictures(extractor)
    if not any(each.digests for each in unit.images.values()):
        return None, (None, "no sample with an image is short enough for the probe")
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
        return None, "a sample's inputs cannot be assigned to its images"
    try:
        tower = VisionTower(extractor.model, device, apart=apart)
        parts = [images_apart(each.inputs(), len(each.image_keys(apart=apart))) for each in images.values()]
        with tower.given([tower.run(part) for several in parts for part in several]):
            found = extractor.states_by_member(batch, unit)
    except Exception as error:
        if _is_of_the_device(error):
            raise
        return None, in_words(error)
    worst = max(_distance(found[i], each) for i, each in extractor.states_by_member(batch, unit).items())
    return _judged(extractor, worst, "hidden states with separate image features")


def _is_of_the_device(error: Exception) -> bool:
    """Tell whether an error comes from the device and not from the model: the device is lost, or its memory is full."""
    return isinstance(error, DeviceLost) or is_lost(error) or is_out_of_memory(error)


def _judged(extractor: ProxyExtractor, worst: float, what: str) -> Probed:
    if not worst <= _tolerance(extractor):
        return worst if math.isfinite(worst) else None, f"{what} differ by {worst:.0e} of their norm"
    return float(f"{worst:.1e}"), None


def _tolerance(extractor: ProxyExtractor) -> float:
    return TOLERANCE if next(extractor.model.parameters()).dtype == torch.float32 else HALF_TOLERANCE


def _with_pictures(extractor: ProxyExtractor) -> PreparedUnit:
    return extractor.reader.read([probe(*each, response=text) for each in _PICTURES for text in _RESPONSES])


def _made_up(model: Any, lengths: Mapping[int, tuple[int, ...]]) -> dict[int, TokenizedSample]:
    """Return samples with prompts and responses of some lengths; a prompt has one token more than its length."""
    tokens: dict[int, TokenizedSample] = {}
    for number, (prompt, responses) in enumerate(lengths.items()):
        for response in responses:
            parts = probe_ids(model, prompt + 1, 31 + number), probe_ids(model, response, 7 + len(tokens))
            ids = torch.cat(parts, dim=1)[0].cpu().numpy()
            tokens[len(tokens)] = TokenizedSample(ids, np.where(np.arange(len(ids)) > prompt, 0, NO_SEGMENT), 1)
    return tokens


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return the largest relative difference of a token's hidden state; infinite if a value is NaN."""
    found, expected = found.float(), expected.float()
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max().nan_to_num(torch.inf))
