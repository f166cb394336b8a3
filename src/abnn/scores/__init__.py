"""Scores: one number per input, larger = more uncertain. One file per family; the default is named in the preset."""

from abnn.scores.combined import Combined
from abnn.scores.probability import ONE_DRAW_SCORES, SAMPLE_SCORES, entropy, mutual_information
from abnn.scores.registry import SCORES, Score, find_score, score, without_statistics

__all__ = [
    "ONE_DRAW_SCORES", "SAMPLE_SCORES", "SCORES", "Combined", "Score", "entropy", "find_score", "mutual_information",
    "score", "without_statistics",
]  # fmt: skip
