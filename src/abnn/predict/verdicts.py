"""The one rule that turns scores and two thresholds into verdicts: what to do with each prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

VERDICTS = ("accept", "notice", "reject")


def verdicts(score: Any, notice: Any, reject: Any) -> list[str]:
    """Return "accept" where score <= notice, else "notice" where score <= reject, else "reject"; NaN is rejected.

    score           one number per input, larger = more uncertain: a numpy array, a list or a torch tensor
    notice, reject  one number each, or one per input; they are rounded to the precision of the scores
    """
    return [VERDICTS[level] for level in verdict_levels(score, notice, reject).tolist()]


def verdict_levels(score: Any, notice: Any, reject: Any) -> np.ndarray:
    """Return :func:`verdicts` as places in ``VERDICTS``, int64, for counting."""
    if isinstance(score, torch.Tensor):
        limits = (torch.as_tensor(each, dtype=score.dtype, device=score.device) for each in (notice, reject))
        passed = [(score <= limit).cpu().numpy() for limit in limits]
    else:
        score = np.asarray(score)
        passed = [score <= np.asarray(each, score.dtype) for each in (notice, reject)]
    return 2 - passed[0].astype(np.int64) - passed[1]
