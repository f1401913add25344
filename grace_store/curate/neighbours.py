"""The samples of a store nearest to one of them, or to a trace that is not in it; or those least aligned with it."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.filtered_scores import keep_samples
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import Float32Array
from grace_store.base.errors import DataError, SettingError, Unfinished
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.text import counted
from grace_store.likeness.duplicate_groups import DEFAULT_THRESHOLD
from grace_store.likeness.nearest import Nearest
from grace_store.likeness.points import Descriptor
from grace_store.read.descriptors import DescriptionReader, DescriptorSpec
from grace_store.read.samples import StoredSample, samples_at
from grace_store.store.opened import Store, StoreLike
from grace_store.values.methods.grace import score_grams
from grace_store.values.score_spec import ScoreSpec


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A sample as people know it."""

    sample_id: str
    row: int
    value: float | None
    """By the table of scores, or else GRACE's with its defaults; None if there is none."""
    prompt: str | None
    """None, as the answer, if the dataset is out of reach."""
    answer: str | None


@dataclass(frozen=True, slots=True)
class Neighbour(ShownSample):
    """A sample and how it is aligned with the one asked for."""

    cosine: float


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The samples nearest to one, the nearest first; or the least aligned ones, the least first."""

    sample_id: str | None
    """The one asked for; None for a trace that is not in the store."""
    signal: str
    descriptor: str
    least: bool
    neighbours: list[Neighbour]
    asked: ShownSample | None
    """The one asked for, with its value and text; None likewise."""
    missing_text: str | None
    """Why there are no texts, if there are none."""

    @property
    def conclusion(self) -> str:
        """What the neighbours say, in a sentence or two."""
        if not self.neighbours:
            return "No other sample can be compared with it."
        told = (_least(self.neighbours) if self.least else _nearest(self.neighbours), _questions(self), _values(self))
        return " ".join(each for each in told if each)


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighboursRequest:
    """How many are looked for, and by what."""

    count: int = 10
    least: bool = False
    """The least aligned ones instead."""
    signal: str | None = None
    descriptor: Descriptor | None = None
    scores: ScoreTable | None = None
    """Values to show, and step scores for the descriptor weighted; without them, values are GRACE's by its defaults."""
    dimension: int | None = None
    seed: int | None = None
    partial: bool = False
    where: str | None = None
    """Look only among what this keeps: a condition in SQL over fields of the records, id, row and num_steps, and with
    scores num_tokens, value and flags."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved: where and texts are read from it."""


def neighbours(
    store: StoreLike,
    sample: str | Float32Array,
    request: NeighboursRequest | None = None,
    *,
    threads: int | None = None,
    listener: Listener = ignore,
) -> Neighbours:
    """Return the samples with the largest cosine to a sample (its id, or #ROW), or with the smallest.

    Instead of a sample, the vectors of any trace may be given: (K+1, d), the answer last, from the signal's own model.
    Every done sample is compared, exactly; one whose descriptor is zero is left out.
    """
    request = request or NeighboursRequest()
    count, least, scores = request.count, request.least, request.scores
    if count < 1:
        raise SettingError(f"count {count} is below 1")
    if request.seed is not None and request.descriptor != "projected":
        raise SettingError("a seed is for the random projection of the descriptor projected: leave --seed out")
    opened = store if isinstance(store, Store) else Store.open(store)
    if scores is not None:
        check_plan_of(scores.note, opened, scores.what)
    view = opened.signal(request.signal if scores is None else scores.signal_named(request.signal))
    spec = DescriptorSpec(view.name, request.descriptor, request.dimension, request.seed or 0)
    weights = scores if request.descriptor == "weighted" else None
    reader = DescriptionReader.of(opened, spec, scores=weights, partial=request.partial, threads=threads)
    if isinstance(sample, str):
        place = opened.find(sample)
        query, name = _descriptor_of(reader, place), str(opened.column("sample_id", place, place + 1)[0])
    else:
        place, name = -1, None
        query = _descriptor_of_trace(reader, sample)
    kept = keep_samples(opened, request.where, scores, request.data)
    nearest = Nearest(query, count, least=least)
    for block in reader.blocks():
        some = ~block.is_zero if kept is None else ~block.is_zero & kept.is_kept[block.sample]
        nearest.add(block.sample[some], block.vector[some], np.array([place]))
    points, cosines = (each[0] for each in nearest.found())
    there = points >= 0
    if not there.all() or len(points) < count:
        listener(Warned(f"Only {counted(int(there.sum()), 'other sample')} can be compared with."))
    places = [*([place] if place >= 0 else []), *points[there].tolist()]
    shown, missing_text = _shown(samples_at(view, places, request.data), scores, has_steps=not view.per_sample)
    asked = shown.pop(0) if place >= 0 else None
    found = [
        Neighbour(**asdict(each), cosine=cosine) for each, cosine in zip(shown, cosines[there].tolist(), strict=True)
    ]
    return Neighbours(name, view.name, reader.made_by["descriptor"], least, found, asked, missing_text)


