"""The samples of a store nearest to one of them, or to a trace that is not in it; or those least aligned with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grace_store.artifacts.filtered_scores import keep_samples
from grace_store.artifacts.made_from import check_plan_of
from grace_store.artifacts.score_table import ScoreTable
from grace_store.base.arrays import Float32Array
from grace_store.base.errors import DataError, SettingError, Unfinished
from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.text import counted
from grace_store.likeness.nearest import Nearest
from grace_store.likeness.points import Descriptor
from grace_store.read.descriptors import DescriptionReader, DescriptorSpec
from grace_store.store.opened import Store, StoreLike


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A sample and how it is aligned with the one asked for."""

    sample_id: str
    row: int
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighboursRequest:
    """How many are looked for, and by what."""

    count: int = 10
    least: bool = False
    """The least aligned ones instead."""
    signal: str | None = None
    descriptor: Descriptor | None = None
    scores: ScoreTable | None = None
    """Step scores, for the descriptor weighted."""
    dimension: int | None = None
    seed: int | None = None
    partial: bool = False
    where: str | None = None
    """Look only among what this keeps: a condition in SQL over fields of the records, id, row and num_steps, and with
    scores num_tokens, value and flags."""
    data: Sequence[str] | None = None
    """Where the dataset is now, if it moved; only where reads it."""


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
    if scores is not None and request.descriptor != "weighted":
        raise SettingError("scores are for the descriptor weighted, which weighs steps by them: leave --scores out")
    if request.seed is not None and request.descriptor != "projected":
        raise SettingError("a seed is for the random projection of the descriptor projected: leave --seed out")
    opened = store if isinstance(store, Store) else Store.open(store)
    if scores is not None:
        check_plan_of(scores.note, opened, scores.what)
    view = opened.signal(request.signal if scores is None else scores.signal_named(request.signal))
    spec = DescriptorSpec(view.name, request.descriptor, request.dimension, request.seed or 0)
    reader = DescriptionReader.of(opened, spec, scores=scores, partial=request.partial, threads=threads)
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
    points = points[there]
    ids, rows = opened.column("sample_id"), opened.column("sample_row")
    found = [
        Neighbour(str(ids[point]), int(rows[point]), float(cosine))
        for point, cosine in zip(points.tolist(), cosines[there].tolist(), strict=True)
    ]
    return Neighbours(name, view.name, reader.made_by["descriptor"], least, found)


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
