"""The records of ``benchmarks/speed.py`` as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bars
from timing import ratio

REFERENCES = (bars.OURS, bars.ONE_SEED, bars.PLAIN_GRAPH, bars.PLAIN)


def tables(record: Mapping[str, Any]) -> dict[str, str]:
    """A table for each group that was measured, and one for the bars of all."""
    made = {name: _group(name, group) for name, group in record["groups"].items() if "error" not in group}
    judged = {name: group["bars"] for name, group in record["groups"].items() if group.get("bars")}
    return {**made, **({"bars": _bars(judged)} if judged else {})}


def update_page(page: Path, record: Mapping[str, Any]) -> None:
    """Put every table between its markers ``speed DEVICE GROUP``."""
    from research.tables import update_between_markers

    for name, table in tables(record).items():
        update_between_markers(page, f"speed {record['device']} {name}", table)


def _group(name: str, group: Mapping[str, Any]) -> str:
    parts = _curves(group) if "curves" in group else [_rows(group["rows"])]
    left_out = {**group["left_out"], **group["failed"]}
    if left_out:
        parts.append("Left out: " + "; ".join(f"{each} ({why})" for each, why in left_out.items()))
    checks = group.get("checks", {})
    if checks:
        largest = max(checks.values(), key=lambda each: each["value"] / each["most"])
        wrong = [each for each, result in checks.items() if not result["agrees"]]
        verdict = f"**These results do not agree: {', '.join(wrong)}.**" if wrong else "All results agree"
        parts.append(f"{verdict} (largest difference {largest['value']:.1g} in total variation).")
    return "\n\n".join([*parts, _measured(name, group)])


def _rows(rows: Mapping[str, Any]) -> str:
    reference = next((name for name in REFERENCES if name in rows), next(iter(rows), ""))
    lines = [f"| | median | quartiles | times {reference} |", "|---|---:|---:|---:|"]
    for name, each in sorted(rows.items(), key=lambda item: item[1]["median"]):
        low, high = map(number, each["quartiles"])
        times = number(ratio(each, rows[reference])["ratio"])
        lines.append(f"| {name} | {quantity(each['median'], each['unit'])} | {low} to {high} | {times} |")
    return "\n".join(lines)


def _curves(group: Mapping[str, Any]) -> list[str]:
    parts = []
    for curve, points in group["curves"].items():
        names = list(dict.fromkeys(name for point in points for name in point["rows"]))
        lines = [f"| {curve} | {' | '.join(names)} |", "|---:" * (len(names) + 1) + "|"]
        for point in points:
            rows = point["rows"]
            cells = [quantity(rows[name]["median"], rows[name]["unit"]) if name in rows else "" for name in names]
            lines.append(f"| {point['at']} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return parts


def _bars(judged: Mapping[str, list[Mapping[str, Any]]]) -> str:
    lines = [
        "| group | time (memory) of | over that of | ratio | quartiles | wanted | |",
        "|---|---|---|---:|---:|---|---|",
    ]
    for group, each in judged.items():
        for bar in each:
            wanted = f"at least {bar['least']:g}" if bar["least"] is not None else f"at most {bar['most']:g}"
            low, high = map(number, bar["quartiles"])
            met = {True: "met", False: "**not met**", None: "not these sizes"}[bar["met"]]
            lines.append(
                f"| {group} | {bar['above']} | {bar['below']} | {number(bar['ratio'])} | {low} to {high} | {wanted} | {met} |"
            )
    return "\n".join(lines)


def _measured(name: str, group: Mapping[str, Any]) -> str:
    machine, versions, sizes = group["machine"], group["versions"], group["sizes"]
    where = machine["gpu"] or f"{machine['threads']} of {machine['cores']} cores ({machine['processor']})"
    size = f"{sizes['pixels']}x{sizes['pixels']}, batch {sizes['batch']}"
    if name == "prediction":
        size = f"{size}, {sizes['draws']} draws"
    elif name == "seeds":
        size = f"{size}, {sizes['seeds']} seeds"
    elif name == "resnet50":
        kind = "bf16" if sizes["resnet_bf16"] else "float32"
        size = f"{sizes['resnet']}, {sizes['resnet_pixels']}x{sizes['resnet_pixels']}, batch {sizes['resnet_batch']}, {kind}"
        size = f"{size}, {sizes['draws']} draws"
    elif name == "curves":
        size = f"where not varied: batch {sizes['curve_batch']}, {sizes['draws']} draws, width {sizes['width']}"
        size = f"{size}, {sizes['blocks']} blocks"
    found = "".join(f", {peer} {version}" for peer, version in group["peers"].items())
    return f"{where}; {size}; torch {versions['torch']}{found}."


def quantity(value: float, unit: str) -> str:
    return f"{number(value)} {unit}"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
