"""Scores for a network that is trained already: see docs/posthoc.md for what each means and when it misleads.

A new score is one file here, or a class anywhere, with a class derived from PostHoc that has a name: it is found by being there.
"""

from abnn.baselines.options import import_all
from abnn.baselines.posthoc.base import POSTHOC, Features, Head, PostHoc, build_posthoc
from abnn.baselines.posthoc.model import PostHocModel
from abnn.baselines.posthoc.reader import gather

__all__ = ["POSTHOC", "Features", "Head", "PostHoc", "PostHocModel", "build_posthoc", "gather"]

import_all(__name__, __path__)