def _shown(
    samples: Sequence[StoredSample], scores: ScoreTable | None, *, has_steps: bool
) -> tuple[list[ShownSample], str | None]:
    """Return samples with values and texts, and why there are no texts if there are none."""
    values = np.full(len(samples), np.nan)
    if scores is not None:
        values = scores.values_of(np.array([each.row for each in samples], dtype=np.int64))
    elif has_steps and samples:
        values = score_grams([each.gram for each in samples], [each.num_tokens for each in samples], ScoreSpec()).value
    texts: list[tuple[str | None, str | None]] = [(None, None)] * len(samples)
    missing_text = None
    try:
        texts = [(each.prompt, each.segments[-1].strip()) for each in samples]
    except (DataError, OSError) as error:
        missing_text = str(error)
    known = zip(samples, values.tolist(), texts, strict=True)
    return [
        ShownSample(each.sample_id, each.row, value if math.isfinite(value) else None, *text)
        for each, value, text in known
    ], missing_text


def read_vectors(path: str | Path) -> Float32Array:
    """Read the vectors of one trace from a .npy file: (K+1, d) numbers, the answer last. No pickles."""
    try:
        vectors = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{path} is not there; --vectors takes an array in the .npy format.") from None
    except (OSError, ValueError, EOFError) as error:
        # For a file that is not its own, numpy says how to read pickles, which nobody should.
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        raise DataError(
            f"{path} cannot be read as an array of numbers in the .npy format{why}; `numpy.save` writes one."
        ) from None
    if not isinstance(vectors, np.ndarray) or vectors.dtype.kind not in "fiu":
        raise DataError(f"{path} does not hold one array of numbers.")
    return vectors.astype(np.float32)


def _descriptor_of(reader: DescriptionReader, place: int) -> Float32Array:
    unit = reader.store.plan.unit_of(place)
    if unit not in reader.units:
        raise Unfinished(
            f"{reader.store.location}: the sample is in unit {unit} of {reader.view.name}, which is not done yet. "
            "Run `grace-store extract` again to finish it."
        )
    block = reader.read(unit)
    found = np.flatnonzero(block.sample == place)
    if not len(found):
        state = reader.view.state(place)
        raise DataError(f"The sample has no vectors in signal {reader.view.name!r}: it was set aside ({state}).")
    if block.is_zero[found[0]]:
        raise DataError("The sample's descriptor is zero: no other sample is nearer to it than any other.")
    return np.asarray(block.vector[found], dtype=np.float32)


def _descriptor_of_trace(reader: DescriptionReader, vectors: Float32Array) -> Float32Array:
    size, per_sample = reader.view.vector_size, reader.view.per_sample
    wanted = f"(1, {size}), the trace's own" if per_sample else f"(K+1, {size}), the answer's last"
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != size or (len(vectors) != 1 if per_sample else len(vectors) < 2):
        raise DataError(
            f"The vectors have shape {vectors.shape}; signal {reader.view.name!r} of {reader.store.location} has "
            f"vectors {wanted}."
        )
    if not np.isfinite(vectors).all():
        raise DataError("The vectors hold numbers that are not finite.")
    described = reader.describe_trace(vectors)
    if described.is_zero[0]:
        raise DataError("The vectors make a descriptor of zeros: no sample is nearer to it than any other.")
    return described.vector


# ---------------------------------------------------------------- what it means


def _nearest(found: Sequence[Neighbour]) -> str:
    first = f"{found[0].sample_id} ({found[0].cosine:.4f})"
    num_same = sum(each.cosine >= DEFAULT_THRESHOLD for each in found)
    if not num_same:
        return f"No trace is nearly the same ({DEFAULT_THRESHOLD} or more): the nearest is {first}."
    are = "is" if num_same == 1 else f"and {counted(num_same - 1, 'other')} of the {len(found)} shown are"
    return f"The nearest trace, {first}, {are} nearly the same: `grace-store duplicates` finds all such samples."


def _least(found: Sequence[Neighbour]) -> str:
    first = f"{found[0].sample_id} ({found[0].cosine:.4f})"
    num_against = sum(each.cosine < 0 for each in found)
    if not num_against:
        return f"No trace pulls the other way: the least aligned is {first}."
    if num_against == 1:
        return f"One trace pulls the other way: {first}."
    many = f"All {len(found)}" if num_against == len(found) else f"{num_against} of the {len(found)}"
    return f"{many} shown pull the other way, {first} the most."


def _questions(found: Neighbours) -> str:
    if found.asked is None or found.asked.prompt is None:
        return ""
    num_same = sum(each.prompt == found.asked.prompt for each in found.neighbours)
    verb = "answers" if num_same == 1 else "answer"
    return f"{num_same} of the {len(found.neighbours)} {verb} the same question." if num_same else ""


def _values(found: Neighbours) -> str:
    values = [each.value for each in found.neighbours if each.value is not None]
    if not values:
        return ""
    low, high = f"{min(values):.4f}", f"{max(values):.4f}"
    theirs = f"Values of those shown: {low} to {high}" if len(values) > 1 else f"Its value is {low}"
    mine = found.asked.value if found.asked is not None else None
    own = "" if mine is None else f"; that of {found.sample_id} is {mine:.4f}"
    return f"{theirs}{own}."
