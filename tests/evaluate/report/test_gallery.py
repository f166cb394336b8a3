"""Pictures: the right ones, unchanged, with what the model says about them."""

from __future__ import annotations

import base64
import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.report.gallery import LARGEST_SIDE, data_uri, galleries, pick
from abnn.evaluate.report.matrices import verdict_matrix
from abnn.evaluate.report.sections import provenance
from abnn.evaluate.report.verdicts import verdict_counts

from .samples import make_evaluation, make_pair, make_set


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
    np.testing.assert_array_equal(scores[picks.least], np.sort(scores)[:3])
    np.testing.assert_array_equal(scores[picks.most], np.sort(scores)[::-1][:3])
    assert len(np.unique(np.concatenate([picks.least, picks.most, picks.random]))) == 9


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_few_pictures_are_shown_once_each(count: int) -> None:
    result = make_set("a", "id", (1, 1), shown=np.arange(count), images=np.zeros((count, 2, 2), np.uint8))
    picks = pick(result, "entropy")
    everything = np.concatenate([picks.least, picks.most, picks.random])
    np.testing.assert_array_equal(np.sort(everything), np.arange(count))


def test_cards_name_class_probability_score_and_verdict() -> None:
    evaluation = make_evaluation(tiers=("id",), thresholds=(0.0, 1.0))
    result = evaluation.sets[0]
    one = replace(evaluation, sets=(replace(result, shown=np.array([4]), images=result.images[:1]),))
    names = [f"digit {number}" for number in range(10)]
    html = galleries([one], True, names)
    assert f"says digit {result.predicted[4]} {'✓' if result.correct[4] else '✗'}" in html
    assert f"({100 * result.probs[4].max():.0f}\u202f%)" in html
    assert f"score {result.scores['entropy'][4]:.3f}" in html
    assert '<span class="verdict notice">notice</span>' in html
    assert f"input 4 of handwritten, shows digit {result.labels[4]}" in html


def test_both_models_speak_only_about_the_same_inputs() -> None:
    pair = make_pair()
    together, apart = galleries(pair, True, None), galleries(pair, False, None)
    assert together.count("says class") == 2 * apart.count("says class") > 0


def test_sets_without_pictures_say_so() -> None:
    evaluation = make_evaluation(tiers=("id",))
    bare = replace(evaluation.sets[0], shown=np.zeros(0, np.int64), images=np.zeros((0, 1, 1), np.uint8))
    assert "No pictures were kept" in galleries([replace(evaluation, sets=(bare,))], True, None)


def test_scores_on_a_limit_get_the_milder_verdict() -> None:
    scores = {"entropy": np.array([0.0, 0.5, 0.6, 1.0, 1.1], np.float32)}
    result = SetResult("printed", "semi", np.full((5, 2), 0.5, np.float32), np.zeros(5, np.int64), scores)
    np.testing.assert_array_equal(Evaluation("net", "entropy", (result,), (0.5, 1.0)).levels(result), [0, 0, 1, 1, 2])


def test_page_uses_the_thresholds_of_the_predicted_class() -> None:
    evaluation = make_evaluation(classes=2)
    by_class = replace(evaluation, class_thresholds=((-2.0, -1.0), (2.0, 3.0)))
    known = by_class.tier("id")
    predicted = known[0].predicted
    assert verdict_counts(by_class, known).tolist() == [np.sum(predicted == 1), 0, np.sum(predicted == 0)]
    page = galleries([by_class], True, None)
    assert "notice</span>" not in page and "accept</span>" in page and "reject</span>" in page
    assert "Mean share of framed cells" in verdict_matrix(by_class)
    assert "notice above -2 to 2, reject above -1 to 3, by predicted class" in provenance([by_class])
