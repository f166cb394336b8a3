"""Passes with a state of their own: every module is called once, and threads do not meet."""

from __future__ import annotations

import copy
import functools
import gc
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.baselines.posthoc import PostHocModel
from abnn.bayes.noise import held_noise
from abnn.model.passes import Pass
from abnn.model.shadow import shadow
from abnn.model.views import shifted
from tests.conftest import SmallBatchNormNet, generator, one_draw_at_a_time, randomise_attachments, with_score
from tests.model.test_attach import Encoder, LongSkip, image, small

KINDS = ["bounded", "chain", "replace"]
DRAWS = {"bounded": 0, "chain": 1, "replace": 1}


def fitted(model: Attached, x: Tensor) -> Attached:
    return with_score(randomise_attachments(model, 0.05), x)


def check(model: Attached, x: Tensor) -> None:
    """Samples are those of the held draws, parts and score those of a pass of each input alone."""
    found = model.predict(x, draws=3, seed=1)
    with torch.no_grad():
        model.resample(3, seed=1)
        torch.testing.assert_close(found.samples, model.draw_logits(x).softmax(2), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.samples, one_draw_at_a_time(model, x).softmax(2), rtol=1e-3, atol=1e-5)
    if model.combined is None:
        assert found.combined is None and found.parts is None
        return
    assert found.combined is not None and found.parts is not None
    alone = [model.predict(row[None], draws=3, seed=1) for row in x]
    torch.testing.assert_close(
        found.combined, torch.cat([each.score_by("combined") for each in alone]), rtol=1e-2, atol=1e-2
    )
    mean = model.predict(x).parts
    assert mean is not None
    for name, part in found.parts.items():
        if "attached" not in name and name != "change of mind":  # of the plain network, whatever the draws are
            torch.testing.assert_close(part, mean[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("last", [None, 1, 2])
def test_a_prediction_is_that_of_each_draw_and_input(kind: str, last: int | None) -> None:
    x = image(40, seed=2)
    model = fitted(abnn.attach(small(), x[:1], kind=kind, last=last), x)
    check(model, image(5, seed=3))


def test_other_networks() -> None:
    x = image(24, seed=1)
    check(fitted(abnn.attach(SmallBatchNormNet().eval(), x[:1]), x), x[:5])
    torch.manual_seed(0)
    tokens = torch.randn(24, 7, 5, generator=generator(1))
    check(fitted(abnn.attach(Encoder().eval(), tokens[:1]), tokens), tokens[:3])


class Around(nn.Module):
    """A skip connection around the last block, from behind the first."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x).relu()
        return self.head(torch.cat([h, self.two(h).relu()], dim=1))


def test_networks_with_ways_around_attachments() -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 4, generator=generator(1))
    model = fitted(abnn.attach(Around(), x[:1], at=["one", "two"]), x)
    assert not model.folds_at_input
    check(model, x[:5])
    model = abnn.attach(LongSkip(), image(), at=["down", "up"])
    assert model.folds_at_input
    check(fitted(model, image(24, seed=4)), image(3, seed=5))


def calls(model: Attached, module: nn.Module, run: Any) -> int:
    count = 0

    def hook(*_: Any) -> None:
        nonlocal count
        count += 1

    handle = module.register_forward_hook(hook)
    run()
    handle.remove()
    return count


def test_everything_runs_once_for_draws_and_score() -> None:
    x = image(40, seed=2)
    network = small()
    model = fitted(abnn.attach(network, x[:1], last=2), x)
    for module in (network.stem, *network.blocks, network.head):
        assert calls(model, module, lambda: model.predict(x[:4], draws=5)) == 1
        assert calls(model, module, lambda: model.predict(x[:4])) == 1
    shapes = []
    handles = [
        block.register_forward_hook(lambda module, args, output: shapes.append(len(output))) for block in network.blocks
    ]
    model.predict(x[:4], draws=5)
    model.predict(x[:4])
    for handle in handles:
        handle.remove()
    assert shapes == [4, 4, 24, 4, 4, 8]  # what comes before the first attachment runs once for all draws


def test_a_pass_leaves_the_network_alone(attached: Attached, images: Tensor) -> None:
    attached.train()
    before = {name: (module.training, dict(module.__dict__)) for name, module in attached.named_modules()}
    mean = Pass(attached, noting=True)
    with torch.no_grad():
        mean(images)
    features, last = mean.take_features()
    assert [len(each) for each in features] == [5] * 4 and last is not None and len(last) == 5
    assert not any(part.training for part in mean.net.modules())
    with pytest.raises(RuntimeError), torch.no_grad():
        mean(images[:, :, :0])
    for name, module in attached.named_modules():
        assert before[name][0] == module.training
        assert all(module.__dict__[key] is value for key, value in before[name][1].items())
    assert attached.state.features is None and attached.draws == 4


def test_a_pass_reads_the_weights_of_the_network(attached: Attached, images: Tensor) -> None:
    own = Pass(attached, held_noise(attached.layers))
    with torch.no_grad():
        assert torch.equal(own(images), attached.draw_logits(images))
        before = own(images)
        attached.layers[0].weight_mean.add_(1.0)
        assert not torch.equal(own(images), before)
        assert torch.equal(own(images), attached.draw_logits(images))


def test_a_chain_whose_pass_failed_can_be_copied() -> None:
    network, x = small(), image(2, seed=1)
    model = abnn.attach(network, x[:1], kind="chain")

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    handle = network.blocks[1].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        model(x)
    handle.remove()
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_passes_of_several_threads_keep_their_notes_apart(attached: Attached, images: Tensor) -> None:
    def features(x: Tensor) -> Tensor:
        with torch.no_grad():
            run = Pass(attached, noting=True)
            run(x)
            notes, last = run.take_features()
            assert last is not None
            return torch.cat([*notes, last], dim=1)

    parts = [images[:2], images[2:]]
    expected, samples = [features(x) for x in parts], attached.predict(images, draws=3).samples
    with torch.no_grad():
        logits = attached(images)
    with ThreadPoolExecutor(4) as pool:
        read = [pool.submit(features, parts[number % 2]) for number in range(20)]
        predicted = [pool.submit(attached.predict, images, draws=3) for _ in range(20)]
    assert all(torch.equal(each.result(), expected[number % 2]) for number, each in enumerate(read))
    assert all(torch.equal(each.result().samples, samples) for each in predicted)
    with torch.no_grad():
        assert attached.draws == 4 and torch.equal(attached(images), logits)


def test_weights_are_made_once_where_passes_share_them(attached: Attached, images: Tensor) -> None:
    own = Pass(attached, held_noise(attached.layers))
    own.keep_weights()
    with torch.no_grad():
        assert own.layers[0].weights()[0] is own.layers[0].weights()[0]
        assert torch.equal(own(images), attached.draw_logits(images))
    layer = attached.layers[0]
    assert layer.ready is None and layer.weights()[0] is not layer.weights()[0]


@pytest.mark.parametrize("kind", KINDS)
def test_threads_get_what_they_get_one_after_another(kind: str) -> None:
    """Outputs, predictions with other draws and features of one model, mixed over eight threads, bit by bit."""
    x = image(40, seed=2)
    model = fitted(abnn.attach(small(), x[:1], kind=kind), x)
    inputs = [image(3, seed=seed) for seed in range(3)]
    posthoc = PostHocModel(model, ["energy", "knn"])
    posthoc.fit([(x, torch.arange(40) % 3)])

    def output(part: Tensor) -> Tensor:
        with torch.no_grad():
            return model(part)

    jobs = [partial(output, part) for part in inputs]
    jobs += [
        partial(lambda p, d: model.predict(p, draws=d).samples, part, d) for part in inputs for d in (DRAWS[kind], 3, 7)
    ]
    jobs += [partial(lambda p: model.predict(p).score, part) for part in inputs]
    jobs += [partial(lambda p: posthoc.predict(p).score_by("knn"), part) for part in inputs]
    expected = [job() for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        results = [(index, pool.submit(jobs[index])) for _ in range(5) for index in range(len(jobs))]
    assert all(torch.equal(each.result(), expected[index]) for index, each in results)


class Mode(nn.Module):
    """Says something else in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.two(self.one(x).relu()).relu()) + 100 * self.training


def test_modes_of_threads_do_not_meet() -> None:
    x = torch.randn(5, 4, generator=generator(0))
    model = abnn.attach(Mode(), x[:1], at=["one", "two"])
    model.train()
    with torch.no_grad():
        trained, predicted = model(x), model.predict(x).samples

        def output() -> Tensor:
            with torch.no_grad():
                return model(x)

        with ThreadPoolExecutor(8) as pool:
            outputs = [pool.submit(output) for _ in range(100)]
            samples = [pool.submit(lambda: model.predict(x).samples) for _ in range(100)]
    assert all(torch.equal(each.result(), trained) for each in outputs)
    assert all(torch.equal(each.result(), predicted) for each in samples)
    assert all(module.training for module in model.modules())


class OddReferences(nn.Module):
    """Holds a part of itself in a list, in a dict and as a bound method, as hand-written networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.parts, self.named, self.last = [self.one], {"two": self.two}, self.finish

    def finish(self, x: Tensor) -> Tensor:
        return self.head(x) + 100 * self.training

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.two(self.one(x).relu()).relu())


def test_references_to_modules_are_followed() -> None:
    network = OddReferences().train()
    twins = shadow(network)
    twin: Any = twins[id(network)]
    assert twin.parts[0] is twins[id(network.one)] and twin.named["two"] is twins[id(network.two)]
    assert twin.last.__self__ is twin
    x = torch.randn(2, 4, generator=generator(0))
    with torch.no_grad():
        assert torch.equal(twin(x), network(x) - 100) or torch.allclose(twin(x), network(x) - 100, atol=1e-4)
    network.double()
    assert twin.one.weight.dtype == torch.float64


class Masked(nn.Module):
    """Two blocks that get a mask with a row for each input, by keyword or by position."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x + self.two(self.one(x).relu()) * mask[..., None]

    def __init__(self, by_name: bool) -> None:
        super().__init__()
        self.blocks, self.head, self.by_name = (
            nn.ModuleList([Masked.Block() for _ in range(3)]),
            nn.Linear(4, 3),
            by_name,
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = (x[..., 0] > 0).float()
        for block in self.blocks:
            x = block(x, mask=mask) if self.by_name else block(x, mask)
        return self.head(x.mean(1))


@pytest.mark.parametrize("by_name", [True, False])
def test_masks_travel_with_the_draws(by_name: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6, 4, generator=generator(1))
    for options in ({"at": "blocks.*"}, {"last": 1}, {"at": "blocks.1"}, {"preset": "authors"}):
        for draws in (0, 3) if "preset" not in options else (3,):
            model = abnn.attach(Masked(by_name).eval(), x[:1], draws=draws, **options)  # type: ignore[arg-type]
            randomise_attachments(model, 0.2)
            assert not model.folds_at_input
            with torch.no_grad():
                folded = model.draw_logits(x)
                assert (folded[0] - folded[-1]).abs().max() > 1e-3
                torch.testing.assert_close(folded, one_draw_at_a_time(model, x), rtol=1e-4, atol=1e-5)


class Biased(nn.Module):
    """Attention with a bias that has a row for each input and head, made of the inputs themselves."""

    heads = 2

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, bias: Tensor) -> Tensor:
            own = self.one(x).unflatten(2, (Biased.heads, -1)).movedim(2, 1)  # [B, heads, L, features]
            weights = (own @ own.mT + bias.unflatten(0, (len(x), Biased.heads))).softmax(3)
            return x + self.two((weights @ own).movedim(1, 2).flatten(2))

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Biased.Block() for _ in range(3)]), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        slopes = torch.arange(1.0, 1 + self.heads)[:, None, None]
        bias = (x[:, None, None, :, 0] * slopes).flatten(0, 1)  # [B heads, 1, L]
        for block in self.blocks:
            x = block(x, bias)
        return self.head(x.mean(1))


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_biases_of_heads_travel_with_the_draws(batch: int) -> None:
    """With one input, and as many draws as heads, the bias has as many rows as the features, yet is not theirs."""
    torch.manual_seed(0)
    x = torch.randn(batch, 6, 4, generator=generator(1))
    for draws in (0, 2, 3):
        model = abnn.attach(Biased().eval(), x[:1], at="blocks.*", draws=draws)
        randomise_attachments(model, 0.2)
        assert not model.folds_at_input
        with torch.no_grad():
            torch.testing.assert_close(model.draw_logits(x), one_draw_at_a_time(model, x), rtol=1e-4, atol=1e-5)


