"""The work that is timed: abnn's side, plain networks, MC dropout and ensembles."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import abnn
from abnn.attached import Attached
from abnn.bayes.layers import inverse_softplus
from abnn.bayes.noise import NoiseCache, pick_draws
from abnn.config import FitConfig
from abnn.config import preset as choose_preset
from abnn.model.passes import Pass
from abnn.networks.by_name import PaperResNet
from abnn.outliers import make_outliers
from abnn.predict.compiling import options
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric
from abnn.train.optimizers import make_optimizer
from abnn.train.randomness import seeded
from abnn.train.steps import Steps

FITTED = 40
"""Made-up inputs from which the score of the default preset is learnt; how good it is does not matter here."""

# -- data ---------------------------------------------------------------------------------------------------------------


def made_up(count: int, size: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Grey pictures and labels; what they show does not change how long anything takes."""
    random = np.random.default_rng(0)
    return random.integers(0, 256, (count, size, size), dtype=np.uint8), random.integers(0, classes, count)


class Pictures(Dataset):
    """One picture at a time, opened and scaled when it is asked for, as torchvision's data sets and ToTensor do it."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = np.array(Image.fromarray(self.images[index]))
        return torch.from_numpy(picture).float().div(255)[None], int(self.labels[index])


def authors_batches(images: np.ndarray, labels: np.ndarray, batch: int, workers: int) -> Iterator[Any]:
    """The authors' loader: shuffled, incomplete batches dropped, one worker; over and over."""
    loader = DataLoader(Pictures(images, labels), batch, shuffle=True, drop_last=True, num_workers=workers)
    while True:
        yield from loader


def tensor_loader(images: np.ndarray, labels: np.ndarray, batch: int) -> DataLoader:
    """What abnn's users have: the pictures as one tensor."""
    x = torch.from_numpy(images).float().div(255)[:, None]
    return DataLoader(TensorDataset(x, torch.from_numpy(labels)), batch, shuffle=True, drop_last=True)


# -- networks -----------------------------------------------------------------------------------------------------------


def paper_network(width: int, blocks: int, classes: int, device: torch.device) -> PaperResNet:
    """The same weights every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return PaperResNet(1, classes, width, blocks, kaiming=False).to(device).eval()


class DropoutNetwork(nn.Module):
    """The paper's MC-dropout network: a tenth of the pooled features is dropped before the head, in every mode."""

    def __init__(self, backbone: PaperResNet) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.backbone.norm(self.backbone.blocks(self.backbone.stem(x)))).mean(dim=(2, 3))
        return self.backbone.head(F.dropout(features, 0.1))


def settle(network: nn.Module, x: Tensor) -> nn.Module:
    """Give batch norms the statistics of ``x``, so that features of random weights keep their size."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    with torch.no_grad():
        network.train()(x)
    for norm in norms:
        norm.momentum = 0.1
    return network.eval()


def channels_last(network: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """Both with the channels of each position side by side in memory."""
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network, x.to(memory_format=torch.channels_last)


def default_model(network: nn.Module, x: Tensor, last: int | None = None) -> Attached:
    """The default preset on a network, with a score learnt from made-up inputs like ``x``.

    Its attachments have weights and widths of a size that training gives: at first they add nothing, and no draw would show.
    """
    model = abnn.attach(network, x[:1], last=last)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for layer in model.layers:
            for mean, rho, _ in layer.parts:
                mean.copy_(torch.randn(mean.shape, generator=generator) / math.sqrt(max(1, mean[0].numel())))
                rho.fill_(inverse_softplus(float(mean.float().square().mean().sqrt())))
    inputs = torch.rand(FITTED, *x.shape[1:], generator=generator).to(x)
    labels = torch.randint(model.classes or 2, (FITTED,), generator=generator).to(x.device)
    batches = list(zip(inputs.split(FITTED // 4), labels.split(FITTED // 4)))
    abnn.fit(model, batches, epochs=0, progress=False, config=FitConfig(accelerator=x.device.type))
    return model


# -- prediction ---------------------------------------------------------------------------------------------------------


def plain(network: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return network(x).float().softmax(1)


def members(networks: Sequence[nn.Module], x: Tensor) -> Tensor:
    """A deep ensemble: the mean softmax over its members, one after another."""
    with torch.inference_mode():
        return torch.stack([network(x).softmax(1) for network in networks]).mean(0)


def one_by_one(model: Attached, x: Tensor, draws: int) -> Callable[[], Tensor]:
    """Gives the samples [S, B, K] of ``model.predict(x, draws)`` by one pass each; their noise is made beforehand.

    The plain network comes first where the model's predictions have it first.
    """
    noise = NoiseCache().get(model.layers, range(draws), 0)
    passes = [Pass(model, pick_draws(noise, slice(draw, draw + 1)), plain=False) for draw in range(draws)]

    def loop() -> Tensor:
        first = [plain(model.backbone, x)] if model.state.plain else []
        with torch.inference_mode():
            return torch.stack([*first, *(each(x)[0].float().softmax(1) for each in passes)])

    return loop


def captured(call: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """``call(x)`` as one CUDA graph, with the copy of its input that every use of a graph needs."""
    held, stream = x.clone(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call(held)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        result = call(held)

    def replay() -> Tensor:
        held.copy_(x)
        graph.replay()
        return result

    return replay


# -- agreement ----------------------------------------------------------------------------------------------------------


def disagreement(p: Tensor, q: Tensor) -> float:
    """max over draws and inputs of 1/2 sum_k |p_k - q_k|, the total variation between two predictions; 1 where one is NaN."""
    return float(0.5 * (p.float() - q.float()).abs().sum(-1).nan_to_num(2.0).max())


def check(p: Tensor, q: Tensor, most: float = 1e-4) -> dict[str, Any]:
    """How far two predictions lie apart, and how far rounding may put them apart."""
    value = disagreement(p, q)
    return {"value": value, "most": most, "agrees": value <= most}


def check_folding(model: Attached, x: Tensor, draws: int, most: float = 1e-4) -> dict[str, Any]:
    """Every draw of a prediction against a pass of its own; asked again and again, for later calls may replay earlier.

    ``spread`` is how far the last two draws lie apart: a mix-up of draws would show as a difference of that size.
    """
    for _ in range(4):
        samples = model.predict(x, draws=draws).samples
    spread = disagreement(samples[-2], samples[-1])
    return {**check(samples, one_by_one(model, x, draws)(), most), "spread": spread}


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Without TF32, whose rounding is as large as what some draws change."""
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def without_noise(model: Attached, x: Tensor) -> Tensor:
    """The prediction of the mean weights."""
    with torch.inference_mode():
        return Pass(model, plain=False)(x)[0].float().softmax(1)


