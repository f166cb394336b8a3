"""Some classes of a source: "cifar10/test[cat, dog]" has the inputs of these classes, with labels 0, 1, ... in the order given."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from abnn.data.form import InputForm
from abnn.data.labels import check_labels, number_classes, plain_name
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain, unknown


class Subset(Source):
    """Some inputs of another source, in its order; ``rows`` are their places there, ascending."""

    def __init__(
        self, whole: Source, rows: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...] | None, name: str
    ) -> None:
        self.whole, self.rows, self.labels = whole, rows, labels
        self.class_names, self.name, self.kind, self.notes = class_names, name, whole.kind, whole.notes
        places = rows.astype(np.int64).tobytes() + labels.astype(np.int64).tobytes()
        self.fingerprint = hashlib.sha256(whole.fingerprint.encode() + places).hexdigest()

    def take(self, rows: np.ndarray, form: InputForm) -> Chunk:
        chunk = self.whole.take(self.rows[rows], form)
        return Chunk(chunk.x, np.searchsorted(self.rows, chunk.rows), int(rows[-1]) + 1, chunk.unreadable)

    def check(self, form: InputForm) -> None:
        self.whole.check(form)


def split_classes(text: str) -> tuple[str, list[str] | None]:
    """Return ("cifar10/test", ["cat", "dog"]) for "cifar10/test[cat, dog]"; None where no classes are named."""
    if not text.endswith("]") or "[" not in text:
        return text, None
    source, _, inside = text[:-1].partition("[")
    return source.strip(), [each.strip() for each in inside.split(",")]


def choose_classes(source: Source, classes: Sequence[str], name: str) -> Subset:
    """Return the inputs of some classes, by name; the first one named becomes label 0, and so on."""
    names, argument = source.class_names, f"classes of {source.name!r}"
    if names is None:
        fix = "Put an array `names` into the .npz file, or the images into one sub-folder for each class."
        raise InputError(explain("classes", f"{source.name!r}, whose classes have no names", "names of classes", fix))
    number = number_classes(names)
    for each in classes:
        if plain_name(each) not in number:
            raise unknown(argument, each, names)
    places = [number[plain_name(each)] for each in classes]
    if len(set(places)) < len(places):
        raise InputError(explain(argument, ", ".join(classes), "every class once"))
    check_labels(source)
    renumbered = np.full(len(names) + 1, -1, np.int64)  # the last one is for -1, no class
    renumbered[places] = np.arange(len(places))
    labels = renumbered[source.labels]
    rows = np.flatnonzero(labels >= 0)
    if not len(rows):
        raise InputError(explain(argument, f"{', '.join(classes)}, of which it has no input", "classes with inputs"))
    return Subset(source, rows, labels[rows], tuple(names[place] for place in places), name)
