"""A pool of samples as points: their descriptors, in the order of the plan."""

from dataclasses import dataclass
from typing import cast

from grace_store.base.arrays import Float32Array, IntArray, Places, Positions, find_rows
from grace_store.base.errors import DataError
from grace_store.base.events import Listener, Note, ignore
from grace_store.base.text import counted
from grace_store.likeness.points import Descriptor
from grace_store.pool.descriptors import Descriptions, describe_samples
from grace_store.pool.pool import Pool
from grace_store.scoring.notes import PointsNote
from grace_store.scoring.score_table import ScoreTable
from grace_store.store.opened import Store


@dataclass(frozen=True, slots=True)
class VectorPool:
    """Samples of one signal in the order of the plan, each with a vector of length 1 or of zeros."""

    store: Store
    described: Descriptions

    @property
    def vector(self) -> Float32Array:
        return cast(Float32Array, self.described.vector)

    @property
    def note(self) -> PointsNote:
        """Which vectors these are."""
        return PointsNote(**self.described.made_by)

    def __len__(self) -> int:
        return len(self.described)

    def places_of(self, row: IntArray, what: str) -> Places:
        """Return where the samples with these dataset rows stand in the pool; all must be there."""
        place, is_there = find_rows(self.described.row, row)
        if not is_there.all():
            raise DataError(
                f"{int((~is_there).sum())} of the {len(row)} samples of {what} have no vector in signal "
                f"{self.note.signal.name!r} of {self.store.location}. Name another --signal, or extract them."
            )
        return Places(place)


def open_vectors(
    pool: Pool,
    descriptor: Descriptor | None,
    scores: ScoreTable | None = None,
    *,
    samples: Positions | None = None,
    listener: Listener = ignore,
) -> VectorPool:
    """Describe all done samples of a pool, or some (positions in the plan). The descriptor weighted needs scores."""
    weights = scores.with_steps() if descriptor == "weighted" and scores is not None else None
    num_samples = len(pool.positions) if samples is None else len(samples)
    listener(Note(f"Reading the vectors of {counted(num_samples, 'sample')}, signal {pool.signal.name}."))
    found = describe_samples(pool, descriptor, scores=weights, samples=samples, listener=listener)
    return VectorPool(pool.store, found)