class MaskedPictures(nn.Module):
    """Blocks on images that get a mask with a row for each input, made of the images themselves."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return x + self.two(self.one(x).relu()) * mask

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.Linear(4, 3)
        self.blocks = nn.ModuleList([MaskedPictures.Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        mask, x = (x > 0.5).float(), self.stem(x)
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("draws", [0, 3, 7])
def test_masks_are_those_of_the_view(draws: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 1, 28, 28, generator=generator(1))
    model = abnn.attach(MaskedPictures().eval(), x[:1], at=["blocks.0", "blocks.1"])
    randomise_attachments(model, 0.3)
    found = model.predict(x, draws=draws, views=5).samples
    count = draws or 5
    alone = [model.predict(shifted(x, view), draws=draws, views=1).samples for view in range(min(5, count))]
    wanted = [alone[0][0], *(alone[s % 5][s + 1 if draws else 1] for s in range(count))]
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-6)


class Padded(nn.Module):
    """torch's own transformer over tokens, with a padding mask for each sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList([copy.deepcopy(layer) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=padding)
        return self.head((h * ~padding[..., None]).sum(1) / (~padding).sum(1, keepdim=True))


class PaddedOnce(Padded):
    """The same without the mask after the last block, so that nothing leads around the attachments."""

    def forward(self, x: Tensor) -> Tensor:
        padding = x == 0
        h = self.embed(x)
        for layer in self.layers:
            h = layer(h, src_key_padding_mask=padding)
        return self.head(h[:, 0])


