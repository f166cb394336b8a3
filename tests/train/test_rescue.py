"""Fits that overwrite what a network knew begin again, more slowly."""

from __future__ import annotations

import shutil
import warnings
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import abnn
from abnn.baselines import TrainConfig, make_method, train_method
from abnn.config import Objective
from abnn.errors import AbnnWarning
from abnn.outliers import make_outliers
from abnn.train.checkpoint import Run
from abnn.train.knowledge import SLOWER, TIMES, WINDOW, Rescue, forgotten
from abnn.train.steps import Steps
from tests.train.test_fit import QUIET, Interrupted, attached, backbone, data, equal, loader, quiet, values

AGAIN = "has overwritten what the network knew"


@pytest.mark.parametrize(
    ("before", "now", "chance", "inputs", "bad"),
    [
        (0.99, 0.98, 0.1, 1280, False),
        (0.99, 0.60, 0.1, 1280, False),  # more than half of what lies above chance is left
        (0.99, 0.50, 0.1, 1280, True),
        (1.00, 0.76, 0.5, 1280, False),  # two classes: half of them right is chance
        (1.00, 0.74, 0.5, 1280, True),
        (0.12, 0.10, 0.1, 1280, False),  # a network that knew nothing
        (0.60, 0.40, 0.33, 24, False),  # too few inputs to tell
    ],
)
def test_half_of_what_was_known(before: float, now: float, chance: float, inputs: int, bad: bool) -> None:
    assert forgotten(before, now, chance, inputs) is bad


def test_only_the_last_steps_of_an_epoch_count() -> None:
    rescue = Rescue(0.99, 0.1, SimpleNamespace(world_size=1, device=torch.device("cpu")))
    for step in range(30):
        rescue.see({"accuracy": torch.tensor(0.1 if step < 30 - WINDOW else 0.95)}, 128)
    assert rescue.lost() is None
    shares = torch.tensor(0.95)
    for _ in range(30):
        rescue.see({"accuracy": shares}, 128)
        shares.fill_(0.3)  # as a captured step does
    assert rescue.lost() == "30.0% of the training inputs are classified right, 99.0% were before"


def test_inputs_count_not_batches() -> None:
    rescue = Rescue(0.99, 0.1, SimpleNamespace(world_size=1, device=torch.device("cpu")))
    rescue.see({"accuracy": torch.tensor(0.98)}, 128)
    rescue.see({"accuracy": torch.tensor(0.0)}, 1)  # the rest of the data
    assert rescue.lost() is None


def fit(lr: float, **options: Any) -> tuple[abnn.Attached, Any]:
    model = attached()
    return model, abnn.fit(model, loader(), **quiet(epochs=4, lr=lr, **options))


def right(model: abnn.Attached) -> float:
    x, y = data()
    return (model.predict(x).label == y).float().mean().item()


def test_a_fit_that_is_too_fast_begins_again() -> None:
    with pytest.warns(AbnnWarning, match=f"Epoch . {AGAIN}: .* begins again at a rate 3 times lower"):
        model, history = fit(0.3)
    assert right(model) > 0.95
    slow, expected = fit(0.1)
    assert equal(values(model), values(slow))  # nothing is left of the first attempt
    assert [row["id"] for row in history.rows] == [row["id"] for row in expected.rows]
    rates = [row["lr_factor"] * SLOWER for row in history.rows]
    assert rates == pytest.approx([row["lr_factor"] for row in expected.rows])


def test_the_method_does_so_too() -> None:
    with pytest.warns(AbnnWarning, match=AGAIN):
        trained = train_method(
            make_method("abnn", pretrain=0.0, attachment_lr=0.3),
            backbone(),
            loader(),
            4,
            progress=False,
            config=TrainConfig(accelerator="cpu"),
        )
    x, y = data()
    assert (trained.predict(x).label == y).float().mean() > 0.95
    assert trained.again == {"times it began again": 1}  # and so says its record


