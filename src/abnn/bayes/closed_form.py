"""Linear attachments in closed form: the variance of features, and which class explains them.

**The variance v.** A linear attachment reads the features phi of a block and adds w' phi to a logit. The features are
mean and standard deviation of every channel over positions, standardised; there are d of them. The prior is N(0, 1) on
w, the noise is Gaussian. Given n inputs, the posterior of w has, up to units, the covariance S. The attachment then
adds to the logit the variance

    v(x) = phi' S phi / d,    S = ((1 - l) C + l I)^-1,    l = d / n kept between 0.05 and 0.9,

where C is the covariance of the features over the data. The posterior mean stays 0, so the network's prediction does
not change. v is about 1 where the data are. For features t phi it is t^2 v: it grows without bound in every direction.
Learning it takes one pass over the data and no draws.

**The relative distance r_c.** Where classes are few and each has enough inputs, the attachment also has a mean for each
class. m_c is the mean of the features of class c, W the covariance within classes, shrunk in the same way, and
V = W^-1. Then

    r_c(x) = [(phi - m_c)' V (phi - m_c) - d v(x)] / d

says how much worse class c explains the features than all data together do. This is the relative distance of Ren et al.
2021, arXiv:2106.09022, at every place.

Words have no features. They are a place of their own, see :mod:`abnn.bayes.words`.
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

SMALLEST = -14.0  # ln v; features that are flat on the data give less by rounding alone
LARGEST = 80.0  # ln v; exp(88) is the end of float32
MOST_CLASSES = 200
PER_CLASS = 20  # inputs, on average; with fewer, the means of classes are noise
BUFFERS = ("means", "whitenings", "log_widths")
CLASS_BUFFERS = (*BUFFERS, "within", "centres", "told")
NOWHERE = 1e3  # the mean of a class without inputs, in units of the spread: far from every input
WORST = 1e6  # r_c


class Constants(NamedTuple):
    """The tensors that a closed form computes with, converted to the type of the computation.

    Each output is ``offset + scale * row``, cut to the range from ``least`` to ``most``. These four have one row for
    every place, for every kind of the witness, and for r_c at every place.

    means    of the features, [places, 1, width]
    maps     side by side, [places, width, ...]: from centred features to white ones; to features that are white within
             classes; and to -2 times the product of these with every class's mean
    squares  squared lengths of the class means, [places, 1, classes]
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
    """The posterior of a linear attachment at each place, with a :class:`Witness`; the module has the formulas.

    All places are computed at once: tensors are padded to the widest place. Files hold each place without padding.

    widths      number of features of each place
    classes     number of classes that have a mean of their own; 0: no r_c
    vocabulary  number of words, if the first place is that of words; 0: there is no such place
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
            self.told = nn.Buffer(torch.zeros((), dtype=torch.bool))  # whether there were enough inputs for r_c
        self._derived: Derived[Constants] = Derived()

    @property
    def sizes(self) -> list[int]:
        """The number of weights of the linear attachment at each place."""
        return self.widths if self.words is None else [int(self.words.different), *self.widths]

    def forward(self, features: Sequence[Tensor], nearest: bool = False) -> Tensor:
        """Return ln v of every place, z of both kinds, and r_c by place and class: [B, places + 2 + places · classes].

        The result is float32. Nothing is computed in half precision.

        features  of every place, [B, width]; at the place of words tokens, [B, L], negative where there is no word
        nearest   return only the smallest r_c of each place, [B, places + 2 + places]
        """
        with torch.autocast(features[0].device.type, enabled=False):
            constants = self.constants()
            centred = (self._stack(features, constants.zeros) - constants.means).to(constants.maps.dtype)
            products = torch.bmm(centred, constants.maps)  # [places, B, width · 1 or 2 + classes]
            white = products[..., : self.most]
            both = products[..., : 2 * self.most].unflatten(2, (-1, self.most))  # white over all data, within classes
            # In float64, where the device has it: float32 cannot hold the square of a far input.
            size, *within = torch.linalg.vector_norm(both, dim=3, dtype=constants.scale.dtype).unbind(2)
            rows = [size.log(), kind_sums(white, constants.kinds)]
            if self.classes:
                beyond = products[..., 2 * self.most :] + constants.squares
                beyond = beyond.amin(2, keepdim=True) if nearest else beyond
                beyond = torch.addcmul(beyond, *[within[0][..., None]] * 2)
                rows.append(torch.addcmul(beyond, *[size[..., None]] * 2, value=-1).mT.flatten(0, 1))
            class_count = len(rows[2]) // len(self.widths) if self.classes else 0
            offset, scale, least, most = self._row_constants(constants, class_count)
            outputs = torch.addcmul(offset, torch.cat(rows), scale).nan_to_num(nan=WORST).clamp(least, most).T.float()
            return outputs if self.words is None else self._with_words(outputs, features[0], nearest)

    def whiten(self, features: Sequence[Tensor]) -> Tensor:
        """Return the features of every place but words, centred and whitened, [places, B, width].

        On the data they are uncorrelated and have unit spread.
        """
        return torch.bmm(self._stack(features, self.constants().zeros).float() - self.means, self.whitenings.mT)

    def constants(self) -> Constants:
        """Return the constants that follow from the buffers; cached, see :class:`abnn.bayes.derived.Derived`."""
        buffers, names = self._buffers, CLASS_BUFFERS if self.classes else BUFFERS
        sources = [*map(buffers.__getitem__, names), *self.witness._buffers.values()]
        return self._derived.get(sources, self._make_constants)  # type: ignore[arg-type]

    def _make_constants(self) -> Constants:
        # In float64, where the device has it: r_c is a difference of large numbers, and float32 would make it depend on
        # the batch.
        wide = torch.float32 if self.means.device.type == "mps" else torch.float64
        maps, squares, widths = [self.whitenings.mT.to(wide)], self.means.to(wide), self.log_widths.to(wide)
        two, one, has_classes = torch.full_like(widths, 2), widths.new_ones(len(KINDS)), torch.ones_like(widths)
        if self.classes:
            within, centres = self.within.mT.to(wide), self.centres.mT.to(wide)
            maps += [within, -2 * within @ centres]
            squares, has_classes = centres.square().sum(1, keepdim=True), has_classes * self.told
        kind_limit, class_limit = one * torch.finfo(wide).max, WORST * has_classes  # limit 0: r_c is 0
        return Constants(
            self.means.to(wide if self.classes else torch.float32),
            torch.cat(maps, dim=2).to(wide if self.classes else torch.float32),
            squares,
            torch.cat([-widths, self.witness.bias.to(wide), 0 * widths])[:, None],
            torch.cat([two, one, (-widths).exp()])[:, None],
            torch.cat([SMALLEST * torch.ones_like(widths), -kind_limit, -class_limit])[:, None],
            torch.cat([LARGEST * torch.ones_like(widths), kind_limit, class_limit])[:, None],
            self.witness.weight.mT.to(wide if self.classes else torch.float32),
            torch.zeros_like(self.means[0]),
        )

    def _row_constants(self, constants: Constants, classes: int) -> list[Tensor]:
        """Return offset, scale, least and most with a row for each output, given the number of classes at a place."""
        count = len(self.widths) + len(KINDS)
        columns = [constants.offset, constants.scale, constants.least, constants.most]
        if classes > 1:
            return [torch.cat([each[:count], each[count:].repeat_interleave(classes, dim=0)]) for each in columns]
        return columns if classes else [each[:count] for each in columns]

    def _with_words(self, outputs: Tensor, tokens: Tensor, nearest: bool) -> Tensor:
        """Return the outputs with those of words added: ln v before all others, r_c before those of other places."""
        assert self.words is not None
        variance, ratios = self.words(tokens)
        before = []
        if ratios is not None:
            before = [torch.where(self.told, ratios.amin(1, keepdim=True) if nearest else ratios, 0.0)]
        count = len(self.widths) + len(KINDS)
        first, rest = outputs.split((count, outputs.shape[1] - count), dim=1)
        return torch.cat([variance.log()[:, None], first, *before, rest], dim=1)

    def _stack(self, features: Sequence[Tensor], zeros: Tensor) -> Tensor:
        """Return the features of every place but words, [places, B, width], padded with zeros to the widest place."""
        padded = []
        for part in features if self.words is None else features[1:]:
            padded.append(part)
            if missing := self.most - part.shape[1]:
                padded.append(zeros[:, :missing].expand(part.shape[0], missing))
        return torch.cat(padded, dim=1).unflatten(1, (-1, self.most)).transpose(0, 1)

    def gatherers(self) -> list[Moments | WordCounts]:
        """Return one accumulator of features and classes for each place. Without classes, all inputs are of class 0."""
        moments: list[Moments | WordCounts] = [Moments(self.classes or 1, width) for width in self.widths]
        return moments if self.words is None else [WordCounts(self.words.vocabulary), *moments]

    @torch.no_grad()
    def set(self, gatherers: Sequence[Moments | WordCounts]) -> None:
        """Set the posterior that follows from what was added to the :meth:`gatherers`."""
        count = gatherers[-1].inputs
        if self.words is not None:
            counts, *gatherers = gatherers
            assert isinstance(counts, WordCounts)
            self.words.set(counts)
        moments = [each for each in gatherers if isinstance(each, Moments)]
        if self.classes:
            self.told.fill_(count >= PER_CLASS * self.classes)
        for place, (each, width) in enumerate(zip(moments, self.widths)):
            shrinkage = shrinkage_of(width, count)
            means, whitening = each.together().finish([width], shrinkage)
            self.means[place, 0, :width] = means[0]
            self.whitenings[place, :width, :width] = whitening
            if self.classes and self.told:
                class_means, within = each.finish([width], shrinkage)
                self.within[place, :width, :width] = within
                centres = ((class_means - means) @ within.T).to(self.centres)
                self.centres[place, :, :width] = torch.where(each.counts[:, None].to(centres) > 0, centres, NOWHERE)
        self.fitted.fill_(True)

    def _place_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of each place by their names in files, as views of the padded ones."""
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
        destination.update({prefix + name: value.clone() for name, value in self._place_tensors().items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        tensors = self._place_tensors()
        for name, value in tensors.items():
            if prefix + name in state_dict:
                value.copy_(state_dict[prefix + name])
        rest = {name: value for name, value in state_dict.items() if name.removeprefix(prefix) not in tensors}
        super()._load_from_state_dict(rest, prefix, *others)
