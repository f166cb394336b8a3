"""Pictures: the right ones, unchanged, with what the model says about them."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.report import measure, write_report
from abnn.evaluate.report.gallery import LARGEST_SIDE, data_uri, gallery, pick

from .samples import make_evaluation, make_pair, make_set


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MOST_RESAMPLES", 10)
    monkeypatch.setattr(measure, "FEWEST_RESAMPLES", 10)


def decoded(uri: str) -> np.ndarray:
    start = "data:image/png;base64,"
    assert uri.startswith(start)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri[len(start) :]))))


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (5, 9)])
def test_pictures_survive(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(decoded(data_uri(image)), image)


def test_large_pictures_are_reduced_in_proportion() -> None:
    assert decoded(data_uri(np.zeros((400, 800, 3), np.uint8))).shape == (LARGEST_SIDE // 2, LARGEST_SIDE, 3)


def test_picks_are_the_extremes_among_the_kept_pictures() -> None:
    shown = np.array([3, 7, 11, 50, 51, 52, 70, 90, 100, 110])
    result = make_set("printed", "semi", (2, 4), shown=shown, images=np.zeros((10, 8, 8), np.uint8))
    picks = pick(result, "entropy", per_row=3)
    scores = result.scores["entropy"][shown]
    np.testing.assert_array_equal(scores[picks["Least uncertain"]], np.sort(scores)[:3])
    np.testing.assert_array_equal(scores[picks["Most uncertain"]], np.sort(scores)[::-1][:3])
    assert len(np.unique(np.concatenate(list(picks.values())))) == 9


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_pictures_are_shown_once_each(count: int) -> None:
    result = make_set("a", "id", (1, 1), shown=np.arange(count), images=np.zeros((count, 2, 2), np.uint8))
    everything = np.concatenate(list(pick(result, "entropy").values()))
    np.testing.assert_array_equal(np.sort(everything), np.arange(count))


def test_cards_name_class_probability_score_and_verdict() -> None:
    evaluation = make_evaluation(tiers=("id",), thresholds=(0.0, 1.0))
    result = evaluation.sets[0]
    one = replace(evaluation, sets=(replace(result, shown=np.array([4]), images=result.images[:1]),))
    (card,) = gallery([one], one, True)[0]["rows"]["Least uncertain"]
    assert (card["index"], card["label"], card["pixelated"]) == (4, result.labels[4], True)
    assert card["words"] == [
        {
            "model": evaluation.name,
            "class": result.predicted[4],
            "sure": result.probs[4].max(),
            "score": f"{result.scores['entropy'][4]:.3f}",
            "verdict": "notice",
        }
    ]


def test_both_models_speak_only_about_the_same_inputs() -> None:
    pair = make_pair()
    for aligned, speakers in ((True, ["plain network", "attached network"]), (False, ["attached network"])):
        for each in gallery(pair, pair[-1], aligned):
            cards = [card for row in each["rows"].values() for card in row]
            assert cards and all([say["model"] for say in card["words"]] == speakers for card in cards)


@pytest.mark.usefixtures("one_figure")
def test_the_page_shows_the_cards(tmp_path: Path) -> None:
    evaluation = make_evaluation(tiers=("id",), thresholds=(0.0, 1.0))
    result = evaluation.sets[0]
    one = replace(evaluation, sets=(replace(result, shown=np.array([4]), images=result.images[:1]),))
    page = write_report([one], tmp_path / "page.html", "t").read_text()
    mark = "✓" if result.correct[4] else "✗"
    assert f"says class {result.predicted[4]} {mark} ({100 * result.probs[4].max():.0f}&#8239;%)<br>score" in page
    assert f"input 4 of handwritten, shows class {result.labels[4]}" in page
    names = [f"digit {number}" for number in range(10)]
    page = write_report([one], tmp_path / "page.html", "t", class_names=names).read_text()
    assert f"says digit {result.predicted[4]} {mark}" in page and f"shows digit {result.labels[4]}" in page
    assert "1 of 120 pictures were kept" in page
    bare = replace(result, shown=np.zeros(0, np.int64), images=np.zeros((0, 1, 1), np.uint8))
    page = write_report([replace(evaluation, sets=(bare,))], tmp_path / "page.html", "t").read_text()
    assert "No pictures were kept" in page


def test_scores_on_a_limit_get_the_milder_verdict() -> None:
    scores = {"entropy": np.array([0.0, 0.5, 0.6, 1.0, 1.1], np.float32)}
    result = SetResult("printed", "semi", np.full((5, 2), 0.5, np.float32), np.zeros(5, np.int64), scores)
    np.testing.assert_array_equal(Evaluation("net", "entropy", (result,), (0.5, 1.0)).levels(result), [0, 0, 1, 1, 2])


@pytest.mark.usefixtures("one_figure")
def test_page_uses_the_thresholds_of_the_predicted_class(tmp_path: Path) -> None:
    evaluation = make_evaluation(classes=2)
    by_class = replace(evaluation, class_thresholds=((-2.0, -1.0), (2.0, 3.0)))
    predicted = by_class.tier("id")[0].predicted
    assert by_class.verdict_counts("id").tolist() == [np.sum(predicted == 1), 0, np.sum(predicted == 0)]
    cards = [card for each in gallery([by_class], by_class, True) for row in each["rows"].values() for card in row]
    assert {card["words"][0]["verdict"] for card in cards} == {"accept", "reject"}
    page = write_report([by_class], tmp_path / "page.html", "t").read_text()
    assert "Mean share of framed cells" in page
    assert "notice above -2 to 2, reject above -1 to 3, by predicted class" in page
