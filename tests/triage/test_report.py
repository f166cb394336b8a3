"""Reports and checks: what verdicts did, and whether the promise holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.predict import Plain
from abnn.triage import Triage, check_guarantee, report
from abnn.triage.thresholds import conformal_quantile
from research.triage import rows_as_markdown


def evaluation() -> Evaluation:
    rng = np.random.default_rng(0)
    sets = []
    for name, tier, low, classless in (("a", "id", 0, False), ("b", "id", 0.1, False), ("c", "full", 0.5, True)):
        scores = (low + rng.random(50)).astype(np.float32)
        probs = rng.dirichlet(np.ones(3), 50).astype(np.float32)
        labels = np.full(50, -1) if classless else rng.integers(0, 3, 50)
        sets.append(SetResult(name, tier, probs, labels, {"entropy": scores}))
    return Evaluation("model", "entropy", tuple(sets))


def test_report_counts_by_set_and_tier() -> None:
    triage, made = Triage(0.5, 0.9, 0.05, 0.01, "entropy", 1, 0, 50), evaluation()
    found = report(triage, made)
    for row, each in zip(found.sets, made.sets):
        scores = each.scores["entropy"]
        kinds = [scores <= 0.5, (scores > 0.5) & (scores <= 0.9), scores > 0.9]
        assert row.counts == tuple(int(kind.sum()) for kind in kinds) and sum(row.shares) == pytest.approx(1)
        for kind, accuracy in zip(kinds, row.accuracy):
            expected = each.correct[kind].mean() if each.labelled and kind.any() else None
            assert accuracy == expected
    assert [row.tier for row in found.tiers] == ["id", "full"]
    assert found.tiers[0].counts == tuple(np.add(found.sets[0].counts, found.sets[1].counts))
    table = rows_as_markdown(found.sets)
    assert table.count("\n") == 5 and "| c | full | 50 | 0.0% |" in table
    limits = ((0.2, 0.3), (0.4, 0.9), (0.5, 1.2))
    refused = report(replace(triage, by_class=limits), made).sets[0].counts[2]
    one = made.sets[0]
    assert refused == (one.scores["entropy"] > np.array(limits, np.float32)[one.predicted, 1]).sum()
    with pytest.raises(InputError, match="'gated'"):
        report(replace(triage, score="gated"), made)


def test_guarantee_over_splits_is_exact_for_any_data() -> None:
    rng = np.random.default_rng(0)
    for values in (rng.exponential(size=300), rng.standard_cauchy(size=300).astype(np.float32)):
        found = check_guarantee(values, 0.1, splits=400, seed=1)
        assert found.holds and found.calibration == found.test == 150
        assert abs(found.mean - found.exact) <= 4 * found.standard_error and found.exact <= 0.1
    ties = check_guarantee(rng.integers(0, 3, 300), 0.1, seed=1)
    assert ties.holds and ties.mean <= 0.1
    # The same splits one by one.
    values = rng.normal(size=60)
    found = check_guarantee(values, 0.2, splits=50, seed=4, calibration=20)
    shuffles = np.random.default_rng(4).permuted(np.tile(values, (50, 1)), axis=1)
    shares = [(row[20:] > conformal_quantile(row[:20], 0.2)).mean() for row in shuffles]
    assert found.mean == pytest.approx(np.mean(shares)) and found.worst == pytest.approx(max(shares))
    with pytest.raises(InputError, match="at least 19 for calibration"):
        check_guarantee(values[:30], 0.05)


def test_the_experiment_measures_what_it_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a linear network in the place of the trained one: numbers are those of the record, and the promise holds."""
    from abnn.data.digits import load_digits
    from abnn.demo.digits import Demo
    from abnn.evaluate.collect import evaluate_set
    from research import triage as experiment

    digits = load_digits(0)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.Adam(network.parameters(), 2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(digits.train.x), digits.train.y).backward()
        optimizer.step()
    model: Any = Plain(network, digits.val.x[:1])
    sets = [("a", "id", digits.test), ("b", "semi", digits.val_semi), ("c", "full", digits.val_full)]
    results = tuple(evaluate_set(model, [part], name, tier) for name, tier, part in sets)
    made = Evaluation("attached network", "entropy", results)
    demo = Demo(made, made, model, Triage.calibrate(model, [digits.val]))
    monkeypatch.setattr(experiment, "run_demo", lambda seed, progress: demo)
    monkeypatch.setattr(experiment.measure, "__defaults__", (200, 4))
    document = tmp_path / "page.md"
    markers = "".join(
        f"<!-- abnn:table {name} -->\n<!-- /abnn:table -->\n" for name in ("verdicts", "guarantee", "stated", "drift")
    )
    document.write_text(markers)
    experiment.main(["--output", str(tmp_path), "--quiet", "--into", str(document)])
    record = json.loads((tmp_path / "digits-seed0.json").read_text())
    for row in record["guarantee"]:
        assert row["splits"] == 200 and row["mean"] <= row["bound"] + 2 * row["standard_error"]
    shares = record["verdicts"]["default"]["sets"][0]["shares"]
    assert shares == pytest.approx(report(demo.triage, made).sets[0].shares)
    assert record["drift"]["streams"] == 4 and "| a | id | 450 |" in capsys.readouterr().out
    text = document.read_text()
    assert (
        rows_as_markdown(report(demo.triage, made).sets) in text and "| digits | attached network | 270 | 450 |" in text
    )
    assert f"alarms in {100 * record['drift']['false_alarms']['share']:.1f} % of streams of 450 digits" in text
