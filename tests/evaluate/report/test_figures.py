"""Figures show the data they are given, look the same for the same input, and take any name."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from abnn import metrics
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import figures
from abnn.evaluate.report.drawing import PALETTE, inline, png_file, style, svg_file

from .samples import make_evaluation, make_pair, make_set


def test_ordered_uncertainty_draws_the_sorted_scores_over_normalised_places() -> None:
    evaluation = make_evaluation(size=150)
    with style():
        axes = figures.ordered_uncertainty(evaluation, (0, 1)).figure.axes[0]
    lines = axes.get_lines()[:3]
    for tier, line in zip(("id", "semi", "full"), lines, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), np.sort(evaluation.scores(tier)))
        np.testing.assert_allclose(line.get_xdata(), (np.arange(150) + 0.5) / 150)
    colours, styles = zip(*figures.TIER_LOOK.values(), strict=True)
    assert [line.get_color() for line in lines] == list(colours)
    assert len(set(colours)) == len(set(styles)) == 3


def test_many_points_are_thinned_between_first_and_last() -> None:
    evaluation = make_evaluation(size=5000)
    with style():
        line = figures.ordered_uncertainty(evaluation, (0, 1)).figure.axes[0].get_lines()[0]
    scores = evaluation.scores("id")
    assert len(line.get_ydata()) == figures.MOST_POINTS
    assert (line.get_ydata()[0], line.get_ydata()[-1]) == (scores.min(), scores.max())


def test_histograms_count_every_input_even_beyond_the_limits() -> None:
    evaluation = make_evaluation()
    with style():
        axes = figures.histograms(evaluation, (0.2, 0.6)).figure.axes[0]
    shares = [patch.get_data().values.sum() for patch in axes.patches]
    np.testing.assert_allclose(shares, 1)


def test_models_share_limits_only_with_the_same_score() -> None:
    first, second = make_pair()
    limits = figures.score_limits([first, second])
    assert limits[first.name] == limits[second.name]
    stretched = tuple(replace(s, scores={"distance": 100 * s.scores["entropy"]}) for s in second.sets)
    limits = figures.score_limits([first, replace(second, score="distance", sets=stretched)])
    assert limits[second.name][1] > 10 * limits[first.name][1]


def test_constant_scores_can_be_drawn() -> None:
    result = make_set("handwritten", "id", (1, 1))
    constant = Evaluation("constant", "entropy", (replace(result, scores={"entropy": np.zeros(120, np.float32)}),))
    limits = figures.score_limits([constant])["constant"]
    assert limits[0] < 0 < limits[1]
    with style():
        assert "<svg" in inline(figures.histograms(constant, limits), 1)


def test_verdict_bars_have_the_lengths_of_the_confusion_matrix() -> None:
    evaluation = make_evaluation()
    assert evaluation.thresholds is not None
    low, middle, high = (evaluation.scores(tier) for tier in ("id", "semi", "full"))
    confusion = metrics.tier_confusion(low, middle, high, metrics.TierThresholds(*evaluation.thresholds))
    with style():
        axes = figures.verdict_bars(evaluation).figure.axes[0]
    filled = [bar.get_width() for bar in axes.patches if bar.get_facecolor()[3] > 0]
    np.testing.assert_allclose(np.reshape(filled, (3, 3)).T, np.array(confusion.matrix) / 120)


@pytest.mark.parametrize(
    "name", ["$x_1$ costs $", "_hidden", "<b>&\"'", "\x00\x1f\ud800", "数字", "\\frac", "a" * 300, ""]
)
def test_any_name_can_be_drawn(name: str) -> None:
    evaluation = replace(make_evaluation(tiers=("id", "full")), name=name)
    sets = (evaluation.sets[0], replace(evaluation.sets[1], name=name))
    evaluation = replace(evaluation, sets=sets)
    with style():
        drawings = [
            figures.ordered_uncertainty(evaluation, (0, 1)),
            figures.verdict_bars(evaluation),
            figures.roc(name, [(evaluation, sets[1])], [name]),
        ]
        for drawing in drawings:
            element = inline(drawing, 1)
            element.encode()
            assert "<b>" not in element
            assert re.fullmatch(r"[a-z0-9-]+", drawing.name)
        assert png_file(drawings[0]).startswith(b"\x89PNG")


def test_name_with_underscore_or_dollar_stands_in_the_legend() -> None:
    evaluation = replace(make_evaluation(), name="_a $b$")
    with style():
        figure = figures.roc("photographs", [(evaluation, evaluation.sets[2])], ["_a $b$"]).figure
    assert figure.legends[0].get_texts()[0].get_text().startswith("_a $b$: AUROC")


def test_files_are_reproducible_and_carry_no_date() -> None:
    def render() -> tuple[bytes, bytes]:
        with style():
            drawing = figures.ordered_uncertainty(make_evaluation(), (0, 1))
            return svg_file(drawing), png_file(drawing)

    first, second = render(), render()
    assert first == second
    assert b"<dc:date>" not in first[0]


def test_inline_figures_use_variables_and_ids_of_their_own() -> None:
    with style():
        drawing = figures.histograms(make_evaluation(), (0, 1))
        one, two = inline(drawing, 1), inline(drawing, 2)
    assert "var(--blue)" in one and not any(colour in one for colour in PALETTE.values())
    ids = [set(re.findall(r'\bid="([^"]+)"', each)) for each in (one, two)]
    assert ids[0] and not ids[0] & ids[1]
    for each, own in zip((one, two), ids, strict=True):
        assert set(re.findall(r'(?:url\(#|href="#)([^")]+)', each)) <= own


def test_style_leaves_the_users_settings_alone() -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 33, "lines.linewidth": 9}):
        with style():
            assert matplotlib.rcParams["font.size"] != 33
        assert matplotlib.rcParams["font.size"] == 33
