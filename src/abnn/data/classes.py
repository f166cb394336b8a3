"""Classes by name: those of a source as a model numbers them, and some classes of a source.

Names that are equal match; else those that are alone in being equal without regard to case, with "_" as a space.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np

from abnn.data.form import InputForm
from abnn.data.source import Chunk, Source
from abnn.errors import InputError, explain, unknown


def match_labels(
    source: Source, tier: str, classes: int, class_names: Sequence[str] | None
) -> tuple[np.ndarray, str | None]:
    """Return the class of each input as the model numbers them, -1 for none, and a note where labels were not used.

    "full" data belongs to no class by its meaning, whatever its labels say. In "id" data every label must be a class of the
    model. In "semi" data, classes that the model does not know by name become -1.
    """
    labels, names = source.labels, source.class_names
    without = np.full(len(labels), -1, np.int64)
    if tier == "full" or (labels < 0).all():
        return without, None
    check_labels(source)
    if names is not None and class_names is not None and list(names) != list(class_names):
        mapping = np.array([*find_classes(names, class_names), -1], np.int64)
        strange = [names[label] for label in np.unique(labels[labels >= 0]) if mapping[label] < 0]
        if strange and tier == "id":
            accepted = f"classes of the model: {_listed(class_names)}"
            fix = "Rename the sub-folders or classes, or pass the set as --semi or --full."
            raise InputError(explain(f"source {source.name!r}", f"classes {_listed(strange)}", accepted, fix))
        note = f"classes that the model does not know ({_listed(strange)}) are scored without labels"
        return mapping[labels], note if strange else None
    if names is not None and len(names) != classes:
        actual = f"{len(names)} classes ({_listed(names)})"
        if tier == "semi":
            return without, f"{actual} instead of the model's {classes}: scored without labels"
        fix = "Save the model with extra={'class_names': [...]}, so that classes are matched by name."
        raise InputError(explain(f"source {source.name!r}", actual, f"the model's {classes} classes", fix))
    if labels.max() >= classes:
        fix = "Leave the labels out if the classes are not those of the model."
        accepted = f"numbers below {classes}, the classes of the model"
        raise InputError(explain(f"labels of {source.name!r}", f"a label of {labels.max()}", accepted, fix))
    return labels, None


def check_labels(source: Source) -> None:
    """Raise an error for labels below -1, or without a name where there are names."""
    argument, low, high = f"labels of {source.name!r}", source.labels.min(), source.labels.max()
    if low < -1:
        raise InputError(explain(argument, f"a label of {low}", "classes from 0 on, and -1 for none"))
    if source.class_names is not None and high >= len(source.class_names):
        actual = f"a label of {high} with {len(source.class_names)} names"
        raise InputError(explain(argument, actual, "a name for each label"))


def find_classes(wanted: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the place of each wanted class among ``names``, -1 for one that is not there or could be several of them."""
    plain = [_plain(name) for name in names]
    counts, exact = Counter(plain), {name: place for place, name in enumerate(names)}
    alone = {name: place for place, name in enumerate(plain) if counts[name] == 1}
    return [exact.get(name, alone.get(_plain(name), -1)) for name in wanted]


def _plain(name: str) -> str:
    return name.strip().casefold().replace("_", " ")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f", ... ({len(names)})" if len(names) > 5 else "")


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
    places = find_classes(classes, names)
    if -1 in places:
        raise unknown(argument, classes[places.index(-1)], names)
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
