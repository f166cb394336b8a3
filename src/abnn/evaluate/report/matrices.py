"""Three-way confusion matrices as tables: shares are shaded, and the wanted cells framed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from abnn.evaluate.evaluation import TIERS, Evaluation
from abnn.evaluate.report.figures import tiers_of
from abnn.evaluate.report.markup import table, text
from abnn.evaluate.report.numbers import percent
from abnn.evaluate.report.texts import VERDICTS
from abnn.evaluate.report.verdicts import verdict_counts
from abnn.metrics import cluster_confusion


def verdict_matrix(evaluation: Evaluation) -> str:
    """Rows are the tiers that the model was shown, columns accept, notice and reject by its thresholds."""
    tiers = tiers_of(evaluation)
    rows = [verdict_counts(evaluation, evaluation.tier(tier)) for tier in tiers]
    said = ""
    if len(tiers) == len(TIERS):
        said = _balanced(float(np.mean([row[number] / row.sum() for number, row in enumerate(rows)])))
    return _matrix(f"{evaluation.name}: verdicts", tiers, VERDICTS, rows, said)


def cluster_matrix(evaluation: Evaluation) -> str:
    """Rows are the three tiers, columns the optimal three clusters of all scores."""
    confusion = cluster_confusion(*map(evaluation.scores, TIERS))
    rows = [np.array(row) for row in confusion.matrix]
    groups = ("lowest", "middle", "highest")
    return _matrix(f"{evaluation.name}: three groups", TIERS, groups, rows, _balanced(confusion.balanced_accuracy))


def _balanced(accuracy: float) -> str:
    return f"<p>Mean share of framed cells: {percent(accuracy)} (balanced accuracy; chance gives {percent(1 / 3)}).</p>"


def _matrix(caption: str, tiers: Sequence[str], columns: Sequence[str], rows: Sequence[np.ndarray], said: str) -> str:
    lines = []
    for tier, counts in zip(tiers, rows, strict=True):
        line = [f'<span class="tier {tier}">{tier}</span>']
        for column, count in enumerate(counts):
            share = count / counts.sum()
            wanted = " wanted" if column == TIERS.index(tier) else ""
            line.append(
                f'<span class="cell{wanted}" style="--share:{share:.3f}">{percent(share)}'
                f'<span class="range">{int(count):,}</span></span>'
            )
        lines.append(line)
    grid = table(caption, ["tier", *map(text, columns)], lines, "matrix")
    return f'<div class="panel">{grid}{said}</div>'
