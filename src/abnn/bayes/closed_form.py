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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from abnn.bayes.derived import Derived
from abnn.bayes.gaussians import Moments, shrinkage_of
from abnn.bayes.witness import KINDS, Witness, kind_sums
from abnn.bayes.words import WordCounts, Words

LARGEST = 80.0  # of ln v: float32 ends at 88
MOST_CLASSES = 200
PER_CLASS = 20  # inputs, on average; with fewer, means of classes are noise
BUFFERS = ("means", "whitenings", "log_widths")
CLASS_BUFFERS = (*BUFFERS, "within", "centres", "told")
NOWHERE = 1e3  # where the mean of a class without inputs lies, in units of the spread
WORST = 1e6  # of r_c
SMALLEST = -14.0  # of ln v: what lies below is rounding, of features that are flat on the data


class Constants(NamedTuple):
    """What a closed form computes with, in the type that it computes in.

    means    of the features, [places, 1, width]
    maps     from centred features to white ones, to those that are white within classes, and to -2 times the product of these
             with every class's mean, [places, width, ...]
    squares  of the sizes of these means, [places, 1, classes]
    offset, scale, least, most  of each number that is said about an input: at every place, by the witness, of a class at every place
    kinds    weights of the witness, [places, 2, width]
    zeros    [1, width]
    """

    means: Tensor
    maps: Tensor
    squares: Tensor
    offset: Tensor
    scale: Tensor
    least: Tensor
    most: Tensor
    kinds: Tensor
    zeros: Tensor


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
        self._derived: Derived[Constants] = Derived()

    @property
    def sizes(self) -> list[int]:
        """How many numbers a linear attachment learns at each place."""
        return self.widths if self.words is None else [int(self.words.different), *self.widths]

    def forward(self, features: Sequence[Tensor], nearest: bool = False) -> Tensor:
        """ln v at every place, what the witness says, then r_c of every class at every place; never in half precision.

        [B, places + 2 + places · classes]

        features  of every place, [B, width]; those of words are tokens, [B, L], negative where there is no word
        nearest   return of all classes the smallest r_c alone, as if there were one class
        """
        with torch.autocast(features[0].device.type, enabled=False):
            constants = self.constants()
            centred = (self._stacked(features, constants.zeros) - constants.means).to(constants.maps.dtype)
            said = torch.bmm(centred, constants.maps)  # [places, B, width · 1 or 2 + classes]
            white = said[..., : self.most]
            whites = said[..., : 2 * self.most].unflatten(2, (-1, self.most))  # of all data together, within classes
            # In float64, where there is one: the square of what is far away is more than float32 holds.
            size, *within = torch.linalg.vector_norm(whites, dim=3, dtype=constants.scale.dtype).unbind(2)
            rows = [size.log(), kind_sums(white, constants.kinds)]
            if self.classes:
                beyond = said[..., 2 * self.most :] + constants.squares
                beyond = beyond.amin(2, keepdim=True) if nearest else beyond
                beyond = torch.addcmul(beyond, *[within[0][..., None]] * 2)
                rows.append(torch.addcmul(beyond, *[size[..., None]] * 2, value=-1).mT.flatten(0, 1))
            offset, scale, least, most = self._of_rows(
                constants, len(rows[2]) // len(self.widths) if self.classes else 0
            )
            said = torch.addcmul(offset, torch.cat(rows), scale).nan_to_num(nan=WORST).clamp(least, most).T.float()
            return said if self.words is None else self._with_words(said, features[0], nearest)

    def whiten(self, features: Sequence[Tensor]) -> Tensor:
        """The features of every place but words around their means, uncorrelated and of unit spread on the data, [places, B, width]."""
        return torch.bmm(self._stacked(features, self.constants().zeros).float() - self.means, self.whitenings.mT)

    def constants(self) -> Constants:
        """What follows from the buffers, see :class:`abnn.bayes.derived.Derived`."""
        own, names = self._buffers, CLASS_BUFFERS if self.classes else BUFFERS
        sources = [*map(own.__getitem__, names), *self.witness._buffers.values()]
        return self._derived.get(sources, self._make_constants)  # type: ignore[arg-type]

    def _make_constants(self) -> Constants:
        # In float64, where there is one: differences of large numbers, which classes need, would in float32 depend on the batch.
        wide = torch.float32 if self.means.device.type == "mps" else torch.float64
        maps, squares, widths = [self.whitenings.mT.to(wide)], self.means.to(wide), self.log_widths.to(wide)
        two, one, told = torch.full_like(widths, 2), widths.new_ones(len(KINDS)), torch.ones_like(widths)
        if self.classes:
            within, centres = self.within.mT.to(wide), self.centres.mT.to(wide)
            maps += [within, -2 * within @ centres]
            squares, told = centres.square().sum(1, keepdim=True), told * self.told
        of_kinds, of_classes = one * torch.finfo(wide).max, WORST * told
        return Constants(
            self.means.to(wide if self.classes else torch.float32),
            torch.cat(maps, dim=2).to(wide if self.classes else torch.float32),
            squares,
            torch.cat([-widths, self.witness.bias.to(wide), 0 * widths])[:, None],
            torch.cat([two, one, (-widths).exp()])[:, None],
            torch.cat([SMALLEST * torch.ones_like(widths), -of_kinds, -of_classes])[:, None],
            torch.cat([LARGEST * torch.ones_like(widths), of_kinds, of_classes])[:, None],
            self.witness.weight.mT.to(wide if self.classes else torch.float32),
            torch.zeros_like(self.means[0]),
        )

    def _of_rows(self, constants: Constants, classes: int) -> list[Tensor]:
        """Offset, scale and bounds of what is said at every place, by the witness, and of so many classes at every place."""
        count = len(self.widths) + len(KINDS)
        each_row = [constants.offset, constants.scale, constants.least, constants.most]
        if classes > 1:
            return [torch.cat([each[:count], each[count:].repeat_interleave(classes, dim=0)]) for each in each_row]
        return each_row if classes else [each[:count] for each in each_row]

    def _with_words(self, said: Tensor, tokens: Tensor, nearest: bool) -> Tensor:
        """What is said about places and classes, with that about words in front of each."""
        assert self.words is not None
        variance, own = self.words(tokens)
        before = [] if own is None else [torch.where(self.told, own.amin(1, keepdim=True) if nearest else own, 0.0)]
        first, rest = said.split((len(self.widths) + len(KINDS), said.shape[1] - len(self.widths) - len(KINDS)), dim=1)
        return torch.cat([variance.log()[:, None], first, *before, rest], dim=1)

    def _stacked(self, features: Sequence[Tensor], zeros: Tensor) -> Tensor:
        """The features of every place but words, [places, B, width], zero where a place has fewer than the widest."""
        padded = []
        for part in features if self.words is None else features[1:]:
            padded.append(part)
            if missing := self.most - part.shape[1]:
                padded.append(zeros[:, :missing].expand(part.shape[0], missing))
        return torch.cat(padded, dim=1).unflatten(1, (-1, self.most)).transpose(0, 1)

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
