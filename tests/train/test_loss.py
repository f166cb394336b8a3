"""The loss of one batch, for loops of the user's own."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import abnn
from abnn.config import preset
from abnn.errors import InputError
from abnn.outliers import make_outliers
from abnn.train.loss import loss, plain_along
from abnn.train.steps import Steps
from tests.conftest import generator, mlp, randomise_attachments, with_score
from tests.train.test_fit import attached, data
from tests.train.test_steps import PlainFabric, sgd

RANGE = (0.0, 1.0)


def gradients(model: abnn.Attached) -> list[Tensor]:
    """Those of the attachments."""
    return [parameter.grad for _, parameter in model.attachment_parameters() if parameter.grad is not None]


@pytest.mark.parametrize("outliers", ["preset", None, "noise"])
def test_it_is_what_one_step_of_a_fit_minimises(outliers: str | None) -> None:
    """Its gradient is the update of SGD at rate 1, and its value the sum of the step's losses, up to float32 rounding."""
    x, y = (part[:12] for part in data())
    model = randomise_attachments(attached(), 0.05)
    twin = copy.deepcopy(model)
    maker = make_outliers("auto" if outliers == "preset" else outliers)
    if maker is not None:
        maker.prepare(*RANGE)
    steps = Steps(twin, preset("default").objective, maker, PlainFabric(), sgd(twin, frozen=True))
    before = [parameter.detach().clone() for _, parameter in twin.attachment_parameters()]
    torch.manual_seed(3)
    shown = steps.step(x, y, generator(1))
    torch.manual_seed(3)
    value = loss(model, x, y, outliers, value_range=RANGE, generator=generator(1))
    expected = shown["id"] + shown["weighted_kl"] + (shown["outliers"] if maker is not None else 0)
    torch.testing.assert_close(value.detach(), expected, rtol=1e-6, atol=1e-6)
    value.backward()
    updates = [old - new.detach() for old, (_, new) in zip(before, twin.attachment_parameters())]
    assert len(gradients(model)) == len(updates)
    for gradient, update in zip(gradients(model), updates):
        torch.testing.assert_close(gradient, update, rtol=1e-3, atol=1e-6 + 1e-3 * update.abs().max().item())


def test_a_loop_of_the_users_own_learns_and_leaves_the_rest_alone() -> None:
    x, y = data()
    model = attached()
    before, held = {n: v.clone() for n, v in model.backbone.state_dict().items()}, model(x).detach()
    optimizer = torch.optim.Adam([parameter for _, parameter in model.attachment_parameters()], 1e-2)
    torch.manual_seed(0)
    values: list[float] = []
    for _ in range(60):
        optimizer.zero_grad()
        value = loss(model, x, y, value_range=RANGE, generator=generator(1))
        if not values:
            assert torch.equal(model(x).detach(), held)  # the draws that the model holds are the same ones
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert values[-1] < 0.98 * values[0]  # of the same outliers
    assert all(torch.equal(value, before[name]) for name, value in model.backbone.state_dict().items())
    assert all(p.grad is None and p.requires_grad for _, p in model.backbone_parameters())


@pytest.mark.parametrize("flag", [True, False])
def test_the_backbone_learns_only_if_neither_flag_nor_user_freezes_it(flag: bool) -> None:
    x, y = (part[:12] for part in data())
    model = attached()
    first, *others = (parameter for _, parameter in model.backbone_parameters())
    first.requires_grad_(False)
    loss(model, x, y, freeze_backbone=flag, value_range=RANGE).backward()
    assert first.grad is None and all((parameter.grad is None) is flag for parameter in others)
    assert all(gradient.isfinite().all() for gradient in gradients(model))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, contextlib.nullcontext])
def test_its_range_is_that_of_the_batch_unless_one_is_given(context: type) -> None:
    x, y = (part[:12] for part in data())

    def value(**options: object) -> float:
        torch.manual_seed(0)
        with context():
            return loss(model, x, y, **options).item()  # type: ignore[arg-type]

    model = attached()
    assert value() == value(value_range=(x.min(), x.max())) != value(value_range=(-9.0, 9.0))


