"""What cannot be reported is refused with an error that names it, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import write_report

from .samples import make_evaluation

Make = Callable[[], list[Evaluation]]


def changed(**changes: Any) -> Make:
    return lambda: [replace(make_evaluation(), **changes)]


def with_first_set(**changes: Any) -> Make:
    first, *others = make_evaluation().sets
    return lambda: [replace(make_evaluation(), sets=(replace(first, **changes), *others))]


def with_score(value: float) -> Make:
    scores = make_evaluation().sets[0].scores["entropy"].copy()
    scores[3] = value
    return with_first_set(scores={"entropy": scores})


EMPTY: dict[str, Any] = {
    "probs": np.zeros((0, 10), np.float32),
    "labels": np.zeros(0, np.int64),
    "scores": {"entropy": np.zeros(0, np.float32)},
    "shown": np.zeros(0, np.int64),
    "images": np.zeros((0, 8, 8), np.uint8),
}
BAD: dict[str, tuple[Make, str]] = {
    "none": (list, "evaluations: got none"),
    "same names": (lambda: [make_evaluation(), make_evaluation()], "several models named 'attached network'"),
    "same sets": (changed(sets=make_evaluation().sets[:1] * 2), "several sets named 'handwritten'"),
    "no sets": (changed(sets=()), "got no sets"),
    "unknown score": (changed(score="entropi"), "entropi.*Did you mean 'entropy'"),
    "swapped thresholds": (changed(thresholds=(0.6, 0.1)), "thresholds: got"),
    "empty set": (with_first_set(**EMPTY), "set 'handwritten' of 'attached network': got no inputs"),
    "nan score": (with_score(float("nan")), "'handwritten'.*got 1 of 120 values not finite"),
    "infinite score": (with_score(float("inf")), "NaN or infinity"),
    "nan probability": (with_first_set(probs=np.full((120, 10), np.nan)), "probs of set 'handwritten'"),
    "too few pictures": (with_first_set(shown=np.arange(5)), "20 pictures for 5 numbers"),
    "picture of nothing": (with_first_set(shown=np.arange(20) + 110), "shown of set 'handwritten'.*0 to 119"),
    "float pictures": (with_first_set(images=np.zeros((20, 8, 8))), "uint8"),
    "channels first": (with_first_set(images=np.zeros((20, 3, 8, 8), np.uint8)), "channels last"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    make, message = BAD[case]
    with pytest.raises(InputError, match=message):
        write_report(make(), tmp_path / "page.html", "title", figures=True)
    assert list(tmp_path.iterdir()) == []


def test_class_names_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="class_names: got 3 names; accepted: 10 names"):
        write_report([make_evaluation()], tmp_path / "page.html", "title", class_names=["a", "b", "c"])
