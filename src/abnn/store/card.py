"""The card of a model: what is known and recorded about it, as the README.md of its folder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from abnn.errors import FileFormatError
from abnn.files import read_json
from abnn.store.folder import fingerprint
from abnn.triage import Triage

SHOWN = 20  # names of classes
SHARES = ("accuracy", "auroc")
"""Metrics of a record that a card shows, by the end of their name."""
ABOUT = """\
A network with small Bayesian attachments, made with abnn. For each input it gives a prediction, a score that grows with the distance
from the training data, and a verdict: accept, notice or reject."""
LIMITS = """\
* The promise is about data like the calibration data. Nothing is promised about inputs that are strange in a way that neither
  the features of the network nor any made-up outlier shows: check with outliers of your own.
* Attachments add at most half of what a block says, and the network itself is as it was: its mistakes on ordinary inputs remain.
* Thresholds belong to this score and to this number of draws and views. Calibrate again for another."""


def make_card(model: Any, name: str, with_backbone: bool, records: Sequence[str | Path] = ()) -> str:
    """Return the card of a model as Markdown.

    name     what to load it by: "user/repo" or a path
    records  run records of this model, as ``abnn evaluate`` writes them, for data and metrics
    """
    runs = [_read(record) for record in records]
    pictures = len(model.input_shape) == 3
    alone = with_backbone and getattr(model.backbone, "abnn_recipe", None) is not None
    head = ["---", "library_name: abnn", "tags: [uncertainty, out-of-distribution-detection, bayesian]"]
    head += ["pipeline_tag: image-classification"] if pictures else []
    use = f'model = abnn.load("{name}"{"" if alone else ", backbone"})'
    sections = {
        "": [ABOUT],
        "Use": [
            "```python",
            "import abnn",
            "",
            use,
            "p = model.predict(x)    # p.label, p.stated, p.score, p.verdict",
            "```",
        ],
        "Network": _table(_network(model, with_backbone)),
        "Data": _data(model, runs),
        "Thresholds, and what they promise": _thresholds(model.triage),
        "Metrics": _metrics(runs),
        "Limits": [LIMITS],
    }
    text = [*head, "---", f"# {name.rstrip('/').rpartition('/')[2] or name}"]
    for title, lines in sections.items():
        text += ["", *([f"## {title}"] if title else []), *lines]
    return "\n".join(text) + "\n"


def _read(path: str | Path) -> dict[str, Any]:
    record = read_json(Path(path))
    if (
        not isinstance(record, dict)
        or record.get("format") != "abnn-record"
        or not isinstance(record.get("metrics"), dict)
    ):
        raise FileFormatError(f"records: {path} is not a run record; pass JSON files that abnn evaluate wrote.")
    return record


def _network(model: Any, with_backbone: bool) -> dict[str, Any]:
    recipe = getattr(model.backbone, "abnn_recipe", None)
    own = sum(value.numel() for value in model.backbone.parameters())
    learnt = sum(value.numel() for _, value in model.attachment_parameters())
    names = model.extra.get("class_names") or []
    listed = ", ".join(map(str, names[:SHOWN])) + (", ..." if len(names) > SHOWN else "")
    return {
        "backbone": recipe["name"] if recipe else type(model.backbone).__name__,
        "its weights": f"{own:,} numbers, {'in this repository' if with_backbone else 'not in this repository'}",
        "its fingerprint": f"`{fingerprint(model.backbone)}`",
        "inputs": f"{' x '.join(map(str, model.input_shape))}, {str(model.input_dtype).removeprefix('torch.')}",
        "preprocessing": model.extra.get("preprocess") or "none is recorded",
        "classes": f"{model.classes}{f': {listed}' if listed else ''}",
        "attachments": f"{model.spec.kind}, at {', '.join(f'`{name}`' for name in model.block_names)}; {learnt:,} numbers",
        "score": f"{model.score}, {'mean weights' if model.mean_weights else f'{model.draws} draws'}, views: {model.views}",
    }


def _data(model: Any, runs: list[dict[str, Any]]) -> list[str]:
    told = model.extra.get("data")
    sets = {each["name"]: each for run in runs for each in run["sets"]}
    lines = [f"Fitted on: {told}." if told else "What it was fitted on is not recorded."]
    if sets:
        rows = [
            f"| {each['name']} | {each['tier']} | {each['inputs']:,} | `{each['data_hash']}` |"
            for each in sets.values()
        ]
        lines += ["", "Evaluated on:", "", "| set | tier | inputs | hash |", "|---|---|---:|---|", *rows]
    return lines


def _thresholds(triage: Triage | None) -> list[str]:
    if triage is None:
        return ["There are none: the model was not calibrated, so it gives scores and no verdicts."]
    if triage.costs is not None:
        promise = "They have the least expected cost on the calibration data; nothing is promised about shares."
    else:
        sure = (
            "on average over calibration sets"
            if triage.confidence is None
            else f"for {triage.confidence:.0%} of calibration sets"
        )
        within = ", within each predicted class" if triage.by_class else ""
        promise = (
            f"Of inputs like the calibration data at most {triage.noticed:.1%} are not accepted and at most {triage.rejected:.1%} "
            f"are rejected, {sure}{within}."
        )
    levels = {"notice above": f"{triage.notice:.6g}", "reject above": f"{triage.reject:.6g}"}
    about = {
        "calibrated on": f"{triage.inputs:,} inputs",
        "temperature of stated probabilities": f"{triage.temperature:.4g}",
    }
    return [promise, "", *_table({**({} if triage.by_class else levels), **about})]


def _metrics(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["No record of an evaluation came with this model."]
    lines: list[str] = []
    for run in runs:
        code = run.get("code") or {}
        shown = {
            name: value
            for name, value in _flat(run["metrics"])
            if name.rpartition(".")[2] in SHARES or name.startswith(SHARES[0])
        }
        lines += [
            "",
            f"**{run['name']}**, seed {run['seed']}, on {run['device']}, code {str(code.get('commit', 'unknown'))[:12]}:",
            "",
        ]
        lines += _table({name: f"{value:.4f}" for name, value in shown.items()})
    return lines[1:]


def _flat(metrics: dict[str, Any], above: str = "") -> Iterable[tuple[str, float]]:
    """Yield numbers by path, those of other scores left out."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from () if name == "by_score" else _flat(value, f"{above}{name}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{above}{name}", float(value)


def _table(rows: dict[str, Any]) -> list[str]:
    cells = {name: " ".join(str(value).replace("|", "\\|").split()) for name, value in rows.items()}
    return ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in cells.items())]
