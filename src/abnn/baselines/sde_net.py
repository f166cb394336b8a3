"""SDE-Net: the blocks become a stochastic differential equation whose noise grows away from the training data.

    h_{k+1} = h_k + f(h_k, t_k) dt + sigma g(h_0) sqrt(dt) n_k,   n_k ~ N(0, 1),   t_k = k dt,   k = 0 .. depth - 1

by Euler and Maruyama, dt = 6 / depth. The drift f is one block with the time as a further channel, used at every step;
the diffusion g in (0, 1) is a small network on the stem's output.

    train   stem, drift, head: cross-entropy with noise of size ``sigma``; then g alone: binary cross-entropy, 0 on ID data
            and 1 on outliers x + 2 n, with the stem's output as it is
    score   1 - max_k of the prediction averaged over noise draws of size ``test_sigma``; also "logit-std", the deviation over
            the draws of the logit of the predicted class, and "diffusion", g itself

Kong, Sun and Zhang 2020, "SDE-Net: Equipping Deep Neural Networks with Uncertainty Estimates" (arXiv:2008.10546), whose
settings the authors kept. 283,723 numbers for MNIST; variant "svhn" has a third convolution in g, 322,507 for SVHN.
At prediction a draw is one path of the noise for all inputs, so that a result does not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.baselines.base import AUTHORS_NOISE, Method, Minimise, Run, Stage, check_paper_resnet
from abnn.baselines.options import check_count, check_positive, option
from abnn.model.calls import evaluating
from abnn.networks.by_name import PaperResNet, group_norm
from abnn.predict import Prediction
from abnn.predict.compiling import with_network
from abnn.train.optimizers import make_optimizer
from abnn.train.randomness import seeded

TIME = 6.0


def euler_maruyama(
    h: Tensor, drift: Callable[[float, Tensor], Tensor], diffusion: Tensor, noise: Sequence[Tensor], dt: float
) -> Tensor:
    """Return h after len(noise) steps of dh = drift(t, h) dt + diffusion dW, with the given standard normal numbers."""
    for step, numbers in enumerate(noise):
        h = h + drift(step * dt, h) * dt + diffusion * dt**0.5 * numbers
    return h


class TimeConv(nn.Conv2d):
    """3x3 convolution of the features and one channel that is t everywhere."""

    def __init__(self, width: int) -> None:
        super().__init__(width + 1, width, 3, padding=1)

    def at(self, t: float, x: Tensor) -> Tensor:
        return self(torch.cat([torch.full_like(x[:, :1], t), x], dim=1))


class Drift(nn.Module):
    """``convs`` times (norm, ReLU, conv), then norm."""

    def __init__(self, width: int, convs: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList([group_norm(width) for _ in range(convs + 1)])
        self.convs = nn.ModuleList([TimeConv(width) for _ in range(convs)])

    def forward(self, t: float, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs):
            assert isinstance(conv, TimeConv)
            x = conv.at(t, F.relu(norm(x)))
        return self.norms[-1](x)


class Diffusion(Drift):
    """The same at time 0, then ReLU, pool, linear; its output is the logit of g."""

    def __init__(self, width: int, convs: int) -> None:
        super().__init__(width, convs)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(F.relu(super().forward(0.0, x)).mean(dim=(2, 3)))[:, 0]


class SDENet(nn.Module):
    """Stem, drift, diffusion and head; width, classes, stem and depth are those of the paper's network."""

    def __init__(self, network: PaperResNet, diffusion_convs: int) -> None:
        super().__init__()
        width = network.head.in_features
        self.depth = len(network.blocks)
        self.stem, self.norm, self.head = network.stem, network.norm, network.head
        self.drift, self.diffusion = Drift(width), Diffusion(width, diffusion_convs)
        for conv in (module for module in self.modules() if isinstance(module, TimeConv)):
            nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)

    def draw_logits(self, x: Tensor, sigma: float, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [S, B, K] and g [B], for noise [S, depth, B or 1, C, H, W]."""
        h = self.stem(x)
        g = torch.sigmoid(self.diffusion(h))
        draws = len(noise)
        size = (sigma * g).view(1, -1, 1, 1, 1).expand(draws, len(x), 1, 1, 1).flatten(0, 1)
        start = h.expand(draws, *h.shape).flatten(0, 1)
        paths = [noise[:, k].expand(draws, *h.shape).flatten(0, 1) for k in range(self.depth)]
        end = euler_maruyama(start, self.drift, size, paths, TIME / self.depth)
        logits = self.head(F.relu(self.norm(end)).mean(dim=(2, 3)))
        return logits.unflatten(0, (draws, len(x))), g

    def noise_shape(self, x: Tensor) -> tuple[int, ...]:
        """Return [C, H, W] of the features of such inputs."""
        return tuple(self.stem(x[:1]).shape[1:])


@dataclass(frozen=True, kw_only=True)
class SDENetMethod(Method):
    """sigma, test_sigma: size of the noise in training and at prediction; diffusion_lr: learning rate of g."""

    name: ClassVar[str] = "sde-net"
    variants: ClassVar[dict[str, Any]] = {
        **Method.variants,
        "svhn": {"diffusion_convs": 3, "sigma": 1.0, "test_sigma": 50.0, "diffusion_lr": 0.005},
    }
    random: ClassVar[bool] = True
    own_scores: ClassVar[tuple[str, ...]] = ("logit-std", "diffusion")
    uses_outliers: ClassVar[str] = "must"

    sigma: float = option(20.0, check_positive)
    test_sigma: float = option(500.0, check_positive)
    diffusion_convs: int = option(2, check_count)
    diffusion_lr: float = option(0.01, check_positive)
    outliers: Any = field(default_factory=lambda: {**AUTHORS_NOISE, "scale": 2.0})

    def build(self, make_backbone: Callable[[], nn.Module], example: Tensor) -> SDENet:
        what = "for SDE-Net, a network of its own that takes only stem and head from it"
        return SDENet(check_paper_resnet(make_backbone(), what), self.diffusion_convs)

    def stages(self, run: Run) -> list[Stage]:
        return [Stage("train", run.epochs, lambda: SDESteps(run, self), self.schedule)]

    def predict(self, network: SDENet, x: Tensor, draws: int, seed: int) -> Prediction:
        shape = (network.depth, 1, *network.noise_shape(x))
        noise = torch.stack([torch.randn(shape, generator=seeded("path", seed, s)) for s in range(draws)]).to(x)
        logits, g = network.draw_logits(x, self.test_sigma, noise)
        own = {"logit-std": logit_std(logits.float()), "diffusion": g.float()}
        return Prediction(logits.float().softmax(2), default=self.score, own=own)


def logit_std(logits: Tensor) -> Tensor:
    """Return the deviation over the draws, [S, B, K], of the logit of the class with the largest mean logit; 0 for one draw."""
    chosen = logits.mean(0).argmax(1)
    values = logits.gather(2, chosen.expand(len(logits), -1)[..., None])[..., 0]
    return values.std(0) if len(logits) > 1 else torch.zeros_like(values[0])


class SDESteps(Minimise):
    """One step of the network without g, then one of g."""

    def __init__(self, run: Run, method: SDENetMethod) -> None:
        net: SDENet = run.network
        rest = chain(net.stem.parameters(), net.drift.parameters(), net.norm.parameters(), net.head.parameters())
        super().__init__(run, self.id_loss, method.make_optimizer(rest), "training the SDE-Net")
        self.optimizers["diffusion"] = make_optimizer(method.optimizer, net.diffusion.parameters(), method.diffusion_lr)
        self.net, self.sigma = net, method.sigma
        # Compiled as a whole, for every step of the equation has a time of its own.
        self.cross_entropy = with_network(self._cross_entropy, net, repr(method))
        self.diffusion_loss = with_network(self._diffusion_loss, net, repr(method))
        self.shapes: dict[torch.Size, tuple[int, ...]] = {}

    def step(self, x: Tensor, y: Tensor, generator: torch.Generator | None) -> dict[str, Tensor]:
        losses = super().step(x, y, generator)
        outliers = self.run.make_outliers(x, y, generator).x
        inside = self.diffusion_loss(x, 0.0)
        with evaluating(self.net):
            outside = self.diffusion_loss(outliers, 1.0)
        self.update(inside + outside, "diffusion")
        return {**losses, "diffusion_id": inside.detach(), "diffusion_outliers": outside.detach()}

    def id_loss(self, x: Tensor, y: Tensor, _: torch.Generator | None) -> dict[str, Tensor]:
        if x.shape not in self.shapes:
            with torch.no_grad():
                self.shapes[x.shape] = self.net.noise_shape(x)
        noise = torch.randn(1, self.net.depth, len(x), *self.shapes[x.shape], device=x.device)
        return {"cross_entropy": self.cross_entropy(x, y, noise)}

    def _cross_entropy(self, x: Tensor, y: Tensor, noise: Tensor) -> Tensor:
        return F.cross_entropy(self.run.logits(x, lambda x: self.net.draw_logits(x, self.sigma, noise)[0][0]), y)

    def _diffusion_loss(self, x: Tensor, target: float) -> Tensor:
        """The loss of g as a function of the diffusion net's parameters alone."""
        logit = self.run.logits(x, lambda x: self.net.diffusion(self.net.stem(x).detach()))
        return F.binary_cross_entropy_with_logits(logit, torch.full((len(x),), target, device=x.device))
