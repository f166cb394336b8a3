"""Data sets that only the experiments use. Importing this package makes them known to :func:`abnn.data.open_source`.

=============== ================================ ==================================================================
name            splits
=============== ================================ ==================================================================
notmnist        test                             downloaded (:mod:`research.data.notmnist`)
semeion         test                             downloaded; the whole set (:mod:`research.data.semeion`)
cat-dog         train, test, fit, val            cifar10[cat, dog]
tiger-wolf      train, test, fit, val            cifar100[tiger, wolf]: a tiger is to be taken for a cat, a wolf for a dog
unrelated       train, test, fit, val            cifar10[airplane, automobile, ship, truck]
photographs     val                              crops of scikit-learn's photographs (:mod:`research.data.tiers`)
printed-digits  val                              printed digits at full size
published sets  fit, val                         two fixed parts of their training data (:mod:`research.data.cut`)
=============== ================================ ==================================================================
"""

from __future__ import annotations

from pathlib import Path

from abnn.data import Source, choose_classes, open_named, open_source
from abnn.data.named import OPENERS, PUBLISHED, SPLITS
from abnn.errors import unknown
from research.data.cut import PARTS, cut
from research.data.notmnist import open_notmnist
from research.data.semeion import open_semeion
from research.data.tiers import open_photographs, open_printed_digits

__all__ = ["open_source"]
CHOSEN = {
    "cat-dog": ("cifar10", ("cat", "dog")),
    "tiger-wolf": ("cifar100", ("tiger", "wolf")),
    "unrelated": ("cifar10", ("airplane", "automobile", "ship", "truck")),
}


def open_cut(text: str, name: str, root: Path) -> Source:
    """Return "DATASET/fit" or "DATASET/val"."""
    dataset, _, part = text.partition("/")
    return cut(open_named(f"{dataset}/train", root), part, name)


def open_chosen(text: str, name: str, root: Path) -> Source:
    """Return some classes of another set."""
    dataset, _, split = text.partition("/")
    whole, classes = CHOSEN[dataset]
    if split not in SPLITS:
        raise unknown("source", text, [f"{dataset}/{each}" for each in (*SPLITS, *PARTS)])
    return choose_classes(open_named(f"{whole}/{split}", root), classes, name)


OPENERS["notmnist"], OPENERS["semeion"] = open_notmnist, open_semeion
OPENERS["photographs/val"] = open_photographs
OPENERS["printed-digits/val"] = open_printed_digits
for _dataset in CHOSEN:
    OPENERS[_dataset] = open_chosen
for _dataset in (*CHOSEN, *PUBLISHED):
    for _part in PARTS:
        OPENERS[f"{_dataset}/{_part}"] = open_cut
