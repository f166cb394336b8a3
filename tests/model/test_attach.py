"""attach() and detach(): places, kinds, sizes, folding, and what is refused."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.layers import BayesConv, BayesLinear, Init
from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.config import Spec
from abnn.errors import AbnnWarning, AttachError, InputError
from abnn.model.attachments import fit_size
from abnn.networks.by_name import PaperResNet
from abnn.predict import Plain
from tests.conftest import (
    SmallBatchNormNet,
    attach_with,
    generator,
    mlp,
    one_draw_at_a_time,
    random_head,
    randomise_attachments,
)


def image(batch: int = 1, channels: int = 1, size: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(batch, channels, size, size, generator=generator(seed))


def paper(**options: Any) -> PaperResNet:
    torch.manual_seed(0)
    return random_head(PaperResNet(**options)).eval()


def small() -> PaperResNet:
    return paper(width=8, blocks=3, stem="small", classes=4)


def agrees(model: Attached, x: Tensor, tolerance: float = 1e-4) -> bool:
    """Folded draws equal draws one by one, and differ from each other enough to show a mix-up."""
    with torch.no_grad():
        folded, reference = model.draw_logits(x), one_draw_at_a_time(model, x)
    assert (folded[0] - folded[1]).abs().max() > 1e-2 * reference.std()
    return bool((folded - reference).abs().max() < tolerance * reference.std())


# -- sizes and kinds ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "size"),
    [
        ({}, 3 * 4518),
        ({"kind": "chain"}, 295_936),
        ({"preset": "authors"}, 295_936),
        ({"kind": "chain", "share": False}, 887_808),
        ({"preset": "paper"}, 887_808),
        ({"width": 16}, 3 * (2 * 64 * 16 + 64 + 11 * 16 + 6)),
        ({"last": 2}, 2 * 4518),
        ({"budget": 200_000}, 3 * 4518),
        ({"at": "blocks.[35]"}, 2 * 4518),
    ],
)
def test_sizes_on_the_papers_network(options: dict[str, Any], size: int) -> None:
    model = attach_with(paper(), image(size=28), draws=1, **options)
    assert model.attachment_size == size
    assert sum(p.numel() for _, p in model.backbone_parameters()) == 576_778
    assert sum(p.numel() for p in model.parameters()) == 576_778 + size


def test_replacing_the_blocks_has_the_size_of_bayes_by_backprop() -> None:
    model = abnn.attach(paper(), image(size=28), kind="replace", draws=1)
    assert sum(p.numel() for p in model.parameters()) == 1_020_682
    names = [name for name, _ in model.backbone_parameters()]
    assert names and not any(name.startswith("blocks") for name in names)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"width": 2},
        {"at": "blocks.*", "budget": 1000},
        {"kind": "chain", "share": True},
        {"kind": "chain", "share": False},
        {"kind": "replace"},
        {"prior": ScaleMixture(), "init": Init(0.1, 0.1, 0.1)},
    ],
)
@pytest.mark.parametrize("place", [{}, {"last": 1}])
def test_kinds_fold_and_copy(options: dict[str, Any], place: dict[str, Any]) -> None:
    model = randomise_attachments(attach_with(small(), image(), draws=3, **{**options, **place}), 0.3)
    x = image(4, seed=5)
    assert not model.folds_at_input and agrees(model, x)
    model(x).sum().backward()  # a pass with gradients leaves nothing behind that cannot be copied
    with torch.no_grad():
        torch.testing.assert_close(copy.deepcopy(model)(x), model(x))


def test_shared_chain_is_the_authors_side_stream() -> None:
    """a0 = B0(h), a_k = B1(a_{k-1}), z_k = F_k(z_{k-1}) + a_k, with fresh noise at every use of B1."""
    net = small()
    model = abnn.attach(net, image(), kind="chain", draws=1, config=abnn.AttachConfig(share=True))
    x = image(3, seed=4)
    links: Any = [block.attachment for block in model.attached_blocks]
    first, shared = links[0].block, links[1].block
    assert links[2].block is shared and shared.layer1.uses == 2

    def residual(block: Any, a: Tensor, use: int) -> Tensor:
        side = block.layer1(torch.relu(block.norm1(a)), True, use)
        return a + block.layer2(torch.relu(block.norm2(side)), True, use)

    with torch.no_grad():
        h = net.stem(x)
        a = residual(first, h, 0)
        z = net.blocks[0](h) + a
        for use in range(2):
            a = residual(shared, a, use)
            z = net.blocks[use + 1](z) + a
        expected = net.head(torch.relu(net.norm(z)).mean(dim=(2, 3)))
        torch.testing.assert_close(model.draw_logits(x)[0], expected)


def test_strides_and_channel_changes() -> None:
    net = SmallBatchNormNet().eval()
    for options in ({"at": "conv*"}, {"kind": "replace"}):
        model = randomise_attachments(attach_with(net, image(), draws=2, **options), 0.3)
        assert agrees(model, image(3, seed=2))
        assert agrees(model, image(3, size=11, seed=2)) or "kind" in options
    chain = abnn.attach(net, image(), kind="chain", draws=2, config=abnn.AttachConfig(share=False))
    assert agrees(randomise_attachments(chain, 0.3), image(3, seed=2))


def test_three_dimensions() -> None:
    net = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.AvgPool3d(4), nn.Flatten(), nn.Linear(4, 3))
    model = randomise_attachments(abnn.attach(net, torch.randn(1, 1, 6, 6, 6), draws=2), 0.3)
    assert isinstance(model.layers[0], BayesConv) and model.layers[0].rank == 3
    assert agrees(model, torch.randn(2, 1, 6, 6, 6, generator=generator(1)))


class Pooling(nn.Module):
    """From an image to features in one block."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).mean(dim=(2, 3))


