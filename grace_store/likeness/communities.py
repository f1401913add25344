"""Communities of a graph by Leiden's algorithm. The only importer of igraph and leidenalg."""

from collections.abc import Sequence

import numpy as np

from grace_store.base.arrays import IntArray


def find_communities(num_nodes: int, edges: Sequence[tuple[int, int]], seed: int = 0) -> IntArray:
    """Return the community of every node, numbered from 0 by first nodes; a seed always gives the same communities.

    >>> find_communities(5, [(0, 3), (3, 4), (0, 4), (1, 2)])
    array([0, 1, 1, 0, 0])
    """
    import igraph
    import leidenalg

    found = leidenalg.find_partition(
        igraph.Graph(n=num_nodes, edges=list(edges)),
        leidenalg.RBConfigurationVertexPartition,
        resolution_parameter=1.0,  # Newman's modularity
        n_iterations=-1,  # until nothing improves
        seed=seed,
    )
    numbers: dict[int, int] = {}
    return np.array([numbers.setdefault(each, len(numbers)) for each in found.membership], dtype=np.int64)
