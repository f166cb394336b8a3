"""What holds for every method: it trains, predicts the same after a save, and does not depend on the batch."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from abnn.baselines import REGISTRY, Trained, load_trained, make_method
from abnn.evaluate.collect import evaluate_set
from abnn.triage import Triage
from tests.baselines.samples import digits, loader, quick, state

NAMES = ("abnn", "bbp", "deep-ensemble", "mc-dropout", "oe", "p-sgld", "sde-net", "threshold", "vboe", "woods")
VARIANTS = [(name, variant) for name in NAMES for variant in REGISTRY[name].variants]
SMALL: dict[str, dict[str, Any]] = {"deep-ensemble": {"members": 2}, "p-sgld": {"samples": 3}, "sde-net": {"lr": 0.01}}


@cache
def trained(name: str, variant: str = "reference") -> Trained:
    return quick(make_method(name, variant, **SMALL.get(name, {})))


def test_every_method_of_the_paper_is_there() -> None:
    assert set(NAMES) <= set(REGISTRY)


@pytest.mark.parametrize("name,variant", VARIANTS)
def test_every_variant_trains_and_survives_saving(name: str, variant: str, tmp_path: object) -> None:
    model = trained(name, variant)
    assert all(np.isfinite(row[key]) for history in model.history.values() for row in history.rows for key in row)
    x = digits().x[:5]
    before = model.predict(x, draws=3, seed=4)
    loaded = load_trained(model.save(tmp_path / "model"))  # type: ignore[operator]
    after = loaded.predict(x, draws=3, seed=4)
    assert torch.equal(before.samples, after.samples)
    assert set(before.own) == set(after.own)
    assert loaded.method == model.method and loaded.score == model.score and loaded.size == model.size
    for score in model.method.scores:
        assert torch.equal(before.score_by(score), after.score_by(score)), score
    assert before.samples.shape[1:] == (5, 10)
    torch.testing.assert_close(before.samples.sum(2), torch.ones(before.samples.shape[:2]))


@pytest.mark.parametrize("name", NAMES)
def test_an_input_gets_the_same_result_in_every_batch(name: str) -> None:
    model = trained(name)
    x = digits().x[:6]
    whole = model.predict(x, draws=3, seed=1)
    alone = torch.cat([model.predict(x[i : i + 1], draws=3, seed=1).samples for i in range(6)], dim=1)
    torch.testing.assert_close(whole.samples, alone, atol=1e-5, rtol=1e-4)
    assert not whole.samples.is_inference()


@pytest.mark.parametrize("name", [name for name in NAMES if REGISTRY[name].random])
def test_draws_belong_to_the_seed(name: str) -> None:
    model, x = trained(name), digits().x[:4]
    first = model.predict(x, draws=4, seed=1).samples
    assert torch.equal(first, model.predict(x, draws=4, seed=1).samples)
    fixed = name in ("deep-ensemble", "p-sgld")
    assert torch.equal(first, model.predict(x, draws=4, seed=2).samples) is fixed
    if not fixed:
        fewer = model.predict(x, draws=2, seed=1).samples  # of attachments, after the plain network's
        torch.testing.assert_close(fewer, first[: len(fewer)])
        assert not torch.equal(model.predict(x, draws=4, seed=None).samples, first)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_can_be_evaluated(name: str) -> None:
    model = trained(name)
    result = evaluate_set(model, loader(shuffle=False), "digits", "id", draws=2, shown=0)
    assert len(result) == 96
    assert model.score in result.scores
    assert set(result.scores) <= set(model.method.scores)


@pytest.mark.parametrize("name", ["threshold", "abnn", "woods"])
@pytest.mark.no_cover
def test_training_repeats_with_its_seed_and_leaves_random_states_alone(name: str) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    again = quick(make_method(name))
    assert torch.equal(before, torch.get_rng_state())
    first = state(trained(name))
    assert all(torch.equal(first[key], value) for key, value in state(again).items())
    other = state(quick(make_method(name), seed=1))
    assert any(not torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("name", ["threshold", "woods", "abnn", "mc-dropout"])
def test_thresholds_can_be_calibrated_and_are_saved(name: str, tmp_path: Path) -> None:
    model, x = trained(name), digits().x
    assert load_trained(model.save(tmp_path / "before")).triage is None
    triage = Triage.calibrate(model, loader(shuffle=False), draws=2)  # type: ignore[arg-type]
    assert triage.score == model.score
    said = model.predict(x, draws=2)
    assert said.verdict == triage(said).verdict
    assert said.verdict.count("accept") >= 0.9 * len(x)  # calibrated on these very inputs, for 5 %
    loaded = load_trained(model.save(tmp_path / "model"))
    again = loaded.predict(x, draws=2)
    assert loaded.triage == triage and again.verdict == said.verdict
    assert said.stated is not None and again.stated is not None and torch.equal(again.stated, said.stated)
    assert loaded.predict(x, draws=2, score="entropy" if triage.score != "entropy" else "margin").levels is None
    model.triage = None  # others use it, too
