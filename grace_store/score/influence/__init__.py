"""Influence of pool samples on target subtasks: LESS, ICONS and a reconstruction of CADC. numpy only.

A checkpoint gives one projected gradient for every sample of the pool and of the target set. What is common is in
directions; each method has a module that says what it makes of the products.
"""

from grace_store.score.influence.cadc import (
    capability_directions,
    joined_pairs,
    self_influence_slopes,
    trajectories,
)
from grace_store.score.influence.directions import (
    ROWS_AT_ONCE,
    SubtaskMeans,
    combine_checkpoints,
    products,
    unit_vectors,
)
from grace_store.score.influence.icons import count_votes, icons_values, mean_rank_shares, vote_thresholds
from grace_store.score.influence.less import strongest
from grace_store.score.influence.spec import InfluenceMethod, InfluenceSpec

__all__ = [
    "ROWS_AT_ONCE",
    "InfluenceMethod",
    "InfluenceSpec",
    "SubtaskMeans",
    "capability_directions",
    "combine_checkpoints",
    "count_votes",
    "icons_values",
    "joined_pairs",
    "mean_rank_shares",
    "products",
    "self_influence_slopes",
    "strongest",
    "trajectories",
    "unit_vectors",
    "vote_thresholds",
]
