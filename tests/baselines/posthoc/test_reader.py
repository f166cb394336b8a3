"""What is read from a network: the right numbers, in one pass, without changing it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.baselines.posthoc import Features, gather
from abnn.baselines.posthoc.reader import Reader
from abnn.errors import AttachError, InputError
from abnn.predict import Plain
from abnn.tasks.classification import mean_logits
from tests.conftest import SmallBatchNormNet, generator, mlp, one_draw_at_a_time, random_head, randomise_attachments

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture
def data() -> Batches:
    x = torch.randn(60, 1, 12, 12, generator=generator(8))
    return list(zip(x.split(10), (torch.arange(60) % 4).split(10)))


def everything(data: Batches) -> Tensor:
    return torch.cat([x for x, _ in data])


def penultimate(network: Any, x: Tensor) -> Tensor:
    return torch.relu(network.norm(network.blocks(network.stem(x)))).mean(dim=(2, 3))


def block_features(network: Any, x: Tensor) -> np.ndarray:
    """Mean and standard deviation over positions: input of the first block, then the output of each."""
    with torch.no_grad():
        values = [network.stem(x)]
        for block in network.blocks:
            values.append(block(values[-1]))
    flat = [value.double().flatten(2).numpy() for value in values]
    return np.concatenate([part for each in flat for part in (each.mean(2), each.std(2))], axis=1)


def test_a_plain_network(small_net: Any, data: Batches) -> None:
    features = gather(Plain(small_net, data[0][0]), data)
    x = everything(data)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, small_net(x))
        torch.testing.assert_close(features.last, penultimate(small_net, x))
    assert features.blocks is not None and features.labels is not None and features.head is not None
    np.testing.assert_allclose(features.blocks.numpy(), block_features(small_net, x), rtol=1e-4, atol=1e-5)
    assert features.labels.tolist() == [i % 4 for i in range(60)]
    assert features.last is not None
    torch.testing.assert_close(features.head(features.last), features.logits)


@pytest.mark.parametrize("kind", ["bounded", "chain", "replace"])
def test_an_attached_model_is_averaged_over_its_draws(small_net: Any, data: Batches, kind: str) -> None:
    model = randomise_attachments(abnn.attach(small_net, data[0][0][:1], kind=kind), 0.05)
    features = gather(model, data[:2], draws=3, seed=5)
    x = everything(data[:2])
    model.resample(3, seed=5)
    noted: list[Tensor] = []
    handle = model.net.head.register_forward_pre_hook(lambda module, args: noted.append(args[0]))  # type: ignore[union-attr]
    with torch.no_grad():
        logits = one_draw_at_a_time(model, x)
    handle.remove()
    torch.testing.assert_close(features.logits, mean_logits(logits), rtol=1e-4, atol=1e-4)
    last = torch.cat(noted).unflatten(0, (-1, 20))  # rows of the plain network do not pass here
    if kind == "bounded":
        last = torch.cat([penultimate(small_net, x)[None], last])
    torch.testing.assert_close(features.last, last.mean(0), rtol=1e-4, atol=1e-4)
    assert features.blocks is not None
    assert features.blocks.shape == (20, (1 + len(model.block_names)) * 2 * 8)


def test_block_statistics_of_an_attached_model(small_net: Any, data: Batches) -> None:
    """The first block's input has no draws yet; its output has, and the mean over draws of its means is noted."""
    model = randomise_attachments(abnn.attach(small_net, data[0][0][:1], at=["blocks.0", "blocks.1"]), 0.05)
    features = gather(model, data[:1], draws=3, seed=5)
    model.resample(3, seed=5)
    outputs: list[Tensor] = []
    handle = model.attached_blocks[0].register_forward_hook(lambda module, args, output: outputs.append(output))
    with torch.no_grad():
        model.draw_logits(data[0][0])
        stem = small_net.stem(data[0][0]).flatten(2)
    handle.remove()
    assert features.blocks is not None
    torch.testing.assert_close(features.blocks[:, :8], stem.mean(2))
    torch.testing.assert_close(features.blocks[:, 16:24], outputs[0].flatten(2).mean(2).unflatten(0, (4, 10)).mean(0))


