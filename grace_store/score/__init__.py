"""Grams to step scores to values, and baselines that need less. numpy only: no store, no model, no files."""

from grace_store.score.alignment import Target, answer_alignment, history_alignment
from grace_store.score.combine import combine_scores, combine_signals, placed
from grace_store.score.grace import (
    AlignmentMeans,
    BlockScores,
    Flag,
    RaggedScores,
    alignment_means,
    flag_names,
    score_block,
    score_ragged,
    values_for_alphas,
)
from grace_store.score.gram import num_entries, pack, unpack
from grace_store.score.grid import Grid, SweepSpec
from grace_store.score.heuristics import HeuristicSpec, heuristic_values
from grace_store.score.history import History, history_weights
from grace_store.score.length_bias import LengthAudit, StepLengthBias, audit_lengths, residuals
from grace_store.score.spec import ScoreSpec

__all__ = [
    "AlignmentMeans",
    "BlockScores",
    "Flag",
    "Grid",
    "HeuristicSpec",
    "History",
    "LengthAudit",
    "RaggedScores",
    "ScoreSpec",
    "StepLengthBias",
    "SweepSpec",
    "Target",
    "alignment_means",
    "answer_alignment",
    "audit_lengths",
    "combine_scores",
    "combine_signals",
    "flag_names",
    "heuristic_values",
    "history_alignment",
    "history_weights",
    "num_entries",
    "pack",
    "placed",
    "residuals",
    "score_block",
    "score_ragged",
    "unpack",
    "values_for_alphas",
]