@pytest.mark.parametrize("network", [Padded, PaddedOnce])
@pytest.mark.parametrize("draws", [0, 3])
def test_padding_does_not_count_in_transformers(network: type[Padded], draws: int) -> None:
    torch.manual_seed(0)
    x = torch.randint(1, 20, (5, 8), generator=generator(1))
    x[1, 5:] = 0
    x[3, 2:] = 0
    model = abnn.attach(network().eval(), x[1:2], at="layers.*", draws=draws)
    randomise_attachments(model, 0.2)
    assert model.folds_at_input == (network is Padded)  # it uses its mask once more at the end: it runs twice
    with torch.no_grad():
        found = model.draw_logits(x)
        torch.testing.assert_close(found, one_draw_at_a_time(model, x), rtol=1e-4, atol=1e-5)
        for row, length in ((1, 5), (3, 2)):
            shorter = Pass(model, held_noise(model.layers))(x[row : row + 1, :length])
            plain = slice(0, 1)  # attachments measure a block over all positions, those of padding too
            torch.testing.assert_close(found[plain, row], shorter[plain, 0], rtol=1e-4, atol=1e-5)


class Indirect(nn.Module):
    """Reaches its parts through containers and partials, as hand-written networks do."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)
        end = nn.Sequential(self.norm, self.drop)
        self.end: Any = {
            "list of lists": [[end]],
            "ordered dict": OrderedDict(end=OrderedDict(end=end)),
            "partial": functools.partial(end.forward),
        }[way]
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        end = {
            "list of lists": lambda: self.end[0][0],
            "ordered dict": lambda: self.end["end"]["end"],
            "partial": lambda: self.end,
        }[self.way]()
        return self.head(end(self.two(self.one(x).relu()).relu()))


@pytest.mark.parametrize("way", ["list of lists", "ordered dict", "partial"])
def test_a_prediction_in_training_mode_leaves_statistics_alone(way: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 4, generator=generator(0))
    model = abnn.attach(Indirect(way).eval(), x[:1], at=["one", "two"])
    expected = model.predict(x).samples
    model.train()
    before = model.backbone.norm.running_mean.clone()  # type: ignore[union-attr, operator]
    assert torch.equal(model.predict(x).samples, expected)
    assert torch.equal(model.backbone.norm.running_mean, before)  # type: ignore[union-attr, arg-type]


def test_a_traced_graph_is_a_network_too() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4, generator=generator(0))
    network = torch.fx.symbolic_trace(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    )
    model = randomise_attachments(abnn.attach(network.eval(), x[:1]))
    assert torch.equal(model.predict(x, draws=2).samples, model.predict(x, draws=2).samples)


class Positions(nn.Module):
    """Blocks that get a table with a row for each position, which has nothing to do with the batch."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, table: Tensor) -> Tensor:
            return x + self.two(self.one(x + table).relu())

    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Positions.Block() for _ in range(3)]), nn.Linear(4, 3)
        self.register_buffer("table", torch.randn(6, 4, generator=generator(2)))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.table)
        return self.head(x.mean(1))