def test_blocks_that_pool() -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3), Pooling(), nn.Linear(6, 3))
    for kind in ("bounded", "replace"):
        model = randomise_attachments(abnn.attach(net, image(), at=["1"], kind=kind, draws=2), 0.3)
        assert isinstance(model.layers[0], BayesLinear)
        assert agrees(model, image(3, seed=2))


class Encoder(nn.Module):
    """torch's own transformer, which looks into its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


@pytest.mark.parametrize("kind", ["bounded", "chain"])
def test_transformer_encoder(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 7, 5, generator=generator(1))
    model = randomise_attachments(abnn.attach(Encoder().eval(), x[:1], "encoder.layers.*", kind, draws=2), 0.1)
    assert model.block_names == [f"encoder.layers.{i}" for i in range(3)]
    assert agrees(model, x)


class Pair(NamedTuple):
    main: Tensor
    extra: int


class Keywords(nn.Module):
    """Blocks that take keywords and return tuples of several kinds."""

    def __init__(self, wrap: Callable[[Tensor], Any]) -> None:
        super().__init__()

        class Inner(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, hidden: Tensor) -> Any:
                return wrap(self.linear(hidden))

        self.one, self.two, self.head = Inner(), Inner(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.one, self.two):
            x = block(hidden=x)[0]
        return self.head(x)


@pytest.mark.parametrize("wrap", [lambda x: (x, 1), lambda x: [x, "a"], lambda x: Pair(x, 2)])
def test_blocks_with_keywords_and_tuples(wrap: Callable[[Tensor], Any]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, generator=generator(1))
    model = randomise_attachments(abnn.attach(Keywords(wrap), x[:1], at=["one", "two"], draws=2), 0.3)
    assert agrees(model, x)
    replaced = model.attached_blocks[0](hidden=x.repeat(2, 1))
    assert type(replaced) is type(wrap(x)) and replaced[1] == wrap(x)[1]


def test_networks_that_return_an_object_with_logits() -> None:
    class Output(dict):
        @property
        def logits(self) -> Tensor:
            return self["logits"]

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Any:
            return Output(logits=self.body(x))

    x = torch.randn(3, 6, generator=generator(1))
    model = abnn.attach(Net(), x, draws=2)
    output = model(x)
    assert model.classes == 3 and type(output) is Output and output.logits.shape == (3, 3)


def test_networks_without_a_tensor_as_output() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Any:
            return {"out": [self.body(x)]}

    with pytest.raises(AttachError, match="backbone: its output is not a tensor"):
        abnn.attach(Net(), torch.zeros(1, 6))


@pytest.mark.parametrize(
    "head,shape,advice",
    [
        (nn.Linear(16, 1), r"\(5, 1\)", r"one logit z.*torch\.stack\(\[0 \* z, z\], 1\)"),
        (nn.Sequential(nn.Linear(16, 1), nn.Flatten(0)), r"\(5,\)", 'task="regression".*one logit z'),
        (nn.Sequential(nn.Linear(16, 6), nn.Unflatten(1, (2, 3))), r"\(5, 2, 3\)", "one row of logits"),
        (nn.Sequential(nn.Linear(16, 6), nn.Flatten(0), nn.Unflatten(0, (10, 3))), r"\(10, 3\)", "one row of logits"),
    ],
)
def test_outputs_that_are_no_classes(head: nn.Module, shape: str, advice: str) -> None:
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), head)
    message = rf"backbone: got .* of shape {shape} for 5 inputs; accepted: shape \(5, K\).*{advice}"
    with pytest.raises(AttachError, match=message):
        abnn.attach(network, torch.zeros(5, 6), at="0")


@pytest.mark.parametrize("end", [nn.Softmax(1), nn.Sigmoid(), nn.LogSoftmax(1), nn.ReLU()])
def test_probabilities_in_the_place_of_logits(end: nn.Module) -> None:
    torch.manual_seed(0)
    network, x = nn.Sequential(mlp(), end), torch.randn(5, 6, generator=generator(1))
    if isinstance(end, nn.Softmax):
        with pytest.warns(
            AbnnWarning, match=r"returns probabilities.*Return the logits, or log_softmax of them"
        ) as caught:
            abnn.attach(network, x)
        assert [warning.filename for warning in caught] == [__file__]
    else:
        abnn.attach(network, x)  # a warning would be an error


def test_one_logit_as_two_classes() -> None:
    """What the error message says to do gives the probabilities of the logit's sigmoid."""

    class TwoClasses(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, x: Tensor) -> Tensor:
            z = self.network(x).flatten()
            return torch.stack([0 * z, z], 1)

    network, x = mlp(classes=1), torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    wrapped = TwoClasses(network)
    assert abnn.attach(wrapped, x[:1]).classes == 2
    torch.testing.assert_close(wrapped(x).softmax(1)[:, 1], network(x)[:, 0].sigmoid())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_follows_the_backbone(dtype: torch.dtype) -> None:
    model = abnn.attach(small().to(dtype), image().to(dtype), draws=2)
    assert {p.dtype for _, p in model.attachment_parameters()} == {dtype}
    assert model(image(3).to(dtype)).dtype == dtype
    if dtype == torch.float64:
        assert agrees(randomise_attachments(model), image(3).double(), 1e-10)


