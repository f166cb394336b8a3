"""The figures of the page, each a pure function of evaluations; what is said about them stands in ``figures.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from abnn.decisions import VERDICTS
from abnn.evaluate.evaluation import TIERS, Evaluation, SetResult
from abnn.evaluate.records import slug
from abnn.evaluate.report import drawing
from abnn.evaluate.report.drawing import PERCENT, TIER_LOOK, Drawing, Limits, short
from abnn.metrics import auroc, reliability, risk_coverage, roc_curve, selective

BINS = 30
UNIT = "1: limit of notice"  # what scores of different kinds are shown in
MOST_POINTS = 300
FEW_INPUTS = 10
TEXTS = json.loads(files("abnn.evaluate.report").joinpath("figures.json").read_text(encoding="utf-8"))


def score_limits(evaluations: Sequence[Evaluation]) -> dict[str, Limits]:
    """Return limits by model name; models with the same score share theirs, so that panels can be compared."""
    pooled: dict[str, list[np.ndarray]] = {}
    for each in evaluations:
        pooled.setdefault(each.score, []).extend(result.scores[each.score] for result in each.sets)
    limits = {score: _limits(np.concatenate(parts)) for score, parts in pooled.items()}
    return {each.name: limits[each.score] for each in evaluations}


def on_one_scale(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Return models of different scores in one unit: 0 is the median of id inputs, 1 the limit of notice.

    Models that share a score stay as they are, and all do where one has no limits or no id inputs.
    """
    limits = [each.thresholds for each in evaluations]
    known = all(each.tier("id") for each in evaluations) and all(each and np.isfinite(each[0]) for each in limits)
    if len({each.score for each in evaluations}) == 1 or not known:
        return list(evaluations)
    return [_rescaled(each) for each in evaluations]


def _rescaled(evaluation: Evaluation) -> Evaluation:
    assert evaluation.thresholds is not None
    zero, one = float(np.median(evaluation.scores("id"))), evaluation.thresholds[0]
    unit = one - zero if one > zero else 1.0
    sets = [replace(each, scores={UNIT: (each.scores[evaluation.score] - zero) / unit}) for each in evaluation.sets]
    limits = (np.array([evaluation.thresholds, *evaluation.class_thresholds]) - zero) / unit
    own, *by_class = map(tuple, limits.tolist())
    return replace(evaluation, score=UNIT, sets=tuple(sets), thresholds=own, class_thresholds=tuple(by_class))


def share_height(drawings: Sequence[Drawing]) -> list[Drawing]:
    """Give figures that are compared the same height of their axis, and return them."""
    top = max((each.figure.axes[0].get_ylim()[1] for each in drawings), default=1.0)
    for each in drawings:
        each.figure.axes[0].set_ylim(0, top)
    return list(drawings)


def ordered_uncertainty(evaluation: Evaluation, limits: Limits) -> Drawing:
    """Return the paper's figure: the scores of each tier in rising order over their place in that order."""
    figure, axes = _panel(evaluation.name)
    medians = []
    for tier in evaluation.tiers:
        scores = np.sort(evaluation.scores(tier))
        keep = _thinned(len(scores))
        colour, line = TIER_LOOK[tier]
        axes.plot((keep + 0.5) / len(scores), scores[keep], color=colour, linestyle=line)
        medians.append(f"{tier} {np.median(scores):.3g}")
    axes.set(xlim=(0, 1), ylim=_padded(limits), xlabel="inputs of the tier, most certain first")
    axes.set_ylabel(_score_label(evaluation))
    axes.xaxis.set_major_formatter(PERCENT)
    drawing.draw_thresholds(axes, evaluation, "y", limits)
    drawing.tier_legend(figure, evaluation, evaluation.tiers)
    return _drawing("ordered-uncertainty", evaluation.name, ", ".join(medians), figure)


