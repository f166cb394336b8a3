"""What one pass says about inputs, before a score is computed from it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Evidence(NamedTuple):
    """What a pass says about a batch of B inputs, at P places.

    plain      output of the network without attachments, [B, K]
    attached   output of the network with attachments, [B, K]
    last       input of the last linear layer, without attachments, [B, F]; None: there is no such layer
    weight     weight of that layer, [K, F], or None
    bias       bias of that layer, [K], or None
    variances  ln v at every place, see :mod:`abnn.bayes.closed_form`, [B, P]
    kinds      z of both kinds: looks changed, looks destroyed, see :mod:`abnn.bayes.witness`, [B, 2]
    classes    r_c of every class at every place, [B, P, C], or of the nearest class alone, [B, P, 1]; None: the closed
               form has no means of classes
    words      tokens, negative where there is no word, [B, L]; None: the closed form reads no words, or they were not
               kept
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
        """The output of the closed form: variances, kinds and classes side by side, [B, P + 2 + P C]."""
        classes = [] if self.classes is None else [self.classes.flatten(1)]
        return torch.cat([self.variances, self.kinds, *classes], dim=1)
