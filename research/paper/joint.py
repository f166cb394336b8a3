"""Frozen against joint training; not in the paper.

The default preset leaves the backbone as it is. Here the same objective trains both: from the trained backbone, for as long as
the attachments alone would be, and from the beginning. The authors trained both from the beginning, with another objective.
"""

from __future__ import annotations

from collections.abc import Callable

from research.paper.columns import accuracy, errors
from research.paper.rows import joint, ours, threshold
from research.paper.table import Row, Section, Table
from research.tables import Column


def _rows(task: str) -> tuple[Row, ...]:
    beside, beginning = joint(task)
    return (
        Row("plain network", threshold(task)),
        Row("frozen (the default)", ours(task)),
        Row("joint, from the trained backbone", beside),
        Row("joint, from the beginning", beginning),
    )


def _detection(*names: str) -> tuple[Column, ...]:
    return tuple(Column(f"AUROC {name}", f"detection.{name}.auroc", digits=2) for name in names)


def _order(pair: str) -> Column:
    return Column(pair, f"pairs.{pair}.auroc_semi_below_full")


def sections(rows: Callable[[str], tuple[Row, ...]]) -> tuple[Section, ...]:
    """What ways of using the default are compared by, on each task."""
    return (
        Section(
            "MNIST",
            (
                accuracy("MNIST"),
                *errors("MNIST"),
                *_detection("SEMEION", "SVHN"),
                _order("SEMEION < CIFAR-10"),
                _order("SVHN < CIFAR-10"),
                accuracy("SEMEION", "accuracy on SEMEION"),
                accuracy("SVHN", "accuracy on SVHN"),
            ),
            rows("mnist"),
        ),
        Section("SVHN", (accuracy("SVHN"), *errors("SVHN"), *_detection("CIFAR-10", "CIFAR-100")), rows("svhn")),
        Section(
            "Embedded digits",
            (
                accuracy("handwritten digits"),
                *errors("printed digits", " on printed"),
                *_detection("printed digits", "photographs"),
                Column("printed < photographs", "tiers.auroc_semi_below_full"),
                accuracy("printed digits", "accuracy on printed"),
            ),
            rows("digits"),
        ),
    )


TABLE = Table(__doc__ or "", sections(_rows))
