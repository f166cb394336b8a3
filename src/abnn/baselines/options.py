"""What methods and post-hoc scores share: classes that are known by their name, and options that are checked by a table."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from abnn.errors import InputError, explain, unknown

Check = Callable[[str, Any], None]
"""Takes the name of an option and its value; raises an InputError if the value cannot be used."""


def register(registry: dict[str, Any], kind: str, cls: Any) -> None:
    """Enter a class that has a name of its own; a name that a class of another module has is an error."""
    if "name" not in vars(cls):
        return
    other = registry.get(cls.name)
    if other is not None and other.__module__ != cls.__module__:
        taken = f"{cls.name!r}, in {cls.__module__} and {other.__module__}"
        raise InputError(explain("name", taken, f"a name that no other {kind} has", "Rename one of them."))
    registry[cls.name] = cls


def import_all(package: str, path: Iterable[str]) -> None:
    """Import every module of a package whose name has no underscore in front, so that its classes are registered."""
    for file in pkgutil.iter_modules(path):
        if not file.ispkg and not file.name.startswith("_"):
            importlib.import_module(f"{package}.{file.name}")


def option(default: Any, check: Check, none: bool = False) -> Any:
    """A dataclass field with a default whose values :func:`check_options` checks; ``none``: None is accepted as well."""
    return dataclasses.field(default=default, metadata={"check": check, "none": none})


def check_options(instance: Any) -> None:
    """Raise an InputError about the first field with a value that its check does not accept."""
    for field in dataclasses.fields(instance):
        value, check = getattr(instance, field.name), field.metadata.get("check")
        if check is not None and not (value is None and field.metadata["none"]):
            check(field.name, value)


def _check(accepts: Callable[[Any], bool], accepted: str) -> Check:
    def check(argument: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not accepts(value):
            raise InputError(explain(argument, repr(value), accepted))

    return check


check_positive = _check(lambda value: 0 < value < math.inf, "a positive number")
check_not_negative = _check(lambda value: 0 <= value < math.inf, "a number of at least 0")
check_share = _check(lambda value: 0 <= value < 1, "a number from 0 to below 1")
check_count = _check(lambda value: isinstance(value, int) and value >= 1, "a whole number of at least 1")


def check_choice(argument: str, value: Any, accepted: Collection[str]) -> None:
    if value not in accepted:
        raise unknown(argument, value, accepted)


def one_of(accepted: Collection[str]) -> Check:
    """The check of an option that is one of some names."""
    return partial(check_choice, accepted=accepted)
