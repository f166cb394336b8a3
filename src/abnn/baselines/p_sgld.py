"""p-SGLD: Langevin dynamics with RMSprop's preconditioner; samples of the posterior are collected along the way.

With U(w) = [- N mean_b ln p(y_b | x_b, w) + |w - c|^2 / (2 s^2)] / T, N training inputs and prior N(c, s^2), one step is

    g = grad U(w),   v <- a v + (1 - a) g^2,   G = sqrt(v) + 1e-8
    w <- w - lr/2 g / G + sqrt(lr / G) n,   n ~ N(0, 1)

and the prediction is averaged over samples of w, evenly spaced after a burn-in.

Li, Chen, Carlson and Carin 2016, "Preconditioned Stochastic Gradient Langevin Dynamics for Deep Neural Networks"
(arXiv:1512.07666); as there, the term with the preconditioner's derivative is left out, which is right where v changes
slowly. c is 1 for the scales of normalisation layers and 0 for everything else. v starts at the mean of g^2 over each
tensor, for from 0 the first steps would be noise where a gradient happens to be small. T = 1 samples the posterior; T < 1
sharpens it, without which networks with far more weights than inputs hardly learn (Wenzel et al. 2020, arXiv:2002.02405).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from abnn.baselines.base import Losses, Method, Minimise, Run, Stage
from abnn.baselines.options import check_count, check_positive, check_share, option

NORMS = (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Langevin(torch.optim.Optimizer):
    """The step above; gradients must be those of U. Noise comes from torch's global random state; with several processes,
    of which ``fabric`` knows, from all of theirs, so that they walk one chain."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, decay: float = 0.99, fabric: Any = None) -> None:
        parameters = list(parameters)
        on_cuda = bool(parameters) and parameters[0].is_cuda  # there, a captured step reads the rate from the device
        rate = torch.tensor(lr, device=parameters[0].device) if on_cuda else lr
        super().__init__(parameters, {"lr": rate, "decay": decay})
        self.fabric = fabric

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:  # all tensors in one call of each operation: most of them are small
            lr, decay = group["lr"], group["decay"]
            weights = [w for w in group["params"] if w.grad is not None]
            gradients = [w.grad for w in weights]
            for w in weights:
                if not self.state[w]:
                    self.state[w]["v"] = torch.full_like(w, (w.grad**2).mean().item())
            v = [self.state[w]["v"] for w in weights]
            torch._foreach_mul_(v, decay)
            torch._foreach_addcmul_(v, gradients, gradients, value=1 - decay)
            preconditioner = torch._foreach_sqrt(v)
            torch._foreach_add_(preconditioner, 1e-8)
            rates = torch._foreach_reciprocal(preconditioner)
            torch._foreach_mul_(rates, lr)  # lr / G
            torch._foreach_add_(weights, torch._foreach_mul(rates, gradients), alpha=-0.5)
            torch._foreach_sqrt_(rates)  # the noise's deviation
            torch._foreach_add_(weights, torch._foreach_mul(rates, self._noise(weights)))

    def _noise(self, like: list[Tensor]) -> list[Tensor]:
        """Standard normal numbers in the shapes of all tensors, drawn at once; the same in all processes."""
        numbers = torch.randn(sum(w.numel() for w in like), dtype=like[0].dtype, device=like[0].device)
        if self.fabric is not None and self.fabric.world_size > 1:
            numbers = self.fabric.all_reduce(numbers, reduce_op="sum") / self.fabric.world_size**0.5
        return [part.view_as(w) for part, w in zip(numbers.split([w.numel() for w in like]), like)]


