"""The paper's network and the authors' way of training it, built with the Bayesian layers of other libraries.

With stem output h, backbone blocks F_k and Bayesian blocks B_0, B_1 (B_1 serves all places but the first):

    a_0 = B_0(h), z_0 = F_0(h) + a_0;   a_k = B_1(a_{k-1}), z_k = F_k(z_{k-1}) + a_k;   logits = head(z_last)

One weight draw is one pass, so ten draws are a loop over ten passes: none of the libraries can do otherwise. Only the two Bayesian
blocks that are called exist; the authors register six, which costs their loop a little more than this one.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.networks.by_name import PaperResNet

PRIOR_SIGMA = 0.1
RHO = -6.0
NO_NOISE = -30.0  # softplus of it is 1e-13: draws are the means
KL_WEIGHT = 1 / 50_000
NOISE = 16.0


@dataclass(frozen=True)
class Peer:
    """One library: its 3x3 convolution, the KL of a network's last pass, and where a layer keeps means and rhos."""

    name: str
    version: str
    conv: Callable[[int], nn.Module]
    kl: Callable[[nn.Module], Tensor]
    places: Callable[[Any], tuple[Tensor, Tensor, Tensor, Tensor]]  # weight mean, weight rho, bias mean, bias rho


class PeerBlock(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))) with a library's convolutions."""

    def __init__(self, peer: Peer, width: int) -> None:
        super().__init__()
        groups = math.gcd(32, width)
        self.norm1, self.conv1 = nn.GroupNorm(groups, width), peer.conv(width)
        self.norm2, self.conv2 = nn.GroupNorm(groups, width), peer.conv(width)

    def forward(self, x: Tensor) -> Tensor:
        side = self.conv1(F.relu(self.norm1(x)))
        return x + self.conv2(F.relu(self.norm2(side)))


class PeerNetwork(nn.Module):
    """A backbone and the chain beside it; every pass draws new weights at every call of a Bayesian layer."""

    def __init__(self, backbone: PaperResNet, peer: Peer) -> None:
        super().__init__()
        self.backbone, self.peer = backbone, peer
        width = backbone.head.in_features
        self.first, self.rest = PeerBlock(peer, width), PeerBlock(peer, width)

    def forward(self, x: Tensor) -> Tensor:
        z = a = self.backbone.stem(x)
        for index, block in enumerate(self.backbone.blocks):
            a = self.rest(a) if index else self.first(a)
            z = block(z) + a
        return self.backbone.head(F.relu(self.backbone.norm(z)).mean(dim=(2, 3)))

    def copy_means(self, model: Attached) -> None:
        """Take norms and means of a model with the authors' chain, and no noise."""
        for mine, place in ((self.first, 0), (self.rest, 1)):
            theirs: Any = model.attached_blocks[place].attachment.block
            mine.norm1.load_state_dict(theirs.norm1.state_dict())
            mine.norm2.load_state_dict(theirs.norm2.state_dict())
            for conv, layer in ((mine.conv1, theirs.layer1), (mine.conv2, theirs.layer2)):
                weight, weight_rho, bias, bias_rho = self.peer.places(conv)
                with torch.no_grad():
                    weight.copy_(layer.weight_mean)
                    bias.copy_(layer.bias_mean)
                    weight_rho.fill_(NO_NOISE)
                    bias_rho.fill_(NO_NOISE)


def predict(network: nn.Module, x: Tensor, draws: int) -> Tensor:
    """The mean softmax over a loop of passes."""
    with torch.inference_mode():
        return torch.stack([network(x).softmax(1) for _ in range(draws)]).mean(0)


def iteration(
    network: PeerNetwork, optimizers: Mapping[str, torch.optim.Optimizer], x: Tensor, y: Tensor, draws: int = 3
) -> dict[str, Tensor]:
    """The authors' iteration: 1 + 3 + 3 passes one after another, three backward passes, three updates."""
    backbone, attachments = optimizers["backbone"], optimizers["attachments"]
    backbone.zero_grad()
    attachments.zero_grad()
    first = F.cross_entropy(network(x), y)
    first.backward()
    backbone.step()
    second, second_kl = _elbo(network, x, lambda z: F.cross_entropy(z, y), draws)
    (second + second_kl).backward()  # on top of the first gradient, as in the authors' code
    attachments.step()
    attachments.zero_grad()
    strange = x + NOISE * torch.randn(x.shape[0], 1, *x.shape[2:], device=x.device)
    classes = network.backbone.head.out_features
    target = torch.full((len(x), classes), 1 / classes, device=x.device)
    third, third_kl = _elbo(network, strange, lambda z: F.binary_cross_entropy_with_logits(z, target), draws)
    (-(third + third_kl)).backward()
    attachments.step()
    losses = {"backbone": first, "id": second, "weighted_kl": second_kl, "outliers": third}
    return {name: loss.detach() for name, loss in losses.items()}


