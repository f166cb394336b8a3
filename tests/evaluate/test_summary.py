import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abnn import metrics
from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.summary import flatten, summarise
from abnn.triage import Triage

CLASSES = 4


def sample_set(name: str, tier: str, size: int, seed: int, labelled: bool = True, **changes: Any) -> SetResult:
    rng = np.random.default_rng(seed)
    sharpness = {"id": 4.0, "semi": 2.0, "full": 0.5}[tier]
    labels = rng.integers(0, CLASSES, size)
    logits = rng.normal(size=(size, CLASSES)) * sharpness
    logits[np.arange(size), labels] += sharpness
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    values: dict[str, Any] = {
        "name": name,
        "tier": tier,
        "probs": probs.astype(np.float32),
        "labels": labels if labelled else np.full(size, -1),
        "scores": {
            "entropy": (-(probs * np.log(probs)).sum(1)).astype(np.float32),
            "distance": (rng.chisquare(5, size) / sharpness).astype(np.float32),
        },
        "shown": np.arange(min(2, size)),
        "images": rng.integers(0, 256, (min(2, size), 3, 3), dtype=np.uint8),
        "data_hash": f"{seed:064x}",
    }
    return SetResult(**{**values, **changes})


def sample_evaluation(seed: int = 0, name: str = "plain network", size: int = 60, **changes: Any) -> Evaluation:
    sets = (
        sample_set("digits", "id", size, seed),
        sample_set("printed digits", "semi", size + 10, seed + 1000),
        sample_set("photos v1.0", "full", size + 20, seed + 2000, labelled=False),
    )
    values = {
        "sets": sets,
        "thresholds": (0.4, 0.9),
        "config": {"epochs": 3, "model": {"width": 8}},
        "seconds": {"fit": 1.5},
    }
    return Evaluation(**{"name": name, "score": "entropy", "seed": seed, **values, **changes})


def test_every_number_is_that_of_the_metric():
    evaluation = sample_evaluation()
    summary = summarise(evaluation)
    known, semi, _ = evaluation.sets
    for name in ("entropy", "distance"):
        a, b, c = (each.scores[name] for each in evaluation.sets)
        cuts = metrics.TierThresholds(0.4, 0.9) if name == "entropy" else None
        for part in [summary["by_score"][name], *([summary] if name == "entropy" else [])]:
            assert part["detection"]["printed digits"] == metrics.detection(a, b).to_dict()
            assert part["detection"]["photos v1.0"] == metrics.detection(a, c).to_dict()
            assert part["misclassification"]["digits"] == metrics.misclassification(a, known.correct).to_dict()
            assert part["selective"]["printed digits"] == metrics.selective(b, semi.correct).to_dict()
            expected = {k: v for k, v in metrics.tiers(a, b, c, cuts).to_dict().items() if v is not None}
            assert part["tiers"] == expected
    a, b, c = (each.scores["entropy"] for each in evaluation.sets)
    assert summary["accuracy"] == {"digits": known.correct.mean(), "printed digits": semi.correct.mean()}
    assert summary["calibration"]["digits"] == metrics.calibration(known.probs, known.labels).to_dict()
    assert summary["verdicts"]["digits"]["accept"] == np.mean(a <= np.float64(0.4))
    assert summary["verdicts"]["photos v1.0"]["reject"] == np.mean(c > np.float64(0.9))
    assert summary["verdicts"]["digits"]["accuracy_of_accepted"] == known.correct[a <= np.float64(0.4)].mean()
    assert sum(summary["verdicts"]["printed digits"][word] for word in ("accept", "notice", "reject")) == pytest.approx(
        1
    )


def test_what_is_undefined_has_no_key():
    always_right = sample_set("digits", "id", 30, 0)
    always_right = sample_set("digits", "id", 30, 0, labels=always_right.predicted)
    summary = summarise(sample_evaluation(sets=(always_right,), thresholds=None))
    assert set(summary) == {"accuracy", "calibration", "selective", "quantiles", "by_score"}
    assert set(summary["by_score"]["entropy"]) == {"selective"}


def test_a_model_without_id_data_has_no_detection():
    evaluation = sample_evaluation()
    summary = summarise(sample_evaluation(sets=evaluation.sets[1:]))
    assert "detection" not in summary and "tiers" not in summary


def test_a_constant_score_is_chance():
    sets = [
        sample_set(name, tier, 20, 0, scores={"entropy": np.ones(20, np.float32)})
        for name, tier in (("a", "id"), ("b", "semi"), ("c", "full"))
    ]
    summary = summarise(sample_evaluation(sets=tuple(sets)))
    assert summary["detection"]["b"]["auroc"] == 0.5
    assert summary["tiers"]["ordered_triples"] == pytest.approx(1 / 6)


def test_empty_sets_are_passed_over():
    evaluation = sample_evaluation()
    empty = sample_set("nothing", "full", 0, 5)
    assert summarise(sample_evaluation(sets=(*evaluation.sets, empty))) == summarise(evaluation)


def test_several_sets_of_a_tier_count_together():
    a, b, c = sample_evaluation().sets
    more = sample_set("more digits", "id", 25, 77)
    summary = summarise(sample_evaluation(sets=(a, more, b, c)))
    pooled = np.concatenate([a.scores["entropy"], more.scores["entropy"]])
    assert summary["detection"]["photos v1.0"] == metrics.detection(pooled, c.scores["entropy"]).to_dict()
    assert "more digits" not in summary["detection"]


