"""What one pass says about inputs, before it is made into a score."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Evidence(NamedTuple):
    """Of a batch of B inputs:

    plain      the network's output without attachments, [B, K]
    attached   its output with them, [B, K]
    last       what went into its last linear layer, without attachments, [B, F]; None: it has no such layer
    weight     of that layer, [K, F], likewise
    bias       of that layer, [K], likewise
    variances  ln v at every place, see :mod:`abnn.bayes.closed_form`, [B, P]
    kinds      how much it looks changed and destroyed, see :mod:`abnn.bayes.witness`, [B, 2]
    classes    r_c of every class at every place, likewise, [B, P, C], or of the nearest alone, [B, P, 1]; None: classes are not told apart
    words      tokens, negative where there is no word, [B, L]; None: the closed form reads no words, or they were not kept
    """

    plain: Tensor
    attached: Tensor
    last: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    variances: Tensor
    kinds: Tensor
    classes: Tensor | None = None
    words: Tensor | None = None

    @property
    def statistics(self) -> Tensor:
        """Variances, kinds and classes as the closed form returns them, [B, P + 2 + P C]."""
        classes = [] if self.classes is None else [self.classes.flatten(1)]
        return torch.cat([self.variances, self.kinds, *classes], dim=1)
