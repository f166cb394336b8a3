"""Thresholds and verdicts: the conformal promise, the split, bad calibration sets."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import abnn
from abnn.errors import AbnnWarning, FileFormatError, InputError, NotFittedError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.predict import Plain, Prediction, concatenate
from abnn.triage import (
    Costs,
    Triage,
    best_split,
    cheapest_thresholds,
    check_guarantee,
    conformal_quantile,
    report,
    three_way_curve,
)
from abnn.triage.calibrate import Gathered, choose, gather
from abnn.triage.report import MOST_POINTS
from abnn.triage.thresholds import conformal_rank, least_count
from tests.train.test_fit import QUIET, attached, backbone, data, loader

X, Y = data()


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_conformal_quantile_is_the_right_order_statistic(count: int, share: float, seed: int) -> None:
    scores = np.random.default_rng(seed).normal(size=count)
    rank = math.ceil((count + 1) * (1 - share) - 1e-9)
    if rank > count:
        with pytest.raises(InputError, match="Hold out more data"):
            conformal_quantile(scores, share)
        assert conformal_quantile(scores, share, strict=False) == scores.max()
    else:
        assert (scores <= conformal_quantile(scores, share)).sum() == rank


def test_promise_holds_over_many_calibration_sets() -> None:
    rng = np.random.default_rng(0)
    for count, share in ((40, 0.05), (100, 0.1), (500, 0.05)):
        over = []
        for _ in range(3000):
            scores = rng.exponential(size=count + 20)
            over.append((scores[count:] > conformal_quantile(scores[:count], share)).mean())
        # Over random calibration sets the expected share is at most `share`; the mean of 3000 sets of 20 has a standard
        # error below sqrt(share / (3000 * 20)) plus the spread of the threshold, sqrt(share / count / 3000).
        error = math.sqrt(share / 60_000) + math.sqrt(share / count / 3000)
        assert np.mean(over) <= share + 4 * error
        assert np.mean(over) >= share - 1 / (count + 1) - 4 * error


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
    st.lists(st.integers(0, 20), min_size=1, max_size=30),
)
def test_best_split_is_the_best_of_all(low: list[int], high: list[int]) -> None:
    one, two = np.array(low, float), np.array(high, float)

    def value(t: float) -> float:
        return (one <= t).mean() + (two > t).mean()

    best = max(value(t) for t in np.unique(np.concatenate([one, two])))
    assert value(best_split(one, two)) == pytest.approx(best)


def test_verdicts_follow_the_thresholds() -> None:
    triage = Triage(0.2, 0.6, 0.05, 0.01, "max-probability", 10, 0, 100)
    top = torch.tensor([0.9, 0.8, 0.5, 0.4, 0.3])
    prediction = Prediction(torch.stack([top, 1 - top], dim=1).sort(dim=1, descending=True).values[None])
    scores = prediction.score_by("max-probability")
    assert triage(prediction).verdict == [
        "accept" if s <= 0.2 else "notice" if s <= 0.6 else "reject" for s in scores.tolist()
    ]
    assert Triage.from_dict(triage.to_dict()) == triage


def test_what_is_not_a_number_is_refused() -> None:
    triage = Triage(0.2, 0.6, 0.05, 0.01, "max-probability", 10, 0, 100)
    nan = float("nan")
    broken = Prediction(torch.tensor([[[1.0, 0.0], [nan, nan]], [[1.0, 0.0], [0.5, 0.5]]]), torch.tensor([0.1, 0.1]))
    by_class = replace(triage, by_class=((0.2, 0.6), (0.3, 0.7)))
    for each in (triage, by_class, replace(triage, score="distance")):
        assert each(broken).verdict == ["accept", "reject"]
    scores, predicted = np.array([0.1, nan, np.inf]), np.zeros(3, int)
    assert triage.levels(scores).tolist() == by_class.levels(scores, predicted).tolist() == [0, 2, 2]
    one = SetResult("a", "id", np.zeros((3, 2)), predicted, {"s": scores})
    assert Evaluation("m", "s", (one,), (0.2, 0.6)).levels(one).tolist() == [0, 2, 2]
    assert check_guarantee(np.full(400, nan), 0.05).mean == 1


def test_inputs_so_large_that_numbers_overflow_are_refused() -> None:
    model = attached()
    abnn.fit(model, loader(), epochs=1, **QUIET)
    triage = Triage.calibrate(model, loader())
    prediction = model.predict(X[:3] * 1e25)
    assert set(triage(prediction).verdict) == {"reject"} and prediction.score.isinf().all()


def test_what_is_no_prediction_or_model_is_explained() -> None:
    model = attached()
    triage = Triage.calibrate(model, loader(), score="entropy")
    with pytest.raises(InputError, match=r"prediction: got Tensor; accepted: .*triage\(model\.predict\(x\)\)"):
        triage(X)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"model: got PaperResNet; .*Attach first, .*Plain\(network, x\[:1\]\)"):
        Triage.calibrate(backbone(), loader())  # type: ignore[arg-type]


def test_thresholds_print_in_a_line() -> None:
    triage = Triage.calibrate(attached(), loader(), score="entropy")
    assert len(triage.calibration) == 101 and len(repr(triage)) < 400 and f"notice={triage.notice}" in repr(triage)


def test_calibrated_on_a_fitted_model() -> None:
    model = attached()
    abnn.fit(model, loader(), epochs=8, lr=1e-2, **QUIET)
    triage = Triage.calibrate(model, loader(shuffle=False))
    good = triage(model.predict(X)).verdict
    assert good.count("accept") >= math.floor(0.95 * len(X)) and triage.inputs == len(X)
    assert triage.score == "gated" and triage.notice <= triage.reject
    strange = triage(model.predict(torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(1)))).verdict
    assert strange.count("reject") > good.count("reject") / len(good) * 50


def test_plain_networks_can_be_calibrated_too() -> None:
    triage = Triage.calibrate(Plain(backbone(), X[:1]), loader())
    assert triage.score == "entropy"


def test_another_number_of_draws_is_noticed() -> None:
    model = attached()
    triage = Triage.calibrate(model, loader(), draws=3, score="entropy")
    triage(model.predict(X, draws=3, seed=1))
    with pytest.warns(AbnnWarning, match="prediction: got 1 draws; accepted: 3, as calibrated.*draws=3") as caught:
        triage(model.predict(X, draws=1))
    assert [warning.filename for warning in caught] == [__file__]
    older = {name: value for name, value in triage.to_dict().items() if name != "drawn"}
    Triage.from_dict(older)(model.predict(X, draws=1))  # it is not known what they had


def test_another_number_of_views_is_noticed() -> None:
    x = torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = abnn.attach(backbone(), x[:1])
    triage = Triage.calibrate(model, [(x, torch.arange(40) % 3)], score="entropy", draws=5)
    assert triage.views == model.views == 5
    triage(concatenate([model.predict(x[:20], draws=5), model.predict(x[20:], draws=5)]))
    with pytest.warns(AbnnWarning, match="prediction: got 1 views; accepted: 5, as calibrated.*views=5") as caught:
        triage(model.predict(x, draws=5, views=1))
    assert [warning.filename for warning in caught] == [__file__]
    older = {name: value for name, value in triage.to_dict().items() if name != "views"}
    Triage.from_dict(older)(model.predict(x, draws=5, views=1))  # it is not known what they had


def test_draws_do_not_matter_where_there_is_no_randomness() -> None:
    plain = Plain(backbone(), X[:1])
    triage = Triage.calibrate(plain, loader(), draws=10)
    assert triage.drawn == 1 and triage.draws == 10
    triage(plain.predict(X, draws=1))
    triage(plain.predict(X, draws=10))


def test_draws_may_be_a_number_of_numpy() -> None:
    triage = Triage.calibrate(attached(), loader(), draws=np.int64(2), score="entropy")  # type: ignore[arg-type]
    assert json.loads(json.dumps(triage.to_dict()))["draws"] == 2


def test_bad_calibration_sets() -> None:
    model = attached()
    with pytest.raises(InputError, match="at least 19 to promise 5.0%"):
        Triage.calibrate(model, [(X[:10], Y[:10])])
    with pytest.raises(InputError, match="without batches"):
        Triage.calibrate(model, [])
    with pytest.raises(InputError, match="between 0 and 1"):
        Triage.calibrate(model, loader(), noticed=1.5)
    with pytest.raises(InputError, match="can be read once"):
        Triage.calibrate(model, iter([(X, Y)]))
    with pytest.raises(InputError, match="severity above one half"):
        Triage.calibrate(model, loader(), outliers={"name": "style"})
    with pytest.raises(InputError, match="one or the other"):
        Triage.calibrate(model, [], costs=Costs(), per_class=True)
    with pytest.raises(InputError, match="confidence"):
        Triage.calibrate(model, loader(), confidence=2.0)
    with pytest.raises(InputError, match="unknown|score"):
        Triage.calibrate(model, loader(), score="colour")
    broken = Plain(backbone(), X[:1])
    next(broken.network.parameters()).data.fill_(float("nan"))
    with pytest.raises(InputError, match="not finite"):
        Triage.calibrate(broken, loader())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 400), st.floats(0.01, 0.5), st.floats(0.5, 0.99))
def test_rank_with_confidence_is_the_smallest_that_binomial_tails_allow(
    count: int, share: float, confidence: float
) -> None:
    """P[coverage of the k-th smallest of n >= 1 - share] = P[Bin(n, 1 - share) <= k - 1], summed here term by term."""
    terms = [math.comb(count, k) * (1 - share) ** k * share ** (count - k) for k in range(count + 1)]
    rank = conformal_rank(count, share, confidence)
    assert sum(terms[:rank]) >= confidence - 1e-9 and (rank == 1 or sum(terms[: rank - 1]) <= confidence + 1e-9)
    least = least_count(share, confidence)
    assert (1 - share) ** least <= 1 - confidence + 1e-9 and (1 - share) ** (least - 1) >= 1 - confidence - 1e-9


def test_promise_with_confidence_holds_for_most_calibration_sets() -> None:
    rng = np.random.default_rng(0)
    # The share of exponential inputs above t is known, exp(-t): no test set is needed.
    over = [math.exp(-conformal_quantile(rng.exponential(size=200), 0.1, confidence=0.9)) > 0.1 for _ in range(2000)]
    assert np.mean(over) <= 0.1 + 3 * math.sqrt(0.09 / 2000)
    plain = [math.exp(-conformal_quantile(rng.exponential(size=200), 0.1)) > 0.1 for _ in range(500)]
    assert np.mean(plain) > 0.3  # on average only: many single sets exceed it


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2)), min_size=2, max_size=12),
    st.lists(st.integers(0, 6), min_size=9, max_size=9),
    st.sampled_from([0.0, 0.3, 0.9]),
)
def test_cheapest_thresholds_are_the_best_of_all_pairs(
    inputs: list[tuple[int, int]], table: list[int], far: float
) -> None:
    scores, kinds = np.array([s for s, _ in inputs], np.float32), np.array([k for _, k in inputs])
    costs = Costs(tuple(table[:3]), tuple(table[3:6]), tuple(table[6:]), far)  # type: ignore[arg-type]
    if (kinds == 2).all() or (far > 0 and (kinds != 2).all()):
        with pytest.raises(InputError, match="some of both"):
            cheapest_thresholds(scores, kinds, costs)
        return
    is_far = kinds == 2
    weights = np.where(is_far, far / max(1, is_far.sum()), (1 - far) / (~is_far).sum())

    def cost(notice: float, reject: float) -> float:
        level = (scores > notice).astype(int) + (scores > reject)
        return float((weights * costs.table[level, kinds]).sum())

    limits = [-1.0, *np.unique(scores).tolist()]
    best = min(cost(low, high) for low in limits for high in limits if low <= high)
    notice, reject, found = cheapest_thresholds(scores, kinds, costs)
    assert notice <= reject and found == pytest.approx(best) and cost(notice, reject) == pytest.approx(best)


def test_costs_are_checked() -> None:
    for wrong in ({"accept": (1.0, 2.0)}, {"notice": (0.0, -1.0, 0.0)}, {"reject": "abc"}, {"far": 1.0}):
        with pytest.raises(InputError, match="costs of|far"):
            Costs(**wrong)  # type: ignore[arg-type]


def gathered(seed: int = 0, count: int = 120) -> Gathered:
    rng = np.random.default_rng(seed)
    return Gathered(
        good=rng.random(count).astype(np.float32),
        predicted=np.arange(count) % 3,
        right=rng.random(count) < 0.9,
        log_probs=np.log(rng.dirichlet(np.ones(3), count)),
        labels=rng.integers(3, size=count),
        mild=rng.random(60).astype(np.float32) + 0.3,
        severe=rng.random(60).astype(np.float32) + 1,
        classes=3,
        score="entropy",
        draws=4,
        seed=1,
    )


def test_thresholds_per_class_keep_the_promise_within_each() -> None:
    data = gathered(count=300)
    shifted = replace(data, good=data.good + data.predicted.astype(np.float32))
    triage = choose(shifted, noticed=0.1, per_class=True)
    assert len(triage.by_class) == 3
    levels = triage.levels(shifted.good, shifted.predicted)
    for label in range(3):
        mine = shifted.predicted == label
        assert triage.by_class[label][0] == conformal_quantile(shifted.good[mine], 0.1)
        assert (levels[mine] > 0).sum() == 100 - conformal_rank(100, 0.1)
        assert triage.thresholds(label) == triage.by_class[label]
    assert triage.thresholds() == (triage.notice, triage.reject)
    # The same verdicts from a prediction; the score is what the entropy of these probabilities is.
    probs = torch.eye(3).mul(0.7).add(0.1)[torch.tensor([0, 1, 2])]
    prediction = Prediction(probs[None])
    score = prediction.score.numpy()
    assert triage(prediction).verdict == [
        ("accept", "notice", "reject")[level] for level in triage.levels(score, prediction.label.numpy())
    ]
    with pytest.raises(InputError, match="predicted"):
        triage.levels(score)
    with pytest.raises(InputError, match="4 classes"):
        triage(Prediction(torch.full((1, 2, 4), 0.25)))


def test_too_few_inputs_of_a_class_are_named() -> None:
    data = replace(gathered(), predicted=np.array([0] * 100 + [1] * 15 + [2] * 5))
    with pytest.raises(InputError, match=r"cat \(15\), dog \(5\).*at least 19 for each class"):
        choose(data, per_class=True, class_names=["bird", "cat", "dog"])
    with pytest.raises(InputError, match=r"predicted as 1 \(15\), 2 \(5\)"):
        choose(data, per_class=True)


def test_what_small_sets_can_promise_is_what_is_kept() -> None:
    data = gathered(count=45)
    assert choose(data).rejected == pytest.approx(1 / 46)
    assert choose(data).reject >= data.good.max()
    assert choose(gathered(count=300)).rejected == 0.01
    sure = choose(gathered(count=100), noticed=0.1, confidence=0.9)
    assert sure.rejected == pytest.approx(1 - 0.1 ** (1 / 100)) and sure.confidence == 0.9
    assert choose(data, noticed=0.1, per_class=True).rejected == pytest.approx(1 / 16)


def test_costs_choose_thresholds_and_promise_nothing() -> None:
    data = gathered()
    strict = choose(data, costs=Costs(accept=(0, 50, 50), far=0.5))
    mild = choose(data, costs=Costs(accept=(0, 0.1, 20), far=0.5))
    assert strict.notice <= mild.notice and strict.costs is not None
    assert strict.noticed == pytest.approx((data.good > strict.notice).mean())
    assert Triage.from_dict(json.loads(json.dumps(strict.to_dict()))) == strict


def test_the_range_of_the_users_generator_is_used_and_left_alone() -> None:
    """Wider ranges make louder noise, and its scores are other ones."""
    model = attached()

    def severe(**options: Any) -> list[float]:
        return gather(model, loader(shuffle=False), draws=2, **options).severe.tolist()

    wide = abnn.outliers.Noise()
    wide.prepare(-50.0, 50.0)
    measured = severe(outliers="noise")
    assert severe(outliers=wide) == severe(outliers="noise", value_range=(-50.0, 50.0)) != measured
    assert severe(outliers=wide, value_range=(0.0, 1.0)) != severe(outliers=wide)
    assert wide.to_config()["range"] == [[-50.0], [50.0]]
    fresh = abnn.outliers.Noise()
    assert severe(outliers=fresh) == measured and fresh.needs_range
    by_option = Triage.calibrate(model, loader(shuffle=False), outliers="noise", draws=2, value_range=(-50.0, 50.0))
    assert by_option == Triage.calibrate(model, loader(shuffle=False), outliers=wide, draws=2)


def test_real_outliers_place_the_upper_threshold() -> None:
    model = attached()
    far = torch.full((30, 1, 8, 8), 5.0)
    found = gather(model, loader(shuffle=False), outliers=far, draws=3)
    assert len(found.mild) == 0 and len(found.severe) == 11 * len(X) and found.draws == 3
    assert np.allclose(found.severe, model.predict(far[:1], draws=3).score.numpy(), atol=1e-4)
    assert np.allclose(found.good, model.predict(X, draws=3).score.numpy(), atol=1e-5)
    assert (found.right == (model.predict(X, draws=3).label == Y).numpy()).all()
    other = Triage.calibrate(model, loader(), score="max-probability", draws=3)
    assert other.score == "max-probability"


def test_calibration_quantiles_and_positions() -> None:
    data = gathered(count=200)
    triage = choose(data)
    assert len(triage.calibration) == 101 and list(triage.calibration) == sorted(triage.calibration)
    assert triage.calibration[0] == pytest.approx(data.good.min())
    assert triage.calibration[100] == pytest.approx(data.good.max())
    for score in (0.0, 0.25, 0.5, 2.0):
        assert triage.position(score) == pytest.approx((data.good <= score).mean(), abs=0.02)
    assert sum(triage.reference[1]) == 100 and triage.monitor(0.05).alarm == 0.05


def test_states_of_older_versions_load_and_foreign_ones_do_not() -> None:
    old: dict[str, Any] = {"notice": 0.1, "reject": 0.3, "noticed": 0.05, "rejected": 0.01}
    old |= {"score": "gated", "draws": 10, "seed": 0, "inputs": 50}
    triage = Triage.from_dict(old)
    assert triage.calibration == () and triage.by_class == () and triage.costs is None
    with pytest.raises(NotFittedError, match="calibrate it again"):
        triage.position(0.1)
    with pytest.raises(NotFittedError, match="no scores to compare with"):
        triage.monitor()
    with pytest.raises(FileFormatError, match="unknown fields colour"):
        Triage.from_dict({**old, "colour": 1})
    with pytest.raises(InputError, match="notice <= reject"):
        Triage.from_dict({**old, "notice": 0.5})
    with pytest.raises(FileFormatError, match="fields reject, noticed, .* are missing; restore it, or calibrate again"):
        Triage.from_dict({"notice": 0.1})
    wrong: dict[str, tuple[Any, ...]] = {
        "notice": ("0.1", None, True, math.nan),
        "noticed": ("x", 1.5),
        "draws": ("ten", -1, 2.5),
        "seed": ("a",),
        "drawn": (0,),
        "views": ("5",),
        "temperature": ("1", 0),
        "confidence": (2,),
        "calibration": (5, [0.1, 0.2], [1.0, *[0.0] * 100]),
        "by_class": ([[0.1]], [0.1, 0.2]),
        "reference": ([[1.0], [2]], [[2.0, 1.0], [1, 1, 1]], [[1.0], [2, -1]], [[1.0]]),
        "costs": ([1],),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(
                FileFormatError, match=f"triage.{name} is .*; accepted: .*restore it, or calibrate again"
            ):
                Triage.from_dict({**old, name: value})
    full = choose(gathered(count=300), per_class=True)
    assert Triage.from_dict(json.loads(json.dumps(full.to_dict()))) == full


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
    json.dumps(found.to_dict(), allow_nan=False)
    assert found.to_markdown().count("\n") == 5 and "| c | full | 50 | 0.0% |" in found.to_markdown()
    with pytest.raises(InputError, match="'gated'"):
        report(replace(triage, score="gated"), made)


def test_three_way_curve_is_what_counting_gives() -> None:
    rng = np.random.default_rng(0)
    scores, correct = rng.integers(0, 20, 200) / 10, rng.random(200) < 0.7
    curve = three_way_curve(scores, correct, reject=1.2)
    for number, limit in enumerate(curve.notice):
        accepted, noticed = scores <= limit, (scores > limit) & (scores <= 1.2)
        assert curve.accepted[number] == pytest.approx(accepted.mean())
        assert curve.noticed[number] == pytest.approx(noticed.mean())
        for risk, part in ((curve.risk_accepted, accepted), (curve.risk_noticed, noticed)):
            expected = (~correct[part]).mean() if part.any() else math.nan
            assert risk[number] == pytest.approx(expected, nan_ok=True)
    assert curve.accepted[0] == 0 and curve.noticed[-1] == 0
    assert curve.rejected == pytest.approx((scores > 1.2).mean())
    long = three_way_curve(rng.random(5000), rng.random(5000) < 0.5, 0.9)
    assert len(long.notice) <= MOST_POINTS and long.accepted[-1] == pytest.approx(1 - long.rejected)
    with pytest.raises(InputError, match="equally long"):
        three_way_curve(scores, correct[:5], 1.0)
    nothing = three_way_curve(scores, correct, -1.0)
    assert nothing.rejected == 1 and nothing.accepted.tolist() == [0] and nothing.notice[0] < scores.min()


def test_the_curve_refuses_what_the_rows_refuse_where_thresholds_differ_by_class() -> None:
    limits = ((0.2, 0.3), (0.4, 0.9), (0.5, 1.2))
    triage, made = Triage(0.5, 0.9, 0.05, 0.01, "entropy", 1, 0, 50, by_class=limits), evaluation()
    found = report(triage, made)
    assert found.curve.rejected == pytest.approx(sum(row.counts[2] for row in found.sets) / 150)
    scores, predicted, correct = (
        np.concatenate([getattr(each, name) if name != "scores" else each.scores["entropy"] for each in made.sets])
        for name in ("scores", "predicted", "correct")
    )
    kept = scores <= np.array(limits, np.float32)[predicted, 1]
    for number, limit in enumerate(found.curve.notice):
        accepted = kept & (scores <= limit)
        assert found.curve.accepted[number] == pytest.approx(accepted.mean())
        expected = (~correct[accepted]).mean() if accepted.any() else math.nan
        assert found.curve.risk_accepted[number] == pytest.approx(expected, nan_ok=True)


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
    from abnn.demo import Demo
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
    assert report(demo.triage, made).to_markdown() in text and "| digits | attached network | 270 | 450 |" in text
    assert f"alarms in {100 * record['drift']['false_alarms']['share']:.1f} % of streams of 450 digits" in text
