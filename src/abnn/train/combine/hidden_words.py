"""What the closed form of words would say if the data had no inputs of some classes: hidden classes take their words along."""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.bayes.words import WordCounts, Words
from abnn.model.evidence import Evidence


class HiddenWords:
    """Evidence of inputs as it were without some classes.

    words   of the closed form; None: the network reads no words
    counts  of the data that it was gathered from, likewise
    """

    def __init__(self, words: Words | None, counts: WordCounts | None) -> None:
        self.words, self.counts = words, counts

    def __call__(self, evidence: Evidence, hidden: Tensor) -> Evidence:
        """Return evidence whose first place, that of words, knows nothing of classes that are hidden, [C]."""
        if self.words is None or self.counts is None or evidence.words is None or evidence.classes is None:
            return evidence
        if not bool(hidden.any()) or not bool(evidence.classes[:, 0].any()):
            return evidence
        words = Words(self.words.vocabulary, self.words.classes)
        words.set(self.counts.without(hidden.cpu()))
        variances, classes = evidence.variances.clone(), evidence.classes.clone()
        own, relative = words.to(variances.device)(evidence.words)
        assert relative is not None
        variances[:, 0], classes[:, 0] = own.log(), relative
        return evidence._replace(variances=variances, classes=classes)


def padded(tokens: list[Tensor]) -> Tensor:
    """Return tokens of several batches as one tensor; -1 is no word."""
    length = max(each.shape[1] for each in tokens)
    return torch.cat([torch.nn.functional.pad(each, (0, length - each.shape[1]), value=-1) for each in tokens])