def test_the_backbone_of_an_attached_model(attached: Attached, small_net: Any, data: Batches) -> None:
    of_plain = gather(Plain(small_net, data[0][0]), data)
    of_backbone = gather(attached, data, of="backbone")
    for part in ("logits", "last", "blocks", "labels"):
        assert torch.equal(getattr(of_plain, part), getattr(of_backbone, part))
    assert not torch.allclose(gather(attached, data).logits, of_plain.logits)


def test_draws_folded_at_the_input(data: Batches) -> None:
    """A network with a path around its blocks: every draw starts at the input, and the features are still averaged."""

    class Around(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.b(torch.relu(self.a(x))) + x)

    torch.manual_seed(0)
    x = torch.randn(8, 6, generator=generator(1))
    with pytest.warns(abnn.errors.AbnnWarning, match="folded at its input"):
        model = randomise_attachments(abnn.attach(Around(), x[:1], kind="chain"), 0.1)
    assert model.folds_at_input
    features = gather(model, [(x, torch.zeros(8, dtype=torch.long))], draws=4, seed=2)
    model.resample(4, seed=2)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, mean_logits(one_draw_at_a_time(model, x)), rtol=1e-4, atol=1e-5)
    assert features.last is not None and features.last.shape == (8, 6)


def test_reading_leaves_no_trace(attached: Attached, data: Batches, snapshot: Any) -> None:
    attached.train()
    before, held = snapshot(attached), [layer.weight_noise.clone() for layer in attached.layers]
    gather(attached, data, draws=3, seed=9)
    after = snapshot(attached)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(torch.equal(layer.weight_noise, noise) for layer, noise in zip(attached.layers, held))
    assert all(module.training for module in attached.modules())
    assert all(parameter.grad is None for parameter in attached.parameters())


def test_normalisation_statistics_are_not_touched() -> None:
    network = SmallBatchNormNet()
    before = network.bn1.running_mean.clone()  # type: ignore[union-attr]
    x = torch.randn(20, 1, 12, 12, generator=generator(1))
    features = gather(Plain(network, x), [(x, torch.zeros(20, dtype=torch.long))])
    assert torch.equal(network.bn1.running_mean, before) and network.training  # type: ignore[arg-type]
    assert features.last is not None and features.last.shape == (20, 8)


def test_at_most_so_many_are_kept_whatever_the_batches(small_net: nn.Module, data: Batches) -> None:
    plain = Plain(small_net, data[0][0])
    few = gather(plain, data, most=7, seed=3)
    x, y = everything(data), torch.cat([y for _, y in data])
    other = gather(plain, list(zip(x.split(13), y.split(13))), most=7, seed=3)
    assert len(few) == 7 and few.labels is not None
    torch.testing.assert_close(few.logits, other.logits)
    whole = gather(plain, data)
    assert whole.labels is not None
    rows = [int((whole.logits - row).abs().amax(1).argmin()) for row in few.logits]
    assert rows == sorted(set(rows)) and few.labels.tolist() == whole.labels[rows].tolist()
    assert not torch.equal(gather(plain, data, most=7, seed=4).logits, few.logits)


def test_the_choice_is_fair() -> None:
    """Over 200 seeds, every third of the inputs makes a third of the choice: standard deviation of the share 0.008."""
    network = nn.Linear(1, 2, bias=False)
    nn.init.ones_(network.weight)
    plain, x = Plain(network, torch.zeros(1, 1)), torch.arange(300.0)[:, None]
    batches = [(part, torch.zeros(30, dtype=torch.long)) for part in x.split(30)]
    kept = [gather(plain, batches, most=20, seed=seed).logits[:, 0] for seed in range(200)]
    shares = torch.histc(torch.cat(kept), 3, 0, 300) / (200 * 20)
    assert (shares - 1 / 3).abs().max() < 4 * 0.008


# -- networks of other shapes -----------------------------------------------------------------------------------------