def test_pairs_are_the_tiers_of_single_sets():
    a, b, c = sample_evaluation(size=250).sets
    assert "pairs" not in summarise(sample_evaluation(sets=(a, b, c)))  # one pair alone is what the tiers are
    other = sample_set("letters", "semi", 260, 5)
    pairs = summarise(sample_evaluation(sets=(a, b, other, c)))["pairs"]
    assert set(pairs) == {"printed digits < photos v1.0", "letters < photos v1.0"}
    for semi in (b, other):
        alone = summarise(sample_evaluation(sets=(a, semi, c), thresholds=None))
        assert pairs[f"{semi.name} < {c.name}"] == alone["tiers"]
    assert "pairs" not in summarise(sample_evaluation(sets=(b, other, c, sample_set("walls", "full", 40, 6))))  # no id


def test_quantiles_are_those_of_the_score_in_five_digits():
    evaluation = sample_evaluation()
    quantiles = summarise(evaluation)["quantiles"]
    for each in evaluation.sets:
        exact = np.quantile(each.scores["entropy"].astype(np.float64), np.linspace(0, 1, 21))
        np.testing.assert_allclose(quantiles[each.name], exact, rtol=5e-5)
        assert quantiles[each.name] == sorted(quantiles[each.name])


def test_other_scores_can_be_left_out():
    evaluation = sample_evaluation()
    summary = summarise(evaluation)
    del summary["by_score"]
    assert summarise(evaluation, by_score=False) == summary


def test_a_score_that_one_set_lacks_is_judged_on_the_others():
    a, b, c = sample_evaluation().sets
    short = sample_set(b.name, "semi", len(b), 1000, scores={"entropy": b.scores["entropy"]})
    part = summarise(sample_evaluation(sets=(a, short, c)))["by_score"]["distance"]
    assert set(part["detection"]) == {c.name} and "tiers" not in part


@pytest.mark.parametrize("thresholds", [(0.4, math.inf), (math.inf, math.inf)])
def test_a_threshold_at_infinity_gives_verdicts_but_no_tiers(thresholds: tuple[float, float]):
    summary = summarise(sample_evaluation(thresholds=thresholds))
    assert summary["verdicts"]["digits"]["reject"] == 0
    assert "threshold_balanced_accuracy" not in summary["tiers"]


def test_verdicts_are_those_of_triage_also_by_class():
    by_class = ((0.1, 0.2), (0.4, 0.9), (0.6, 1.1), (0.2, 0.3))
    evaluation = sample_evaluation(class_thresholds=by_class)
    triage = Triage(0.4, 0.9, 0.05, 0.01, "entropy", 10, 0, 100, by_class=by_class)
    summary, common = summarise(evaluation), summarise(sample_evaluation())
    right = []
    for number, each in enumerate(evaluation.sets):
        levels = triage.levels(each.scores["entropy"], each.predicted)
        np.testing.assert_array_equal(evaluation.levels(each), levels)
        shares = [summary["verdicts"][each.name][word] for word in ("accept", "notice", "reject")]
        np.testing.assert_allclose(shares, np.bincount(levels, minlength=3) / len(each))
        right.append(np.mean(levels == number))
    assert summary["verdicts"] != common["verdicts"]
    assert summary["tiers"]["threshold_balanced_accuracy"] == pytest.approx(np.mean(right))
    assert "threshold" not in summary["tiers"]  # there are no two cuts for all


@pytest.mark.parametrize("changes", [{"class_thresholds": ((0.1, 0.2),)}, {"thresholds": None}])
def test_thresholds_by_class_must_fit(changes: dict[str, Any]):
    with pytest.raises(InputError, match="class_thresholds"):
        sample_evaluation(**{"class_thresholds": ((0.1, 0.2),) * CLASSES, **changes})


def test_errors_name_what_is_wrong():
    a, b, _ = sample_evaluation().sets
    with pytest.raises(InputError, match="several sets named 'digits'"):
        summarise(sample_evaluation(sets=(a, b, a)))
    with pytest.raises(InputError, match="of set 'digits'.*Did you mean 'entropy'"):
        summarise(sample_evaluation(score="entropie"))
    broken = sample_set("bad", "semi", 3, 0, scores={"entropy": np.array([0.1, np.nan, 0.2], np.float32)})
    with pytest.raises(InputError, match="not finite"):
        summarise(sample_evaluation(sets=(a, broken)))


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 6)] * 3),
    seed=st.integers(0, 2**16),
    levels=st.integers(1, 5),
    labelled=st.tuples(*[st.booleans()] * 3),
)
def test_always_plain_finite_json(sizes: tuple[int, ...], seed: int, levels: int, labelled: tuple[bool, ...]):
    rng = np.random.default_rng(seed)
    rows = zip(("id", "semi", "full"), sizes, labelled, strict=True)
    sets = tuple(
        sample_set(tier, tier, n, seed, known, scores={"entropy": rng.integers(0, levels, n).astype(np.float32)})
        for tier, n, known in rows
    )
    summary = summarise(sample_evaluation(sets=sets))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert all(type(number) in (int, float) for number in flatten(summary).values())


def test_flatten_keeps_dots_in_names():
    assert flatten({"a": {"v1.0": {"x": 1.0}}, "m": [[1, 2], [3, 4]]}) == {
        "a.v1.0.x": 1.0,
        "m.0.0": 1,
        "m.0.1": 2,
        "m.1.0": 3,
        "m.1.1": 4,
    }
