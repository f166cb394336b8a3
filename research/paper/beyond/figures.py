"""Figures of the measurements: detection over severity, quality over the number of draws and over corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from abnn.evaluate.report.drawing import (
    PALETTE,
    PERCENT,
    Drawing,
    Look,
    model_look,
    new_figure,
    set_title,
    style,
    svg_file,
)
from abnn.files import write_bytes
from research.paper.beyond.comparisons import OURS, PLAIN, counted_columns, counts_of, headed
from research.paper.beyond.corruptions import CORRUPTIONS
from research.paper.beyond.parts import GENERATORS, SEVERITIES, STRENGTHS
from research.paper.beyond.run import TASKS, Measured
from research.paper.figures import legend

LOOKS: dict[str, Look] = {PLAIN: model_look(0), OURS: model_look(1)}
NAMES = {PLAIN: "plain network", OURS: "abnn, our default"}
DOTTED = (0, (1.2, 1.2))
SPAN = 0.01
"""The least height of an axis of shares: what is smaller should look small."""


def write_figures(measured: Measured, folder: Path) -> dict[str, list[Drawing]]:
    """Write the figures that have records, as SVG, and return them by the part they belong to."""
    with style():
        drawings = {
            "severity": [severity(measured, task) for task in TASKS if measured.of(task, "severity")],
            "draws": [draws(measured, task) for task in TASKS[:1] if measured.of(task, "draws")],
            "corrupted": [corrupted(measured, task) for task in TASKS[:1] if measured.of(task, "corrupted")],
        }
        for drawing in (each for part in drawings.values() for each in part):
            write_bytes(folder / f"{drawing.name}.svg", svg_file(drawing))
    return drawings


def severity(measured: Measured, task: str) -> Drawing:
    """One panel for each generator: AUROC against unchanged inputs, and accuracy, over severity."""
    figure, told = new_figure(9.2, 5.2), []
    for number, kind in enumerate(GENERATORS):
        axes = figure.add_subplot(2, 3, number + 1)
        set_title(axes, kind)
        for model, (colour, line) in LOOKS.items():
            detected = measured.mean(task, "severity", model, kind, "auroc")
            axes.plot(SEVERITIES, detected, color=colour, linestyle=line)
            axes.plot(
                SEVERITIES, measured.mean(task, "severity", model, kind, "accuracy"), color=colour, linestyle=DOTTED
            )
            told.append(f"{kind}, {NAMES[model]}: {detected[len(SEVERITIES) // 2]:.2f}")
        _finish(axes, "severity" if number >= 3 else None, (0, 0.5, 1))
    rows = [*_rows("AUROC"), *((f"{NAMES[model]}: accuracy", (LOOKS[model][0], DOTTED)) for model in LOOKS)]
    legend(figure, dict(rows), 2)  # four long names do not fit into a line
    alt = f"AUROC against unchanged inputs and accuracy over severity, one panel for each generator. AUROC at severity 0.5. {'; '.join(told)}."
    caption = (
        f"{task.upper()}: AUROC of changed against unchanged test inputs, and accuracy on the changed ones, over the severity "
        "of each generator; mean over seeds."
    )
    return Drawing(f"beyond-severity-{task}", alt, caption, figure)


def draws(measured: Measured, task: str) -> Drawing:
    """Accuracy, NLL and AUROCs over the number of draws, with the plain network as dotted lines."""
    figure, told = new_figure(9.2, 3.2), []
    sets = [name for name in counted_columns(measured, task, "draws") if name.startswith("auroc ")]
    counts = counts_of(measured, task, "draws", OURS)
    panels: dict[str, list[str]] = {"accuracy": ["accuracy"], "NLL": ["nll"], "AUROC": sets}
    colours = dict(zip(sets, (PALETTE[name] for name in ("vermillion", "orange", "blue")), strict=False))
    for number, (title, names) in enumerate(panels.items()):
        axes = figure.add_subplot(1, 3, number + 1)
        set_title(axes, title)
        drawn: list[float] = []
        for name in names:
            colour = colours.get(name, PALETTE["ink"])
            values, plain = (measured.mean(task, "draws", model, name) for model in (OURS, PLAIN))
            axes.plot(counts, values, color=colour, marker="o", markersize=3.5)
            axes.axhline(plain[0], color=colour, linestyle=DOTTED)
            drawn += [*values, plain[0]]
            told.append(
                f"{headed(name)}: {values[0]:.4f} with {counts[0] or 'mean weights'}, {values[-1]:.4f} with {counts[-1]}"
            )
        if counts[0]:
            axes.set_xscale("log")
        else:
            axes.set_xscale("symlog", linthresh=1)
        axes.set(xticks=counts, xticklabels=[str(count or "mean") for count in counts], xlabel="draws")
        axes.minorticks_off()
        if title != "NLL":
            height = max(drawn) - min(drawn)
            room = max(SPAN - height, 0.1 * height) / 2
            axes.set_ylim(min(drawn) - room, max(drawn) + room)
            axes.yaxis.set_major_formatter(PERCENT)
    rows: list[tuple[str, Look]] = [(headed(name), (colour, "-")) for name, colour in colours.items()]
    legend(figure, {NAMES[OURS]: (PALETTE["ink"], "-"), NAMES[PLAIN]: (PALETTE["ink"], DOTTED), **dict(rows)})
    alt = f"{task.upper()} over the number of draws. {'; '.join(told)}."
    caption = (
        f"{task.upper()}: quality and detection over the number of draws; mean over seeds. Dotted: the plain network."
    )
    return Drawing(f"beyond-draws-{task}", alt, caption, figure)


def corrupted(measured: Measured, task: str) -> Drawing:
    """One panel for each corruption: accuracy and mean confidence, which should be the same."""
    figure, told = new_figure(9.2, 5.2), []
    strengths = (0, *STRENGTHS)
    for number, kind in enumerate(CORRUPTIONS):
        axes = figure.add_subplot(2, 4, number + 1)
        set_title(axes, kind)
        for model, (colour, line) in LOOKS.items():
            right, sure = (measured.mean(task, "corrupted", model, kind, name) for name in ("accuracy", "confidence"))
            axes.plot(strengths, right, color=colour, linestyle=line)
            axes.plot(strengths, sure, color=colour, linestyle=DOTTED)
            told.append(f"{kind}, {NAMES[model]}: accuracy {right[-1]:.2f}, confidence {sure[-1]:.2f}")
        _finish(axes, "strength" if number >= 4 else None, strengths)
    dotted = {f"{NAMES[model]}: confidence": (LOOKS[model][0], DOTTED) for model in LOOKS}
    legend(figure, {**dict(_rows("accuracy")), **dotted}, 2)
    alt = f"Accuracy and mean confidence over the strength of corruptions. At the strongest. {'; '.join(told)}."
    caption = (
        f"{task.upper()}: accuracy and mean confidence over the strength of each corruption; mean over seeds. Where confidence is "
        "above accuracy, a network is too sure; where it is below, not sure enough."
    )
    return Drawing(f"beyond-corrupted-{task}", alt, caption, figure)


def _finish(axes: Axes, label: str | None, ticks: Sequence[float]) -> None:
    axes.set(xlabel=label, xticks=ticks, ylim=(-0.02, 1.03), yticks=(0, 0.5, 1))
    axes.yaxis.set_major_formatter(PERCENT)


def _rows(what: str) -> list[tuple[str, Look]]:
    return [(f"{NAMES[model]}: {what}", look) for model, look in LOOKS.items()]