@pytest.mark.parametrize("batch", [1, 5, 6, 7])
def test_tables_as_long_as_the_batch_are_no_masks(batch: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(batch, 6, 4, generator=generator(1))
    model = randomise_attachments(abnn.attach(Positions().eval(), x[:1], at="blocks.*", draws=3), 0.2)
    with torch.no_grad():
        torch.testing.assert_close(model.draw_logits(x), one_draw_at_a_time(model, x), rtol=1e-4, atol=1e-5)


class Caching(nn.Module):
    """Keeps what it computed, in a dict and as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.cache: dict[int, Tensor] = {}
        self.register_buffer("scale", None)

    def forward(self, x: Tensor) -> Tensor:
        if not self.cache:
            self.cache[0] = torch.ones(1, 4) * 2
        self.scale = self.cache[0]
        return self.head(self.two(self.one(x).relu()).relu() * self.scale)


def test_what_a_network_keeps_in_a_prediction_stays_with_it() -> None:
    x = torch.randn(6, 4, generator=generator(0))
    model = abnn.attach(Caching().eval(), x[:1], at=["one", "two"])
    model.backbone.cache.clear()  # type: ignore[union-attr, operator]
    model.predict(x)
    model(x).sum().backward()  # nothing of inference mode is left
    assert all(not each.is_inference() for each in model.backbone.cache.values())  # type: ignore[union-attr, operator]


def test_modes_are_those_of_the_backbone(attached: Attached) -> None:
    attached.train()
    assert all(part.training for part in attached.backbone.modules())
    attached.eval()
    assert not any(part.training for part in [*attached.modules(), *attached.backbone.modules()])


def test_passes_do_not_wait_for_the_garbage_collector(attached: Attached, images: Tensor) -> None:
    def passes() -> set[int]:
        return {id(each) for each in gc.get_objects() if isinstance(each, Pass)}

    gc.collect()
    others = passes()
    gc.disable()
    try:
        attached.predict(images, draws=2)
        del attached.__dict__["_runtime"]  # which has the pass for the next prediction
        assert passes() <= others
    finally:
        gc.enable()
