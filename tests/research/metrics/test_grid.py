"""The paper's scans against a plain loop over every threshold that follows their description word by word."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from abnn import metrics as m
from abnn.errors import InputError
from research.metrics import paper_grid_detection, paper_grid_misclassification
from tests.metrics.samples import Pair, examples, generator, groups, scored_predictions


def number(condition: np.ndarray) -> int:
    return int(np.count_nonzero(condition))


def loop(pos: np.ndarray, neg: np.ndarray, steps: int) -> list[float]:
    """Confidences in, the five numbers out: TNR over the window, AUROC, detection accuracy, AUPR-in, AUPR-out."""
    start, end = min(pos.min(), neg.min()), max(pos.max(), neg.max())
    gap = (end - start) / steps

    window, area, last_fpr, least_error = [], 0.0, 1.0, 1.0
    area_in, last_recall, recall, precision = 0.0, 1.0, 0.0, 0.0
    for threshold in np.arange(start, end, gap):
        kept = number(pos >= threshold)
        tpr, fpr = kept / len(pos), number(neg > threshold) / len(neg)
        if 0.94 <= tpr <= 0.96:
            window.append(fpr)
        area += (last_fpr - fpr) * tpr
        last_fpr = fpr
        least_error = min(least_error, (number(pos < threshold) / len(pos) + fpr) / 2)
        alarms = number(neg >= threshold)
        if kept + alarms:
            recall, precision = tpr, kept / (kept + alarms)
            area_in += (last_recall - recall) * precision
            last_recall = recall
    area_in += recall * precision

    area_out, last_recall = 0.0, 1.0
    for threshold in np.arange(end, start, -gap):
        found, alarms = number(neg < threshold), number(pos < threshold)
        if found + alarms == 0:
            break
        recall, precision = found / len(neg), found / (found + alarms)
        area_out += (last_recall - recall) * precision
        last_recall = recall
    area_out += recall * precision
    return [1 - (float(np.mean(window)) if window else 1.0), area, 1 - least_error, area_in, area_out]


@examples(100)
@given(groups(2, (2, 3, 7, 60, 200)), st.sampled_from((1, 7, 40, 200)))
def test_agrees_with_the_loop(sets: Pair, steps: int) -> None:
    id_scores, ood_scores = np.append(sets[0], sets[1].max() + 1), sets[1]  # never all equal
    result = list(paper_grid_detection(id_scores, ood_scores, steps).to_dict().values())
    assert result == pytest.approx(loop(-id_scores, -ood_scores, steps), abs=1e-9)


def test_agrees_with_the_loop_on_the_full_grid() -> None:
    rng = generator(0)
    id_scores, ood_scores = rng.beta(0.5, 8, 300), rng.beta(2, 3, 100)
    result = list(paper_grid_detection(id_scores, ood_scores).to_dict().values())
    assert result == pytest.approx(loop(-id_scores, -ood_scores, 200_000), abs=1e-9)


@examples(30)
@given(scored_predictions(sizes=(7, 60)))
def test_misclassification_is_the_same_scan(sample: Pair) -> None:
    scores, correct = sample
    scores = scores + np.where(correct, 0.0, np.abs(scores).max() + 1)
    result = paper_grid_misclassification(scores, correct, steps=50)
    same = paper_grid_detection(scores[correct], scores[~correct], steps=50)
    assert list(result.to_dict().values()) == list(same.to_dict().values())
    assert list(result.to_dict())[3:] == ["aupr_success", "aupr_error"]


def test_uncertainty_and_negated_confidence_give_the_same() -> None:
    """1 - p and -p differ by rounding only, and so do the numbers."""
    rng = generator(1)
    id_probs, ood_probs = 1 - rng.beta(0.5, 8, 2000), 1 - rng.beta(2, 3, 1000)
    first, second = paper_grid_detection(1 - id_probs, 1 - ood_probs), paper_grid_detection(-id_probs, -ood_probs)
    assert first.numbers() == pytest.approx(second.numbers(), abs=1e-5)


def test_close_to_the_exact_metrics_where_scores_do_not_saturate() -> None:
    rng = generator(2)
    sets = rng.normal(size=5000), rng.normal(2, 1, size=5000)
    scan, exact = paper_grid_detection(*sets), m.detection(*sets)
    assert scan.auroc == pytest.approx(exact.auroc, abs=1e-3)
    assert scan.detection_accuracy == pytest.approx(exact.detection_accuracy, abs=1e-3)
    assert scan.aupr_in == pytest.approx(exact.aupr_in, abs=1e-3)
    assert scan.aupr_out == pytest.approx(exact.aupr_out, abs=1e-3)
    assert scan.tnr_at_tpr95_window == pytest.approx(exact.tnr_at_tpr95_id_positive, abs=0.025)


def test_known_faults_of_the_scan() -> None:
    """Outliers at the largest confidence are dropped from the AUROC, and an empty window gives TNR 0."""
    saturated = paper_grid_detection([0.0, 0.0, 1.0], [0.0, 1.0])
    assert saturated.auroc < m.auroc([0.0, 0.0, 1.0], [0.0, 1.0])
    assert paper_grid_detection([0.0, 0.1], [5.0, 6.0]).tnr_at_tpr95_window == 0.0


@pytest.mark.parametrize(
    "sets", [([1.0, 1.0], [1.0]), ([5e-324], [0.0]), ([1.7e308], [-1.7e308])], ids=["equal", "tiny", "huge"]
)
def test_a_range_without_a_grid_is_refused(sets: tuple[list[float], list[float]]) -> None:
    with pytest.raises(InputError, match="scores: got scores from .*200000 steps.*exact metrics"):
        paper_grid_detection(*sets)


@pytest.mark.parametrize("steps", [0, -1, 2.5, True])
def test_steps_must_be_a_count(steps: object) -> None:
    with pytest.raises(InputError, match="steps: got .* at least 1"):
        paper_grid_detection([0.0], [1.0], steps)  # type: ignore[arg-type]
