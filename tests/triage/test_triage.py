"""Verdicts from thresholds, and thresholds from files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from abnn.errors import FileFormatError, NotFittedError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.predict import Prediction
from abnn.triage import Triage, TriageConfig, check_guarantee
from abnn.triage.calibrate import choose
from tests.triage.test_calibrate import gathered


def test_verdicts_follow_the_thresholds() -> None:
    triage = Triage(0.2, 0.6, 0.05, 0.01, "max-probability", 10, 0, 100)
    top = torch.tensor([0.9, 0.8, 0.5, 0.4, 0.3])
    prediction = Prediction(torch.stack([top, 1 - top], dim=1).sort(dim=1, descending=True).values[None])
    scores = prediction.score_by("max-probability")
    assert triage(prediction).verdict == [
        "accept" if s <= 0.2 else "notice" if s <= 0.6 else "reject" for s in scores.tolist()
    ]
    assert Triage.from_dict(triage.to_dict()) == triage


def test_what_is_not_a_number_is_refused() -> None:
    triage = Triage(0.2, 0.6, 0.05, 0.01, "max-probability", 10, 0, 100)
    nan = float("nan")
    broken = Prediction(torch.tensor([[[1.0, 0.0], [nan, nan]], [[1.0, 0.0], [0.5, 0.5]]]), torch.tensor([0.1, 0.1]))
    by_class = replace(triage, by_class=((0.2, 0.6), (0.3, 0.7)))
    for each in (triage, by_class, replace(triage, score="combined")):
        assert each(broken).verdict == ["accept", "reject"]
    scores, predicted = np.array([0.1, nan, np.inf]), np.zeros(3, int)
    assert triage.levels(scores).tolist() == by_class.levels(scores, predicted).tolist() == [0, 2, 2]
    one = SetResult("a", "id", np.zeros((3, 2)), predicted, {"s": scores})
    assert Evaluation("m", "s", (one,), (0.2, 0.6)).levels(one).tolist() == [0, 2, 2]
    assert check_guarantee(np.full(400, nan), 0.05).mean == 1


def test_states_of_older_versions_load_and_foreign_ones_do_not() -> None:
    old: dict[str, Any] = {"notice": 0.1, "reject": 0.3, "noticed": 0.05, "rejected": 0.01}
    old |= {"score": "combined", "draws": 10, "seed": 0, "inputs": 50}
    triage = Triage.from_dict(old)
    assert triage.calibration == () and triage.by_class == () and triage.costs is None
    with pytest.raises(NotFittedError, match="no scores to compare with"):
        triage.monitor()
    with pytest.raises(FileFormatError, match="triage.colour is not known; written by a newer version"):
        Triage.from_dict({**old, "colour": 1})
    with pytest.raises(FileFormatError, match="notice <= reject"):
        Triage.from_dict({**old, "notice": 0.5})
    with pytest.raises(FileFormatError, match="triage.reject is missing. .*restore it, or calibrate again"):
        Triage.from_dict({"notice": 0.1})
    wrong: dict[str, tuple[Any, ...]] = {
        "notice": ("0.1", None, True, math.nan),
        "noticed": ("x", 1.5),
        "draws": ("ten", -1, 2.5),
        "seed": ("a",),
        "drawn": (0,),
        "views": ("5",),
        "temperature": ("1", 0),
        "offsets": (["1"], 0, [math.inf]),
        "confidence": (2,),
        "calibration": (5, [0.1, 0.2], [1.0, *[0.0] * 100]),
        "by_class": ([[0.1]], [0.1, 0.2]),
        "reference": ([[1.0], [2]], [[2.0, 1.0], [1, 1, 1]], [[1.0], [2, -1]], [[1.0]]),
        "costs": ([1], {"accept": [0, 1]}, {"far": 2.0}, {"colour": 1}),
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(FileFormatError, match=rf"triage\.{name}.* is .*restore it, or calibrate again"):
                Triage.from_dict({**old, name: value})
    full = choose(gathered(count=300), TriageConfig(per_class=True))
    assert Triage.from_dict(json.loads(json.dumps(full.to_dict()))) == full
