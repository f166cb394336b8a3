"""Which directions of a network's last features its classes claim.

With W the weights of the last layer, [K, F], a feature direction that no row of W has a share in says nothing about any class. Classes that
the network was not told about leave their traces there, while blurred, dim or noisy inputs of known classes do not. Of features c around
their mean, the claimed share is that of a ridge regression of c on the rows of W,

    e = c' W' (W W' + t I)^-1 W c / |c|^2 = |A c|^2 / |c|^2,    t = |W|^2 / F,

between 0 and 1. t, the mean eigenvalue of W' W, makes it soft: where there are more classes than features, all directions are claimed, and
some hardly. 1 - e is the posterior variance, in units of the prior's, of a linear model along c that has seen the rows of W alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST = 1e-6
"""Of t in units of the largest weight squared, and of what is added so that a matrix has a root."""


@torch.no_grad()
def claims_of(weight: Tensor) -> Tensor:
    """Return A of the module's formula, [min(K, F), F], in float32: |A c| is at most |c|."""
    wide = torch.float32 if weight.device.type == "mps" else torch.float64  # which MPS does not have
    rows = weight.detach().to(wide)
    classes, features = rows.shape
    floor = SMALLEST * rows.abs().amax().square().clamp_min(SMALLEST)
    ridge = (rows.square().sum() / features).clamp_min(floor)
    few = classes <= features
    gram = rows @ rows.T if few else rows.T @ rows
    identity = torch.eye(len(gram), dtype=wide, device=rows.device)
    root = torch.linalg.cholesky(gram + ridge * identity)
    if few:
        return torch.linalg.solve_triangular(root, rows, upper=False).float()
    claimed = (1 + SMALLEST) * identity - ridge * torch.cholesky_inverse(root)
    return torch.linalg.cholesky(claimed).mT.float().contiguous()