def test_it_gives_up_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abnn.train.knowledge.LEFT", 2.0)  # nothing is good enough
    monkeypatch.setattr("abnn.train.knowledge.TELLING", -1e9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, history = fit(1e-3)
    assert sum(AGAIN in str(each.message) for each in said) == TIMES
    assert (
        history.begun_again == TIMES and len(history.rows) == 4 and history.rows[0]["lr_factor"] < 1.01 / SLOWER**TIMES
    )


def test_good_fits_and_joint_ones_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    again: list[str] = []
    monkeypatch.setattr(Run, "begin_again", lambda self, trouble: bool(again.append(trouble)))
    fit(1e-2)
    fit(1e-2, freeze_backbone=False)
    assert again == []


def test_blocks_that_know_nothing_yet_have_nothing_to_lose() -> None:
    model = attached(kind="replace")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", AGAIN)
        history = abnn.fit(model, loader(), epochs=8, lr=3e-2, **QUIET)
    assert history.begun_again == 0 and history.last["accuracy"] > 0.9


def known(goal: Objective, outliers: Any = None, rows: Any = slice(None)) -> tuple[float, float] | None:
    x, y = data()
    model = attached()
    optimizer = torch.optim.Adam([parameter for _, parameter in model.attachment_parameters()])
    steps = Steps(
        model, goal, outliers, SimpleNamespace(world_size=1, autocast=nullcontext), {"attachments": optimizer}
    )
    return steps.known(lambda: iter([(x[rows], y[rows])]))


def test_where_losses_are_maximised_no_rate_would_help() -> None:
    goal = Objective(maximise=True, together=False)
    assert known(goal) is not None and known(goal, make_outliers("noise")) is None


def test_naming_the_most_frequent_class_is_chance() -> None:
    y = data()[1]
    uneven = torch.cat([torch.where(y == 0)[0], torch.where(y == 1)[0][:4]])
    found = known(Objective(), rows=uneven)
    assert found is not None and found[1] == pytest.approx(1 - 4 / len(uneven)) and found[0] > found[1]


@pytest.mark.filterwarnings(f"ignore:Epoch . {AGAIN}")
@pytest.mark.parametrize(
    "make",
    [
        torch.optim.NAdam,
        partial(torch.optim.Adagrad, initial_accumulator_value=0.1),
        partial(torch.optim.SGD, momentum=0.9),
    ],
)
def test_any_optimiser_starts_anew(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    again = [True, False, False, False]
    monkeypatch.setattr(Rescue, "lost", lambda self: "as told" if again and again.pop(0) else None)
    begun, _ = fit(0.03, optimizer=make)
    again.clear()
    fresh, _ = fit(0.03 / SLOWER, optimizer=make)
    for name, value in values(fresh).items():
        torch.testing.assert_close(values(begun)[name], value, rtol=1e-5, atol=1e-6)


@cache
def uninterrupted() -> tuple[dict[str, Any], list[float]]:
    """What a run ends with that was too fast, and has begun again once."""
    model, history = fit(0.3)
    return values(model), [row["id"] for row in history.rows]


@pytest.mark.filterwarnings(f"ignore:Epoch . {AGAIN}")
@pytest.mark.parametrize("after", [4, 10, 14, 19, 27])
def test_an_interrupted_run_begins_again_as_one_that_was_not(tmp_path: Path, after: int) -> None:
    whole, rows = uninterrupted()
    cut, file = attached(), tmp_path / "fit.safetensors"
    settings = quiet(epochs=4, lr=0.3, checkpoint=file, checkpoint_every=1)
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(cut, Interrupted(12 + after), **settings)
    copy = Path(shutil.copy(file, tmp_path / "copy.safetensors"))
    for resumed, kept in ((attached(), file), (cut, copy)):  # also where attachments are no longer as they started
        again = abnn.fit(resumed, loader(), **{**settings, "checkpoint": kept})
        assert equal(whole, values(resumed)) and [row["id"] for row in again.rows] == rows


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_begin_again() -> None:
    model = attached()
    with pytest.warns(AbnnWarning, match=AGAIN):
        abnn.fit(model, loader(), **quiet(epochs=4, lr=0.3, accelerator="cuda"))
    assert right(model.cpu()) > 0.95
