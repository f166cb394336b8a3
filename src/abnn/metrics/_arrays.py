"""The boundary of the metrics: what comes in is checked and becomes a numpy array, what goes out becomes plain data."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from abnn.errors import InputError, explain

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]
ArrayLike: TypeAlias = Any  # A numpy array, a torch tensor on any device, or a list of numbers

_SUM_TOLERANCE = 1e-2  # the rows of a bfloat16 softmax sum to one within 2**-8; logits do not


@dataclass(frozen=True)
class Result:
    """What the metric functions return: frozen records that turn into plain data for JSON."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain Python values: numbers, None, lists and dicts."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}

    def numbers(self) -> dict[str, float]:
        """The fields that hold one real number: those that have a mean, a spread and a confidence interval."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, float)}


def as_scores(value: ArrayLike, argument: str, length: int | None = None, partner: str = "") -> Floats:
    """Return a non-empty 1-d float64 array of finite numbers, as long as ``partner`` where one is named."""
    accepted = "a 1-d array of finite numbers, one per input"
    array = to_numpy(value, argument, accepted)
    if array.dtype == np.bool_:
        raise InputError(explain(argument, "booleans", accepted, "Check the order of the arguments."))
    return _as_column(array, argument, accepted, length, partner)


def as_booleans(value: ArrayLike, argument: str, length: int, partner: str) -> Bools:
    """Return a 1-d boolean array as long as ``partner``; numbers are taken if they are all 0 or 1."""
    accepted = "a 1-d array of booleans (or of 0 and 1), one per input"
    array = _as_column(value, argument, accepted, length, partner, finite=False)
    _refuse(array[(array != 0) & (array != 1)], argument, accepted, "Pass `predictions == labels`.")
    return array.astype(np.bool_)


def scores_and_correct(scores: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    """Return both arrays, checked and of one length."""
    values = as_scores(scores, "scores")
    return values, as_booleans(correct, "correct", len(values), "scores")


def as_labels(value: ArrayLike, argument: str, length: int | None = None, partner: str = "") -> Ints:
    """Return a non-empty 1-d array of class numbers 0, 1, 2, ..., as long as ``partner`` where one is named."""
    accepted = "a 1-d array of whole numbers from 0, one per input"
    array = _as_column(value, argument, accepted, length, partner)
    odd = array[(array != np.floor(array)) | (array < 0)]
    _refuse(odd, argument, accepted, "Pass class numbers, not one-hot rows.")
    return array.astype(np.int64)


def rows_and_labels(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """Return both arrays, checked: rows are distributions over two or more classes, with one label for each of them."""
    accepted = "an array of shape (inputs, classes) with rows in [0, 1] that sum to one"
    rows = _as_numbers(probs, "probs", accepted)
    if rows.ndim != 2 or rows.shape[1] < 2:
        fix = "For two classes pass both columns, [1 - p, p]."
        raise InputError(explain("probs", f"an array of shape {rows.shape}", accepted, fix))
    if rows.shape[0] == 0:
        raise InputError(explain("probs", "no rows", accepted, "Check that the set was predicted at all."))
    fix = "Apply a softmax to the logits first."
    _check_unit_range(_check_finite(rows, "probs", accepted), "probs", accepted, fix)
    sums = rows.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1)))
    if abs(sums[worst] - 1) > _SUM_TOLERANCE:
        raise InputError(explain("probs", f"row {worst} with the sum {sums[worst]:g}", accepted, fix))
    truth = as_labels(labels, "labels", len(rows), "probs has rows")
    if truth.max() >= rows.shape[1]:
        fix = f"probs has {rows.shape[1]} columns; check that both come from the same classes."
        accepted = f"class numbers from 0 to {rows.shape[1] - 1}"
        raise InputError(explain("labels", f"the class {truth.max()}", accepted, fix))
    return rows, truth


def as_confidences(value: ArrayLike, argument: str) -> Floats:
    """Return a non-empty 1-d float64 array in [0, 1]."""
    fix = "Pass the probability of the predicted class, not a logit or an uncertainty score."
    return _check_unit_range(as_scores(value, argument), argument, "a 1-d array of numbers in [0, 1]", fix)


def to_numpy(value: ArrayLike, argument: str, accepted: str) -> NDArray[Any]:
    """Return an array of whatever type it has; torch need not be there, so tensors are known by what they can do."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        # numpy has no bfloat16, and float64 holds every smaller float exactly
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(explain(argument, f"something that is no array ({error})", accepted)) from None


def _as_numbers(value: ArrayLike, argument: str, accepted: str) -> Floats:
    array = to_numpy(value, argument, accepted)
    if array.dtype.kind not in "fiub":
        raise InputError(explain(argument, f"an array of type {array.dtype}", accepted, "Convert it to numbers first."))
    return np.asarray(array, dtype=np.float64)


def _as_column(
    value: ArrayLike, argument: str, accepted: str, length: int | None, partner: str, finite: bool = True
) -> Floats:
    column = _as_numbers(value, argument, accepted)
    if column.ndim != 1:
        fix = f"Flatten it with .reshape(-1) if it holds one value per input (it holds {column.size})."
        raise InputError(explain(argument, f"an array of shape {column.shape}", accepted, fix))
    if column.size == 0:
        raise InputError(explain(argument, "an empty array", accepted, "Check that the set has any inputs at all."))
    if finite:
        _check_finite(column, argument, accepted)
    if length is not None and len(column) != length:
        fix = "Both must describe the same inputs in the same order."
        raise InputError(explain(argument, f"{len(column)} values", f"{length}, as many as {partner}", fix))
    return column


def _refuse(odd: Floats, argument: str, accepted: str, fix: str) -> None:
    if odd.size:
        raise InputError(explain(argument, f"the value {odd[0]:g}", accepted, fix))


def _check_finite(array: Floats, argument: str, accepted: str) -> Floats:
    bad = np.argwhere(~np.isfinite(array))
    if len(bad):
        first = tuple(int(index) for index in bad[0])
        fault = f"{len(bad)} of {array.size} values not finite (the first, {array[first]}, at index {first[0]})"
        fix = "Find out why the model gave NaN or infinity there; dropping such inputs would flatter it."
        raise InputError(explain(argument, fault, accepted, fix))
    return array


def _check_unit_range(array: Floats, argument: str, accepted: str, fix: str) -> Floats:
    if array.min() < 0 or array.max() > 1:
        raise InputError(explain(argument, f"values from {array.min():g} to {array.max():g}", accepted, fix))
    return array


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.to_dict()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
