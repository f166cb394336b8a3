"""What is said about a prediction: equal to the model's own numbers, and in words that fit the verdict."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import abnn
from abnn.data.digits import load_digits
from abnn.errors import InputError
from abnn.export.artefact import ask
from abnn.predict import Plain, Prediction
from abnn.serve.answers import Answerer, reason, sample_names, share_below, voters
from abnn.triage import Triage
from abnn.triage.thresholds import quantiles
from tests.conftest import destroyed_term

FACTS: dict[str, Any] = {
    "verdict": "accept",
    "name": "7",
    "probability": 0.9,
    "second": "1",
    "votes": "all 10 draws say",
    "place": 0.4,
}


def test_numbers_are_the_models_own(model: Any) -> None:
    data = load_digits()
    x = torch.cat([data.test.x[:5], data.full.x[:5]])
    answers = Answerer(model)(x)
    prediction = model.predict(x, draws=model.triage.draws, seed=model.triage.seed)
    verdicts, stated = model.triage(prediction), model.triage.probabilities(prediction)
    for row, answer in enumerate(answers):
        assert answer["verdict"] == verdicts.verdict[row]
        assert answer["label"] == prediction.label[row]
        assert answer["score"] == pytest.approx(float(verdicts.score[row]), abs=1e-6)
        assert answer["probabilities"] == pytest.approx(stated[row].tolist(), abs=1e-6)
        assert answer["probability"] == max(answer["probabilities"])
        own = prediction.samples[:, row]
        samples = answer["samples"]
        assert samples["names"] == ["without attachments", "with attachments"]
        assert samples["labels"] == own.argmax(1).tolist()
        assert samples["agreement"] == pytest.approx(float((own.argmax(1) == answer["label"]).float().mean()))
        assert samples["spread"] == pytest.approx(float(own[:, answer["label"]].std(correction=0)), abs=1e-5)
        assert samples["probabilities"] == pytest.approx(own[:, answer["label"]].tolist(), abs=1e-6)
        assert prediction.parts is not None and answer["parts"].keys() == prediction.parts.keys()
        assert answer["parts"] == pytest.approx({n: float(part[row]) for n, part in prediction.parts.items()}, rel=1e-4)
        assert answer["thresholds"]["notice"] == pytest.approx(model.triage.notice, abs=1e-6)
        place = answer["calibration"]["share_below"]
        if place is not None:
            assert 0 <= place <= 1


def test_share_below_is_true_of_the_calibration_scores() -> None:
    rng = np.random.default_rng(0)
    for scores in (np.arange(1000) / 1000, rng.random(200).astype(np.float32), rng.integers(0, 9, 77) / np.float32(7)):
        kept = quantiles(scores)
        for score in (*scores.tolist(), float(scores.max()) * 1.001, float(scores.min()) - 1):
            true, said = float((scores < score).mean()), share_below(kept, score)
            assert said <= true < said + 0.02  # a step of the quantiles, and one more for scores with equal digits
            assert (said == 1) == (true == 1)
    assert share_below(quantiles(np.arange(1000) / 1000), 0.95) == 0.95


@pytest.mark.parametrize(
    "changes, words",
    [
        ({}, ["looks like the data", "and all 10 draws say “7”"]),
        ({"verdict": "notice", "probability": 0.3}, ["hesitates between “7” and “1”"]),
        ({"verdict": "notice"}, ["less sure than usual", "all 10 draws"]),
        ({"verdict": "notice", "place": 0.97}, ["At most 3 % of the good inputs"]),
        ({"verdict": "notice", "place": 0.99}, ["At most 1 % of the good inputs"]),
        ({"verdict": "reject"}, ["does not look like what the model was trained on", "though all 10 draws say “7”"]),
        ({"verdict": "reject", "probability": 0.3}, ["cannot tell what this is", "all 10 draws"]),
        ({"verdict": "reject", "place": 1.0}, ["None of the good inputs"]),
    ],
)
def test_reasons(changes: dict[str, Any], words: list[str]) -> None:
    text = reason(**{**FACTS, **changes})
    assert all(each in text for each in words) and text.endswith(".") and "unusual" not in text


@pytest.mark.parametrize(
    "cause, words",
    [
        ("energy", "What counts most against it: the network recognises little in it."),
        ("distance at input", "as a picture, it is unlike the training data."),
        ("distance at blocks.1", "at blocks.1, it is unlike the training data."),
        ("nearest class at input", "as a picture, it is like none of the classes."),
        ("nearest class at blocks.1", "at blocks.1, it is like none of the classes."),
        ("attached energy", "with attachments, the network recognises little in it."),
        ("change of mind", "the attachments change the network's answer."),
        ("colour", "“colour” is large."),  # of a task of one's own
    ],
)
def test_the_largest_cause_is_named(cause: str, words: str) -> None:
    causes = {cause: 2.0, "odds": 1.0}
    for verdict in ("notice", "reject"):
        assert words in reason(**{**FACTS, "verdict": verdict, "causes": causes})
    assert "against" not in reason(**FACTS, causes=causes)  # nothing is to be explained
    assert "against" not in reason(**{**FACTS, "verdict": "notice", "causes": {}})


def test_causes_are_what_the_score_loses_where_a_part_is_usual(model: Any) -> None:
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    prediction, combined = model.predict(x), model.combined
    parts = torch.stack([*prediction.parts.values()], dim=1)

    def score(parts: torch.Tensor) -> torch.Tensor:
        learnt = ((combined.members(parts) - combined.mean) / combined.spread).mean(0)
        return learnt + parts @ combined.anchor + destroyed_term(combined, parts)

    for row, causes in enumerate(Answerer(model).causes_of(ask(model, x))):
        assert list(causes.values()) == sorted(causes.values(), reverse=True)
        for place, name in enumerate(prediction.parts):
            usual = parts.clone()
            usual[row, place] = usual[row, place].clamp(max=0)
            drop = (score(parts) - score(usual))[row].item()
            assert causes.get(name, 0) == pytest.approx(drop if drop >= 0.05 else 0, rel=1e-3, abs=1e-3)
        far = (prediction.score_by("combined") - score(parts))[row].item()
        assert causes.get("far away", 0) == pytest.approx(far if far >= 0.05 else 0, rel=1e-3, abs=1e-3)


def test_causes_of_failures_count_odds_more(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    before, prediction = Answerer(model).causes_of(ask(model, x)), model.predict(x)
    monkeypatch.setattr(model, "triage", replace(model.triage, score="failures"))
    monkeypatch.setattr(model, "score", "failures")
    answers = ask(model, x)
    assert answers.score == pytest.approx(prediction.score_by("failures").numpy(), rel=1e-5)
    for row, (less, more) in enumerate(zip(before, Answerer(model).causes_of(answers), strict=True)):
        added = max(0.0, 0.5 * prediction.parts["odds"][row].clamp(-8, 8).item())
        assert more.get("odds", 0) == pytest.approx(less.get("odds", 0) + added, abs=0.06)
        assert more.get("far away", 0) == pytest.approx(less.get("far away", 0), abs=1e-2)


def test_every_part_of_the_default_has_words(model: Any) -> None:
    words = Answerer(model).parts
    assert list(words) == [*model.combined.names, "far away"] and len(set(words.values())) == len(words)
    assert not any("“" in each for each in words.values())


def test_samples_have_the_names_of_what_they_are() -> None:
    pair = ["without attachments", "with attachments"]
    assert sample_names(2, 0, plain=True) == pair
    assert sample_names(3, 0, plain=True) == ["without attachments", "view 1", "view 2"]
    assert sample_names(3, 2, plain=True) == ["without attachments", "draw 1", "draw 2"]
    assert sample_names(2, 2, plain=False) == ["draw 1", "draw 2"] and sample_names(1, 10, plain=False) == ["the model"]
    assert voters(pair, [True, True]) == "the network with and without attachments says"
    assert voters(pair, [True, False]) == "the network without attachments, but not with, says"
    assert voters(pair, [False, True]) == "the network with attachments, but not without, says"
    assert voters(pair, [False, False]) == "only both answers together say"
    assert voters(["draw 1", "draw 2"], [True, True]) == "all 2 draws say"
    assert voters(["without attachments", "draw 1", "draw 2"], [True, False, True]) == "2 of 3 samples say"
    assert voters(["the model"], [True]) == "the model says"


def test_a_model_with_draws_says_so(model: Any) -> None:
    triage = replace(model.triage, draws=3, drawn=4)
    stand_in = SimpleNamespace(
        predict=model.predict, triage=triage, classes=10, extra={}, comes_along=model.comes_along
    )
    (answer,) = Answerer(stand_in)(torch.zeros(1, 1, 8, 8))
    assert answer["samples"]["names"] == ["without attachments", "draw 1", "draw 2", "draw 3"]


def test_a_model_without_a_learnt_score_has_no_parts() -> None:
    plain = Plain(
        abnn.build_backbone("paper-resnet", 3, 1, width=4, blocks=1, stem="small").eval(), torch.zeros(1, 1, 8, 8)
    )
    plain.triage = Triage(0.5, 0.9, 0.05, 0.01, "entropy", 10, 0, 50)
    answerer = Answerer(plain)
    (answer,) = answerer(torch.zeros(1, 1, 8, 8))
    assert answer["parts"] is None and answerer.parts == {} and answer["samples"]["names"] == ["the model"]


def test_class_names_are_those_of_the_model_or_numbers(model: Any) -> None:
    def names(**extra: Any) -> list[str]:
        return Answerer(SimpleNamespace(classes=2, triage=model.triage, **extra)).names

    assert names(extra={"class_names": ["cat", "dog"]}) == ["cat", "dog"]
    with pytest.raises(InputError, match="class_names of the model: got 1 names"):
        names(extra={"class_names": ["cat"]})
    assert names() == ["0", "1"]


def test_thresholds_are_those_of_the_predicted_class(model: Any) -> None:
    """They were always the common ones."""
    by_class = tuple((0.25 + label, 100.0 + label) for label in range(10))
    triage = replace(model.triage, by_class=by_class, calibration=())
    stand_in = SimpleNamespace(predict=model.predict, triage=triage, classes=10, extra={})
    (answer,) = Answerer(stand_in)(torch.zeros(1, 1, 8, 8))
    notice, reject = by_class[answer["label"]]
    assert answer["thresholds"] == {"notice": notice, "reject": reject}
    assert answer["calibration"] == {"share_below": None}


def test_a_model_without_thresholds_is_refused() -> None:
    with pytest.raises(InputError, match="abnn.calibrate"):
        Answerer(SimpleNamespace(triage=None, classes=2))


@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_a_model_of_labels_or_numbers_is_refused(model: Any, kind: str) -> None:
    task = SimpleNamespace(distribution=kind)
    with pytest.raises(InputError, match=f"got a model of {kind}; accepted: a model of classes"):
        Answerer(SimpleNamespace(task=task, triage=model.triage, classes=10, extra={}))


def test_values_that_json_cannot_hold_never_leave() -> None:
    class Always:
        draws, seed = 2, 0

        def __call__(self, prediction: Prediction) -> Any:
            return SimpleNamespace(verdict=["accept"], score=torch.zeros(1))

        def probabilities(self, prediction: Prediction) -> torch.Tensor:
            return prediction.probs

    broken = Prediction(torch.full((2, 1, 10), float("nan")))
    answerer = Answerer(SimpleNamespace(predict=lambda *a, **k: broken, triage=Always(), classes=10))
    with pytest.raises(FloatingPointError):
        answerer(torch.zeros(1, 1, 8, 8))
