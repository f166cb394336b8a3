"""What attach() promises, shown on many networks."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.config import Objective
from abnn.networks.by_name import PaperResNet, build_backbone
from abnn.networks.vision import torchvision
from abnn.outliers import OutlierBatch
from abnn.train.steps import Steps
from tests.conftest import (
    PlainFabric,
    attach_with,
    generator,
    mlp,
    one_draw_at_a_time,
    random_head,
    randomise_attachments,
    same_state,
)

CLASSES = 5
TRACED = ("paper", "resnet18", "small vit", "small swin", "mlp", "conv1d")
"""One network for each form of blocks: what is compiled and exported around others is the same, and takes long."""
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Conv1dNet(nn.Module):
    """A small network for signals."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(2, 8, 5, stride=2, padding=2),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Conv1d(8, 12, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(12, 12, 3, stride=2, padding=1),
            nn.ReLU(),
        )
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(2))


@dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    first: str  # the first of the blocks that are found
    blocks: int  # how many are found
    options: dict[str, Any] = field(default_factory=dict)  # of attach, where all blocks would only cost time


def named(name: str, size: int, first: str, blocks: int, last: int | None = None, **options: Any) -> Case:
    return Case(lambda: build_backbone(name, CLASSES, **options), (3, size, size), first, blocks, {"last": last})


def small_vit() -> nn.Module:
    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32}
    return torchvision().models.VisionTransformer(**sizes, num_classes=CLASSES)


def small_swin() -> nn.Module:
    sizes = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": [2, 2]}
    return torchvision().models.SwinTransformer(**sizes, num_classes=CLASSES)


CASES = {
    "paper": Case(lambda: random_head(PaperResNet(classes=CLASSES)), (1, 28, 28), "blocks.0", 6),
    "resnet18": named("resnet18", 32, "layer1.0", 8),
    "resnet50": named("resnet50", 32, "layer1.0", 16, last=6),
    "mobilenet_v3_large": named("mobilenet_v3_large", 32, "features.1", 15),
    "efficientnet_v2_s": named("efficientnet_v2_s", 64, "features.1.0", 40, last=4),
    "squeezenet1_1": named("squeezenet1_1", 48, "features.3", 8),
    "densenet121": named("densenet121", 32, "features.denseblock1", 4),
    "convnext_tiny": named("convnext_tiny", 32, "features.1.0", 18, last=6),
    "vit_b_16": named("vit_b_16", 32, "encoder.layers.encoder_layer_0", 12, last=2, image_size=32),
    "swin_t": named("swin_t", 32, "features.1.0", 12, last=6),
    "timm/resnet10t": named("timm/resnet10t", 32, "layer1.0", 4),
    "small vit": Case(small_vit, (3, 32, 32), "encoder.layers.encoder_layer_0", 2),
    "small swin": Case(small_swin, (3, 32, 32), "features.1.0", 4),
    "mlp": Case(lambda: mlp(7, CLASSES), (7,), "0", 2),
    "conv1d": Case(Conv1dNet, (2, 40), "body.0", 3),
}