def histograms(evaluation: Evaluation, limits: Limits) -> Drawing:
    """Return the share of each tier's inputs in equal bins of the score; outer bins have what is beyond the limits."""
    figure, axes = _panel(evaluation.name, pad=18 if evaluation.thresholds else 6)
    edges = np.linspace(*limits, BINS + 1)
    peaks = []
    for tier in evaluation.tiers:
        scores = np.clip(evaluation.scores(tier).astype(np.float64), *limits)  # float32 could round past a limit
        share = np.histogram(scores, edges)[0] / len(scores)
        colour, line = TIER_LOOK[tier]
        axes.stairs(share, edges, color=colour, fill=True, alpha=0.18, linewidth=0)
        axes.stairs(share, edges, color=colour, linestyle=line, linewidth=1.6)
        top = int(np.argmax(share))
        peaks.append(f"{tier} {share[top]:.0%} between {edges[top]:.3g} and {edges[top + 1]:.3g}")
    axes.set(xlim=_padded(limits), ylabel="share of the tier", xlabel=_score_label(evaluation))
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(PERCENT)
    drawing.draw_thresholds(axes, evaluation, "x", limits)
    drawing.tier_legend(figure, evaluation, evaluation.tiers)
    return _drawing("histogram", evaluation.name, "; ".join(peaks), figure)


def roc(name: str, pairs: Sequence[tuple[Evaluation, SetResult]], models: Sequence[str]) -> Drawing:
    """Return ROC curves of one outlier set against the id tier, one line per model; OOD is positive."""
    figure, axes = _panel(f"id against {name}")
    drawing.draw_diagonal(axes)
    scores = {each.name: (each.scores("id"), result.scores[each.score]) for each, result in pairs}
    curves = {model: roc_curve(*each) for model, each in scores.items()}
    areas = {model: auroc(*each) for model, each in scores.items()}
    axes.set(xlabel="id inputs refused (false alarms)", ylabel="outliers caught")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    _draw_curves(figure, {model: (each.fpr, each.tpr) for model, each in curves.items()}, areas, "AUROC", models)
    return _drawing("roc", name, ", ".join(f"{model} {area:.1%}" for model, area in areas.items()), figure)


def risk_over_coverage(
    name: str, rows: Sequence[tuple[Evaluation, Sequence[SetResult]]], models: Sequence[str], about: str
) -> Drawing:
    """Return the share of wrong answers among the most certain inputs of each model's sets, one line per model."""
    figure, axes = _panel(name)
    curves, areas = {}, {}
    for each, sets in rows:
        scores = np.concatenate([result.scores[each.score] for result in sets])
        correct = np.concatenate([result.correct for result in sets])
        curves[each.name], areas[each.name] = risk_coverage(scores, correct), selective(scores, correct).aurc
    _draw_curves(figure, {model: (each.coverage, each.risk) for model, each in curves.items()}, areas, "AURC", models)
    axes.set(xlabel="inputs answered, most certain first", ylabel="wrong answers among them", xlim=(0, 1))
    axes.set_ylim(bottom=0)
    facts = [f"{m} {area:.1%}, all answered {curves[m].risk[-1]:.1%} wrong" for m, area in areas.items()]
    return _drawing("risk-coverage", name, "; ".join(facts), figure, about)


def reliability_diagram(evaluation: Evaluation, sets: Sequence[SetResult]) -> Drawing:
    """Return how often predictions are right, over the probability that they state; marks grow with inputs in a bin."""
    figure, axes = _panel(evaluation.name)
    drawing.draw_diagonal(axes)
    tiers = [tier for tier in TIERS if any(each.tier == tier for each in sets)]
    gaps = []
    for tier in tiers:
        parts = [each for each in sets if each.tier == tier]
        confidence = np.concatenate([np.clip(each.probs.max(axis=1), 0, 1) for each in parts])
        diagram = reliability(confidence, np.concatenate([each.correct for each in parts]))
        colour, line = TIER_LOOK[tier]
        many = diagram.count >= FEW_INPUTS
        sizes = 14 + 130 * diagram.count / diagram.count.sum()
        axes.plot(diagram.confidence[many], diagram.accuracy[many], color=colour, linestyle=line, linewidth=1.3)
        axes.scatter(diagram.confidence[many], diagram.accuracy[many], s=sizes[many], color=colour, zorder=3)
        axes.scatter(diagram.confidence[~many], diagram.accuracy[~many], s=14, facecolors="none", edgecolors=colour)
        gaps.append(f"{tier} {diagram.calibration_error:.1%}")
    axes.set(xlabel="stated probability", ylabel="actually right", xlim=(-0.02, 1.02), ylim=(-0.03, 1.05))
    drawing.percent_axes(axes)
    drawing.tier_legend(figure, evaluation, tiers)
    return _drawing("reliability", evaluation.name, ", ".join(gaps), figure)


