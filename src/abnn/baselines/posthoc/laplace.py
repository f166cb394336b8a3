"""Laplace: a Gaussian posterior of the last layer around its trained weights, and the entropy of what it predicts.

    s(x) = H(softmax(z_k / sqrt(1 + pi/8 v_k))),   v_k = h~^T S_k h~,   h~ = (h, 1)

S_k is the posterior covariance of the weights and bias of class k: the inverse of the generalised Gauss-Newton matrix of the
training loss plus a prior precision, which maximises the marginal likelihood. Daxberger et al. 2021, arXiv:2106.14806; MacKay's
probit approximation. The library laplace-torch computes the posterior, on the stored last features, which is the last-layer
posterior of the whole network; "kron" keeps its Kronecker factors, "full" the whole matrix. Scoring and loading need no library.
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from abnn.baselines.options import one_of, option
from abnn.baselines.posthoc.base import Features, Head, PostHoc, library
from abnn.baselines.posthoc.logits import entropy

LIBRARY = ("laplace", "laplace-torch")
NUMBERS = 2**26  # of the Jacobians that the library holds at a time


def probit_logits(logits: Tensor, variances: Tensor) -> Tensor:
    """z_k / sqrt(1 + pi/8 v_k), [N, K]."""
    return logits / (1 + math.pi / 8 * variances).sqrt()


def full_variances(last: Tensor, covariance: Tensor) -> Tensor:
    """v_k = h~^T S_k h~ with S [K, D + 1, D + 1], [N, K]."""
    extended = torch.cat([last, torch.ones_like(last[:, :1])], dim=1)
    return torch.einsum("nd,kde,ne->nk", extended, covariance, extended)


def kron_variances(last: Tensor, rotation: Tensor, spread: Tensor, bias: Tensor) -> Tensor:
    """v_k = sum_d (Q^T h)_d^2 M_kd + v(b_k), [N, K], with Q the eigenvectors of the features' factor."""
    return (last @ rotation).square() @ spread.T + bias


@dataclass
class Laplace(PostHoc):
    name: ClassVar[str] = "laplace"
    needs: ClassVar[tuple[str, ...]] = ("last", "head")
    by_class: ClassVar[bool] = True
    structure: str = option("kron", one_of(("kron", "full")))

    def prepare(self) -> None:
        library(*LIBRARY)

    def learn(self, features: Features) -> dict[str, Tensor]:
        head = features.part("head")
        posterior = fit_posterior(head, features.part("last"), features.part("labels"), self.structure)
        return posterior_tensors(posterior, head, self.structure)

    def values(self, features: Features) -> Tensor:
        variances = full_variances if self.structure == "full" else kron_variances
        return entropy(probit_logits(features.logits, variances(features.part("last"), **self.state)))


def fit_posterior(head: Head, last: Tensor, labels: Tensor, structure: str) -> Any:
    """The library's posterior of the last layer alone, with the last features as its inputs."""
    classes, width = head.weight.shape
    rows = max(1, NUMBERS // (classes * classes * width))
    loader = DataLoader(TensorDataset(last.float().cpu(), labels.cpu()), batch_size=min(rows, 1024))
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        posterior = library(*LIBRARY).Laplace(
            copy.deepcopy(head).requires_grad_(), "classification", subset_of_weights="all", hessian_structure=structure
        )
        posterior.fit(loader)
        posterior.optimize_prior_precision(method="marglik")
    return posterior


def posterior_tensors(posterior: Any, head: Head, structure: str) -> dict[str, Tensor]:
    """What of the posterior the variances need."""
    classes, width = head.weight.shape
    if structure == "full":
        covariance = torch.zeros(classes, width + 1, width + 1)
        whole = posterior.posterior_covariance.detach()
        for number in range(classes):
            rows = torch.arange(number * width, (number + 1) * width)
            if head.bias is not None:
                rows = torch.cat([rows, torch.tensor([classes * width + number])])
            covariance[number, : len(rows), : len(rows)] = whole[rows][:, rows]
        return {"covariance": covariance}
    precision = posterior.posterior_precision
    (left, right), (left_values, right_values) = precision.eigenvectors[0], precision.eigenvalues[0]
    inverse = 1 / (torch.outer(left_values, right_values) + precision.deltas[0])
    bias = torch.zeros(classes)
    if head.bias is not None:
        vectors, values = precision.eigenvectors[1][0], precision.eigenvalues[1][0]
        bias = vectors.square() @ (1 / (values + precision.deltas[-1]))
    return {"rotation": right, "spread": left.square() @ inverse, "bias": bias}