def prepare(network: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Random heads where they start at zero, and statistics of normalisation as after training."""
    last = [module for module in network.modules() if isinstance(module, nn.Linear | nn.Conv2d)][-1]
    nn.init.normal_(last.weight, std=0.2)
    norms = [module for module in network.modules() if isinstance(module, NORMS)]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        network.train()
        with torch.no_grad():
            network(torch.randn(8, *shape, generator=generator(7)))
    for norm in norms:
        norm.momentum = 0.1
    return network.eval()


@dataclass
class Specimen:
    name: str
    case: Case
    network: nn.Module
    model: Attached
    x: Tensor


@pytest.fixture(scope="module", params=list(CASES))
def specimen(request: pytest.FixtureRequest) -> Specimen:
    case = CASES[request.param]
    torch.manual_seed(0)
    network = prepare(case.make(), case.shape)
    x = torch.randn(2, *case.shape, generator=generator(3))
    model = attach_with(network, x[:1], draws=2, **case.options)
    return Specimen(request.param, case, network, randomise_attachments(model), x)


class Notes:
    """An optimiser that changes nothing and notes which parameters had a gradient."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        self.param_groups: list[dict[str, Any]] = []
        self.updates: list[set[int]] = []

    def step(self) -> None:
        self.updates.append({id(parameter) for parameter in self.parameters if parameter.grad is not None})


def far_away(x: Tensor, y: Tensor, generator: torch.Generator) -> OutlierBatch:
    """Something far from the training data, so that statistics would move if they saw it."""
    return OutlierBatch(x=5 - 3 * x, y=y, severity=torch.ones(len(x)))


far_away.chosen_for = lambda x: far_away  # type: ignore[attr-defined]
far_away.capturable = False  # type: ignore[attr-defined]


def close(left: Tensor, right: Tensor, tolerance: float = 3e-4) -> bool:
    """Equal up to float32 rounding through a deep network, relative to the spread of the values."""
    return bool((left - right).abs().max() <= tolerance * right.std())


@contextlib.contextmanager
def silent(model: Attached) -> Iterator[None]:
    """Attachments at zero: no mean, no noise."""
    kept = [(parameter, parameter.detach().clone()) for layer in model.layers for parameter in layer.parameters()]
    noise = [(layer, layer.weight_noise, layer.bias_noise) for layer in model.layers]
    for layer in model.layers:
        for name, parameter in layer.named_parameters():
            if name.endswith("mean"):
                parameter.data.zero_()
        layer.weight_noise = torch.zeros_like(layer.weight_noise)
        layer.bias_noise = None if layer.bias_noise is None else torch.zeros_like(layer.bias_noise)
    yield
    for parameter, value in kept:
        parameter.data.copy_(value)
    for layer, weight, bias in noise:
        layer.weight_noise, layer.bias_noise = weight, bias


def test_finds_the_blocks(specimen: Specimen) -> None:
    from abnn.model.blocks import probe

    names = [block.name for block in probe(specimen.network, specimen.x).blocks()]
    assert (names[0], len(names)) == (specimen.case.first, specimen.case.blocks)
    assert specimen.model.block_names == names[-len(specimen.model.block_names) :]
    assert not specimen.model.folds_at_input


@torch.no_grad()
def test_attachments_at_zero_reproduce_the_backbone(specimen: Specimen) -> None:
    model, network, x = specimen.model, specimen.network, specimen.x
    expected = network(x)
    with silent(model):
        for draw in model.draw_logits(x):
            assert close(draw, expected)
        assert close(model(x), expected)
    assert not close(model(x), expected, tolerance=1e-2)  # and away from zero they matter


@torch.no_grad()
def test_folded_draws_equal_draws_one_by_one(specimen: Specimen) -> None:
    model, x = specimen.model, specimen.x
    folded = model.draw_logits(x)
    assert close(folded, one_draw_at_a_time(model, x))
    assert close(folded.flip(1), model.draw_logits(x.flip(0)))  # each input's result moves with it
    assert not close(folded[0], folded[1], tolerance=1e-2)  # draws differ, so that a mix-up would show


@torch.no_grad()
def test_backbone_stays_as_it_is_while_attached(specimen: Specimen) -> None:
    case, network, x = specimen.case, specimen.network, specimen.x
    torch.manual_seed(0)
    fresh = prepare(case.make(), case.shape)
    assert same_state(dict(network.state_dict()), dict(fresh.state_dict()))
    assert torch.equal(network(x), fresh(x))
    assert [type(module) for module in network.modules()] == [type(module) for module in fresh.modules()]
    ours = {id(parameter) for parameter in network.parameters()}
    assert ours <= {id(parameter) for parameter in specimen.model.parameters()}  # shared, not copied


def test_gradients_reach_what_each_step_may_touch(specimen: Specimen) -> None:
    model, network, x = specimen.model, specimen.network, specimen.x
    y = torch.arange(len(x)) % CLASSES
    attachments = [parameter for _, parameter in model.attachment_parameters()]
    backbone = [parameter for _, parameter in model.backbone_parameters()]
    assert len(attachments) + len(backbone) == len(list(model.parameters()))
    everything = attachments + backbone
    flags = [parameter.requires_grad for parameter in everything]
    notes, backbone_notes = Notes(everything), Notes(everything)
    goal = Objective(together=False, draws=(1, 2, 2))
    optimizers: Any = {"attachments": notes, "backbone": backbone_notes}
    steps = Steps(model, goal, far_away, PlainFabric(), optimizers)  # type: ignore[arg-type]

    buffers = {name: buffer.clone() for name, buffer in network.named_buffers()}
    model.train()
    steps.outlier_step(x, y, generator())
    assert notes.updates.pop() == set(map(id, attachments))
    assert all(torch.equal(buffers[name], buffer) for name, buffer in network.named_buffers())
    assert all(module.training for module in model.net.modules())  # the mode is back

    model.eval()  # batch statistics of two inputs would be noise, and change the buffers
    steps.backbone_step(x, y)
    assert backbone_notes.updates.pop() == set(map(id, backbone))
    steps.id_step(x, y)
    assert notes.updates.pop() == set(map(id, attachments))
    assert not notes.updates and not backbone_notes.updates
    assert [parameter.requires_grad for parameter in everything] == flags
    assert all(parameter.grad is None for parameter in everything)
    model.resample(2, seed=0)


def test_copies_and_state_dicts(specimen: Specimen) -> None:
    model, x = specimen.model, specimen.x
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = model.draw_logits(x)
        assert close(twin.draw_logits(x), expected)
        assert {id(p) for p in twin.parameters()}.isdisjoint({id(p) for p in model.parameters()})
        # The copy's own backbone is the one inside the copy.
        assert {id(p) for p in twin.backbone.parameters()} <= {id(p) for p in twin.parameters()}
        for parameter in twin.parameters():
            parameter.fill_(0.01)
        assert torch.equal(model.draw_logits(x), expected)
        assert not close(twin.draw_logits(x), expected)
        twin.load_state_dict(model.state_dict())
        assert close(twin.draw_logits(x), expected)


@pytest.mark.no_cover
def test_compiling_agrees(specimen: Specimen) -> None:
    if specimen.name not in TRACED:
        pytest.skip("takes long to trace, and is made of what others have")
    model, x = specimen.model.eval(), specimen.x
    torch._dynamo.reset()
    with torch.no_grad():
        assert close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_export_agrees(specimen: Specimen) -> None:
    if specimen.name not in TRACED:
        pytest.skip("takes long to trace, and is made of what others have")
    model, x = specimen.model.eval(), specimen.x
    with torch.no_grad():
        exported = torch.export.export(model, (x,), strict=False)
        assert close(exported.module()(x), model(x))


def test_detach_gives_back_the_network_bit_for_bit(specimen: Specimen, snapshot: Any) -> None:
    """After two steps of training with a frozen backbone. The last test here: it takes the attachments off."""
    model, network, x = specimen.model, specimen.network, specimen.x
    y = torch.arange(len(x)) % CLASSES
    before, output = snapshot(network), network(x).detach()
    attachments = [parameter for _, parameter in model.attachment_parameters()]
    kept = [parameter.detach().clone() for parameter in attachments]
    optimizers: Any = {"attachments": torch.optim.SGD(attachments, lr=0.1)}
    steps = Steps(model, Objective(draws=(1, 2, 2)), far_away, PlainFabric(), optimizers)  # type: ignore[arg-type]
    model.train()
    for seed in range(2):
        steps.step(x, y, generator(seed))
    moved = {
        name.split(".")[0] for (name, new), old in zip(model.attachment_parameters(), kept) if not torch.equal(old, new)
    }
    assert len(moved) == len(model.block_names)  # every attachment has learnt
    assert abnn.detach(model) is network
    assert same_state(snapshot(network), before)
    assert torch.equal(network(x), output)
    assert not any(module.training for module in network.modules())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_default_compiler_agrees() -> None:
    """torch.compile with its own backend, once, where it can build its kernels."""
    import shutil

    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    torch.manual_seed(0)
    x = torch.randn(3, 7, generator=generator(1))
    model = randomise_attachments(abnn.attach(mlp(7, CLASSES), x, draws=3))
    torch._dynamo.reset()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)
        model.resample(3, seed=9)  # new draws need no new compilation and are seen
        torch.testing.assert_close(torch.compile(model)(x), model(x), rtol=1e-4, atol=1e-5)
