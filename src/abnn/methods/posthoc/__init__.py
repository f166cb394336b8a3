"""Scores for a network that is trained already: see docs/posthoc.md for what each means and when it misleads."""

from abnn.methods.posthoc.base import Features, Head, PostHoc
from abnn.methods.posthoc.model import PostHocModel
from abnn.methods.posthoc.reader import gather
from abnn.methods.posthoc.registry import POSTHOC, build_posthoc

__all__ = ["POSTHOC", "Features", "Head", "PostHoc", "PostHocModel", "build_posthoc", "gather"]