# -- draws -------------------------------------------------------------------------------------------------------------


def test_a_draw_depends_on_seed_and_number_alone(attached: Attached, images: Tensor) -> None:
    with torch.no_grad():
        attached.resample(10, seed=3)
        plain, *ten = attached.draw_logits(images)
        attached.resample(range(6, 8), seed=3)
        torch.testing.assert_close(attached.draw_logits(images), torch.stack([plain, *ten[6:8]]))
        attached.resample(2, seed=4)
        two = attached.draw_logits(images)
        assert torch.equal(two[0], plain) and not torch.allclose(two[1:], torch.stack(ten[:2]))
        attached.resample(seed=3)
        torch.testing.assert_close(attached.draw_logits(images), torch.stack([plain, *ten[:2]]))
        attached.resample(5)
        assert attached.draws == 5 and not attached.mean_weights
        attached.resample(0)
        assert attached.draws == 1 and attached.mean_weights


def test_attach_leaves_the_global_random_state_alone() -> None:
    network = small()
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = abnn.attach(network, image(), seed=1, config=abnn.AttachConfig(init=Init(0.1)))
    assert torch.equal(torch.rand(3), expected)
    second = abnn.attach(network, image(), seed=1, config=abnn.AttachConfig(init=Init(0.1)))
    third = abnn.attach(network, image(), seed=2, config=abnn.AttachConfig(init=Init(0.1)))
    assert torch.equal(first.layers[0].weight_mean, second.layers[0].weight_mean)
    assert torch.equal(first.layers[0].weight_noise, second.layers[0].weight_noise)
    assert not torch.equal(first.layers[0].weight_mean, third.layers[0].weight_mean)


