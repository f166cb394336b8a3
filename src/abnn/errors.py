"""Errors that name the argument, what came, what is accepted and what to do."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Iterable
from typing import Any


class AbnnError(Exception):
    """Base class of every error raised on purpose by this package."""


class InputError(AbnnError, ValueError):
    """An argument has a value that cannot be used."""


class AttachError(AbnnError, ValueError):
    """Attachments cannot be placed on, or removed from, a network as asked."""


class NotFittedError(AbnnError, RuntimeError):
    """Something was asked for that only exists after fitting or calibrating."""


class DivergedError(AbnnError, RuntimeError):
    """Training left the range of finite, sensible values; the last good state was kept."""


class FileFormatError(AbnnError, ValueError):
    """A file is damaged, foreign, newer than this version, or does not belong to the given network."""


class MissingExtraError(AbnnError, ImportError):
    """An optional dependency is needed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'abnn[{extra}]'")


def import_extra(module: str, extra: str, package: str = "") -> Any:
    """Return a module of an optional dependency, or raise an error that says what to install; ``package``: its other name."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingExtraError(package or module, extra) from None


class MismatchError(AbnnError, ImportError):
    """torch and torchvision were made for other versions of each other."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"{problem}; install both in one command and from one index: pip install --upgrade torch torchvision "
            "(without a GPU, add: --index-url https://download.pytorch.org/whl/cpu)"
        )


class AbnnWarning(UserWarning):
    """Something works, but not in the way that the caller may expect."""


def whole_number(value: object) -> int | None:
    """Return a whole number as an int, whichever library it comes from; None for anything else."""
    try:
        return None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def readable(name: str) -> str:
    """Return a path as text that every file and encoding can hold; bytes that are no UTF-8 become a replacement mark."""
    return os.fsencode(name).decode("utf-8", "replace")


def explain(argument: str, actual: object, accepted: str, fix: str = "") -> str:
    """Return an error message in the one sentence pattern of this package."""
    message = f"{argument}: got {actual}; accepted: {accepted}"
    return f"{message}. {fix}" if fix else f"{message}."


def at_least_one(argument: str, actual: object, other: str = "", fix: str = "", least: int = 1) -> int:
    """Return a whole number of at least 1 as an int, or raise an error; ``other``: what else it says is accepted."""
    number = whole_number(actual)
    if number is None or number < least:
        raise InputError(explain(argument, repr(actual), f"a whole number of at least {least}{other}", fix))
    return number


def not_negative(argument: str, actual: object, other: str = "") -> int:
    """Return a whole number of at least 0 as an int, or raise an error."""
    return at_least_one(argument, actual, other, least=0)


def whole_seed(seed: object) -> int:
    """Return a seed as an int, or raise an error: a number of another type would be another key of random numbers."""
    number = whole_number(seed)
    if number is None:
        raise InputError(explain("seed", repr(seed), "a whole number"))
    return number


def unknown(argument: str, actual: object, known: Iterable[object]) -> InputError:
    """Return the error for a name that is not in a fixed list, with the closest name of the list as a hint."""
    import difflib

    names = sorted(str(name) for name in known)
    close = difflib.get_close_matches(str(actual), names, n=1)
    fix = f"Did you mean {close[0]!r}?" if close else "Choose one of these names."
    listed = ", ".join(names[:40]) + (f", ... ({len(names)} names)" if len(names) > 40 else "")
    return InputError(explain(argument, repr(actual), listed, fix))