def test_flat_inputs_and_a_single_layer() -> None:
    x, y = torch.randn(9, 6, generator=generator(1)), torch.zeros(9, dtype=torch.long)
    torch.manual_seed(0)
    features = gather(Plain(mlp(), x), [(x, y)])
    assert features.last is not None and features.last.shape == (9, 16)
    one = nn.Linear(6, 3)
    features = gather(Plain(one, x), [(x, y)])
    assert torch.equal(features.last, x) if features.last is not None else False
    wrapped = nn.Sequential(nn.Linear(6, 3))  # the head is the only block
    features = gather(Plain(wrapped, x), [(x, y)])
    assert features.blocks is not None and features.blocks.shape == (9, 9)
    torch.testing.assert_close(features.blocks[:, 6:], features.logits)


def test_a_network_whose_head_lies_in_a_block() -> None:
    x = torch.randn(9, 6, generator=generator(1))
    network = nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.ReLU()), nn.Sequential(nn.Linear(5, 3)))
    reader = Reader(Plain(network, x), at=["0", "1"])
    features = reader.read(x)
    assert features.blocks is not None and features.last is not None and features.head is not None
    with torch.no_grad():
        torch.testing.assert_close(features.last, network[0](x))
        torch.testing.assert_close(features.blocks, torch.cat([x, network[0](x), network(x)], dim=1))


def test_an_output_that_is_not_the_last_layers() -> None:
    x = torch.randn(9, 6, generator=generator(1))
    reader = Reader(Plain(nn.Sequential(mlp(), nn.LogSoftmax(1)), x))
    assert list(reader.missing) == ["head"] and reader.read(x).head is None and reader.read(x).last is not None


def test_attachments_at_the_last_layer() -> None:
    """Then the logits are not those of the linear layer alone."""
    x = torch.randn(9, 6, generator=generator(1))
    torch.manual_seed(0)
    model = randomise_attachments(abnn.attach(mlp(), x[:1], at=["2", "4"]), 0.1)
    reader = Reader(model)
    features = reader.read(x)
    assert "head" in reader.missing and features.head is None and features.last is not None
    assert features.last.shape == (9, 16)


def test_no_linear_layer() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    x = torch.randn(2, 1, 8, 8, generator=generator(1))
    reader = Reader(Plain(network, x))
    assert "no linear layer" in reader.missing["last"] and reader.read(x).last is None
    assert reader.read(x).blocks is not None


def test_no_blocks() -> None:
    x = torch.randn(2, 6, generator=generator(1))
    reader = Reader(Plain(nn.Linear(6, 3), x))
    assert "at=[...]" in reader.missing["blocks"] and reader.read(x).blocks is None


def test_a_bias_is_not_needed(small_net: Any, images: Tensor) -> None:
    small_net.head = nn.Linear(8, 4, bias=False)
    features = Reader(Plain(small_net, images)).read(images)
    assert features.head is not None and features.head.bias is None and features.last is not None
    torch.testing.assert_close(features.head(features.last), features.logits)


def test_weights_are_read_as_they_are_now(small_net: Any, images: Tensor) -> None:
    reader = Reader(Plain(small_net, images))
    random_head(small_net)
    features: Features = reader.read(images)
    with torch.no_grad():
        torch.testing.assert_close(features.logits, small_net(images))
    assert features.head is not None and torch.equal(features.head.weight, small_net.head.weight)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_refused(small_net: nn.Module, attached: Attached, images: Tensor) -> None:
    plain = Plain(small_net, images)
    with pytest.raises(InputError, match="model: got PaperResNet; accepted: .*Plain"):
        Reader(small_net)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="of: got 'backbon'.*Did you mean 'backbone'"):
        Reader(attached, of="backbon")
    with pytest.raises(AttachError, match="at: got 'blok'"):
        Reader(plain, at="blok")
    with pytest.raises(InputError, match="batches: got no batch"):
        gather(plain, [])
    with pytest.raises(InputError, match="most: got 0"):
        gather(plain, [], most=0)
    with pytest.raises(InputError, match="loader: got Tensor; accepted: pairs"):
        gather(plain, [images])
    with pytest.raises(InputError, match="labels from 0 to 4"):
        gather(plain, [(images, torch.arange(5))])
    with pytest.raises(InputError, match="draws: got -1"):
        gather(attached, [(images, torch.zeros(5, dtype=torch.long))], draws=-1)