def test_wrong_input() -> None:
    x, y = (part[:12] for part in data())
    with pytest.raises(InputError, match="preset 'authors', which makes several updates.*Use abnn.fit"):
        loss(attached(preset="authors"), x, y)
    with pytest.raises(InputError, match="model: got PaperResNet"):
        loss(attached().backbone, x, y)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="labels from"):
        loss(attached(), x, y + 3)
    with pytest.raises(InputError, match="y: got None; accepted: labels of the batch"):
        loss(attached(), x)
    with pytest.raises(InputError, match=r"value_range: got 1.0; accepted: \(low, high\)"):
        loss(attached(), x, y, value_range=1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrap", "name"), [(nn.DataParallel, "module"), (torch.compile, "_orig_mod")])
def test_wrappers_of_attached_networks_are_told_from_networks_without(wrap: Any, name: str) -> None:
    with pytest.raises(InputError, match=f"itself, which is inside: model.{name}"):
        loss(wrap(attached()), *data())


class Extractor(nn.Module):
    """A network whose first part passes no gradients on."""

    def __init__(self, stop: str) -> None:
        super().__init__()
        self.stop, self.body, self.head = stop, mlp(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.stop == "checkpoint":
            return self.head(checkpoint(self.body, x, use_reentrant=True))
        with torch.no_grad() if self.stop == "no_grad" else contextlib.nullcontext():
            x = self.body(x)
        return self.head(x.detach() if self.stop == "detach" else x)


class Sentences(nn.Module):
    """A network of padded sentences, whose blocks are run once more in the backward pass if ``again``."""

    def __init__(self, again: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again, self.embed, self.head = again, nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x.mean(1))


@pytest.mark.parametrize("masked", [False, True])
def test_blocks_that_run_again_in_the_backward_pass_know_the_padding(masked: bool) -> None:
    random = generator(1)
    tokens, y = torch.randint(1, 20, (64, 6), generator=random), torch.arange(64) % 3
    tokens = tokens.masked_fill(torch.arange(6) > 1 + torch.arange(64)[:, None] % 5, 0)
    batches: list = [(part, goal) for part, goal in zip(tokens.split(32), y.split(32))]
    if masked:
        batches = [{"input_ids": x, "attention_mask": (x > 0).long(), "labels": goal} for x, goal in batches]
    example = {"input_ids": tokens[:1], "attention_mask": (tokens[:1] > 0).long()} if masked else tokens[:1]
    models = [abnn.attach(Sentences(again).eval(), example, at="blocks.*") for again in (False, True)]
    for model in models:
        abnn.fit(model, batches, epochs=2, progress=False)
    for (_, one), (_, other) in zip(*(model.attachment_parameters() for model in models)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize(("at", "works"), [("blocks.*", False), ("blocks.0", False), ("head", True)])
def test_blocks_that_run_again_after_a_loss_are_explained(at: str, works: bool, freeze: bool) -> None:
    """What its passes have set is put back by then. Blocks that this does not change may run again."""
    tokens, y = torch.randint(1, 20, (32, 6), generator=generator(1)), torch.arange(32) % 3
    models = [abnn.attach(Sentences(again).eval(), tokens[:1], at=at) for again in (False, True)]
    for model in models:
        torch.manual_seed(0)
        value = loss(model, tokens, y, generator=generator(1), freeze_backbone=freeze)
        if works or model is models[0]:
            value.backward()
        else:
            with pytest.raises(
                InputError, match="model: .*once more in the backward pass of abnn.loss.*checkpointing off"
            ):
                value.backward()
            model(tokens).sum().backward()  # with the draws that the model holds
    for one, other in zip(*map(gradients, models)) if works else ():
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("stop", ["no_grad", "detach", "checkpoint"])
def test_networks_that_stop_gradients_are_explained(stop: str) -> None:
    x, y = torch.randn(64, 6, generator=generator(1)), torch.arange(64) % 3
    model = abnn.attach(Extractor(stop).eval(), x[:1], at="body.2")
    batches = [(x[:32], y[:32]), (x[32:], y[32:])]
    for call in (lambda: loss(model, x, y), lambda: abnn.fit(model, batches, epochs=1, progress=False)):
        with pytest.raises(InputError, match="model: .*no gradient through to its attachments, at body.2.*epochs=0"):
            call()
    with warnings.catch_warnings(action="ignore"):
        abnn.fit(model, batches, epochs=0, progress=False)
    assert model.is_judge
    behind = abnn.attach(Extractor(stop).eval(), x[:1], at="head")
    loss(behind, x, y).backward()
    assert any(gradient.any() for gradient in gradients(behind))


@pytest.mark.parametrize("rows", [1, 3])
def test_batches_with_one_target_have_a_usual_loss(rows: int) -> None:
    """Before a fit the spread of targets is that of the batch; a batch of one has none."""
    x = torch.randn(rows, 6, generator=generator(1))
    model = abnn.attach(mlp(6, 1), x[:1], task="regression")
    assert loss(model, x, torch.full((rows, 1), 0.5)).item() < 1e6


def test_predictions_do_not_see_what_a_step_does() -> None:
    """Those of other threads run while the network trains."""
    x = torch.randn(5, 6, generator=generator(0))
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    model = with_score(abnn.attach(network, x[:1]), x)
    before = model.predict(x)
    with plain_along(model, False):
        during = model.predict(x)
    after = model.predict(x)
    for each in (during, after):
        assert torch.equal(each.samples, before.samples) and torch.equal(each.score, before.score)
