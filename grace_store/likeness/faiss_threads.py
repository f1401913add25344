"""How many threads faiss and its BLAS may use, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import faiss


@contextmanager
def faiss_threads(count: int) -> Iterator[None]:
    """Let the calls of this thread use so many; afterwards it is as before."""
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)
