"""Names of classes, as they are saved with a model."""

from __future__ import annotations

from typing import Any

from abnn.errors import InputError, explain


def check_class_names(names: Any, classes: int, argument: str, fix: str) -> list[str] | None:
    """Return names of classes as a list, None where there are none, or raise an error that calls them ``argument``."""
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(explain(argument, repr(names)[:80], f"a list of {classes} strings, or None", fix))
    if len(names) != classes:
        raise InputError(explain(argument, f"{len(names)} names", f"{classes}, the number of classes", fix))
    return list(names)


def class_names_of(model: Any) -> list[str] | None:
    """Return the names of the classes that were saved with a model, if there are any; an error if they do not fit to it."""
    names, fix = getattr(model, "extra", {}).get("class_names"), "Save the model again with the right names."
    return check_class_names(names, model.classes, "class_names of the model", fix)
