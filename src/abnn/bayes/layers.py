"""Mean-field Gaussian layers that evaluate all weight draws in one call.

Every weight w has a factorised posterior N(mean, sigma^2) with sigma = softplus(rho) (Blundell et al. 2015, "Weight
Uncertainty in Neural Networks", arXiv:1505.05424). A layer *holds* the noise of its current draws,

    w_s = mean + sigma * noise_s,   noise_s ~ N(0, 1),   s = 1..S,

so that its forward pass is a pure function of input, parameters and noise. It can be compiled, exported, captured and
repeated. New draws are made only by :meth:`MeanField.resample`.

Draws are folded into the batch, draw-major: row ``s * B + b`` of a folded tensor belongs to draw s and input b.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.bayes.convolutions import Geometry, convolve
from abnn.bayes.priors import Gaussian, Prior, gaussian_kl, sampled_kl
from abnn.errors import InputError, explain

UNIT = Gaussian(1.0)


@dataclass(frozen=True)
class Init:
    """The posterior at the start: mean ~ N(0, mean_std^2), rho ~ N(softplus^-1(sigma), rho_std^2)."""

    mean_std: float = 0.0
    sigma: float = 0.02
    rho_std: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.mean_std < math.inf and 0 <= self.rho_std < math.inf and 0 < self.sigma < math.inf):
            accepted = "mean_std >= 0, rho_std >= 0, sigma > 0"
            raise InputError(explain("init", self, accepted, "Choose non-negative spreads and a positive sigma."))


def inverse_softplus(sigma: float) -> float:
    """Return rho with softplus(rho) = sigma, accurate for tiny and large sigma."""
    return sigma + math.log(-math.expm1(-sigma))


def is_nothing(noise: Tensor) -> bool:
    """Return whether noise is a single zero, expanded: mean weights, see :func:`abnn.bayes.noise.no_noise`."""
    return not any(noise.stride())


Weights = tuple[Tensor, Tensor | None]
Part = tuple[Tensor, Tensor, Tensor]


class MeanField(nn.Module):
    """Mean, rho and held noise of one weight and its bias. Subclasses say how a weight draw acts on an input.

    bias    whether there is a bias
    prior   of every weight
    init    the posterior at the start
    uses    number of calls of the layer in one pass of the network: each use has noise of its own
    shared  whether all weights share one sigma, and all biases another
    """

    weight_noise: Tensor
    bias_noise: Tensor | None
    ready: dict[int, Weights] | None = None  # weight draws by use, while several passes need the same ones

    def __init__(
        self,
        shape: Sequence[int],
        bias: bool = True,
        prior: Prior = UNIT,
        init: Init = Init(),
        uses: int = 1,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.prior, self.init, self.uses = prior, init, uses
        self.weight_mean = nn.Parameter(torch.empty(tuple(shape)))
        self.weight_rho = nn.Parameter(torch.empty((1,) * len(shape) if shared else tuple(shape)))
        self.bias_mean = nn.Parameter(torch.empty(shape[0])) if bias else None
        self.bias_rho = nn.Parameter(torch.empty(1 if shared else shape[0])) if bias else None
        self.register_buffer("weight_noise", torch.zeros(uses, 1, *shape), persistent=False)
        self.register_buffer("bias_noise", torch.zeros(uses, 1, shape[0]) if bias else None, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        rho = inverse_softplus(self.init.sigma)
        with torch.no_grad():
            for mean, spread, _ in self.parts:
                mean.normal_(0, self.init.mean_std) if self.init.mean_std else mean.zero_()
                spread.normal_(rho, self.init.rho_std) if self.init.rho_std else spread.fill_(rho)

    @property
    def draws(self) -> int:
        """The number of held draws, S."""
        return self.weight_noise.shape[1]

    @property
    def weight_sigma(self) -> Tensor:
        return F.softplus(self.weight_rho)

    def resample(self, draws: int | None = None, generator: torch.Generator | None = None) -> None:
        """Hold new noise for ``draws`` draws; None: as many as now.

        It is written in place if the number stays the same.
        """
        with torch.inference_mode(False), torch.no_grad():  # held noise may meet autograd later
            for name in ("weight_noise", "bias_noise"):
                noise = getattr(self, name)
                if noise is None:
                    continue
                if is_nothing(noise) or (draws is not None and draws != noise.shape[1]):
                    noise = noise.new_empty(self.uses, noise.shape[1] if draws is None else draws, *noise.shape[2:])
                    setattr(self, name, noise)
                noise.normal_(generator=generator)

    def resample_seeded(self, generators: Sequence[torch.Generator]) -> None:
        """Hold one draw from each CPU generator; draws are the same on every device."""
        with torch.inference_mode(False), torch.no_grad():
            weight, bias = self.seeded_noise(generators)
            assert weight is not None
            device = self.weight_noise.device
            self.weight_noise, self.bias_noise = weight.to(device), None if bias is None else bias.to(device)

    def seeded_noise(self, generators: Sequence[torch.Generator]) -> tuple[Tensor | None, ...]:
        """Return noise of weight and bias on the CPU, one draw from each generator."""

        def noise_like(held: Tensor | None) -> Tensor | None:
            if held is None:
                return None
            shape = self.uses, *held.shape[2:]
            return torch.stack([torch.randn(shape, generator=each) for each in generators], dim=1).to(held.dtype)

        return noise_like(self.weight_noise), noise_like(self.bias_noise)

    def weights(self, use: int = 0) -> Weights:
        """Return the held draws of weight, [S, ...], and bias, [S, out] or None."""
        if self.ready is None:
            return self._draw_weights(use)
        if use not in self.ready:
            self.ready[use] = self._draw_weights(use)
        return self.ready[use]

    def _draw_weights(self, use: int) -> Weights:
        weight, *bias = (_by_use(mean, _sigma(rho, noise), noise[use : use + 1])[0] for mean, rho, noise in self.parts)
        return weight, bias[0] if bias else None

    @property
    def parts(self) -> list[Part]:
        """Mean, rho and held noise of the weight, and of the bias if there is one."""
        parts: list[Part] = [(self.weight_mean, self.weight_rho, self.weight_noise)]
        if self.bias_mean is not None and self.bias_rho is not None and self.bias_noise is not None:
            parts.append((self.bias_mean, self.bias_rho, self.bias_noise))
        return parts

    def kl(self, sampled: bool = False) -> Tensor:
        """Return KL[posterior || prior] over weight and bias, see :func:`kl_of`."""
        return kl_of([self], sampled)

    def forward(self, x: Tensor, folded: bool = True, use: int = 0) -> Tensor:
        """Return S·B rows: the output of every held draw.

        x  S·B rows if ``folded``, else B rows that all draws share
        """
        raise NotImplementedError


class BayesLinear(MeanField):
    """y_s = x W_s^T + b_s over the last dimension, with any dimensions between batch and features.

    options  of :class:`MeanField`
    """

    def __init__(self, in_features: int, out_features: int, **options: Any) -> None:
        super().__init__((out_features, in_features), **options)

    def forward(self, x: Tensor, folded: bool = True, use: int = 0) -> Tensor:
        weight, bias = self.weights(use)
        draws, out, _ = weight.shape
        if folded:
            y = torch.bmm(x.reshape(draws, -1, x.shape[-1]), weight.transpose(1, 2))  # [S, B*middle, out]
        else:
            y = (x.reshape(-1, x.shape[-1]) @ weight.flatten(0, 1).T).unflatten(1, (draws, out)).transpose(0, 1)
        if bias is not None:
            y = y + bias[:, None, :]
        return y.reshape(-1, *x.shape[1:-1], out)

    def extra_repr(self) -> str:
        out_features, in_features = self.weight_mean.shape
        return f"{in_features}, {out_features}, bias={self.bias_mean is not None}, draws={self.draws}"


class BayesConv(MeanField):
    """y_s = W_s * x + b_s: convolution in 1, 2 or 3 dimensions, padded so that a stride of 1 keeps the size.

    With ``groups`` above 1, channels only mix within their group, as in ``torch.nn.Conv2d``.
    :mod:`abnn.bayes.convolutions` convolves all draws at once.

    options  of :class:`MeanField`
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sequence[int],
        stride: Sequence[int] | None = None,
        groups: int = 1,
        **options: Any,
    ) -> None:
        rank = len(kernel_size)
        if rank not in (1, 2, 3):
            raise InputError(explain("kernel_size", tuple(kernel_size), "one to three sizes, one per dimension"))
        if groups < 1 or in_channels % groups or out_channels % groups:
            accepted = f"a divisor of both {in_channels} and {out_channels} channels"
            raise InputError(explain("groups", groups, accepted, "Choose a common divisor, for example 1."))
        super().__init__((out_channels, in_channels // groups, *kernel_size), **options)
        self.rank = rank
        self.geometry = Geometry(tuple(stride or (1,) * rank), tuple(size // 2 for size in kernel_size), groups)

    def forward(self, x: Tensor, folded: bool = True, use: int = 0) -> Tensor:
        weight, bias = self.weights(use)  # [S, O, C/g, ...], [S, O]
        if weight.shape[0] == 1 and not torch.compiler.is_compiling():
            return self.geometry.convolve(x, weight.squeeze(0), None if bias is None else bias.squeeze(0))
        return convolve(x, weight, bias, self.geometry, folded)

    def extra_repr(self) -> str:
        out_channels, per_group, *kernel = self.weight_mean.shape
        stride, groups = self.geometry.stride, self.geometry.groups
        shape = f"{per_group * groups}, {out_channels}, kernel_size={tuple(kernel)}, stride={stride}"
        return f"{shape}, groups={groups}, draws={self.draws}"


def bayesian_layers(module: nn.Module) -> list[MeanField]:
    """Return all mean-field layers inside a module, each once, in a fixed order."""
    return [layer for layer in module.modules() if isinstance(layer, MeanField)]


def kl_of(layers: Sequence[MeanField], sampled: bool = False) -> Tensor:
    """Return KL[posterior || prior] over the weights and biases of all layers.

    It is in closed form for a Gaussian prior. For another prior, or if ``sampled``, it is the Monte Carlo estimate
    1/S sum_s [log q(w_s) - log p(w_s)] over the held draws of the last use.
    """
    by_prior: dict[Prior, list[Part]] = {}
    for layer in layers:
        by_prior.setdefault(layer.prior, []).extend(layer.parts)
    terms = []
    for prior, parts in by_prior.items():
        for mean, rho, noise in parts if torch.compiler.is_compiling() else [_side_by_side(parts)]:
            sigma = F.softplus(rho)
            if isinstance(prior, Gaussian) and not sampled:
                terms.append(gaussian_kl(mean, sigma, prior.sigma))
            else:
                terms.append(sampled_kl(mean, sigma, noise[-1], prior))
    return functools.reduce(torch.add, terms)


def _side_by_side(parts: Sequence[Part]) -> Part:
    """Return all parts as one long part, with the noise of their last uses.

    So few large operations do the work of many small ones. Compiled code does without it: a compiler fuses the
    operations anyway, and would copy the parts for this.
    """
    mean = torch.cat([mean.flatten() for mean, _, _ in parts])
    rho = torch.cat([rho.expand_as(mean).flatten() for mean, rho, _ in parts])
    return mean, rho, torch.cat([noise[-1:].flatten(2) for _, _, noise in parts], dim=2)


@contextlib.contextmanager
def with_weights_ready(layers: Sequence[MeanField]) -> Iterator[None]:
    """Inside, layers use weights of their held draws that are computed once, for all of their uses."""
    parts = [part for layer in layers for part in layer.parts]
    sigmas = _sigma(torch.cat([rho.flatten() for _, rho, _ in parts]), parts[0][2])
    each = sigmas.split([rho.numel() for _, rho, _ in parts])
    ready = iter([_by_use(mean, sigma.view_as(rho), noise) for (mean, rho, noise), sigma in zip(parts, each)])
    try:
        for layer in layers:
            weights = next(ready)
            biases = next(ready) if layer.bias_mean is not None else (None,) * layer.uses
            layer.ready = dict(enumerate(zip(weights, biases)))
        yield
    finally:
        for layer in layers:
            layer.ready = None


def _sigma(rho: Tensor, noise: Tensor) -> Tensor:
    """Return softplus(rho). With mean weights it is not used, so ``rho`` comes back as it is."""
    return rho if is_nothing(noise) else F.softplus(rho)


def _by_use(mean: Tensor, sigma: Tensor, noise: Tensor) -> Sequence[Tensor]:
    """Return mean + sigma * noise for each use, [S, ...]."""
    if is_nothing(noise):
        return [mean.expand_as(each) for each in noise.unbind()]
    if len(noise) == 1:
        return [torch.addcmul(mean, sigma, noise[0])]
    return torch.addcmul(mean, sigma, noise).unbind()
