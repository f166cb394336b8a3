"""Which directions of a network's last features its classes claim.

W holds the weights of the last layer, [K, F]. A feature direction in which no row of W has a share says nothing about
any class. Classes that the network was not trained on leave their traces there. Changed inputs of its own classes
hardly do, where it has many classes.

The claimed share of features c, centred on their mean, is that of a ridge regression of c on the rows of W:

    e = c' W' (W W' + t I)^-1 W c / |c|^2 = |A c|^2 / |c|^2,    t = |W|^2 / F.

It lies between 0 and 1. t is the mean eigenvalue of W' W and makes the share soft: where there are more classes than
features, all directions are claimed, some of them hardly. 1 - e is the posterior variance along c, in units of the
prior's, of a linear model that has observed the rows of W alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_RIDGE = 1e-6  # in units of the largest weight squared
JITTER = 1e-6  # added to a matrix so that it has a root


@torch.no_grad()
def claims_of(weight: Tensor) -> Tensor:
    """Return A of the module's formula, [min(K, F), F], in float32; |A c| is at most |c|. NaN if the weights are."""
    device = torch.device("cpu") if weight.device.type == "mps" else weight.device  # MPS has no float64
    rows = weight.detach().to(device, torch.float64)
    classes, features = rows.shape
    ridge = (rows.square().sum() / features).clamp_min(LEAST_RIDGE * rows.abs().amax().square().clamp_min(JITTER))
    fewer_classes = classes <= features
    gram = rows @ rows.T if fewer_classes else rows.T @ rows
    identity = torch.eye(len(gram), dtype=rows.dtype, device=device)
    root = _root(gram + ridge * identity)
    if fewer_classes:
        return torch.linalg.solve_triangular(root, rows, upper=False).float().to(weight.device)
    projection = (1 + JITTER) * identity - ridge * torch.cholesky_inverse(root)
    return _root(projection).mT.float().contiguous().to(weight.device)


def _root(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor without checking that there is one: so the host does not wait for the device."""
    return torch.linalg.cholesky_ex(matrix).L
