"""The card of a model: what is known and recorded about it, as the README.md of its folder; the words are in ``card.md``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from abnn.errors import FileFormatError
from abnn.files import read_json, templates
from abnn.store.folder import fingerprint

SHARES = ("accuracy", "auroc")
"""Metrics of a record that a card shows, by the end of their name."""


def make_card(model: Any, name: str, with_backbone: bool, records: Sequence[str | Path] = ()) -> str:
    """Return the card of a model as Markdown.

    name     what to load it by: "user/repo" or a path
    records  run records of this model, as ``abnn evaluate`` writes them, for data and metrics
    """
    runs = [_read(record) for record in records]
    environment = templates(Path(__file__).parent)
    environment.filters["cell"] = lambda value: " ".join(str(value).replace("|", "\\|").split())
    return environment.get_template("card.md").render(
        model=model,
        name=name,
        title=name.rstrip("/").rpartition("/")[2] or name,
        with_backbone=with_backbone,
        recipe=getattr(model.backbone, "abnn_recipe", None),
        numbers=sum(value.numel() for value in model.backbone.parameters()),
        learnt=sum(value.numel() for _, value in model.attachment_parameters()),
        fingerprint=fingerprint(model.backbone),
        names=model.extra.get("class_names"),
        triage=model.triage,
        runs=runs,
        sets={each["name"]: each for run in runs for each in run["sets"]},
    )


def _read(path: str | Path) -> dict[str, Any]:
    """Return a record, with the metrics to show by path."""
    record = read_json(Path(path))
    known = isinstance(record, dict) and record.get("format") == "abnn-record"
    if not known or not isinstance(record.get("metrics"), dict):
        raise FileFormatError(f"records: {path} is not a run record; pass JSON files that abnn evaluate wrote.")
    flat = dict(_flat(record["metrics"]))
    shown = {k: v for k, v in flat.items() if k.rpartition(".")[2] in SHARES or k.startswith(SHARES[0])}
    return {**record, "shown": shown}


def _flat(metrics: dict[str, Any], above: str = "") -> Iterable[tuple[str, float]]:
    """Yield numbers by path, those of other scores left out."""
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from () if name == "by_score" else _flat(value, f"{above}{name}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{above}{name}", float(value)
