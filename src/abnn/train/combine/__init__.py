"""Learns what counts how much in the combined score.

``learn`` does all of it, ``gather`` reads what the model says, ``members`` learns the order of inputs, and ``trust``
how much attachments count in a prediction.
"""

from abnn.train.combine.learn import learn_score
from abnn.train.combine.members import auroc

__all__ = ["auroc", "learn_score"]
