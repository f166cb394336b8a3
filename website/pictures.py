"""Draw the pictures of the concept pages: `python -m website.pictures`. Scores are those of the record of `abnn demo`, seed 0."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from abnn.data.digits import load_digits

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "concepts"
GREEN, AMBER, RED, INK, GREY = "#2e7d32", "#b26a00", "#b3261e", "#22223a", "#8a8fa3"
TIERS = (
    ("id", "handwritten: like the training data", GREEN),
    ("semi", "printed: unusual, can still be read", AMBER),
    ("full", "photographs: nothing to read", RED),
)
plt.rcParams |= {"svg.hashsalt": "abnn", "svg.fonttype": "path", "font.size": 11, "text.color": INK}
plt.rcParams |= {"axes.edgecolor": GREY, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}


def save(figure: Any, name: str) -> None:
    figure.savefig(FOLDER / f"{name}.svg", facecolor="white", bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def demo_scores() -> tuple[dict[str, np.ndarray], float, float]:
    """Return the recorded scores of each tier, and the two thresholds."""
    folder = ROOT / "results" / "demo"
    record = json.loads((folder / "attached-network-seed0.json").read_text())
    arrays = np.load(folder / record["arrays_file"])
    scores = {
        each["tier"]: arrays[f"{index}/scores"][each["scores"].index(record["score"])]
        for index, each in enumerate(record["sets"])
    }
    return scores, *record["thresholds"]


def draw_tiers() -> None:
    data = load_digits(0)
    figure, rows = plt.subplots(3, 8, figsize=(7.4, 3.6))
    for (tier, title, color), part, axes in zip(TIERS, (data.test, data.semi, data.full), rows, strict=True):
        for index, axis in enumerate(axes):
            axis.imshow(part.x[index * (len(part.x) // 8), 0], cmap="gray", vmin=0, vmax=1)
            axis.set(xticks=[], yticks=[])
        axes[0].set_title(f"{tier}   {title}", loc="left", color=color, fontweight="bold")
    figure.subplots_adjust(hspace=0.45, wspace=0.15)
    save(figure, "tier")


def draw_scores() -> None:
    scores, _, _ = demo_scores()
    figure, axis = plt.subplots(figsize=(7.4, 2.7))
    shift = np.random.default_rng(0)
    for row, (tier, _, color) in enumerate(TIERS):
        values = np.clip(scores[tier][::3], None, 16)
        axis.scatter(values, -row + shift.uniform(-0.28, 0.28, len(values)), s=5, color=color, alpha=0.5, linewidths=0)
    axis.set(yticks=[0, -1, -2], yticklabels=[tier for tier, _, _ in TIERS])
    axis.set_xlabel("score: further right = more uncertain (every third input; 16 and more drawn at 16)")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    save(figure, "score")


def draw_verdicts() -> None:
    scores, notice, reject = demo_scores()
    low, high = -6.0, 12.0
    figure, axis = plt.subplots(figsize=(7.4, 2.1))
    zones = ((low, notice, GREEN, "accept", "use it"), (notice, reject, AMBER, "notice", "warn"))
    for start, end, color, verdict, act in (*zones, (reject, high, RED, "reject", "do not use it")):
        axis.axvspan(start, end, color=color, alpha=0.16, linewidth=0)
        axis.text((start + end) / 2, 1.28, verdict, ha="center", color=color, fontweight="bold")
        axis.text((start + end) / 2, 1.08, act, ha="center", color=color, fontsize=9)
    for row, (tier, _, color) in enumerate(TIERS):
        values = scores[tier]
        values = values[(values > low) & (values < high)][::20][:24]
        axis.scatter(values, np.full(len(values), 0.75 - 0.25 * row), s=16, color=color)
        axis.text(low - 0.3, 0.75 - 0.25 * row, tier, ha="right", va="center", color=color)
    for value, name in ((notice, "notice"), (reject, "reject")):
        axis.axvline(value, color=INK, linewidth=1.2)
        axis.text(value, -0.02, f"{name}\nthreshold", ha="center", va="top", fontsize=9)
    axis.set(xlim=(low, high), ylim=(0, 1.5), yticks=[], xticks=[])
    axis.spines[:].set_visible(False)
    save(figure, "verdict")


def draw_promise() -> None:
    values = np.concatenate([0.4 + 5 * np.linspace(0, 1, 37) ** 1.4, [6.6, 9.2]])
    figure, axis = plt.subplots(figsize=(7.4, 1.9))
    threshold = values[37] + 0.12
    axis.axvspan(0, threshold, color=GREEN, alpha=0.13, linewidth=0)
    axis.axvspan(threshold, 12, color=AMBER, alpha=0.16, linewidth=0)
    axis.scatter(values, np.zeros(39), s=46, color=INK, zorder=3)
    axis.axvline(threshold, color=INK)
    axis.text(threshold, 0.97, "threshold", ha="center")
    axis.text(threshold / 2, 0.62, "38 of 39 good inputs", ha="center", color=GREEN, fontweight="bold")
    axis.text((threshold + 12) / 2, 0.62, "1 of 39", ha="center", color=AMBER, fontweight="bold")
    gaps = "40 gaps are equally likely for the next good input; 2 of them are beyond: 5 %"
    axis.text(6, -0.62, gaps, ha="center", fontsize=10)
    axis.set(xlim=(0, 12), ylim=(-0.8, 0.9), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    save(figure, "promise")


def _box(axis: Any, place: tuple[float, float], size: tuple[float, float], text: str, color: str) -> None:
    style = FancyBboxPatch(
        place, *size, boxstyle="round,pad=0.02,rounding_size=0.08", facecolor=f"{color}22", edgecolor=color
    )
    axis.add_patch(style)
    axis.text(place[0] + size[0] / 2, place[1] + size[1] / 2, text, ha="center", va="center", color=color, fontsize=10)


def _arrow(axis: Any, start: tuple[float, float], end: tuple[float, float], color: str = INK) -> None:
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=color, shrinkA=0, shrinkB=0))


def draw_attachments() -> None:
    figure, axis = plt.subplots(figsize=(7.4, 2.9))
    for index, text in enumerate(("block 1", "block 2", "block 3", "last layer")):
        _box(axis, (0.9 + 1.75 * index, 1.5), (1.15, 0.55), text, INK)
        _arrow(axis, (0.3 + 1.75 * index, 1.78), (0.9 + 1.75 * index, 1.78))
    axis.text(0.15, 1.78, "x", ha="center", va="center", fontsize=12)
    _arrow(axis, (7.3, 1.78), (7.8, 1.78))
    axis.text(7.85, 1.78, "prediction", va="center")
    for index in (1, 2):
        left = 2.35 + 1.75 * index - 0.62
        _box(axis, (left, 2.45), (1.25, 0.5), "attachment", AMBER)
        _arrow(axis, (left + 0.47, 1.78), (left + 0.47, 2.45), AMBER)
        _arrow(axis, (left + 0.78, 2.45), (left + 0.78, 1.78), AMBER)
    for index, name in enumerate(("input", "block 1", "block 2", "block 3")):
        middle = 0.6 + 1.75 * index if index else 0.45
        _arrow(axis, (middle, 1.72), (middle, 0.95), GREY)
        axis.text(middle, 0.78, f"how unusual\nat {name}?", ha="center", va="top", fontsize=8.5, color=GREY)
    axis.text(0.1, 2.7, "the network: frozen", color=INK, va="center")
    axis.text(6.7, 2.7, "adds at most half\nof what its block says", color=AMBER, va="center", fontsize=9)
    axis.set(xlim=(0, 8.9), ylim=(0.2, 3.1), xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    save(figure, "attachment")


if __name__ == "__main__":
    for draw in (draw_tiers, draw_scores, draw_verdicts, draw_promise, draw_attachments):
        draw()
