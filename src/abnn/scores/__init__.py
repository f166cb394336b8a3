"""Scores: one number per input, larger = more uncertain. One file per family; the default is named in the preset."""

from abnn.scores.combined import GATED, gated
from abnn.scores.distance import outside, unfit
from abnn.scores.probability import ONE_DRAW_SCORES, SAMPLE_SCORES, entropy, mutual_information
from abnn.scores.registry import SCORES, Score, find_score, score, without_statistics

__all__ = [
    "GATED",
    "ONE_DRAW_SCORES",
    "SAMPLE_SCORES",
    "SCORES",
    "Score",
    "entropy",
    "find_score",
    "gated",
    "mutual_information",
    "outside",
    "score",
    "unfit",
    "without_statistics",
]
