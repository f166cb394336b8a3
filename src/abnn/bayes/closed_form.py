"""Linear attachments in closed form: how little the data say about a direction of a block's features.

A linear attachment reads the features phi of a block (mean and standard deviation of every channel over positions, standardised,
d of them) and adds w' phi to a logit. With prior N(0, 1) on w and Gaussian noise, its posterior given n inputs has the
covariance S = (I + phi_1 phi_1' + ... )^-1 up to units, and the variance that it adds to the logit is

    v(x) = phi' S phi / d,    S = ((1 - l) C + l I)^-1,    l = d / n kept between 0.05 and 0.9,

with C the covariance of the features over the data. Its mean stays 0, so the network's prediction does. The variance is about 1
where the data are, and for features t phi it is t^2 v: it grows without bound in every direction. It needs one pass over the data and no
draws.

Where classes are few and each has enough inputs, the attachment also has a mean of its own for each of them: with m_c the mean
features of class c, W the covariance within classes, shrunk likewise, and V = W^-1,

    r_c(x) = [(phi - m_c)' V (phi - m_c) - d v(x)] / d

says how much worse class c explains the features than all data together do: the relative distance of Ren et al. 2021,
arXiv:2106.09022, at every place. Words, which have no features, are a place of their own: see :mod:`abnn.bayes.words`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.bayes.gaussians import Moments, shrinkage_of
from abnn.bayes.witness import Witness
from abnn.bayes.words import WordCounts, Words

TINY = 1e-9
LARGEST = 80.0  # of ln v: float32 ends at 88
MOST_CLASSES = 200
PER_CLASS = 20  # inputs, on average; with fewer, means of classes are noise
NOWHERE = 1e3  # where the mean of a class without inputs lies, in units of the spread
WORST = 1e6  # of r_c
SMALLEST = -14.0  # of ln v: what lies below is rounding, of features that are flat on the data


class ClosedForm(nn.Module):
    """The posterior of a linear attachment at each of several places: ln v of features, see the module; and :class:`Witness`.

    All places are computed at once, as if each had as many features as the widest. What is saved of a place is its own alone.

    widths      how many features each place has
    classes     how many classes are told apart; 0: none are
    vocabulary  how many words there are, where the first place is that of words; 0: there is no such place
    """

    def __init__(self, widths: Sequence[int], classes: int = 0, vocabulary: int = 0) -> None:
        super().__init__()
        self.widths, self.most, self.classes = list(widths), max(widths), classes if classes <= MOST_CLASSES else 0
        self.words = Words(vocabulary, self.classes) if vocabulary else None
        self.means = nn.Buffer(torch.zeros(len(self.widths), 1, self.most), persistent=False)
        self.whitenings = nn.Buffer(torch.zeros(len(self.widths), self.most, self.most), persistent=False)
        self.log_widths = nn.Buffer(torch.tensor(self.widths).float().log(), persistent=False)
        self.fitted = nn.Buffer(torch.zeros((), dtype=torch.bool))
        self.witness = Witness(len(self.widths), self.most)
        if self.classes:
            self.within = nn.Buffer(torch.zeros_like(self.whitenings), persistent=False)
            self.centres = nn.Buffer(torch.zeros(len(self.widths), classes, self.most), persistent=False)
            self.told = nn.Buffer(torch.zeros((), dtype=torch.bool))

    @property
    def sizes(self) -> list[int]:
        """How many numbers a linear attachment learns at each place."""
        return self.widths if self.words is None else [int(self.words.different), *self.widths]

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """ln v at every place, what the witness says, then r_c of every class at every place; never in half precision.

        [B, places + 2 + places · classes]

        features  of every place, [B, width]; those of words are tokens, [B, L], negative where there is no word
        """
        with torch.autocast(features[0].device.type, enabled=False):
            # In float64, where there is one: the square of what is far away is more than float32 holds.
            wide = torch.float32 if features[0].device.type == "mps" else torch.float64
            # Classes need differences of large numbers: in float32 they would depend on the batch.
            centred = self._centred(features).to(wide if self.classes else torch.float32)
            white = torch.bmm(centred, self.whitenings.to(centred).mT)
            sizes = torch.linalg.vector_norm(white, dim=2, dtype=wide).T
            logs = 2 * sizes.clamp_min(TINY).log() - self.log_widths
            logs = logs.float().nan_to_num(nan=LARGEST).clamp(SMALLEST, LARGEST)
            classes = [self._relative(centred, sizes).flatten(1)] if self.classes else []
            if self.words is not None:
                variance, own = self.words(features[0])
                logs = torch.cat([variance.log()[:, None], logs], dim=1)
                classes[:0] = [] if own is None else [torch.where(self.told, own, 0.0)]
            return torch.cat([logs, self.witness(white), *classes], dim=1)

    def whiten(self, features: Sequence[Tensor]) -> Tensor:
        """The features of every place but words around their means, uncorrelated and of unit spread on the data, [places, B, width]."""
        return torch.bmm(self._centred(features), self.whitenings.mT)

    def _centred(self, features: Sequence[Tensor]) -> Tensor:
        own = features if self.words is None else features[1:]
        missing = [self.most - part.shape[1] for part in own]
        padded = [F.pad(part, (0, count)) if count else part for part, count in zip(own, missing)]
        return torch.stack(padded).float() - self.means

    def _relative(self, centred: Tensor, sizes: Tensor) -> Tensor:
        """r_c, [B, places, classes]; zero where the data were too few."""
        centres = self.centres.to(centred)
        white = torch.bmm(centred, self.within.to(centred).mT)
        squares = white.square().sum(2, keepdim=True) + centres.square().sum(2)[:, None]
        squares = squares - 2 * torch.bmm(white, centres.mT) - sizes.T[..., None].square()
        beyond = squares.transpose(0, 1) / self.log_widths.exp()[:, None]
        return torch.where(self.told, beyond.nan_to_num(nan=WORST).clamp(-WORST, WORST).float(), 0.0)

    def gatherers(self) -> list[Moments | WordCounts]:
        """What features of every place, and classes, are to be added to: one for each place; without classes all are of class 0."""
        moments: list[Moments | WordCounts] = [Moments(self.classes or 1, width) for width in self.widths]
        return moments if self.words is None else [WordCounts(self.words.vocabulary), *moments]

    @torch.no_grad()
    def set(self, gathered: Sequence[Moments | WordCounts]) -> None:
        """Take the posterior that follows from what :meth:`gatherers` were given."""
        count = gathered[-1].inputs
        if self.words is not None:
            counts, *gathered = gathered
            assert isinstance(counts, WordCounts)
            self.words.set(counts)
        moments = [each for each in gathered if isinstance(each, Moments)]
        if self.classes:
            self.told.fill_(count >= PER_CLASS * self.classes)
        for place, (each, width) in enumerate(zip(moments, self.widths)):
            shrinkage = shrinkage_of(width, count)
            means, whitening = each.together().finish([width], shrinkage)
            self.means[place, 0, :width] = means[0]
            self.whitenings[place, :width, :width] = whitening
            if self.classes and self.told:
                own, within = each.finish([width], shrinkage)
                self.within[place, :width, :width] = within
                centres = ((own - means) @ within.T).to(self.centres)
                self.centres[place, :, :width] = torch.where(each.counts[:, None].to(centres) > 0, centres, NOWHERE)
        self.fitted.fill_(True)

    def _own(self) -> dict[str, Tensor]:
        """What is known of each place, as views of the padded tensors."""
        views = {}
        for place, width in enumerate(self.widths):
            views[f"mean{place}"] = self.means[place, 0, :width]
            views[f"whitening{place}"] = self.whitenings[place, :width, :width]
            if self.classes:
                views[f"whitening_within{place}"] = self.within[place, :width, :width]
                views[f"centres{place}"] = self.centres[place, :, :width]
        return views

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination.update({prefix + name: value.clone() for name, value in self._own().items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        own = self._own()
        for name, value in own.items():
            if prefix + name in state_dict:
                value.copy_(state_dict[prefix + name])
        rest = {name: value for name, value in state_dict.items() if name.removeprefix(prefix) not in own}
        super()._load_from_state_dict(rest, prefix, *others)
