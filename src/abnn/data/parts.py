"""Parts of a source: some of its classes, and the fixed cut of training data into a part to fit and one to choose by.

    cifar10/test[cat,dog]    the inputs of these classes, in the order of the source; labels 0, 1, ... in the order given
    mnist/fit, mnist/val     input i of the training data is in "val" if  floor(i / 100) mod 10 = 9,  else in "fit"

Whole blocks of 100 are held out, for neighbours may belong together: in SVHN the digits of one house number follow each other,
and each of them is seen at the edge of the next. Nothing is drawn at random, so the cut is the same with every version of every
library.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from abnn.data.form import InputForm
from abnn.data.labels import plain_name
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain, unknown

BLOCK, EVERY = 100, 10
PARTS = ("fit", "val")


class Subset(Source):
    """Some inputs of another source, in its order.

    rows  their places there, ascending
    """

    def __init__(
        self, whole: Source, rows: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...] | None, name: str
    ) -> None:
        self.whole, self.rows, self.labels = whole, rows, labels
        self.class_names, self.name, self.kind, self.notes = class_names, name, whole.kind, whole.notes
        digest = hashlib.sha256(whole.fingerprint.encode())
        digest.update(rows.astype(np.int64).tobytes() + labels.astype(np.int64).tobytes())
        self.fingerprint = digest.hexdigest()

    def read(self, first: int, last: int, form: InputForm) -> Chunk:
        return self.take(np.arange(first, last), form)

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        chunk = self.whole.take(self.rows[rows], form)
        return Chunk(chunk.x, np.searchsorted(self.rows, chunk.rows), int(rows[-1]) + 1, chunk.unreadable)

    def check(self, form: InputForm) -> None:
        self.whole.check(form)


def split_classes(text: str) -> tuple[str, list[str] | None]:
    """ "cifar10/test[cat, dog]" to ("cifar10/test", ["cat", "dog"]); None where no classes are named."""
    if not text.endswith("]") or "[" not in text:
        return text, None
    source, _, inside = text[:-1].partition("[")
    return source.strip(), [each.strip() for each in inside.split(",")]


def choose_classes(source: Source, classes: Sequence[str], name: str) -> Subset:
    """The inputs of some classes, by name; the first one named becomes label 0, and so on."""
    if source.class_names is None:
        fix = "Put an array `names` into the .npz file, or the images into one sub-folder for each class."
        raise InputError(explain("classes", f"{source.name!r}, whose classes have no names", "names of classes", fix))
    number = {plain_name(each): place for place, each in enumerate(source.class_names)}
    for each in classes:
        if plain_name(each) not in number:
            raise unknown(f"classes of {source.name!r}", each, source.class_names)
    places = [number[plain_name(each)] for each in classes]
    if len(set(places)) < len(places):
        raise InputError(explain(f"classes of {source.name!r}", ", ".join(classes), "every class once"))
    if source.labels.max() >= len(source.class_names):
        given = f"a label of {source.labels.max()} with {len(source.class_names)} names"
        raise InputError(explain(f"labels of {source.name!r}", given, "a name for each label"))
    renumbered = np.full(len(source.class_names), -1, np.int64)
    renumbered[places] = np.arange(len(places))
    labels = np.where(source.labels < 0, -1, renumbered[source.labels])
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        given = f"{', '.join(classes)}, of which it has no input"
        raise InputError(explain(f"classes of {source.name!r}", given, "classes with inputs"))
    return Subset(source, rows, labels[rows], tuple(source.class_names[place] for place in places), name)


def is_held_out(count: int) -> np.ndarray:
    """For each of ``count`` inputs in their order, whether it belongs to "val"."""
    return np.arange(count) // BLOCK % EVERY == EVERY - 1


def cut(source: Source, part: str, name: str) -> Subset:
    """ "fit" or "val" of training data."""
    held = is_held_out(len(source))
    if not held.any():
        given = f"{len(source)} inputs"
        accepted = f"more than {BLOCK * (EVERY - 1)}, of which every {EVERY}th block of {BLOCK} is held out"
        raise InputError(explain(f"source {source.name!r}", given, accepted))
    rows = np.flatnonzero(held if part == "val" else ~held)
    return Subset(source, rows, source.labels[rows], source.class_names, name)