# -- training -----------------------------------------------------------------------------------------------------------


class OurTraining:
    """Iterations of ``abnn.fit`` with a preset: batches, learning rates and steps as in :mod:`abnn.train.loop`."""

    def __init__(
        self,
        backbone: nn.Module,
        loader: DataLoader,
        device: torch.device,
        preset: str,
        precision: str = "32-true",
        compile: bool = False,
    ) -> None:
        chosen = choose_preset(preset)
        self.device = device
        self.model = abnn.attach(backbone, next(iter(loader))[0][:1].to(device), preset=preset)
        fabric = make_fabric(precision, device.type, 1, 1)
        fabric.to_device(self.model)
        if compile:  # as fit() does it for the time of a training
            self.model.net.compile(dynamic=False, options=options(self.model.net))
        self.batches = Batches(loader, self.model, fabric, seed=0)
        maker = make_outliers(chosen.outliers, **chosen.outlier_options)
        if maker.needs_range:
            maker.prepare(*self.batches.value_range())
        parameters = {"attachments": [parameter for _, parameter in self.model.attachment_parameters()]}
        if not chosen.freeze_backbone:
            parameters["backbone"] = [parameter for _, parameter in self.model.backbone_parameters()]
        optimizers = {name: make_optimizer("adam", each, 1e-3) for name, each in parameters.items()}
        self.steps = Steps(self.model, chosen.objective, maker, fabric, optimizers)
        self.captured = None
        if device.type == "cuda" and self.steps.capturable:
            from abnn.train.capture import CapturedStep

            self.captured = CapturedStep(self.steps)
        self.stream = self._forever()

    def _forever(self) -> Iterator[tuple[int, int, Tensor, Tensor]]:
        epoch = 1  # in the first one, values are checked as well
        while True:
            for step, x, y in self.batches.epoch(epoch):
                yield epoch, step, x, y
            epoch += 1

    def __call__(self) -> dict[str, Tensor]:
        epoch, step, x, y = next(self.stream)
        for optimizer in self.steps.optimizers.values():
            for group in optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(1e-3)
        if self.captured is not None:
            return self.captured(x, y)
        return self.steps.step(x, y, seeded("outliers", 0, epoch, step, 0))


class AtOnce:
    """Iterations of several trainings, each in a lane of its own, as ``research.seeds.train_seeds`` runs them."""

    def __init__(self, make: Callable[[], OurTraining], count: int, device: torch.device) -> None:
        from research.lanes import Lane  # not at the top: processes that only measure memory know nothing of research

        self.lanes = [Lane(device) for _ in range(count)]
        self.trainings = []
        for lane in self.lanes:
            with lane.active():
                self.trainings.append(make())

    def __call__(self) -> None:
        for lane, training in zip(self.lanes, self.trainings):
            with lane.active():
                training()


class PlainTraining:
    """One update of each network by one batch: a network with dropout, or the members of an ensemble."""

    def __init__(self, networks: Sequence[nn.Module], batches: Iterator[Any], device: torch.device) -> None:
        self.networks = [network.to(device).train() for network in networks]
        self.optimizers = [torch.optim.Adam(network.parameters(), lr=1e-3) for network in networks]
        self.batches, self.device = batches, device

    def __call__(self) -> None:
        for network, optimizer in zip(self.networks, self.optimizers):
            x, y = next(self.batches)
            optimizer.zero_grad()
            F.cross_entropy(network(x.to(self.device)), y.to(self.device)).backward()
            optimizer.step()


def copies(network: nn.Module, count: int) -> list[nn.Module]:
    return [copy.deepcopy(network) for _ in range(count)]
