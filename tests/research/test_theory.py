"""The formulas of the theory checks against autograd, brute force and sampling; the tables against their record."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from abnn.bayes.priors import gaussian_kl
from abnn.data.digits import Labelled
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import write_record
from abnn.tasks.classification import draw_bce, draw_cross_entropy, mean_cross_entropy
from research.theory import CHECKS, losses, theorems, trial
from research.theory.__main__ import main
from research.theory.check import checks_table

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "expected"),
    {
        "label_variance": [True, True, False, True],
        "coin_toss": [True, False],
        "distance_and_noise": [False],
        "kl_width": [True, False, False],
        "noise_and_cross_entropy": [True, False],
        "mean_before_width": [False, True],
        "uniform_cross_entropy": [True, False],
        "uniform_bce": [True, False],
        "same_reward": [False, False],
        "graded": [True],
        "two_ways": [False],
    }.items(),
)
def test_where_statements_hold_does_not_depend_on_the_seed(name: str, expected: list[bool]) -> None:
    first, second = CHECKS[name](1), CHECKS[name](2)
    assert list(first.held.values()) == list(second.held.values()) == expected
    if name not in ("graded", "kl_width"):  # the slowest two; one has no random numbers, one those of its first lines
        assert CHECKS[name](1) == first  # nothing random is left outside


def test_every_check_is_expected_somewhere() -> None:
    assert set(CHECKS) == {
        *("label_variance", "coin_toss", "distance_and_noise", "kl_width", "noise_and_cross_entropy"),
        *("mean_before_width", "uniform_cross_entropy", "uniform_bce", "same_reward", "graded", "two_ways"),
    }


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_theorem_1_holds_exactly_where_the_largest_probability_exceeds_one_minus_one_over_k(classes: int) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        p = torch.distributions.Dirichlet(torch.full((classes,), 0.3, dtype=torch.float64)).sample((5000,))
    assert torch.equal(theorems.smaller_variance(p), p.amax(1) > 1 - 1 / classes)
    assert theorems.smaller_variance(p).any()


def test_formulas_of_theorem_2_and_3_agree_with_sampling() -> None:
    numbers = theorems.coin_toss(seed=3, draws=50_000).numbers
    for sigma in ("1", "10", "1000"):
        exact = numbers[f"first_wins_formula_sigma{sigma}"]
        assert numbers[f"first_wins_sigma{sigma}"] == pytest.approx(exact, abs=5 * math.sqrt(0.25 / 50_000))
    numbers = theorems.distance_and_noise(seed=4, draws=50_000).numbers
    assert numbers["flipped_near"] == numbers["flipped_far"]
    assert numbers["flipped_near"] == pytest.approx(numbers["flipped_formula"], abs=5 * math.sqrt(0.25 / 50_000))
    for gap, sigma in ((2.0, 0.5), (0.3, 1.0), (-1.0, 4.0)):
        noise = torch.randn(50_000, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * sigma
        risen = theorems.half_cross_entropy(gap + noise[:, 0] - noise[:, 1]) > theorems.half_cross_entropy(gap)
        expected = theorems.rise_probability(gap, sigma)
        assert risen.double().mean().item() == pytest.approx(expected, abs=5 * math.sqrt(0.25 / 50_000))


@pytest.mark.parametrize(("mean", "sigma", "prior"), [(0.1, 1.5, 1.0), (0.1, 0.0025, 0.1), (-2.0, 0.3, 0.7)])
def test_slopes_of_the_kl_are_those_of_autograd(mean: float, sigma: float, prior: float) -> None:
    m, s = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (mean, sigma))
    slopes = torch.autograd.grad(gaussian_kl(m, s, prior), (m, s))
    assert [each.item() for each in slopes] == pytest.approx(theorems.kl_slopes(mean, sigma, prior))


def test_climbing_the_kl_moves_sigma_away_from_the_prior_and_descending_towards_it() -> None:
    for sigma, prior in ((1.5, 1.0), (0.5, 1.0), (0.0025, 0.1)):
        up, down = (theorems.climb_kl(sigma, prior, 20, lr) for lr in (1e-2, -1e-2))
        assert abs(math.log(up / prior)) > abs(math.log(sigma / prior)) > abs(math.log(down / prior))


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.0])
def test_slopes_of_the_expected_cross_entropy_are_those_of_autograd_under_another_quadrature(sigma: float) -> None:
    points, weights = (torch.from_numpy(each) for each in np.polynomial.hermite_e.hermegauss(150))
    gap, width = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (2.0, sigma))
    expected = (weights * theorems.half_cross_entropy(gap + width * math.sqrt(2) * points)).sum() / weights.sum()
    slopes = [each.item() for each in torch.autograd.grad(expected, (gap, width))]
    assert theorems.expected_slopes(2.0, sigma) == pytest.approx(slopes, rel=1e-6)


def test_means_lead_by_the_ratio_that_is_quoted() -> None:
    by_gap, by_sigma = theorems.expected_slopes(2.0, 0.001)
    assert by_gap / by_sigma == pytest.approx(math.sinh(2.0) / 0.002, rel=1e-4)
    by_gap, by_sigma = theorems.expected_slopes(2.0, 1000.0)  # the loss is |d| / 2 there, so E|e| sqrt 2 / 2
    assert by_sigma == pytest.approx(1 / math.sqrt(math.pi), rel=1e-4) and by_gap < 0.01


def test_gradients_of_both_outlier_losses_are_those_in_the_docstrings() -> None:
    logits = torch.linspace(-4, 3, 7, dtype=torch.float64)[None, None].requires_grad_()
    target = torch.full((1, 7), 1 / 7, dtype=torch.float64)
    (slope,) = torch.autograd.grad(draw_cross_entropy(logits, target), logits)
    assert torch.allclose(slope, logits.softmax(2) - 1 / 7)
    (slope,) = torch.autograd.grad(draw_bce(logits, target), logits)
    assert torch.allclose(slope, (logits.sigmoid() - 1 / 7) / 7)


@pytest.mark.parametrize("classes", [2, 10])
def test_bce_is_lowest_at_minus_log_of_k_minus_one(classes: int) -> None:
    z = torch.linspace(-6, 6, 24_001, dtype=torch.float64)
    values = F.softplus(z) - z / classes
    assert z[values.argmin()].item() == pytest.approx(-math.log(classes - 1), abs=1e-3)
    assert losses.uniform_bce(classes=classes, steps=1).numbers["lowest"] == pytest.approx(values.amin().item())


def test_entropy_of_the_target_and_its_slope() -> None:
    for t in (0.1, 0.5, 0.9, 1.0):
        severity = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        q = (1 - severity) * F.one_hot(torch.tensor(2), 5) + severity / 5
        value = -(q * q.log()).sum()
        (slope,) = torch.autograd.grad(value, severity)
        assert losses.target_entropy(t, 5) == pytest.approx(value.item())
        assert slope.item() == pytest.approx(0.8 * math.log((1 - t + t / 5) / (t / 5)), abs=1e-12)
    assert losses.target_entropy(0.0, 5) == 0


def test_no_prediction_beats_the_target_and_draws_losses_are_never_below_mean_losses() -> None:
    generator = torch.Generator().manual_seed(0)
    target = (torch.eye(6)[:1] * 0.6 + 0.4 / 6).double()
    lowest = -(target * target.log()).sum().item()
    for _ in range(200):
        logits = 3 * torch.randn(4, 1, 6, generator=generator, dtype=torch.float64)
        assert mean_cross_entropy(logits, target).item() >= lowest
        assert draw_cross_entropy(logits, target) >= mean_cross_entropy(logits, target)


@pytest.mark.filterwarnings("ignore:The attachments cost accuracy")
def test_the_sign_of_the_outlier_step_decides_about_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    data = trial.load_digits(0)
    few = replace(data, train=Labelled(*(part[:256] for part in data.train)))
    monkeypatch.setattr(trial, "load_digits", lambda seed: few)
    up, down = "cross-entropy to 1/K, maximised", "cross-entropy to 1/K, minimised"
    rows = trial.run_trial(seed=0, epochs=2, goals=(up, down))
    assert rows[up]["made_up_after"] > rows[up]["made_up_before"]
    assert rows[down]["made_up_after"] < rows[down]["made_up_before"]
    assert (
        rows[up]["confidence_outliers"] > rows[trial.PLAIN]["confidence_outliers"] > rows[down]["confidence_outliers"]
    )
    assert trial.run_trial(seed=0, epochs=2, goals=(up,))[up] == rows[up]


def test_numbers_from_records_are_those_from_draws(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = [(2 * torch.randn(5, n, 10, generator=generator)).softmax(2) for n in (40, 30)]
    y = torch.randint(10, (40,), generator=generator)
    results = tuple(_result(*each) for each in zip(("digits", "photographs"), ("id", "full"), samples, (y, None)))
    write_record(Evaluation("abnn", "entropy", results, None, 3, {}, {}), tmp_path, "any", images=False)
    (found,) = trial.from_records(tmp_path, {"abnn": "line"})
    assert found["line"] == pytest.approx(trial.describe(*samples, y), rel=1e-3)
    assert "| line |" in trial.trial_table([found], ["line"])


def _result(name: str, tier: str, samples: torch.Tensor, y: torch.Tensor | None) -> SetResult:
    from abnn.scores import SAMPLE_SCORES

    scores = {each: score(samples).numpy() for each, score in SAMPLE_SCORES.items()}
    labels = np.full(samples.shape[1], -1) if y is None else y.numpy()
    return SetResult(name, tier, samples.mean(0).numpy(), labels, scores)


def test_the_page_shows_what_the_record_says() -> None:
    record = json.loads((REPOSITORY / "results" / "theory.json").read_text())
    page = (REPOSITORY / "docs" / "theory.md").read_text()
    assert checks_table(record["checks"], CHECKS) in page
    assert trial.trial_table(record["trials"], [trial.PLAIN, *trial.GOALS]) in page
    for name, check in CHECKS.items():
        assert [list(pair) for pair in check(record["seed"]).held.items()] == record["checks"][name]["held"]


def test_tables_are_put_into_a_page_without_running_anything(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    markers = ("theory checks", "theory trial", "theory presets")
    page.write_text("\n".join(f"<!-- abnn:table {name} -->\n<!-- /abnn:table -->" for name in markers))
    results = REPOSITORY / "results"
    main(
        [
            "--table",
            "--output",
            str(results / "theory.json"),
            "--records",
            str(results / "compare-digits"),
            "--into",
            str(page),
        ]
    )
    assert page.read_text().count("± ") > 20 and "preset authors" in page.read_text()
