"""Which blocks are found and picked, and what the probing pass notes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.errors import AttachError, InputError
from abnn.model.blocks import check_example, probe
from abnn.model.calls import evaluating, first_tensor, logits_of
from abnn.networks.by_name import PaperResNet, build_backbone
from tests.conftest import SmallBatchNormNet, mlp

IMAGE = torch.zeros(1, 1, 12, 12)


def found(network: nn.Module, example: Tensor, at: Any = None) -> list[str]:
    return [block.name for block in probe(network, example).blocks(at)]


def paper() -> nn.Module:
    return PaperResNet(width=8, blocks=3, stem="small")


def test_repeated_classes_are_blocks() -> None:
    assert found(paper(), IMAGE) == ["blocks.0", "blocks.1", "blocks.2"]


def test_layers_of_plain_networks_are_blocks_without_the_last() -> None:
    assert found(mlp(), torch.zeros(1, 6)) == ["0", "2"]
    assert found(SmallBatchNormNet(), IMAGE) == ["conv1", "conv2"]
    assert found(nn.Sequential(nn.Linear(6, 3)), torch.zeros(1, 6)) == ["0"]


def test_stages_give_way_to_the_blocks_they_hold() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(torch.relu(self.one(x)))

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.Sequential(Part(), Part())

        def forward(self, x: Tensor) -> Tensor:
            return self.parts(x)

    network = nn.Sequential(Stage(), Stage(), nn.Linear(4, 2))
    assert found(network, torch.zeros(1, 4)) == ["0.parts.0", "0.parts.1", "1.parts.0", "1.parts.1"]


def test_order_is_that_of_the_calls() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.second, self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.second(self.first(x)))

    assert found(Backwards(), torch.zeros(1, 4)) == ["first", "second"]


@pytest.mark.parametrize(
    ("network", "example", "layout"),
    [
        (lambda: build_backbone("convnext_tiny", 3), (1, 3, 32, 32), "channels"),
        (lambda: build_backbone("swin_t", 3), (1, 3, 32, 32), "tokens"),
        (lambda: build_backbone("vit_b_16", 3, image_size=32), (1, 3, 32, 32), "tokens"),
        (lambda: build_backbone("timm/pvt_v2_b0", 3), (1, 3, 64, 64), "tokens"),  # tokens with convolutions inside
        (mlp, (1, 6), "flat"),
    ],
)
def test_layouts(network: Any, example: tuple[int, ...], layout: str) -> None:
    with torch.device("meta"):
        built = network()
        blocks = probe(built, torch.zeros(example)).blocks()
    assert {block.layout for block in blocks} == {layout}


def test_names_and_patterns() -> None:
    assert found(paper(), IMAGE, "blocks.1") == ["blocks.1"]
    assert found(paper(), IMAGE, ["blocks.2", "blocks.[01]"]) == ["blocks.0", "blocks.1", "blocks.2"]
    assert found(paper(), IMAGE, "blocks.*.conv1") == [f"blocks.{i}.conv1" for i in range(3)]
    assert found(paper(), IMAGE, ["blocks.1", "blocks.*"]) == ["blocks.0", "blocks.1", "blocks.2"]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("block.1", r"at: got 'block.1'.*Close names: blocks.1"),
        ("nothing-like-it", r"at: got 'nothing-like-it'.*Some names: stem, "),
        ([], "at: got no names"),
        (["blocks.1", "blocks.1.conv1"], r"'blocks.1' contains 'blocks.1.conv1'"),
        (["blocks", "blocks.*"], r"'blocks' contains 'blocks.0'"),
    ],
)
def test_bad_picks_are_explained(at: Any, message: str) -> None:
    with pytest.raises(AttachError, match=message):
        found(paper(), IMAGE, at)


def test_uncalled_and_twice_called_modules_are_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.twice, self.never, self.listed = nn.Linear(4, 4), nn.Linear(4, 4), nn.ModuleList([nn.Linear(4, 4)])
            self.turned = nn.Flatten(0, 1)

        def forward(self, x: Tensor) -> Tensor:
            self.turned(x)
            return self.listed[0](self.twice(self.twice(x)))

    for name, message in (
        ("twice", "called 2 times"),
        ("never", "never called"),
        ("listed", "never called"),
        ("turned", "not single tensors"),
    ):
        with pytest.raises(AttachError, match=f"at: got '{name}', which cannot carry an attachment: .*{message}"):
            found(Odd(), torch.zeros(2, 4), name)


def test_no_block() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    with pytest.raises(
        AttachError, match=r"backbone: got Linear, which calls no modules inside.*nn.Sequential\(layer\)"
    ):
        found(nn.Linear(4, 3), torch.zeros(2, 4))
    assert found(nn.Sequential(nn.Linear(4, 3)), torch.zeros(2, 4)) == ["0"]
    with pytest.raises(AttachError, match=r"backbone: .*no block was found.*at=\[...\]"):
        found(nn.Sequential(Nothing(), nn.ReLU()), torch.zeros(1, 4))


def test_probing_leaves_no_trace() -> None:
    network = SmallBatchNormNet().train()
    network.drop.eval()
    state = {name: value.clone() for name, value in network.state_dict().items()}
    seen = probe(network, torch.randn(3, 1, 12, 12))
    assert network.training and not network.drop.training
    assert all(torch.equal(state[name], value) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    # conv1 and bn1 touch most: bn1 reads 6 x 12 x 12 numbers and writes as many, for each input.
    assert seen.batch == 3 and seen.activation_numbers == 2 * 6 * 12 * 12
    assert not any(parameter.grad is not None for parameter in network.parameters())


def test_evaluating_puts_modes_back_after_an_error() -> None:
    network = nn.Sequential(nn.Dropout(), nn.Dropout())
    network[1].eval()
    with pytest.raises(ZeroDivisionError), evaluating(network):
        assert not network.training
        raise ZeroDivisionError
    assert network.training and network[0].training and not network[1].training


def test_what_stands_for_an_output() -> None:
    one = torch.ones(1)
    assert first_tensor(one) is one and first_tensor((one, 2)) is one and first_tensor([one]) is one
    assert first_tensor(()) is None and first_tensor({"a": one}) is None and first_tensor((1, one)) is None

    class Output:
        logits = one

    assert logits_of(Output()) is one and logits_of((one,)) is one


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ([[1.0]], r"example: got list as 0; accepted: tensors with a row for each input"),
        ((IMAGE, torch.cat([IMAGE, IMAGE])), r"example: got 1 of shape \(2, .* beside 0 of shape \(1, "),
        ({"x": [1.0]}, r"example: got list as 'x'; .*return_tensors"),
        (torch.zeros(12), r"example: got shape \(12,\); accepted: a batch"),
        (torch.zeros(0, 1, 12, 12), r"example: got shape \(0, 1, 12, 12\)"),
        (torch.full((1, 1, 12, 12), float("nan")), "example: got NaN or infinite values"),
        (torch.full((1, 1, 12, 12), float("inf")), "example: got NaN or infinite values"),
        (
            torch.zeros(1, 1, 12, 12, device="meta"),
            r"example: got a tensor on meta; accepted: the backbone's device, cpu",
        ),
    ],
)
def test_bad_examples_are_explained(example: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_example(paper(), example)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_networks_without_weights_in_memory_are_explained(device: str) -> None:
    with pytest.raises(InputError, match="backbone: got a network on the meta device.*Load its weights first"):
        check_example(paper().to("meta"), IMAGE.to(device))


@pytest.mark.parametrize("shape", [(1, 3, 12, 12), (1, 12), (1, 1, 12, 12, 1)])
def test_examples_on_which_the_network_fails(shape: tuple[int, ...]) -> None:
    network = paper()
    with pytest.raises(InputError, match=r"example: got shape .* on which the backbone fails: RuntimeError: "):
        probe(network, torch.zeros(shape))
    assert not any(module._forward_hooks for module in network.modules())


def test_wrong_dtype_is_explained() -> None:
    with pytest.raises(InputError, match="example: got shape .* and dtype torch.float64"):
        probe(paper(), IMAGE.double())


class Streams(nn.Module):
    """Blocks of one stream, then blocks that pass on two of them, of which the network's output takes one."""

    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.two(self.one(x).relu())

    class Pair(Single):
        def forward(self, one: Tensor, two: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return one + self.one(one).relu(), two + self.two(two).relu()

    def __init__(self, takes: int) -> None:
        super().__init__()
        self.single = nn.ModuleList([self.Single() for _ in range(2)])
        self.pairs = nn.ModuleList([self.Pair() for _ in range(2)])
        self.head, self.takes = nn.Linear(6, 3), takes

    def forward(self, x: Tensor) -> Tensor:
        for block in self.single:
            x = block(x)
        streams = x, x
        for block in self.pairs:
            streams = block(*streams)
        return self.head(streams[self.takes])


@pytest.mark.parametrize("takes", [0, 1])
def test_blocks_whose_first_output_leads_nowhere_get_no_attachment(takes: int) -> None:
    network, example = Streams(takes).eval(), torch.randn(1, 6)
    structure = probe(network, example)
    blocks = structure.blocks(["single.*", "pairs.*"])
    names = [block.name for block in structure.that_reach_the_output(blocks, example)]
    assert names == ["single.0", "single.1", *(["pairs.0", "pairs.1"] if takes == 0 else [])]
    assert all(parameter.grad is None for parameter in network.parameters())
    model = abnn.attach(network, example, last=1)
    assert model.block_names == (["pairs.1"] if takes == 0 else ["single.1"])


def test_blocks_are_kept_where_gradients_tell_nothing() -> None:
    class Closed(Streams):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return super().forward(x)

    example = torch.randn(1, 6)
    structure = probe(Closed(0).eval(), example)
    blocks = structure.blocks("pairs.*")
    assert structure.that_reach_the_output(blocks, example) == blocks


def test_branches_of_other_outputs_get_no_attachment_wherever_they_are_called() -> None:
    class Branched(Streams):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            one = self.single[0](x)
            other = self.single[1](one)
            return self.head(one), other

    assert abnn.attach(Branched(0).eval(), torch.randn(1, 6)).block_names == ["single.0"]
