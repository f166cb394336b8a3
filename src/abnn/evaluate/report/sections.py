"""The sections of the page, in the order in which they are read. Each returns HTML, or "" where it has nothing to say."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from abnn.evaluate.evaluation import TIERS, Evaluation
from abnn.evaluate.report import figures
from abnn.evaluate.report.drawing import Drawing
from abnn.evaluate.report.markup import details, items, note, section, table, text
from abnn.evaluate.report.matrices import cluster_matrix, verdict_matrix
from abnn.evaluate.report.measure import Numbers
from abnn.evaluate.report.numbers import numbers_table, percent, rows_for
from abnn.evaluate.report.texts import (
    CALIBRATION,
    DETECTION,
    HEADLINE,
    MISTAKES,
    SELECTIVE,
    TIER_WORDS,
    VERDICT_WORDS,
    VERDICTS,
    accuracy_of,
)
from abnn.evaluate.report.verdicts import verdict_counts

Draw = Callable[[Sequence[Drawing]], str]
"""Puts figures into the page."""


def summary(evaluations: Sequence[Evaluation], numbers: Numbers) -> str:
    tiers = items(f"<span class='tier {tier}'>{tier}</span> {text(TIER_WORDS[tier])}" for tier in TIERS)
    interval = (
        "Small numbers are 95 % confidence intervals: how far the number could move with other test inputs of the same "
        f"kind ({numbers.resamples} bootstrap resamples). They do not cover training the model again."
    )
    if numbers.difference:
        first, second = (f"<em>{text(each.name)}</em>" for each in evaluations)
        interval += (
            f" The difference is {second} minus {first} on the same inputs; it is called better or worse only where its "
            "whole interval lies on one side of zero."
        )
    headline = numbers_table("The most important numbers", evaluations, numbers, rows_for(HEADLINE))
    missing = _missing(evaluations)
    return section(
        "summary",
        "In short",
        "<p>The model gives each input a <em>score</em>: the larger, the more uncertain. Inputs come in tiers, and a good "
        "score rises from one to the next:</p>",
        tiers,
        items(glance(evaluations, numbers), "glance"),
        headline,
        note(interval),
        note(missing) if missing else "",
    )


def glance(evaluations: Sequence[Evaluation], numbers: Numbers) -> list[str]:
    """The last model in a few sentences, beside the first where there are two."""
    evaluation, found = evaluations[-1], numbers.by_model[-1]

    def told(metric: str) -> str:
        share = percent(found[metric, ""].estimate)
        if len(evaluations) != 2 or (metric, "") not in numbers.by_model[0]:
            return share
        return f"{share} ({text(evaluations[0].name)}: {percent(numbers.by_model[0][metric, ''].estimate)})"

    name, lines = f"<strong>{text(evaluation.name)}</strong>", []
    if ("accuracy_id", "") in found:
        lines.append(f"{name} is right about {told('accuracy_id')} of the id inputs.")
    if ("auroc_id_full", "") in found:
        lines.append(
            f"Of one id and one full input, the full one gets the higher score in {told('auroc_id_full')} of cases."
        )
    if evaluation.thresholds is not None:
        shares = []
        for tier, verdict, word in (("id", 0, "accepts"), ("full", 2, "rejects")):
            if evaluation.tier(tier):
                counts = verdict_counts(evaluation, evaluation.tier(tier))
                shares.append(f"{word} {percent(counts[verdict] / counts.sum())} of the {tier} inputs")
        if shares:
            lines.append(f"With its two limits on the score it {' and '.join(shares)}.")
    return lines


def uncertainty(evaluations: Sequence[Evaluation], draw: Draw) -> str:
    limits = figures.score_limits(evaluations)
    return section(
        "uncertainty",
        "Uncertainty by tier",
        "<p>Each line shows the scores of one tier, sorted from the most certain input on the left to the most uncertain "
        "on the right. In a good picture the id line stays low, the full line is high and semi lies between them.</p>",
        draw([figures.ordered_uncertainty(each, limits[each.name]) for each in evaluations]),
        "<h3>Histograms</h3>\n<p>The same scores, counted: how many inputs of each tier get which score.</p>",
        draw([figures.histograms(each, limits[each.name]) for each in evaluations]),
    )


def triage(evaluations: Sequence[Evaluation], draw: Draw) -> str:
    """Verdicts where there are thresholds, and the partition that needs none."""
    with_limits = [each for each in evaluations if each.thresholds is not None]
    parts = []
    if with_limits:
        words = items(f'<span class="verdict {v}">{v}</span> {text(VERDICT_WORDS[v])}' for v in VERDICTS)
        parts.append("<p>Two limits on the score turn it into one of three verdicts:</p>" + words)
        parts.append(draw([figures.verdict_bars(each) for each in with_limits]))
        parts.append("<h3>Three-way confusion matrix</h3>")
        parts.append(
            "<p>Rows are the true tiers, columns the verdicts. Framed cells are the wanted ones: accept id, notice semi, "
            "reject full.</p>"
        )
        parts.append('<div class="panels">' + "\n".join(verdict_matrix(each) for each in with_limits) + "</div>")
    lacking = [text(each.name) for each in evaluations if each.thresholds is None]
    if lacking:
        parts.append(note(f"No limits were chosen for {', '.join(lacking)}, so there are no verdicts for it."))
    complete = [each for each in evaluations if all(each.tier(tier) for tier in TIERS)]
    if complete:
        matrices = "\n".join(cluster_matrix(each) for each in complete)
        parts.append(
            "<h3>Without limits: the best three groups</h3>\n<p>All scores together are cut into the three groups with the "
            "least squared spread, without looking at the tiers; then we see how well the groups match them. It depends "
            "on how many inputs each tier has.</p>"
        )
        parts.append(f'<div class="panels">{matrices}</div>')
    else:
        parts.append(note("The three groups need all three tiers, and some are missing here."))
    return section("triage", "Accept, notice, reject", *parts)


def detection(evaluations: Sequence[Evaluation], numbers: Numbers, draw: Draw) -> str:
    names = list(dict.fromkeys(s.name for e in evaluations if e.tier("id") for s in e.sets if s.tier != "id"))
    if not names:
        return section("detection", "Finding outliers", note("This needs an id set and at least one other set."))
    models = [each.name for each in evaluations]
    drawings, tables = [], []
    for name in names:
        pairs = [(e, s) for e in evaluations if e.tier("id") for s in e.sets if s.name == name and s.tier != "id"]
        drawings.append(figures.roc(name, pairs, models))
        inner = numbers_table(f"Telling {name} from id", evaluations, numbers, rows_for(DETECTION, name))
        tables.append(details(f"All numbers: id against {name}", inner))
    return section(
        "detection",
        "Finding outliers",
        "<p>If every input whose score lies above some limit is refused, how many outliers are caught, and how many "
        "ordinary inputs are refused with them? Each point of a curve is one limit.</p>",
        draw(drawings),
        *tables,
    )


def errors(evaluations: Sequence[Evaluation], numbers: Numbers, draw: Draw) -> str:
    """Misclassification and selective prediction."""
    models = [each.name for each in evaluations]
    labelled = [each for each in evaluations if each.tier("id") and all(s.labelled for s in each.tier("id"))]
    drawings = []
    if labelled:
        rows = [(e, e.scores("id"), np.concatenate([s.correct for s in e.tier("id")])) for e in labelled]
        caption = "id inputs only: the lower the line, the fewer mistakes among the answers that are given."
        drawings.append(figures.risk_over_coverage("id inputs only", rows, models, caption))
    mixed = [each for each in evaluations if len({s.tier for s in each.sets}) > 1]
    if mixed:
        every = [
            (e, np.concatenate([s.scores[e.score] for s in e.sets]), np.concatenate([s.correct for s in e.sets]))
            for e in mixed
        ]
        caption = "All sets together: an answer to an input that belongs to no class counts as wrong."
        drawings.append(figures.risk_over_coverage("all sets together", every, models, caption))
    without = [
        text(e.name) for e, found in zip(evaluations, numbers.by_model, strict=True) if (MISTAKES[0], "") not in found
    ]
    reason = "its id inputs have no labels, or its predictions on them are all right or all wrong"
    inner = numbers_table("Mistakes on id inputs", evaluations, numbers, rows_for((*MISTAKES, *SELECTIVE)))
    return section(
        "mistakes",
        "Finding mistakes",
        "<p>A useful score is also high where the model is wrong about an ordinary input. If only the most certain inputs "
        "are answered, the share of wrong answers should shrink towards the left.</p>",
        draw(drawings) if drawings else note("No set has labels, so mistakes cannot be counted."),
        details("All numbers: mistakes and selective prediction", inner) if inner else "",
        note(f"Right and wrong cannot be told apart for {', '.join(without)}: {reason}.") if without else "",
    )


def calibration(evaluations: Sequence[Evaluation], numbers: Numbers, draw: Draw) -> str:
    labelled = {each.name: [s for s in each.sets if s.labelled] for each in evaluations}
    names = list(dict.fromkeys(s.name for sets in labelled.values() for s in sets))
    if not names:
        return section("calibration", "Honest probabilities", note("This needs a set with labels."))
    tables = []
    for name in names:
        rows = [(accuracy_of(name), ("accuracy", name)), *rows_for(CALIBRATION, name)]
        tables.append(
            details(f"All numbers: {name}", numbers_table(f"Probabilities on {name}", evaluations, numbers, rows))
        )
    return section(
        "calibration",
        "Honest probabilities",
        "<p>When the model says 80 %, is it right 80 % of the time? Only sets whose inputs have a true class are "
        "counted.</p>",
        draw([figures.reliability_diagram(each, labelled[each.name]) for each in evaluations if labelled[each.name]]),
        *tables,
    )


def provenance(evaluations: Sequence[Evaluation]) -> str:
    """Which models, which data, and what was left out."""
    parts = []
    for each in evaluations:
        facts = [f"score: {text(each.score)}", f"seed: {text(each.seed)}"]
        if each.class_thresholds:
            notice, reject = zip(*each.class_thresholds)
            ends = f"notice above {min(notice):.4g} to {max(notice):.4g}, reject above {min(reject):.4g} to {max(reject):.4g}"
            facts.append(f"{ends}, by predicted class")
        elif each.thresholds is not None:
            facts.append(f"notice above {each.thresholds[0]:.4g}, reject above {each.thresholds[1]:.4g}")
        if each.seconds:
            facts.append("seconds: " + ", ".join(f"{text(k)} {v:.1f}" for k, v in sorted(each.seconds.items())))
        rows = [
            [
                text(s.name),
                f'<span class="tier {s.tier}">{s.tier}</span>',
                f"{len(s):,}",
                "yes" if s.labelled else "no" if (s.labels < 0).all() else "partly",
                f"{len(s.skipped):,}",
                f"<code>{text(s.data_hash[:12]) or '–'}</code>",
            ]
            for s in each.sets
        ]
        head = ["Set", "Tier", "Inputs", "Labelled", "Skipped", "SHA-256 begins"]
        parts.append(f"<h3>{text(each.name)}</h3>\n{items(facts)}")
        parts.append(table(f"Sets that {each.name} was shown", head, rows, "plain"))
        for s in each.sets:
            if s.skipped:
                listed = items((text(line) for line in s.skipped), "skipped")
                parts.append(
                    details(f"{len(s.skipped):,} inputs of {s.name} could not be read and were skipped", listed)
                )
        if each.config:
            config = json.dumps(each.config, indent=2, sort_keys=True, ensure_ascii=False)
            parts.append(details(f"Configuration of {each.name}", f'<pre tabindex="0">{text(config)}</pre>'))
    return section("provenance", "Models and data", *parts)


def _missing(evaluations: Sequence[Evaluation]) -> str:
    lines = []
    for each in evaluations:
        absent = [tier for tier in TIERS if not each.tier(tier)]
        if absent:
            lines.append(f"{text(each.name)} was shown no {' and no '.join(absent)} inputs")
    return f"{'; '.join(lines)}. Numbers and figures that need them are left out." if lines else ""
