"""Calibration: from held-out data to thresholds, their promise for tied scores, bad calibration sets."""

from __future__ import annotations

import copy
import json
import math
import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.config import DRAWS
from abnn.errors import AbnnWarning, InputError
from abnn.predict import Plain, Prediction, concatenate
from abnn.triage import Costs, Triage, TriageConfig, calibrate
from abnn.triage.calibrate import CalibrationData, choose, gather, usual_draws
from abnn.triage.thresholds import conformal_quantile, conformal_rank, lift
from tests.conftest import SmallBatchNormNet
from tests.export.models import picture_model, pictures
from tests.train.test_fit import QUIET, attached, backbone, data, loader

X, Y = data()


@pytest.fixture(autouse=True)
def few_outliers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds over the data instead of eleven: no test here depends on where in the flat part the best split lies."""
    monkeypatch.setattr(sys.modules[gather.__module__], "LEAST_OUTLIERS", 2 * len(X))


@pytest.fixture(scope="module")
def model() -> abnn.Attached:
    """A network with attachments that were not fitted."""
    return attached()


@pytest.fixture(scope="module")
def fitted() -> abnn.Attached:
    model = attached()
    abnn.fit(model, loader(), epochs=4, lr=1e-2, **QUIET)
    return model


def test_inputs_so_large_that_numbers_overflow_are_refused(fitted: abnn.Attached) -> None:
    triage = Triage.calibrate(fitted, loader(), draws=2)
    prediction = fitted.predict(X[:3] * 1e25, draws=2)
    assert set(triage(prediction).verdict) == {"reject"} and prediction.score.isinf().all()


def test_what_is_no_prediction_or_model_is_explained(model: abnn.Attached) -> None:
    triage = Triage.calibrate(model, loader(), score="entropy", draws=2)
    with pytest.raises(InputError, match=r"prediction: got Tensor; accepted: .*triage\(model\.predict\(x\)\)"):
        triage(X)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"model: got PaperResNet; .*Attach first, .*Plain\(network, x\[:1\]\)"):
        Triage.calibrate(backbone(), loader())  # type: ignore[arg-type]


def test_thresholds_print_in_a_line(model: abnn.Attached) -> None:
    triage = Triage.calibrate(model, loader(), score="entropy", draws=2)
    assert len(triage.calibration) == 101 and len(repr(triage)) < 400 and f"notice={triage.notice}" in repr(triage)


def test_calibrated_on_a_fitted_model(fitted: abnn.Attached) -> None:
    model = fitted
    triage = calibrate(model, loader(shuffle=False), progress=False)
    assert model.triage is triage
    good = triage(model.predict(X)).verdict
    assert good.count("accept") >= math.floor(0.95 * len(X)) and triage.inputs == len(X)
    assert triage.score == "combined" and triage.draws == 0 and triage.notice <= triage.reject
    strange = triage(model.predict(torch.rand(50, 1, 8, 8, generator=torch.Generator().manual_seed(1)))).verdict
    assert strange.count("reject") > good.count("reject") / len(good) * 50


def test_plain_networks_can_be_calibrated_too() -> None:
    plain = Plain(backbone(), X[:1])
    triage = Triage.calibrate(plain, loader())
    assert triage.score == "entropy" and plain.predict(X).verdict == triage(plain.predict(X)).verdict


def test_few_inputs_of_a_rare_class_are_named() -> None:
    plain = Plain(backbone(), X[:1])
    rows = torch.cat([torch.arange(len(Y))[Y != 1], torch.arange(len(Y))[Y == 1][:1]])
    with pytest.warns(
        AbnnWarning, match=r"loader: got few inputs of rare classes, 1 \(1\), of .*at least 20"
    ) as caught:
        triage = calibrate(plain, [(X[rows], Y[rows])], TriageConfig(noticed=0.1, rejected=0.1), progress=False)
    assert [warning.filename for warning in caught] == [__file__]
    assert len(triage.offsets) == 3 and triage.offsets[0] == triage.offsets[2] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert calibrate(plain, loader(), TriageConfig(noticed=0.1, rejected=0.1), progress=False).offsets == ()


def test_another_number_of_draws_is_noticed(model: abnn.Attached) -> None:
    triage = Triage.calibrate(model, loader(), draws=3, score="entropy")
    triage(model.predict(X, draws=3, seed=1))
    words = "prediction: got 2 samples; accepted: 4, as calibrated.*draws=3"  # that of the plain network is one of them
    with pytest.warns(AbnnWarning, match=words) as caught:
        triage(model.predict(X, draws=1))
    assert [warning.filename for warning in caught] == [__file__]
    older = {name: value for name, value in triage.to_dict().items() if name != "drawn"}
    Triage.from_dict(older)(model.predict(X, draws=1))  # it is not known what they had


def test_another_number_of_views_is_noticed() -> None:
    x = torch.rand(40, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    model = abnn.attach(backbone(), x[:1], config=abnn.AttachConfig(views=5))
    triage = Triage.calibrate(model, [(x, torch.arange(40) % 3)], score="entropy", draws=5)
    assert triage.views == model.views == 5
    triage(concatenate([model.predict(x[:20], draws=5), model.predict(x[20:], draws=5)]))
    with pytest.warns(AbnnWarning, match="prediction: got 1 views; accepted: 5, as calibrated.*views=5") as caught:
        triage(model.predict(x, draws=5, views=1))
    assert [warning.filename for warning in caught] == [__file__]
    older = {name: value for name, value in triage.to_dict().items() if name != "views"}
    Triage.from_dict(older)(model.predict(x, draws=5, views=1))  # it is not known what they had


def test_mean_weights_are_the_default_and_can_be_asked_for(fitted: abnn.Attached) -> None:
    usual, asked = (Triage.calibrate(fitted, loader(shuffle=False), **each) for each in ({}, {"draws": 0}))
    assert usual == asked and usual.draws == 0 and usual.drawn == 2
    assert usual_draws(fitted) == 0 and usual_draws(Plain(backbone(), X[:1])) == DRAWS
    assert usual_draws(attached(preset="authors")) == DRAWS
    assert usual(fitted.predict(X)).verdict == usual(fitted.predict(X, draws=0)).verdict


def test_calibration_takes_fewer_passes_than_a_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that go through the network: once each, once more for outliers, and a few alone; a fit needs several times that."""
    monkeypatch.setattr(sys.modules[gather.__module__], "LEAST_OUTLIERS", 1000)
    for count in (40, 2500):
        x = torch.rand(count, 4, generator=torch.Generator().manual_seed(0))
        y, inputs = (x.sum(1) * 10).long() % 3, Counting()
        network = nn.Sequential(inputs, nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
        model = abnn.attach(network, x[:1])
        batches = list(zip(x.split(64), y.split(64)))
        Counting.rows = 0
        abnn.fit(model, batches, **QUIET)
        fitted, Counting.rows = Counting.rows, 0
        calibrate(model, batches, progress=False)
        assert Counting.rows == count + math.ceil(1000 / count) * count + 8
        assert 2 * Counting.rows < fitted


class Counting(nn.Module):
    """Counts inputs, over all copies of it."""

    rows = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.rows += len(x)
        return x


def test_draws_do_not_matter_where_there_is_no_randomness() -> None:
    plain = Plain(backbone(), X[:1])
    triage = Triage.calibrate(plain, loader(), draws=10)
    assert triage.drawn == 1 and triage.draws == 10
    triage(plain.predict(X, draws=1))
    triage(plain.predict(X, draws=10))


def test_draws_may_be_a_number_of_numpy(model: abnn.Attached) -> None:
    triage = Triage.calibrate(model, loader(), draws=np.int64(2), score="entropy")  # type: ignore[arg-type]
    assert json.loads(json.dumps(triage.to_dict()))["draws"] == 2


def test_bad_calibration_sets(model: abnn.Attached) -> None:
    with pytest.raises(InputError, match="at least 19 to promise 5.0%"):
        Triage.calibrate(model, [(X[:10], Y[:10])], draws=1)
    with pytest.raises(InputError, match="without batches"):
        Triage.calibrate(model, [])
    with pytest.raises(InputError, match="between 0 and 1"):
        Triage.calibrate(model, loader(), noticed=1.5)
    with pytest.raises(InputError, match="can be read once"):
        Triage.calibrate(model, iter([(X, Y)]))
    with pytest.raises(InputError, match="severity above one half"):
        Triage.calibrate(model, loader(), outliers={"name": "style"}, draws=1)
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


def gathered(seed: int = 0, count: int = 120) -> CalibrationData:
    rng = np.random.default_rng(seed)
    return CalibrationData(
        good=rng.random(count).astype(np.float32),
        predicted=np.arange(count) % 3,
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
    quantiles = [conformal_quantile(shifted.good[shifted.predicted == label], 0.1) for label in range(3)]
    triage = choose(shifted, TriageConfig(noticed=0.1, per_class=True))
    assert len(triage.by_class) == 3
    levels = triage.levels(shifted.good, shifted.predicted)
    for label in range(3):
        mine = shifted.predicted == label
        assert triage.by_class[label][0] == lift(quantiles[label], shifted.good)
        assert (levels[mine] > 0).sum() == 100 - conformal_rank(100, 0.1)
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
        choose(replace(data, class_names=["bird", "cat", "dog"]), TriageConfig(per_class=True))
    with pytest.raises(InputError, match=r"predicted as 1 \(15\), 2 \(5\)"):
        choose(data, TriageConfig(per_class=True))


def test_what_small_sets_can_promise_is_kept_and_said() -> None:
    small, config = gathered(count=45), TriageConfig(noticed=0.1, confidence=0.9)
    by_class = TriageConfig(noticed=0.1, per_class=True)
    words = r"rejected: got {} with {} good inputs.*accepted: at least {}.*rejected={} is promised instead"
    for scores, each, share, numbers in (
        (small, TriageConfig(), 1 / 46, ("0.01", 45, 99, "0.022")),
        (gathered(count=100), config, 1 - 0.1 ** (1 / 100), ("0.01", 100, 230, "0.023")),
        (small, by_class, 1 / 16, ("0.01", 15, 99, "0.062")),
    ):
        with pytest.warns(AbnnWarning, match=words.format(*numbers)):
            triage = choose(scores, each)
        assert triage.rejected == pytest.approx(share) and triage.reject >= scores.good.max()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(gathered(count=300)).rejected == 0.01


def test_the_warning_points_to_the_caller(model: abnn.Attached) -> None:
    with pytest.warns(AbnnWarning, match="rejected: got 0.01 with 30 good inputs; accepted") as caught:
        calibrate(model, [(X[:30], Y[:30])], TriageConfig(draws=1, score="entropy"), progress=False)
    assert [warning.filename for warning in caught] == [__file__]


def test_a_model_that_was_not_fitted_is_said_to_be() -> None:
    plain = attached()
    with pytest.warns(
        AbnnWarning, match=r"model: got .*not fitted, whose score is 'entropy' and not 'combined'.*abnn.fit"
    ) as caught:
        calibrate(plain, loader(), progress=False)
    assert [warning.filename for warning in caught if "not fitted" in str(warning.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*not fitted", AbnnWarning)
        calibrate(plain, loader(), TriageConfig(score="entropy"), progress=False)
        plain.score = "margin"  # which is there before a fit
        calibrate(plain, loader(), progress=False)


def test_calibrating_on_the_data_of_the_fit_is_said() -> None:
    x, y = data(240)
    model = attached()
    abnn.fit(model, [(x[:120], y[:120])], epochs=0, **QUIET)
    for same in ([(x[:120], y[:120])], [(x[40:160], y[40:160])]):
        with pytest.warns(AbnnWarning, match="loader: got inputs that the model was fitted on; .*held-out") as caught:
            calibrate(model, same, progress=False)
        assert [each.filename for each in caught if "fitted on" in str(each.message)] == [__file__]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*fitted on", AbnnWarning)
        calibrate(model, [(x[120:], y[120:])], progress=False)
        copies = x[:6].repeat(20, 1, 1, 1), y[:6].repeat(20)  # where inputs repeat, others may hold them, too
        abnn.fit(model, [copies], epochs=0, **QUIET)
        calibrate(model, [copies], progress=False)


def test_costs_choose_thresholds_and_promise_nothing() -> None:
    data = gathered()
    strict = choose(data, TriageConfig(costs=Costs(accept=(0, 50, 50), far=0.5)))
    mild = choose(data, TriageConfig(costs=Costs(accept=(0, 0.1, 20), far=0.5)))
    assert strict.notice <= mild.notice and strict.costs is not None
    nothing = choose(data, TriageConfig(costs=Costs(accept=(9, 9, 9), notice=(0, 0, 9), reject=(9, 9, 0))))
    assert nothing.noticed == 1 and nothing.notice < data.good.min() - 1e-5 and nothing.rejected < 1
    assert strict.noticed == pytest.approx((data.good > strict.notice).mean())
    assert Triage.from_dict(json.loads(json.dumps(strict.to_dict()))) == strict


def test_the_range_of_the_users_generator_is_used_and_left_alone(model: abnn.Attached) -> None:
    """Wider ranges make louder noise, and its scores are other ones."""

    def severe(**options: Any) -> list[float]:
        return gather(model, loader(shuffle=False), TriageConfig(draws=2), **options).severe.tolist()

    wide = abnn.outliers.Noise()
    wide.prepare(-50.0, 50.0)
    measured = severe(outliers="noise")
    assert severe(outliers=wide) != measured
    assert wide.to_config()["range"] == [[-50.0], [50.0]]
    fresh = abnn.outliers.Noise()
    assert severe(outliers=fresh) == measured and fresh.needs_range


def test_real_outliers_place_the_upper_threshold(model: abnn.Attached) -> None:
    far = torch.full((30, 1, 8, 8), 5.0)
    found = gather(model, loader(shuffle=False), TriageConfig(draws=3), far)
    assert len(found.mild) == 0 and len(found.severe) == 2 * len(X) and found.drawn == 4
    assert np.allclose(found.severe, model.predict(far[:1], draws=3).score.numpy(), atol=1e-4)
    assert np.allclose(found.good, model.predict(X, draws=3).score.numpy(), atol=1e-5)
    assert (found.predicted == model.predict(X, draws=3).label.numpy()).all() and (found.labels == Y.numpy()).all()
    other = Triage.calibrate(model, loader(), score="max-probability", draws=3)
    assert other.score == "max-probability"


def test_calibration_quantiles() -> None:
    data = gathered(count=200)
    triage = choose(data)
    assert len(triage.calibration) == 101 and list(triage.calibration) == sorted(triage.calibration)
    assert triage.calibration[0] == pytest.approx(data.good.min())
    assert triage.calibration[100] == pytest.approx(data.good.max())
    assert sum(triage.reference[1]) == 100 and triage.monitor(0.05).alarm == 0.05


def test_a_bar_shows_how_far_it_is(model: abnn.Attached, capsys: pytest.CaptureFixture[str]) -> None:
    batches = [(X[:48], Y[:48]), (X[48:], Y[48:])]
    calibrate(model, batches, TriageConfig(draws=1, score="entropy"))
    output = capsys.readouterr().out
    assert "calibrating" in output and "6/6" in output  # once, and twice for outliers
    calibrate(model, batches, TriageConfig(draws=1, score="entropy"), progress=False)
    assert "calibrating" not in capsys.readouterr().out


class Tied:
    """A stub of a model whose score is a table's entry, off by up to 1e-6 depending on the size of the batch."""

    input_shape, input_dtype, classes = (1,), torch.float32, 2

    def __init__(self, table: list[float], jitter: float = 1e-6) -> None:
        self.table, self.jitter = torch.tensor(table), jitter
        self.triage: Triage | None = None

    def predict(self, x: Tensor, draws: int = 1, seed: int | None = 0) -> Prediction:
        exact = self.table[x[:, 0].long().clamp(0, len(self.table) - 1)]
        rounding = self.jitter * (
            2 / len(x) - 1 if len(x) < 300 else -1.0
        )  # alone all are higher, in large batches lower
        return Prediction(torch.full((1, len(x), 2), 0.5), default="own", own={"own": exact + rounding})


@pytest.mark.parametrize(
    ("table", "weights", "jitter"),
    [
        ([0.5], [1.0], 1e-6),
        ([0.1, 0.9], [0.75, 0.25], 1e-6),
        ([0.1, 0.9], [0.75, 0.25], 1e-3),  # as coarse as half precision
        ([0.1, 0.2, 0.30, 0.31], [0.5, 0.3, 0.1, 0.1], 1e-6),
        ([0.0, 20.0], [0.9, 0.1], 1e-6),
        ([1e-3 * step for step in range(40)], [1 / 40] * 40, 1e-6),
    ],
)
def test_the_promise_holds_for_tied_scores_in_batches_and_one_by_one(
    table: list[float], weights: list[float], jitter: float
) -> None:
    """The threshold is a score that many inputs share: rounding alone must not put them above it."""
    model, rng, share = Tied(table, jitter), np.random.default_rng(0), 0.05
    not_accepted: dict[int, list[float]] = {1: [], 7: [], 400: []}
    for _ in range(40):
        values = torch.from_numpy(rng.choice(len(table), (480, 1), p=weights)).float()
        batch = [(values[:400], torch.zeros(400, dtype=torch.long))]
        triage = Triage.calibrate(model, batch, outliers=torch.full((8, 1), 1e4))
        for size, shares in not_accepted.items():
            tested = values[400:] if size < 400 else values[400:].repeat(5, 1)
            said = [verdict for part in tested.split(size) for verdict in triage(model.predict(part)).verdict]
            shares.append(1 - said.count("accept") / len(said))
            if size < 400:
                edges = triage.monitor().edges
                alone = model.predict(tested[:1]).score.item(), model.predict(tested).score[0].item()
                assert len({int(np.searchsorted(edges, score)) for score in alone}) == 1
    for shares in not_accepted.values():
        assert np.mean(shares) <= share + 2 * np.std(shares, ddof=1) / math.sqrt(len(shares))
    assert not_accepted[1] == not_accepted[7] == not_accepted[400]


def test_lifted_thresholds_of_continuous_scores_give_the_same_verdicts() -> None:
    data = gathered(count=300)
    triage = choose(data)
    exact = conformal_quantile(data.good, 0.05)
    assert 0 < triage.notice - exact <= 1.0001e-4
    assert (data.good > triage.notice).sum() == (data.good > exact).sum()


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_equal_inputs_get_one_verdict_in_any_batch(value: float) -> None:
    model, x = attached(), torch.full_like(X, value)
    batches = list(zip(x.split(32), Y.split(32)))
    abnn.fit(model, batches, epochs=1, **QUIET)
    calibrate(model, batches, TriageConfig(draws=2), progress=False)
    predictions = [model.predict(x[:size], draws=2) for size in (1, 7, 32, 96)]
    assert {verdict for each in predictions for verdict in each.verdict} == {"accept"}
    scores = torch.cat([each.score for each in predictions])
    assert scores.max() - scores.min() < 1  # where all inputs are equal, rounding is all that differs


def test_thresholds_on_equal_inputs_leave_room_for_another_runtime() -> None:
    """Scores of equal inputs have no spread, and no batch shows rounding; onnxruntime's differ from torch's by some 1e-5."""
    model, x = picture_model(), pictures(1, 0)[0].expand(40, 1, 8, 8)
    good, config = [(x, torch.zeros(40, dtype=torch.int64))], TriageConfig()
    triage = choose(gather(model, good, config), config)  # calibrate() would change the model, which other tests share
    assert 9e-5 < triage.notice - model.predict(x[:1]).score.item() < 2e-4


def test_weights_written_to_after_calibration_are_said_once() -> None:
    model = abnn.attach(SmallBatchNormNet().eval(), X[:1])
    triage = calibrate(model, loader(), TriageConfig(score="entropy"), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        model.predict(X[:2], score="entropy")
        copy.deepcopy(model).predict(X[:2], score="entropy")
    with torch.no_grad():
        next(model.backbone.parameters()).mul_(1.1)
    with pytest.warns(AbnnWarning, match="model: got weights.*written to after thresholds.*abnn.calibrate again"):
        assert model.predict(X[:2], score="entropy").triage is triage
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        model.predict(X[:2], score="entropy")
    with torch.no_grad():
        model.train()(X[:4])
    with pytest.warns(AbnnWarning, match="statistics of norms"):
        model.eval().predict(X[:2], score="entropy")
