"""The scikit-learn estimators: its own checks, and what they add."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris, load_wine
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator
from torch import nn

import abnn
from abnn.errors import InputError, NotFittedError
from abnn.train import combine


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", [abnn.AbnnClassifier, abnn.AbnnRegressor])
def test_the_checks_of_scikit_learn_pass(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a score that learns in few steps: about fifty fits, of which none is about how good it is."""
    monkeypatch.setattr(combine, "STEPS", 3)
    monkeypatch.setattr(combine, "MADE", 100)
    failed = [check for check in check_estimator(kind(hidden=(16,)), on_fail=None) if check["status"] == "failed"]
    assert not failed, [(each["check_name"], each["exception"]) for each in failed]
