"""Which directions of a network's last features its classes claim.

With W the weights of the last layer, [K, F], a feature direction that no row of W has a share in says nothing about any class. Classes that
the network was not told about leave their traces there; where it knows many, changed inputs of known classes hardly do. Of features c around
their mean, the claimed share is that of a ridge regression of c on the rows of W,

    e = c' W' (W W' + t I)^-1 W c / |c|^2 = |A c|^2 / |c|^2,    t = |W|^2 / F,

between 0 and 1. t, the mean eigenvalue of W' W, makes it soft: where there are more classes than features, all directions are claimed, and
some hardly. 1 - e is the posterior variance, in units of the prior's, of a linear model along c that has seen the rows of W alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_RIDGE = 1e-6  # in units of the largest weight squared
JITTER = 1e-6  # is added so that a matrix has a root


@torch.no_grad()
def claims_of(weight: Tensor) -> Tensor:
    """Return A of the module's formula, [min(K, F), F], in float32: |A c| is at most |c|. Of weights that are no numbers it has none."""
    there = torch.device("cpu") if weight.device.type == "mps" else weight.device  # MPS has no float64
    rows = weight.detach().to(there, torch.float64)
    classes, features = rows.shape
    ridge = (rows.square().sum() / features).clamp_min(LEAST_RIDGE * rows.abs().amax().square().clamp_min(JITTER))
    fewer_classes = classes <= features
    gram = rows @ rows.T if fewer_classes else rows.T @ rows
    identity = torch.eye(len(gram), dtype=rows.dtype, device=there)
    root = _root(gram + ridge * identity)
    if fewer_classes:
        return torch.linalg.solve_triangular(root, rows, upper=False).float().to(weight.device)
    claimed = (1 + JITTER) * identity - ridge * torch.cholesky_inverse(root)
    return _root(claimed).mT.float().contiguous().to(weight.device)


def _root(matrix: Tensor) -> Tensor:
    """Cholesky's, without a look at whether there is one: the host need not wait."""
    return torch.linalg.cholesky_ex(matrix).L
