"""Hidden classes take their words along: what the closed form of words would say without the inputs of some classes."""

from __future__ import annotations

import torch
from torch import Tensor

from abnn.bayes.words import WordCounts, Words
from abnn.model.evidence import Evidence


class HiddenWords:
    """Turns evidence into what it would be if the data had no inputs of some classes.

    words   of the closed form; None: the network reads no words
    counts  of the words in the data that the closed form was learnt from; None: the network reads no words
    """

    def __init__(self, words: Words | None, counts: WordCounts | None) -> None:
        self.words, self.counts = words, counts

    def __call__(self, evidence: Evidence, hidden: Tensor) -> Evidence:
        """Return evidence whose first place, that of words, does not know the hidden classes, [C] as bools."""
        if self.words is None or self.counts is None or evidence.words is None or evidence.classes is None:
            return evidence
        if not bool(hidden.any()) or not bool(evidence.classes[:, 0].any()):
            return evidence
        words = Words(self.words.vocabulary, self.words.classes)
        words.set(self.counts.without(hidden.cpu()))
        variances, classes = evidence.variances.clone(), evidence.classes.clone()
        word_variance, ratios = words.to(variances.device)(evidence.words)
        assert ratios is not None
        variances[:, 0], classes[:, 0] = word_variance.log(), ratios
        return evidence._replace(variances=variances, classes=classes)


def padded(tokens: list[Tensor]) -> Tensor:
    """Return the tokens of several batches as one tensor; -1 fills up short rows and is no word."""
    length = max(batch.shape[1] for batch in tokens)
    return torch.cat([torch.nn.functional.pad(batch, (0, length - batch.shape[1]), value=-1) for batch in tokens])
