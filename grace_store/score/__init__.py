"""Grams to step scores to values, and baselines that need less. numpy only: no store, no model, no files."""

from grace_store.score.alignment import Target, answer_alignment, history_alignment
from grace_store.score.grace import (
    AlignmentMeans,
    BlockScores,
    Flag,
    RaggedScores,
    alignment_means,
    combine_signals,
    flag_names,
    score_block,
    score_ragged,
    values_for_alphas,
)
from grace_store.score.gram import num_entries, pack, unpack
from grace_store.score.heuristics import HeuristicSpec, heuristic_values
from grace_store.score.history import History, history_weights
from grace_store.score.spec import ScoreSpec

__all__ = [
    "AlignmentMeans",
    "BlockScores",
    "Flag",
    "HeuristicSpec",
    "History",
    "RaggedScores",
    "ScoreSpec",
    "Target",
    "alignment_means",
    "answer_alignment",
    "combine_signals",
    "flag_names",
    "heuristic_values",
    "history_alignment",
    "history_weights",
    "num_entries",
    "pack",
    "score_block",
    "score_ragged",
    "unpack",
    "values_for_alphas",
]
