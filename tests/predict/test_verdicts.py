"""One rule for verdicts, whatever the scores come as."""

import math

import numpy as np
import pytest
import torch

from abnn.decisions import VERDICTS, verdict_levels, verdicts

SCORES = [0.0, 0.5, 0.6, 1.0, 1.5, math.inf, math.nan]
EXPECTED = ["accept", "accept", "notice", "notice", "reject", "reject", "reject"]


@pytest.mark.parametrize("as_scores", [list, np.array, torch.tensor, lambda s: torch.tensor(s, dtype=torch.bfloat16)])
def test_a_score_at_a_threshold_passes_it_and_nan_is_rejected(as_scores):
    assert verdicts(as_scores(SCORES), 0.5, 1.0) == EXPECTED


@pytest.mark.parametrize("as_array", [np.array, torch.tensor])
def test_each_input_may_have_thresholds_of_its_own(as_array):
    found = verdicts(as_array([1.0, 1.0, 1.0]), as_array([1.0, 0.5, 0.2]), as_array([2.0, 1.0, 0.9]))
    assert found == list(VERDICTS)


@pytest.mark.parametrize("as_scores", [lambda s: np.array(s, np.float32), torch.tensor])
def test_a_threshold_that_was_one_of_the_scores_still_accepts_it(as_scores):
    """0.3 in float32 lies above 0.3 in float64, so thresholds must be rounded like the scores."""
    assert verdicts(as_scores([0.3]), 0.3, 0.4) == ["accept"]
    assert verdict_levels(as_scores([0.3]), np.array([0.3]), [0.4]).tolist() == [0]


@pytest.mark.parametrize("as_scores", [list, np.array, torch.tensor])
def test_thresholds_of_whole_numbers_are_not_rounded(as_scores):
    assert verdicts(as_scores([-1, 0, 1]), -0.5, 0.5) == list(VERDICTS)


def test_infinite_thresholds_reject_nothing_but_nan():
    assert verdicts(np.array([1e30, math.nan]), math.inf, math.inf) == ["accept", "reject"]


def test_no_scores_give_no_verdicts():
    assert verdicts(np.zeros(0), 0.1, 0.2) == [] == verdicts(torch.zeros(0), 0.1, 0.2)