def test_drop_in(attached: Attached, small_net: nn.Module, images: Tensor) -> None:
    with torch.no_grad():
        output = attached(images)
        assert output.shape == small_net(images).shape
        torch.testing.assert_close(output.softmax(1), attached.draw_logits(images).softmax(2).mean(0))
        assert torch.equal(attached(images), output)  # draws are held


# -- folding -----------------------------------------------------------------------------------------------------------


class LongSkip(nn.Module):
    """A small U-Net: features before the first block come back at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.down, self.up = nn.Conv2d(4, 8, 3, 2, 1), nn.Conv2d(8, 4, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.stem(x))
        u = torch.relu(self.up(nn.functional.interpolate(torch.relu(self.down(h)), scale_factor=2.0)))
        return self.head(torch.cat([h, u], dim=1).mean(dim=(2, 3)))


def test_long_skips_fold_at_the_input_and_say_so() -> None:
    torch.manual_seed(0)
    model = abnn.attach(
        LongSkip(), image(), at=["down", "up"], draws=3
    )  # a bounded one runs twice, and need not say so
    assert model.folds_at_input
    randomise_attachments(model, 0.2)
    x = image(4, seed=3)
    assert agrees(model, x)
    with torch.no_grad():
        torch.testing.assert_close(model(x).softmax(1), one_draw_at_a_time(model, x).softmax(2).mean(0))
        model.resample(1, seed=0)
        assert model(x).shape == (4, 3)
    with pytest.warns(AbnnWarning, match="passes features around the first attachment"):
        chain = abnn.attach(
            LongSkip(), image(), at=["down", "up"], kind="chain", draws=3, config=abnn.AttachConfig(share=False)
        )
    assert agrees(randomise_attachments(chain, 0.2), x)


class Mixing(nn.Module):
    """Each output depends on the whole batch."""

    def __init__(self, offset: float) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        nn.init.constant_(self.head.bias, offset)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        return self.head(self.two(x - x.mean(0)))


@pytest.mark.parametrize("example", [torch.zeros(1, 4), torch.randn(2, 4, generator=generator(1))])
@pytest.mark.parametrize("offset", [0.0, 10.0])
def test_networks_that_mix_their_batch_are_refused(offset: float, example: Tensor) -> None:
    with pytest.raises(AttachError, match="backbone: .*treats each input of a batch by itself"):
        abnn.attach(Mixing(offset), example)


def test_networks_that_are_random_are_refused() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x + torch.randn_like(x))

    with pytest.raises(AttachError, match="backbone: its output is random, two passes of the same input differ"):
        abnn.attach(Noisy(), torch.zeros(1, 6))


def test_networks_whose_output_is_not_finite_are_refused() -> None:
    network = mlp()
    next(network.parameters()).data.fill_(float("nan"))
    with pytest.raises(AttachError, match="backbone: its output on the example.* is not finite"):
        abnn.attach(network, torch.zeros(1, 6))


class Hidden(nn.Module):
    """Calls some of its layers through a plain list, where nothing can be replaced."""

    def __init__(self, *saved: str) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.saved = {name: [getattr(self, name)] for name in saved}

    def forward(self, x: Tensor) -> Tensor:
        for name in ("one", "two", "head"):
            x = self.saved[name][0](x) if name in self.saved else getattr(self, name)(x)
        return x


def test_unreachable_blocks_are_refused() -> None:
    compiled: Any = torch.compile(mlp(), backend="eager")
    whole, parts = Hidden("one", "two", "head"), [Hidden(name) for name in ("one", "two", "head")]
    for network in (whole, *parts, compiled):  # also those whose features are only read
        example = torch.zeros(1, 6 if network is compiled else 4)
        with pytest.raises(AttachError, match="does not reach .* through its submodules.*attach before torch.compile"):
            abnn.attach(network, example)


def keep_in(network: Any, module: nn.Module, args: Any, output: Tensor) -> None:
    network.kept["features"] = output


class Keeper:
    """A hook that is an object."""

    def __init__(self, kept: dict[str, Tensor]) -> None:
        self.kept = kept

    def __call__(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.kept["features"] = output


WAYS = ["closure", "method", "default", "partial", "object", "nested"]


class Hooked(nn.Module):
    """A hook keeps features of a block, and the last layer reads them."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.body, self.head, self.kept = mlp(4, 8, 8), nn.Linear(16, 3), {"features": torch.zeros(0)}
        self.feature = torch.zeros(0)

        def closure(module: nn.Module, args: Any, output: Tensor) -> None:
            self.kept["features"] = output

        def default(module: nn.Module, args: Any, output: Tensor, kept: Any = self.kept) -> None:
            kept["features"] = output

        hooks = {"closure": closure, "method": self.keep, "attribute": self.keep_as_attribute, "default": default}
        hooks |= {"partial": functools.partial(keep_in, self), "object": Keeper(self.kept)}
        hooks["nested"] = functools.partial(lambda keep, *call: keep(*call), self.keep)
        self.body[0].register_forward_hook(hooks[way])
        self.way = way

    def keep(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.kept["features"] = output

    def keep_as_attribute(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.feature = output

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        kept = self.feature if self.way == "attribute" else self.kept["features"]
        return self.head(torch.cat([x, kept], dim=1))


@pytest.mark.parametrize("way", WAYS)
def test_hooks_may_keep_features_in_dicts(way: str) -> None:
    network, x = Hooked(way).eval(), torch.randn(5, 4, generator=generator(1))
    model = attach_with(network, x[:1], at="body.2", draws=3)
    assert agrees(randomise_attachments(model, 0.2), x)
    for rows in (x, x[:2]):  # features of this batch, not of the last one
        torch.testing.assert_close(model.predict(rows).samples[0], network(rows).softmax(1))
        torch.testing.assert_close(model.predict(rows, draws=3).samples[1:], model.draw_logits(rows)[1:].softmax(2))
        torch.testing.assert_close(Plain(network, x[:1]).predict(rows).samples[0], network(rows).softmax(1))


@pytest.mark.parametrize("way", WAYS)
def test_threads_take_turns_where_hooks_keep_features(way: str) -> None:
    """Another thread's features may come in between; a break of a hundredth of a second lets them."""

    class Slow(Hooked):
        def forward(self, x: Tensor) -> Tensor:
            x = self.body(x)
            time.sleep(0.01)
            return self.head(torch.cat([x, self.kept["features"]], dim=1))

    network, x = Slow(way).eval(), torch.randn(8, 5, 4, generator=generator(1))
    model = attach_with(network, x[0, :1], at="body.2")
    for predictor in (model, Plain(network, x[0, :1])):
        alone = [predictor.predict(rows).samples for rows in x]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda rows, predictor=predictor: predictor.predict(rows).samples, x))
        assert all(torch.equal(one, other) for one, other in zip(alone, together))


