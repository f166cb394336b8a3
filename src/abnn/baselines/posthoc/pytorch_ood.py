"""Scores of the library pytorch-ood (https://github.com/kkirchheim/pytorch-ood), which has its formulas and references.

    fdbd    mean distance to the decision boundaries, over that to the training mean. Liu and Qin 2024, arXiv:2312.11536
    nci     nearness to the weights of the predicted class, and length of the features. Liu and Qin 2025, arXiv:2311.01479
    react   energy of W min(h, c) + b, c a quantile of the training features. Sun et al. 2021, arXiv:2111.12797
    ash     ASH-S: energy of the largest features, scaled up by what was cut. Djurisic et al. 2023, arXiv:2209.09858
    scale   energy of all features, scaled up as ASH-S does it. Xu et al. 2024, arXiv:2310.00227; 0.85 there for ImageNet

and those of classes of their own below. Each names the library's class, its settings here and what it learns; the library fits and
scores. It is imported when it is needed, and installed with abnn[posthoc]. A model with several draws is read as one network: features are averaged over
the draws, and what the library says of logits it says of W h + b.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from abnn.baselines.options import check_count, check_not_negative, check_positive, check_share, option
from abnn.baselines.posthoc.base import Features, PostHoc, add_score, library

LARGEST = 1e30  # of scaled features: sums of their products with weights are still numbers in float32


def detectors() -> Any:
    """The module pytorch_ood.detector."""
    return library("pytorch_ood", "pytorch-ood").detector


def choose(rows: Tensor, most: int, seed: int) -> Tensor:
    """All rows, or a random choice of ``most`` of them that belongs to the seed."""
    if len(rows) <= most:
        return rows
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:most].to(rows.device)]


@dataclass
class LibraryScore(PostHoc):
    """A score of the library on the last features."""

    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    detector: ClassVar[str]  # the name of the library's class
    arguments: ClassVar[dict[str, str]] = {}  # the names of its settings there, by their names here
    reads: ClassVar[str] = "features"  # [N, D], or "feature_maps" [N, D, 1, 1]: what its methods are called after
    learned: ClassVar[dict[str, str]] = {}  # where its object keeps what it has learned, by the name in ``state``

    def prepare(self) -> None:
        detectors()

    def make(self, head: Any, **changes: Any) -> Any:
        """The library's object, not yet fitted."""
        settings = {there: getattr(self, here) for here, there in self.arguments.items()}
        return getattr(detectors(), self.detector)(None, head, **{**settings, **changes})

    def place(self, features: Features) -> tuple[Tensor, Any]:
        """The last features in the shape that is read, and the last layer that takes it."""
        last, head = features.part("last"), features.part("head")
        if self.reads == "features":
            return last, head

        def on_maps(maps: Tensor) -> Tensor:
            # Features that are all zero have no scale, 0 / 0, and stay zero. Where features can be negative, the scale
            # of ASH can be infinite: its logits stay numbers.
            return head(maps.flatten(1).nan_to_num(nan=0.0).clamp(-LARGEST, LARGEST))

        return last[:, :, None, None], on_maps

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows, head = self.place(features)
        detector = self.make(head)
        getattr(detector, f"fit_{self.reads}")(rows, torch.zeros(len(rows)))
        return {name: torch.as_tensor(getattr(detector, there)) for name, there in self.learned.items()}

    def values(self, features: Features) -> Tensor:
        rows, head = self.place(features)
        detector = self.make(head)
        for name, there in self.learned.items():
            setattr(detector, there, self.state[name])
        return getattr(detector, f"predict_{self.reads}")(rows)


_PRUNING = {"arguments": {"pruned": "percentile"}, "reads": "feature_maps", "learns": False}
_CLIPPING = {"arguments": {"quantile": "percentile"}, "reads": "feature_maps", "learned": {"ceiling": "threshold"}}
_NEARNESS = {"arguments": {"alpha": "alpha"}, "learned": {"mean": "global_mean"}}
add_score(LibraryScore, "fdbd", detector="fDBD", learned={"mean": "train_mean", "gaps": "_denom_matrix"})
add_score(LibraryScore, "nci", {"alpha": option(1e-4, check_not_negative)}, detector="NCI", **_NEARNESS)
add_score(LibraryScore, "react", {"quantile": option(0.9, check_share)}, detector="ReAct", **_CLIPPING)
add_score(LibraryScore, "ash", {"pruned": option(0.65, check_share)}, detector="ASH", **_PRUNING)
add_score(LibraryScore, "scale", {"pruned": option(0.85, check_share)}, detector="SCALE", **_PRUNING)


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

    def values(self, features: Features) -> Tensor:
        stored = self.state["stored"].cpu()
        detector = detectors().KNN(None, k=min(self.neighbours, len(stored)))
        detector.knn.n_jobs = 1  # pools of joblib that several threads open at once can wait for each other for ever
        detector.fit_features(stored, torch.zeros(len(stored)))
        return detector.predict_features(features.part("last")).to(features.logits)


@dataclass
class NNGuide(LibraryScore):
    """The energy times the mean similarity to the k nearest training inputs. Park et al. 2023, arXiv:2309.14888."""

    name: ClassVar[str] = "nnguide"
    detector: ClassVar[str] = "NNGuide"
    arguments: ClassVar[dict[str, str]] = {"neighbours": "k"}
    learned: ClassVar[dict[str, str]] = {"bank": "_scaled_features"}
    neighbours: int = option(10, check_count)
    stored: int = option(10_000, check_count)
    seed: int = 0

    def learn(self, features: Features) -> dict[str, Tensor]:
        rows = choose(features.part("last"), self.stored, self.seed)
        detector = self.make(features.part("head"), k=1)  # whatever k, the bank is the same
        return {"bank": detector.fit_features(rows, torch.zeros(len(rows)))._scaled_features}


@dataclass
class ODIN(LibraryScore):
    """-max_k softmax(z(x') / T)_k after a step x' towards the predicted class. Liang et al. 2018, arXiv:1706.02690."""

    name: ClassVar[str] = "odin"
    needs: ClassVar[tuple[str, ...]] = ("network",)
    learns: ClassVar[bool] = False
    temperature: float = option(1000.0, check_positive)
    step: float = option(0.0014, check_not_negative)

    def values(self, features: Features) -> Tensor:
        x, network = features.differentiable(self.name)
        with torch.inference_mode(False):
            odin = detectors().ODIN(lambda x: network(x)[1], eps=self.step, temperature=self.temperature)
            return odin.predict(x.clone())
