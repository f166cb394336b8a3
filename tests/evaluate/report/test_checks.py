"""What cannot be reported is refused with an error that names it, and nothing is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.report import write_report

from .samples import make_evaluation


def with_first_set(**changes: Any) -> list[Evaluation]:
    evaluation = make_evaluation()
    return [replace(evaluation, sets=(replace(evaluation.sets[0], **changes), *evaluation.sets[1:]))]


def with_score(value: float) -> list[Evaluation]:
    scores = make_evaluation().sets[0].scores["entropy"].copy()
    scores[3] = value
    return with_first_set(scores={"entropy": scores})


def twice(evaluation: Evaluation) -> Evaluation:
    return replace(evaluation, sets=evaluation.sets[:1] * 2)


EMPTY: dict[str, Any] = {
    "probs": np.zeros((0, 10), np.float32),
    "labels": np.zeros(0, np.int64),
    "scores": {"entropy": np.zeros(0, np.float32)},
    "shown": np.zeros(0, np.int64),
    "images": np.zeros((0, 8, 8), np.uint8),
}
BAD: dict[str, tuple[Any, str]] = {
    "none": ([], "evaluations: got none"),
    "not in a list": (make_evaluation(), r"evaluations: got an Evaluation.*\[evaluation\]"),
    "something else": (["plain"], "evaluations: got a str"),
    "same names": ([make_evaluation(), make_evaluation()], "several models named 'attached network'"),
    "same sets": ([twice(make_evaluation())], "several sets named 'handwritten'"),
    "no sets": ([replace(make_evaluation(), sets=())], "got no sets"),
    "unknown score": ([replace(make_evaluation(), score="entropi")], "entropi.*Did you mean 'entropy'"),
    "swapped thresholds": ([make_evaluation(thresholds=(0.6, 0.1))], "thresholds: got"),
    "empty set": (with_first_set(**EMPTY), "set 'handwritten' of 'attached network': got no inputs"),
    "nan score": (with_score(float("nan")), "'handwritten'.*got 1 of 120 values that are NaN"),
    "infinite score": (with_score(float("inf")), "NaN or infinite"),
    "nan probability": (with_first_set(probs=np.full((120, 10), np.nan)), "probs of set 'handwritten'"),
    "too few pictures": (with_first_set(shown=np.arange(5)), "20 pictures for 5 numbers"),
    "picture of nothing": (with_first_set(shown=np.arange(20) + 110), "shown of set 'handwritten'.*0 to 119"),
    "float pictures": (with_first_set(images=np.zeros((20, 8, 8))), "uint8"),
    "channels first": (with_first_set(images=np.zeros((20, 3, 8, 8), np.uint8)), "channels last"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_written(case: str, tmp_path: Path) -> None:
    evaluations, message = BAD[case]
    with pytest.raises(InputError, match=message):
        write_report(evaluations, tmp_path / "page.html", "title", figures=True)
    assert list(tmp_path.iterdir()) == []


def test_class_names_must_fit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="class_names: got 3 names; accepted: 10 names"):
        write_report([make_evaluation()], tmp_path / "page.html", "title", class_names=["a", "b", "c"])