def test_networks_with_hooks_are_left_alone_where_they_keep_modules_in_lists_and_dicts() -> None:
    class Listed(Hooked):
        def __init__(self) -> None:
            super().__init__("method")
            self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout()
            self.parts, self.calls = {"later": [self.norm, self.drop]}, [self.norm.forward]

        def forward(self, x: Tensor) -> Tensor:
            x = self.calls[0](torch.cat([self.body(x), self.kept["features"]], dim=1))
            for part in self.parts["later"]:
                x = part(x)
            return self.head(x)

    network, x = Listed().eval(), torch.randn(5, 4, generator=generator(1))
    model = attach_with(network, x[:1], at="body.2")
    network.train()
    before = copy.deepcopy(network.state_dict())
    assert torch.equal(model.predict(x).samples, model.predict(x).samples)  # nothing is dropped
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_hooks_that_keep_features_in_attributes_are_refused() -> None:
    with pytest.raises(AttachError, match="hooks .*in attributes"):
        abnn.attach(Hooked("attribute"), torch.zeros(1, 4))


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"at": "block.1"}, AttachError, "at: got 'block.1'.*Close names: blocks.1"),
        ({"at": []}, AttachError, "at: got no names"),
        ({"last": 0}, InputError, "last: got 0; accepted: 1 to 3"),
        ({"last": 4}, InputError, "last: got 4"),
        ({"last": 1.5}, InputError, "last: got 1.5"),
        ({"budget": 10}, AttachError, r"budget: got 10; accepted: at least 41 .*'blocks.2'"),
        ({"budget": "2M"}, InputError, "budget: got '2M'"),
        ({"draws": -1}, InputError, "draws: got -1; accepted: a whole number of at least 0"),
        ({"draws": True}, InputError, "draws: got True"),
        ({"draws": 2.0}, InputError, "draws: got 2.0"),
        ({"kind": "bound"}, InputError, "kind: got 'bound'.*Did you mean 'bounded'"),
        ({"kind": "conv"}, InputError, "kind: got 'conv'; accepted: .*bounded"),
        ({"preset": "papers"}, InputError, "preset: got 'papers'.*Did you mean 'paper'"),
        ({"width": 0}, InputError, "width: got 0"),
        ({"kind": "chain", "width": 8}, InputError, "width: got 8; accepted: None for kind='chain'"),
        ({"share": True}, InputError, "share: got True"),
        ({"kind": "chain", "share": True, "at": ["stem.0", "blocks.*"]}, AttachError, None),
    ],
)
def test_bad_arguments(options: dict[str, Any], error: type[Exception], message: str | None) -> None:
    network = small()
    if message is None:  # a shared chain may start anywhere
        assert attach_with(network, image(), **options).attachment_size > 0
        return
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(error, match=message):
        attach_with(network, image(), **options)
    assert all(torch.equal(value, network.state_dict()[name]) for name, value in before.items())
    assert not any(module._forward_hooks for module in network.modules())


