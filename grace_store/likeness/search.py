"""Find all pairs of points whose cosine reaches a floor: exactly for few points, by cells for many.

Knows vectors of length 1 and their numbers, no samples. At most the vectors, rounded, and a few blocks are held. The
result does not depend on the number of threads.
"""

from __future__ import annotations

from importlib.metadata import distributions

import faiss
import numpy as np

from grace_store.base.events import Listener, Warned, ignore
from grace_store.base.settings import default_threads
from grace_store.likeness.cell_search import CellSearch, Workers
from grace_store.likeness.clusters import faiss_threads
from grace_store.likeness.index_search import IndexSearch
from grace_store.likeness.search_base import Found, IndexPlan, Kind, Searching
from grace_store.likeness.vector_sources import VectorSource

BUILDS = ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12")
FLAT_WORK = 1e12
"""Most products of numbers for which every point is compared with every other."""
GPU_FLAT_WORK = 2e15
LEAST_PROBED = 16
"""Half of it found all pairs from a cosine of 0.9 up among random vectors in 1024 cells, which is the hardest case."""
FLOAT_BYTES = 1 << 29
"""On GPUs, cells above this size keep 8 bits for each number instead of 32."""


def plan_index(num_points: int, size: int, *, num_gpus: int = 0) -> IndexPlan:
    """Return how that many points, each of that many numbers, are searched.

    >>> plan_index(20_000, 2048)
    IndexPlan(kind='flat', num_cells=0, num_probed=0)
    >>> plan_index(200_000, 2048)
    IndexPlan(kind='cells', num_cells=1024, num_probed=16)
    """
    if num_points**2 * size <= (GPU_FLAT_WORK if num_gpus else FLAT_WORK):
        return IndexPlan("flat")
    num_cells = 1 << round(np.log2(2 * np.sqrt(num_points)))
    on_gpus: Kind = "ivf" if num_points * size * 4 <= FLOAT_BYTES else "ivf-sq8"
    return IndexPlan(on_gpus if num_gpus else "cells", num_cells, min(num_cells, max(LEAST_PROBED, num_cells // 64)))


def installed_builds() -> list[str]:
    """Return the packages that bring the module faiss."""
    return [name for name in BUILDS if any(distributions(name=name))]


def num_gpus() -> int:
    """Return how many GPUs faiss may use; none unless it was built for them."""
    return int(getattr(faiss, "get_num_gpus", lambda: 0)())


def similar_pairs(
    source: VectorSource,
    floor: float,
    *,
    plan: IndexPlan | None = None,
    threads: int | None = None,
    workers: Workers | None = None,
    seed: int = 0,
    listener: Listener = ignore,
) -> Found:
    """Return the pairs of points with a cosine of at least floor, thinned out to their forest.

    Cells are searched by the workers, or by threads here; all else is done here.
    """
    if len(builds := installed_builds()) > 1:
        listener(
            Warned(
                f"{' and '.join(builds)} are both installed, under one name: which of them runs depends on which came "
                "last. Uninstall both, then install the one you want."
            )
        )
    gpus = num_gpus()
    plan = plan or plan_index(source.num_points, source.size, num_gpus=gpus)
    threads = threads or default_threads()
    given = source, floor, plan, seed, listener
    searching: Searching
    searching = CellSearch(*given, workers, threads) if plan.kind == "cells" else IndexSearch(*given, gpus)
    with faiss_threads(threads):
        searching.fill()
        searching.search()
        return searching.found()
