"""What counts how much in the combined score: ``gather`` reads, ``members`` learns the order of inputs, ``learn`` does all of it."""

from abnn.train.combine.learn import learn_score
from abnn.train.combine.members import auroc

__all__ = ["auroc", "learn_score"]