def test_chains_over_different_shapes() -> None:
    net = SmallBatchNormNet()
    with pytest.raises(AttachError, match="share: got a shared chain on blocks of different shapes.*share=False"):
        abnn.attach(nn.Sequential(nn.Conv2d(1, 1, 3), net), image(), at=["0", "1.conv1", "1.conv2"], kind="chain")
    with pytest.raises(AttachError, match="a chain from .* whose layouts differ"):
        abnn.attach(net, image(), at=["conv1", "head"], kind="chain", config=abnn.AttachConfig(share=False))


def test_blocks_that_no_attachment_can_follow() -> None:
    class Reshape(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)[:, :2]

    class Fold(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2)

    tokens = nn.Sequential(Reshape(), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(AttachError, match="'0' turns 5 tokens into 2"):
        abnn.attach(tokens, torch.zeros(1, 5, 4), at="0", kind="replace")
    folded = nn.Sequential(nn.Conv2d(1, 2, 3), Fold(), nn.Flatten(), nn.Linear(200, 2))
    with pytest.raises(AttachError, match=r"'1' turns shape \(1, 2, 10, 10\) into \(1, 2, 100\)"):
        abnn.attach(folded, image(), at="1", kind="replace")
    for network, example, place in ((tokens, torch.zeros(1, 5, 4), "0"), (folded, image(), "1")):
        model = randomise_attachments(
            abnn.attach(network, example, at=place, draws=2), 0.3
        )  # which reads outputs alone
        assert agrees(model, torch.randn(3, *example.shape[1:], generator=generator(1)))


def test_attaching_twice(attached: Attached, images: Tensor) -> None:
    for network in (attached, attached.net, nn.Sequential(attached.net)):
        with pytest.raises(AttachError, match="backbone: got a network that has attachments already.*abnn.detach"):
            abnn.attach(network, images)


def test_a_name_in_the_place_of_a_network() -> None:
    with pytest.raises(
        InputError, match=r"backbone: got 'resnet18'; accepted: a torch.nn.Module.*abnn.build_backbone\("
    ):
        abnn.attach("resnet18", image())  # type: ignore[arg-type]


def test_torchscript() -> None:
    for network in (torch.jit.trace(small(), image()), torch.jit.script(mlp())):
        with pytest.raises(AttachError, match="backbone: got a TorchScript module"):
            abnn.attach(network, image())


def test_no_block_found() -> None:
    with pytest.raises(AttachError, match="no block was found"):
        abnn.attach(nn.Sequential(nn.Flatten(), nn.ReLU()), torch.zeros(1, 4))


# -- detach ------------------------------------------------------------------------------------------------------------


def test_detach_puts_modes_and_flags_back() -> None:
    network = SmallBatchNormNet().train()
    network.bn1.eval()
    network.conv1.weight.requires_grad_(False)
    model = abnn.attach(network, image(2))
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    assert abnn.detach(model) is network
    assert network.training and network.bn2.training and not network.bn1.training
    assert not network.conv1.weight.requires_grad and network.conv2.weight.requires_grad
    abnn.attach(network, image(2))  # and it can be attached to again


def test_using_what_was_detached(attached: Attached, images: Tensor) -> None:
    abnn.detach(attached)
    for use in (
        lambda: attached(images),
        lambda: attached.predict(images),
        lambda: attached.backbone,
        lambda: abnn.detach(attached),
    ):
        with pytest.raises(AttachError, match="taken off with detach"):
            use()


def test_detaching_what_is_not_attached() -> None:
    for thing in (mlp(), None, "model"):
        with pytest.raises(AttachError, match="model: got .*accepted: what abnn.attach"):
            abnn.detach(thing)  # type: ignore[arg-type]


# -- small parts -------------------------------------------------------------------------------------------------------


def test_kl_is_the_sum_over_layers_each_once() -> None:
    model = abnn.attach(small(), image(), kind="chain", draws=2)
    assert len(model.layers) == 4  # two layers of each of two blocks, though one block is used twice
    torch.testing.assert_close(model.kl(), sum(layer.kl() for layer in model.layers))
    torch.testing.assert_close(model.kl(True), sum(layer.kl(True) for layer in model.layers))


def test_settings_of_the_preset_apply_to_its_kind_only() -> None:
    assert abnn.attach(small(), image(), preset="paper").spec.prior == Gaussian(1.0)
    other = abnn.attach(small(), image(), preset="paper", kind="bounded").spec
    assert other.prior == Gaussian(1.0) and other.share is None and other.init is None
    config = abnn.AttachConfig(prior=Gaussian(0.5), width=3)
    assert abnn.attach(small(), image(), config=config).spec == Spec(prior=Gaussian(0.5), width=3)


@given(st.integers(1, 9), st.integers(1, 9))
def test_fit_size_keeps_means_where_it_divides(size: int, wanted: int) -> None:
    x = torch.randn(2, 3, size, generator=generator(size))
    fitted = fit_size(x, (wanted,))
    assert fitted.shape == (2, 3, wanted)
    if size % wanted == 0 or wanted % size == 0:
        torch.testing.assert_close(fitted.mean(2), x.mean(2))


def test_representation_and_names(attached: Attached) -> None:
    size = sum(parameter.numel() for _, parameter in attached.attachment_parameters())
    assert "kind='bounded'" in repr(attached) and f"attachment_size={size:,}" in repr(attached)
    names = [name for name, _ in attached.attachment_parameters()]
    assert len(set(names)) == len(names) == 12 * len(attached.block_names) and names[0] == "0.down.weight_mean"


def test_an_unknown_score_is_refused_at_once() -> None:
    model = abnn.attach(mlp(), torch.zeros(1, 6))
    with pytest.raises(InputError, match=r"score: got 'entropi'; accepted: combined, .*entropy, .*'entropy'\?"):
        model.score = "entropi"
    assert model.score == "combined"
    model.score = "entropy"
    assert model.score == copy.deepcopy(model).score == model.predict(torch.zeros(2, 6)).default == "entropy"
    numbers = abnn.attach(mlp(classes=1), torch.zeros(1, 6), task="regression")
    with pytest.raises(InputError, match="score: got 'entropy'"):  # of classes alone
        numbers.score = "entropy"


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_copies_of_blocks_that_copy_themselves(norm: Any) -> None:
    """Parametrised layers say themselves how they are copied, which must not take the attachment off."""
    layers = [nn.Linear(6, 16), nn.ReLU(), norm(nn.Linear(16, 16)), nn.ReLU(), norm(nn.Linear(16, 4))]
    x = torch.randn(5, 6, generator=generator(0))
    model = randomise_attachments(abnn.attach(nn.Sequential(*layers).eval(), x[:1], at="2"))
    assert torch.equal(copy.deepcopy(model).predict(x).samples, model.predict(x).samples)