def _elbo(network: PeerNetwork, x: Tensor, loss: Callable[[Tensor], Tensor], draws: int) -> tuple[Tensor, Tensor]:
    """Loss and weighted KL, each averaged over the draws."""
    total, kl = x.new_zeros(()), x.new_zeros(())
    for _ in range(draws):
        total = total + loss(network(x)) / draws
        kl = kl + KL_WEIGHT * network.peer.kl(network) / draws
    return total, kl


class PeerTraining:
    """The authors' loop: Adam on backbone and attachments, batches from a loader that goes on for ever."""

    def __init__(self, network: PeerNetwork, batches: Iterator[Any], device: torch.device) -> None:
        self.network, self.batches, self.device = network.to(device).train(), batches, device
        own = {id(parameter) for parameter in network.backbone.parameters()}
        rest = [parameter for parameter in network.parameters() if id(parameter) not in own]
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "backbone": torch.optim.Adam(network.backbone.parameters(), lr=1e-3),
            "attachments": torch.optim.Adam(rest, lr=1e-3),
        }

    def __call__(self) -> dict[str, Tensor]:
        x, y = next(self.batches)
        return iteration(self.network, self.optimizers, x.to(self.device), y.to(self.device))


# -- the libraries ------------------------------------------------------------------------------------------------------


def find_peers() -> tuple[dict[str, Peer], dict[str, str]]:
    """The libraries that are installed, and for each of the others why it is left out."""
    found: dict[str, Peer] = {}
    missing: dict[str, str] = {}
    for name, load in LIBRARIES.items():
        try:
            found[name] = load()
        except (ImportError, PackageNotFoundError) as error:
            missing[name] = f"not installed: {error}"
    return found, missing


def _blitz() -> Peer:
    from blitz.losses import kl_divergence_from_nn  # type: ignore[import-not-found]
    from blitz.modules import BayesianConv2d  # type: ignore[import-not-found]

    def conv(width: int) -> nn.Module:
        return BayesianConv2d(
            width, width, (3, 3), padding=1, prior_sigma_1=PRIOR_SIGMA, prior_pi=1, posterior_rho_init=RHO
        )

    def places(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        # The samplers' own copies: only these are used and trained once the layer has been moved to a device.
        weight, bias = layer.weight_sampler, layer.bias_sampler
        return weight.mu, weight.rho, bias.mu, bias.rho

    return Peer("blitz", version("blitz-bayesian-pytorch"), conv, kl_divergence_from_nn, places)


def _bayesian_torch() -> Peer:
    from bayesian_torch.layers import Conv2dReparameterization  # type: ignore[import-not-found]
    from bayesian_torch.models.dnn_to_bnn import get_kl_loss  # type: ignore[import-not-found]

    def conv(width: int) -> nn.Module:
        layer = Conv2dReparameterization(width, width, 3, padding=1, prior_variance=PRIOR_SIGMA, posterior_rho_init=RHO)
        layer.dnn_to_bnn_flag = True  # returns its output alone, as in networks that the library converts
        return layer

    def places(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return layer.mu_kernel, layer.rho_kernel, layer.mu_bias, layer.rho_bias

    return Peer("bayesian-torch", version("bayesian-torch"), conv, get_kl_loss, places)


def _torch_uncertainty() -> Peer:
    conv2d = _package("torch_uncertainty", "layers", "bayesian").BayesConv2d

    def conv(width: int) -> nn.Module:
        return conv2d(width, width, 3, padding=1, prior_sigma_1=PRIOR_SIGMA, prior_pi=1, sigma_init=RHO)

    def kl(network: nn.Module) -> Tensor:
        layers = [layer for layer in network.modules() if isinstance(layer, conv2d)]
        return torch.stack([layer.log_variational_posterior - layer.log_prior for layer in layers]).sum()

    def places(layer: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return layer.weight_mu, layer.weight_sigma, layer.bias_mu, layer.bias_sigma

    return Peer("torch-uncertainty", version("torch-uncertainty"), conv, kl, places)


def _package(root: str, *path: str) -> ModuleType:
    """A package inside another one, without the outer one's import, which wants a training framework and plots."""
    name = "_".join((root, *path))
    if name in sys.modules:
        return sys.modules[name]
    outer = importlib.util.find_spec(root)
    if outer is None or not outer.submodule_search_locations:
        raise ImportError(f"No module named '{root}'")
    folder = "/".join((outer.submodule_search_locations[0], *path))
    spec = importlib.util.spec_from_file_location(name, f"{folder}/__init__.py", submodule_search_locations=[folder])
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIBRARIES: dict[str, Callable[[], Peer]] = {
    "blitz": _blitz,
    "bayesian-torch": _bayesian_torch,
    "torch-uncertainty": _torch_uncertainty,
}
