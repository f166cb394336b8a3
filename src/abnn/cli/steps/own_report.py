"""The page about a user's own model: held-out images as id, outliers made from them as the other two tiers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.data import InputForm
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import write_report
from abnn.outliers import Mixed, Outliers, Style, measure_range
from abnn.outliers.mixtures import CONTENT
from abnn.triage import Triage

Batches = Iterable[tuple[Tensor, Tensor]]
SEMI, FULL = "made up: other style", "made up: content destroyed"
INTRO = (
    "Attachments were clipped onto your network and fitted on your images plus outliers made from them. This page shows both "
    "on images that were held out.\n\n"
    "Only the held-out images (id) are real. The other two tiers were made up from them: in another style, so that they can "
    "still be read (semi), and with their content destroyed (full). Outliers of the same kinds were used for fitting, so "
    "real outliers will be harder. Show the model your own with abnn evaluate.\n\n"
)
JOINT = "Your network learnt along with the attachments; the plain network on this page is as it was before.\n\n"
SEPARATE = "Thresholds were chosen on other held-out images than those shown here."
SAME = (
    "There were too few held-out images to set some aside, so thresholds were chosen on the very images shown here: the "
    "share of accepted id images is what was asked for by construction, and not a test of it."
)


def write_own_report(
    path: Path,
    models: dict[str, tuple[Any, Triage]],
    loader: Batches,
    form: InputForm,
    class_names: tuple[str, ...],
    config: dict[str, Any],
    intro: str,
    alert: str = "",
) -> Path:
    """Evaluate all models on the three tiers and write the page."""
    value_range = measure_range(x for x, _ in loader)
    evaluations = []
    for name, (model, triage) in models.items():
        draws, seed, stated = triage.draws, triage.seed, triage.probabilities
        sets = [
            evaluate_set(model, batches, title, tier, draws, seed, picture=form.pictures, stated=stated)
            for title, tier, batches in (
                ("held-out images", "id", loader),
                (SEMI, "semi", make_up(loader, Style(severity=(0.15, 0.3)), value_range, seed, labelled=True)),
                (FULL, "full", make_up(loader, Mixed(parts=CONTENT), value_range, seed, labelled=False)),
            )
        ]
        limits, of_classes = (triage.notice, triage.reject), triage.by_class
        evaluations.append(
            Evaluation(name, triage.score, tuple(sets), limits, seed, config, class_thresholds=of_classes)
        )
    return write_report(evaluations, path, "When to trust your network", intro, list(class_names), alert=alert)


def make_up(
    loader: Batches, outliers: Outliers, value_range: tuple[Tensor, Tensor], seed: int, labelled: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    """Outliers made from each batch, the same for every model; without labels where nothing is left to read."""
    outliers.prepare(*value_range)
    generator = torch.Generator().manual_seed(seed)
    for x, y in loader:
        outlier = outliers(x, y, generator)
        yield outlier.x, y if labelled else torch.full_like(y, -1)