class Samples(nn.Module):
    """A network whose weights move, and the kept samples of them, [most, numbers]; the first ``count`` are filled."""

    def __init__(self, network: nn.Module, most: int) -> None:
        super().__init__()
        self.network = network
        self.kept = nn.Buffer(torch.zeros(most, sum(parameter.numel() for parameter in network.parameters())))
        self.count = nn.Buffer(torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)

    @torch.no_grad()
    def keep(self) -> None:
        self.kept[int(self.count)] = parameters_to_vector(self.network.parameters())
        self.count.add_(1)

    def weights(self, number: int) -> dict[str, Tensor]:
        """One sample as named parameters."""
        named = dict(self.network.named_parameters())
        parts = self.kept[number].split([value.numel() for value in named.values()])
        return {name: part.view_as(value) for (name, value), part in zip(named.items(), parts)}


def sample_steps(steps: int, burn_in: float, most: int) -> list[int]:
    """The numbers of the steps after which a sample is kept: at most ``most``, evenly spaced, the last step included."""
    first = min(int(burn_in * steps), steps - 1)
    count = min(most, steps - first)
    return [first + (steps - first) * number // count - 1 for number in range(1, count + 1)]


def prior_centres(network: nn.Module) -> list[float]:
    """c of every parameter, in their order: 1 for the scales of normalisation layers, else 0."""
    scales = {id(module.weight) for module in network.modules() if isinstance(module, NORMS)}
    return [1.0 if id(parameter) in scales else 0.0 for parameter in network.parameters()]


class Collect(Minimise):
    """Langevin steps; keeps a sample whenever its time has come."""

    def __init__(self, run: Run, losses: Losses, optimizer: torch.optim.Optimizer, steps: Sequence[int]) -> None:
        super().__init__(run, losses, optimizer, "sampling weights")
        self.sample_steps = set(steps)
        self.done = 0

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        losses = super().step(x, y, generator)
        return {name: loss / self.run.size for name, loss in losses.items()}

    def after_step(self) -> None:
        if self.done in self.sample_steps:
            self.network.keep()
        self.done += 1

    def more(self) -> dict[str, int]:
        return {"done": self.done}

    def restore_more(self, more: dict[str, int]) -> None:
        self.done = more["done"]


@dataclass(frozen=True, kw_only=True)
class PSGLD(Method):
    """prior_sigma: s; decay: a; samples: how many are kept; burn_in: share of the steps before the first; temperature: T."""

    name: ClassVar[str] = "p-sgld"
    random: ClassVar[bool] = True
    optimizers: ClassVar[tuple[str, ...]] = ("langevin",)

    lr: float = 1e-3
    optimizer: str = "langevin"
    schedule: str = "constant"
    prior_sigma: float = option(0.1, check_positive)
    decay: float = option(0.99, check_share)
    samples: int = option(20, check_count)
    burn_in: float = option(0.5, check_share)
    temperature: float = option(1.0, check_positive)

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> Samples:
        return Samples(make_backbone(), self.samples)

    def stages(self, run: Run) -> list[Stage]:
        parameters = list(run.network.parameters())
        centres = torch.cat([torch.full_like(w, c).flatten() for w, c in zip(parameters, prior_centres(run.network))])

        def losses(x: Tensor, y: Tensor, _: torch.Generator | None) -> dict[str, Tensor]:
            prior = ((parameters_to_vector(parameters) - centres) ** 2).sum() / (2 * self.prior_sigma**2)
            fit = run.size * F.cross_entropy(run.logits(x), y)
            return {"likelihood": fit / self.temperature, "prior": prior / self.temperature}

        def make() -> Collect:
            length = run.batches.length
            batches = sum(1 for _ in run.batches.once()) if length is None else length
            steps = sample_steps(run.epochs * batches, self.burn_in, self.samples)
            return Collect(run, losses, Langevin(parameters, self.lr, self.decay, run.fabric), steps)

        return [Stage("train", run.epochs, make, self.schedule)]

    def draw_logits(self, network: Samples, x: Tensor, draws: int, seed: int) -> Tensor:
        """Return one draw for each kept sample, whatever ``draws`` says."""
        samples = [network.weights(number) for number in range(int(network.count))]
        return torch.stack([torch.func.functional_call(network.network, weights, (x,)) for weights in samples])
