"""Bad arrays at every door of the research metrics, as at those of abnn.metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from abnn.errors import InputError
from research import metrics as r
from tests.metrics.test_inputs import BAD_FLAGS, BAD_SCORES, FLAGS, GOOD

TWO, THREE = ("id_scores", "ood_scores"), ("id_scores", "semi_scores", "full_scores")
DOORS: list[tuple[Callable[..., Any], tuple[str, ...]]] = [
    (r.paper_grid_detection, TWO),
    (r.paper_trimmed_clustering, THREE),
    (r.paper_trimmed_clustering_cat_dog, THREE),
    (r.severity_correlation, ("scores", "severity")),
]


@pytest.mark.parametrize(("bad", "message"), BAD_SCORES)
def test_bad_scores_are_named(bad: Any, message: str) -> None:
    for function, names in DOORS:
        for position, name in enumerate(names):
            arrays: list[Any] = [GOOD] * len(names)
            arrays[position] = bad
            with pytest.raises(InputError, match=f"^{name}: {message}"):
                function(*arrays)
    with pytest.raises(InputError, match=f"^scores: {message}"):
        r.paper_grid_misclassification(bad, FLAGS)


@pytest.mark.parametrize(("bad", "message"), BAD_FLAGS)
def test_bad_flags_are_named(bad: Any, message: str) -> None:
    with pytest.raises(InputError, match=f"^correct: {message}"):
        r.paper_grid_misclassification(GOOD, bad)
