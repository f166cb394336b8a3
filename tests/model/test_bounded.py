"""The default attachment: nothing at first, never more than half of what a block says, and as wide as 5 % of the weights pay for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import abnn
from abnn.bayes.layers import BayesConv, BayesLinear, bayesian_layers
from abnn.bayes.priors import Gaussian
from abnn.errors import AttachError
from abnn.model.attach import MOST_BLOCKS, SHARE
from abnn.model.blocks import Block
from abnn.model.bounded import BOUND, WIDTH, Bounded, rms
from abnn.networks.by_name import PaperResNet, build_backbone
from tests.conftest import attach_with, generator, mlp, random_head, randomise_attachments
from tests.model.test_zoo import CASES, prepare

SHAPES = {
    "flat": (12,),
    "channels 1-D": (6, 9),
    "channels 2-D": (6, 5, 7),
    "channels 3-D": (4, 3, 4, 5),
    "tokens": (7, 12),
    "grid of tokens": (3, 4, 12),
    "pooled tokens": (12,),
}


def bounded(name: str, width: int = 5, sigma: float = 0.1) -> Bounded:
    shape = (1, *SHAPES[name])
    layout = "tokens" if "of tokens" in name else name.split(" ")[0] if "channels" in name else name
    torch.manual_seed(0)
    return Bounded(Block("block", nn.Identity(), shape, shape, layout), width, Gaussian(sigma), None)


def outputs(name: str, rows: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(rows, *SHAPES[name], generator=generator(seed))


def size(x: Tensor) -> Tensor:
    """Root mean square of each row, in float64."""
    return x.double().flatten(1).square().mean(1).sqrt()


def set_weights(attachment: Bounded, scale: float, seed: int) -> None:
    with torch.no_grad():
        for number, layer in enumerate(bayesian_layers(attachment)):
            for parameter in (layer.weight_mean, layer.bias_mean):
                assert parameter is not None
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator(seed + 31 * number)))


# -- the attachment alone ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(SHAPES))
def test_adds_exactly_nothing_at_first(name: str) -> None:
    attachment = bounded(name)
    for scale in (0.0, 1e-6, 1.0, 1e6):
        assert torch.equal(attachment(scale * outputs(name)), torch.zeros(6, *SHAPES[name]))


@pytest.mark.parametrize("name", list(SHAPES))
@settings(max_examples=25)
@given(st.floats(-3, 6), st.floats(-8, 37), st.integers(0, 99), st.integers(1, 3))
def test_never_adds_more_than_half_of_the_output(
    name: str, weights: float, inputs: float, seed: int, draws: int
) -> None:
    """For weights from 1e-3 to 1e6 and outputs from 1e-8 to 1e37: rms(addition) <= c rms(output), and all is finite."""
    attachment = bounded(name)
    set_weights(attachment, 10**weights, seed)
    for layer in bayesian_layers(attachment):
        layer.resample(draws, generator(seed))
    h = 10**inputs * outputs(name, rows=2 * draws, seed=seed)
    h[0] = h[0] * (torch.rand(h[0].shape, generator=generator(seed)) < 0.1)  # few values that are not zero, or none
    with torch.no_grad():
        added = attachment(h)
    assert added.shape == h.shape and added.isfinite().all()
    assert (size(added) <= BOUND * (1 + 1e-4) * size(h)).all()


@pytest.mark.parametrize("name", list(SHAPES))
def test_large_weights_add_nearly_half_and_small_ones_what_they_say(name: str) -> None:
    h = outputs(name)
    attachment = bounded(name)
    set_weights(attachment, 1e4, 1)
    with torch.no_grad():
        share = size(attachment(h)) / size(h)
        assert share.max() > 0.999 * BOUND and ((share > 0.999 * BOUND) | (share == 0)).all()
        set_weights(attachment, 1e-3, 1)
        small = attachment(h)
        set_weights(attachment, 1.0, 1)
        weight = attachment.up.weight_mean
        before = attachment(h)
        weight.mul_(-1)
        assert attachment.up.bias_mean is not None
        attachment.up.bias_mean.mul_(-1)
        torch.testing.assert_close(attachment(h), -before)  # the bound turns nothing around
    assert size(small).max() < 0.01 * size(h).max()


@pytest.mark.parametrize("name", list(SHAPES))
@pytest.mark.parametrize("scale", [1e-5, 1e3, 1e15])
def test_the_addition_grows_with_the_output(name: str, scale: float) -> None:
    attachment = bounded(name)
    set_weights(attachment, 0.5, 2)
    with torch.no_grad():
        added = attachment(outputs(name))
        torch.testing.assert_close(attachment(scale * outputs(name)) / scale, added, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", list(SHAPES))
def test_is_its_formula(name: str) -> None:
    """With loops over positions in the place of convolutions that see one of them."""
    attachment, h = bounded(name).double(), outputs(name).double()
    set_weights(attachment, 0.7, 3)
    with torch.no_grad():
        for row in h:
            x = row / row.square().mean().sqrt()
            features = x if "tokens" in name or x.ndim == 1 else x.movedim(0, -1)

            def linear(layer: Any, x: Tensor) -> Tensor:
                return x @ layer.weight_mean.flatten(1).T + layer.bias_mean

            hidden = torch.relu(linear(attachment.down, features))
            if attachment.mix is not None:
                mix: Any = attachment.mix
                places, kernel = hidden.ndim - 1, mix.weight_mean[:, 0]
                padded = nn.functional.pad(hidden.movedim(-1, 0), [1, 1] * places)
                mixed = torch.zeros_like(hidden.movedim(-1, 0)) + mix.bias_mean.view(-1, *[1] * places)
                for shift in torch.cartesian_prod(*[torch.arange(3)] * places).reshape(-1, places).tolist():
                    window, place = (
                        (slice(None), *(slice(s, s + n) for s, n in zip(shift, hidden.shape))),
                        (slice(None), *shift),
                    )
                    mixed += kernel[place].view(-1, *[1] * places) * padded[window]
                hidden = torch.relu(mixed.movedim(0, -1))
            u = linear(attachment.up, hidden)
            expected = row.square().mean().sqrt() * 0.5 * u / (0.5 + u.square().mean().sqrt())
            expected = expected if "tokens" in name or row.ndim == 1 else expected.movedim(-1, 0)
            torch.testing.assert_close(attachment(row[None])[0], expected)


@pytest.mark.parametrize(
    ("dtype", "scale", "rounding"), [(torch.bfloat16, 1e6, 0.01), (torch.float16, 10, 0.01), (torch.float64, 1e6, 1e-9)]
)
@pytest.mark.parametrize("name", list(SHAPES))
def test_other_precisions(name: str, dtype: torch.dtype, scale: float, rounding: float) -> None:
    attachment = bounded(name).to(dtype)
    set_weights(attachment, scale, 4)
    h = torch.cat([outputs(name), 0.05 * outputs(name), torch.zeros(1, *SHAPES[name])]).to(dtype)
    with torch.no_grad():
        added = attachment(h)
    assert added.dtype == dtype and added.isfinite().all()
    assert (size(added) <= (BOUND + rounding) * size(h)).all()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        single = bounded(name)
        set_weights(single, 1e3, 4)
        mixed = single(outputs(name))
    assert mixed.dtype == torch.float32 and (size(mixed) <= (BOUND + 0.01) * size(outputs(name))).all()


@pytest.mark.parametrize("name", list(SHAPES))
def test_gradients_are_finite_at_first_and_for_outputs_of_zeros(name: str) -> None:
    for h in (outputs(name), torch.zeros(6, *SHAPES[name])):
        attachment = bounded(name)
        h.requires_grad_()
        attachment(h).sum().backward()
        for parameter in (h, *attachment.parameters()):
            assert parameter.grad is not None and parameter.grad.isfinite().all()
    assert bounded(name).up.weight_mean.abs().sum() == 0


@given(st.floats(-8, 25), st.integers(1, 4))
def test_root_mean_square(exponent: float, rows: int) -> None:
    x = 10**exponent * torch.rand(rows, 3, 5, generator=generator(rows)) + 10**exponent
    torch.testing.assert_close(rms(x).flatten().double(), size(x), rtol=1e-4, atol=0)
    assert rms(x).shape == (rows, 1, 1) and torch.equal(rms(torch.zeros(2, 4)), torch.zeros(2, 1))


def test_layers_follow_the_layout() -> None:
    for name in SHAPES:
        attachment = bounded(name, width=3)
        assert isinstance(attachment.down, BayesConv if "channels" in name else BayesLinear)
        assert (attachment.mix is not None) == ("channels" in name)
        assert attachment.up.weight_mean.shape[:2] == (attachment.down.weight_mean.shape[1], 3)


# -- attached to networks ----------------------------------------------------------------------------------------------

QUICK = ["paper", "resnet18", "squeezenet1_1", "timm/resnet10t", "mlp", "conv1d"]


@pytest.fixture(scope="module", params=QUICK)
def network(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    case = CASES[request.param]
    torch.manual_seed(0)
    return prepare(case.make(), case.shape), torch.randn(2, *case.shape, generator=generator(3))


@torch.no_grad()
def test_a_new_model_says_exactly_what_the_backbone_says(network: tuple[nn.Module, Tensor]) -> None:
    backbone, x = network
    expected = backbone(x)
    # Rows of a larger batch may be rounded otherwise, so that the same rows are compared.
    doubled = backbone(torch.cat([x, x]))[2:]
    model = abnn.attach(backbone, x[:1])
    plain, attached = model.draw_logits(x)
    assert torch.equal(plain, attached)
    torch.testing.assert_close(attached, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attached, doubled, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-5)
    samples = model.predict(x).samples
    assert samples.shape == (2, *expected.shape) and torch.equal(samples[0], samples[1])


@torch.no_grad()
def test_no_weights_can_add_more_than_half_to_a_block(network: tuple[nn.Module, Tensor]) -> None:
    backbone, x = network
    model = abnn.attach(backbone, x[:1])
    seen: list[tuple[Tensor, Tensor]] = []
    for block in model.attached_blocks:
        block.attachment.register_forward_hook(lambda _, args, output: seen.append((args[0], output - args[0])))
    for scale in (1.0, 1e3, 1e6):
        for number, block in enumerate(model.attached_blocks):
            assert isinstance(block.attachment, Bounded)
            set_weights(block.attachment, scale, number)
        for factor in (1.0, 1e3):
            assert model.draw_logits(factor * x).isfinite().all()
    assert len(seen) == 6 * len(model.attached_blocks)
    assert all((size(added) <= BOUND * (1 + 1e-4) * size(h)).all() for h, added in seen)
    assert any((size(added) > 0.4 * size(h)).all() for h, added in seen)


def test_attachments_take_at_most_five_percent_of_the_weights(network: tuple[nn.Module, Tensor]) -> None:
    backbone, x = network
    model = abnn.attach(backbone, x[:1])
    weights = sum(parameter.numel() for parameter in backbone.parameters())
    assert model.spec.width is not None and 1 <= model.spec.width <= WIDTH and len(model.block_names) <= MOST_BLOCKS
    smallest = model.spec.width == 1 and len(model.block_names) == 1  # of networks that are smaller than any attachment
    assert model.attachment_size <= SHARE * weights or smallest
    if model.spec.width < WIDTH and not smallest:  # one more would be too many
        wider = attach_with(backbone, x[:1], at=model.block_names, width=model.spec.width + 1)
        assert wider.attachment_size > SHARE * weights


def test_a_budget_buys_width_and_then_blocks(network: tuple[nn.Module, Tensor]) -> None:
    backbone, x = network
    free = abnn.attach(backbone, x[:1], config=abnn.AttachConfig(budget=10**9))
    assert free.spec.width == WIDTH
    least = attach_with(backbone, x[:1], last=1, width=1).attachment_size
    before = len(free.block_names), WIDTH
    for budget in (free.attachment_size - 1, free.attachment_size // 3, free.attachment_size // 9, least):
        model = abnn.attach(backbone, x[:1], config=abnn.AttachConfig(budget=budget))
        after = len(model.block_names), model.spec.width or 0
        assert model.attachment_size <= budget and (after[0] < before[0] or after[1] < before[1])
        assert model.block_names == free.block_names[-after[0] :]
        before = after
    assert before == (1, 1)
    with pytest.raises(AttachError, match=f"budget: got {least - 1}; accepted: at least {least} .*Raise the budget"):
        abnn.attach(backbone, x[:1], config=abnn.AttachConfig(budget=least - 1))
    wide = attach_with(backbone, x[:1], width=40)
    assert wide.spec.width == 40  # what is asked for is not cut


def test_few_multiplications_come_after_the_first_attachment() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32, generator=generator(1))
    for name in ("resnet18", "squeezenet1_1"):
        backbone = build_backbone(name, 5).eval()
        model = abnn.attach(backbone, x)
        with torch.no_grad(), FlopCounterMode(display=False) as plain:
            backbone(x)
        with torch.no_grad(), FlopCounterMode(display=False) as both:
            model.draw_logits(x)
        assert plain.get_total_flops() < both.get_total_flops() < 1.35 * plain.get_total_flops()


def test_samples_are_plain_and_attached() -> None:
    torch.manual_seed(0)
    network, x = random_head(PaperResNet(1, 3, 8, 2, "small")).eval(), torch.rand(5, 1, 28, 28, generator=generator(1))
    model = randomise_attachments(abnn.attach(network, x[:1]), 0.5)
    assert model.usual_draws == 0 and model.mean_weights and model.draws == 1
    with torch.no_grad():
        plain = network(x)
        both = model.draw_logits(x)
        torch.testing.assert_close(both[0], plain)
        assert not torch.allclose(both[1], plain, atol=1e-2)
        torch.testing.assert_close(model(x).softmax(1), both.softmax(2).mean(0))
    found = model.predict(x)
    torch.testing.assert_close(found.samples, both.softmax(2))
    assert torch.equal(found.samples, model.predict(x, seed=5).samples)  # mean weights have no seed
    noisy = model.predict(x, draws=3)
    assert len(noisy.samples) == 4
    torch.testing.assert_close(noisy.samples[0], found.samples[0])
    assert not torch.allclose(noisy.samples[1], noisy.samples[2], atol=1e-5)
    views = model.predict(x, views=5)
    assert len(views.samples) == 6  # plain, and one for each view
    torch.testing.assert_close(views.samples[:2], found.samples, rtol=1e-4, atol=1e-6)


def test_tiny_networks_get_the_smallest_attachment() -> None:
    model = abnn.attach(mlp(6, 3, width=4), torch.zeros(1, 6))
    assert model.spec.width == 1 and len(model.block_names) == 1
