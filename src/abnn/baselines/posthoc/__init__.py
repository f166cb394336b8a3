"""Scores for a network that is trained already: see docs/posthoc.md for what each means and when it misleads."""

from abnn.baselines.posthoc.base import Features, Head, PostHoc
from abnn.baselines.posthoc.model import PostHocModel
from abnn.baselines.posthoc.reader import gather
from abnn.baselines.posthoc.registry import POSTHOC, build_posthoc

__all__ = ["POSTHOC", "Features", "Head", "PostHoc", "PostHocModel", "build_posthoc", "gather"]
