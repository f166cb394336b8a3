"""Scores of the library pytorch-ood (https://github.com/kkirchheim/pytorch-ood), which has its formulas and references.

Each class below names the library's class, its settings here and what it learns; the library fits and scores. It is imported when
it is needed, and installed with abnn[posthoc]. A model with several draws is read as one network: features are averaged over
the draws, and what the library says of logits it says of W h + b.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.baselines.options import check_count, check_not_negative, check_positive, check_share, option
from abnn.baselines.posthoc.base import Features, PostHoc
from abnn.errors import InputError, MissingExtraError, explain
from abnn.networks.vision import torchvision


def detectors() -> Any:
    """The module pytorch_ood.detector, after torchvision, which it imports."""
    try:
        torchvision()
        from pytorch_ood import detector  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise MissingExtraError("pytorch-ood", "posthoc") from None
    return detector


def choose(rows: Tensor, most: int, seed: int) -> Tensor:
    """All rows, or a random choice of ``most`` of them that belongs to the seed."""
    if len(rows) <= most:
        return rows
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:most].to(rows.device)]


@dataclass
class LibraryScore(PostHoc):
    """A score of the library on the last features.

    reads    what its methods are called after: "features" [N, D] or "feature_maps" [N, D, 1, 1]
    learned  where the library's object keeps what it has learned, by its name in ``state``
    """

    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    reads: ClassVar[str] = "features"
    learned: ClassVar[dict[str, str]] = {}

    def make(self, features: Features) -> Any:
        """The library's object, not yet fitted."""
        raise NotImplementedError

    def prepare(self) -> None:
        detectors()

    def rows(self, features: Features) -> Tensor:
        last = features.part("last")
        return last[:, :, None, None] if self.reads == "feature_maps" else last

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows, detector = self.rows(features), self.make(features)
        getattr(detector, f"fit_{self.reads}")(rows, torch.zeros(len(rows), dtype=torch.long))
        return {name: torch.as_tensor(getattr(detector, place)) for name, place in self.learned.items()}

    def values(self, features: Features) -> Tensor:
        detector = self.make(features)
        for name, place in self.learned.items():
            setattr(detector, place, self.state[name])
        return getattr(detector, f"predict_{self.reads}")(self.rows(features)).to(features.logits)


@dataclass
class KNN(LibraryScore):
    """Distance of h / |h| to the k-th nearest of at most ``stored`` training inputs. Sun et al. 2022, arXiv:2204.06507."""

    name: ClassVar[str] = "knn"
    needs: ClassVar[tuple[str, ...]] = ("last",)
    neighbours: int = option(50, check_count)
    stored: int = option(10_000, check_count)
    seed: int = 0

    def learn(self, features: Features) -> dict[str, Tensor]:
        return {"stored": choose(features.part("last"), self.stored, self.seed)}

    def make(self, features: Features) -> Any:
        stored = self.state["stored"].cpu()
        detector = detectors().KNN(None, k=min(self.neighbours, len(stored)))
        return detector.fit_features(stored, torch.zeros(len(stored), dtype=torch.long))


@dataclass
class NNGuide(LibraryScore):
    """The energy times the mean similarity to the k nearest training inputs. Park et al. 2023, arXiv:2309.14888."""

    name: ClassVar[str] = "nnguide"
    learned: ClassVar[dict[str, str]] = {"bank": "_scaled_features"}
    neighbours: int = option(10, check_count)
    stored: int = option(10_000, check_count)
    seed: int = 0

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows = choose(features.part("last"), self.stored, self.seed)
        detector = detectors().NNGuide(None, features.part("head"), k=1)  # whatever k, the bank is the same
        detector.fit_features(rows, torch.zeros(len(rows), dtype=torch.long))
        return {"bank": detector._scaled_features}

    def make(self, features: Features) -> Any:
        return detectors().NNGuide(None, features.part("head"), k=self.neighbours)


@dataclass
class FDBD(LibraryScore):
    """Mean distance to the decision boundaries, over that to the training mean. Liu and Qin 2024, arXiv:2312.11536."""

    name: ClassVar[str] = "fdbd"
    learned: ClassVar[dict[str, str]] = {"mean": "train_mean", "gaps": "_denom_matrix"}

    def make(self, features: Features) -> Any:
        return detectors().fDBD(None, features.part("head").layer())


@dataclass
class NCI(LibraryScore):
    """Nearness to the weights of the predicted class, and length of the features. Liu and Qin 2025, arXiv:2311.01479."""

    name: ClassVar[str] = "nci"
    learned: ClassVar[dict[str, str]] = {"mean": "global_mean"}
    alpha: float = option(1e-4, check_not_negative)

    def make(self, features: Features) -> Any:
        return detectors().NCI(None, features.part("head").layer(), alpha=self.alpha)


def on_maps(features: Features) -> Callable[[Tensor], Tensor]:
    """The last layer on features of shape [N, D, 1, 1]; features that are all zero have no scale there, 0 / 0, and stay zero."""
    head = features.part("head")
    return lambda maps: head(maps.flatten(1).masked_fill(maps.flatten(1).isnan(), 0.0))


@dataclass
class ReAct(LibraryScore):
    """Energy of W min(h, c) + b, c a quantile of the training features. Sun et al. 2021, arXiv:2111.12797."""

    name: ClassVar[str] = "react"
    reads: ClassVar[str] = "feature_maps"
    learned: ClassVar[dict[str, str]] = {"ceiling": "threshold"}
    quantile: float = option(0.9, check_share)

    def make(self, features: Features) -> Any:
        return detectors().ReAct(None, on_maps(features), percentile=self.quantile)


@dataclass
class ASH(LibraryScore):
    """ASH-S: energy of the largest features, scaled up by what was cut. Djurisic et al. 2023, arXiv:2209.09858."""

    name: ClassVar[str] = "ash"
    learns: ClassVar[bool] = False
    reads: ClassVar[str] = "feature_maps"
    pruned: float = option(0.65, check_share)

    def make(self, features: Features) -> Any:
        return detectors().ASH(None, on_maps(features), percentile=self.pruned)


@dataclass
class SCALE(LibraryScore):
    """Energy of all features, scaled up as ASH-S does it. Xu et al. 2024, arXiv:2310.00227; 0.85 there for ImageNet."""

    name: ClassVar[str] = "scale"
    learns: ClassVar[bool] = False
    reads: ClassVar[str] = "feature_maps"
    pruned: float = option(0.85, check_share)

    def make(self, features: Features) -> Any:
        return detectors().SCALE(None, on_maps(features), percentile=self.pruned)


@dataclass
class ODIN(LibraryScore):
    """-max_k softmax(z(x') / T)_k after a step x' towards the predicted class. Liang et al. 2018, arXiv:1706.02690."""

    name: ClassVar[str] = "odin"
    needs: ClassVar[tuple[str, ...]] = ("network",)
    learns: ClassVar[bool] = False
    temperature: float = option(1000.0, check_positive)
    step: float = option(0.0014, check_not_negative)

    def values(self, features: Features) -> Tensor:
        x, network = features.part("inputs"), features.part("network")
        if not x.is_floating_point():
            raise InputError(explain("x", f"dtype {x.dtype}", "for 'odin': real numbers, which have a gradient"))
        with torch.inference_mode(False):
            odin = detectors().ODIN(lambda x: network(x)[1], eps=self.step, temperature=self.temperature)
            return odin.predict(x.clone()).to(features.logits)