def verdict_bars(evaluation: Evaluation) -> Drawing:
    """Return one bar per set, divided by verdict."""
    names, rows = [each.name for each in evaluation.sets], np.arange(len(evaluation.sets))
    shares = np.array([np.bincount(evaluation.levels(s), minlength=3) / len(s) for s in evaluation.sets])
    figure, axes = _panel(evaluation.name, height=0.95 + 0.5 * len(shares))
    left = np.zeros(len(shares))
    for number, verdict in enumerate(VERDICTS):
        width, colour = shares[:, number], drawing.VERDICT_COLOURS[verdict]
        axes.barh(rows, width, left=left, height=0.66, color=colour, alpha=0.3, label=verdict)
        axes.barh(rows, width, left=left, height=0.66, color="none", edgecolor=colour, linewidth=1.1)
        for row, share in enumerate(width):
            if share >= 0.13:
                axes.text(left[row] + share / 2, row, f"{share:.0%}".replace("%", " %"), ha="center", va="center")
        left += width
    axes.set_yticks(rows, [short(name, 22) for name in names])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PERCENT)
    axes.grid(visible=False)
    axes.tick_params(left=False)
    figure.legend(loc="outside lower center", ncols=3)
    parts = [f"{name}: " + ", ".join(f"{v} {s:.0%}" for v, s in zip(VERDICTS, row)) for name, row in zip(names, shares)]
    return _drawing("verdicts", evaluation.name, "; ".join(parts), figure)


def _panel(title: str, pad: float = 6, height: float = 3.0) -> tuple[Figure, Axes]:
    figure = drawing.new_figure(height=height)
    axes = figure.add_subplot()
    drawing.set_title(axes, title, pad)
    return figure, axes


def _drawing(kind: str, name: str, facts: str, figure: Figure, about: str = "") -> Drawing:
    words = {"name": name, "facts": facts, "about": about, "few": FEW_INPUTS}
    alt, caption = (TEXTS[kind][key].format(**words) for key in ("alt", "caption"))
    return Drawing(f"{kind}-{slug(name)[:40]}", alt, caption, figure)


def _draw_curves(
    figure: Figure,
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    areas: Mapping[str, float],
    word: str,
    models: Sequence[str],
) -> None:
    """One line for each model, with its area in the legend."""
    axes, labels = figure.axes[0], []
    for model, (x, y) in curves.items():
        keep, look = _thinned(len(x)), drawing.model_look(models.index(model))
        axes.plot(x[keep], y[keep], color=look[0], linestyle=look[1])
        labels.append((look, f"{short(model, 40)}: {word} {100 * areas[model]:.1f} %"))
    drawing.percent_axes(axes)
    drawing.add_legend(figure, labels)


def _score_label(evaluation: Evaluation) -> str:
    return f"uncertainty score ({short(evaluation.score, 40)})"


def _limits(scores: np.ndarray) -> Limits:
    """Return the least score and the 99.8 % quantile, so that a few extremes do not press all others into a corner."""
    low, high = float(scores.min()), float(np.quantile(scores, 0.998))
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _padded(limits: Limits) -> Limits:
    pad = 0.02 * (limits[1] - limits[0])
    return limits[0] - pad, limits[1] + pad


def _thinned(count: int) -> np.ndarray:
    """Return the places of at most MOST_POINTS points, first and last among them: more would only swell the page."""
    return np.unique(np.linspace(0, count - 1, min(count, MOST_POINTS)).round().astype(np.int64))
