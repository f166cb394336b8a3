"""The numbers of records: all of an evaluation, and the paper's own beside them."""

from pathlib import Path

import numpy as np

from abnn.evaluate import summary
from abnn.evaluate.records import read_record, write_record
from research import metrics
from research.metrics import summarise
from research.records import disagreements
from tests.evaluate.test_summary import sample_evaluation, sample_set


def test_the_papers_numbers_stand_beside_those_of_the_evaluation():
    evaluation = sample_evaluation()
    numbers = summarise(evaluation)
    digits, printed, photos = evaluation.sets
    scores = [each.scores["entropy"] for each in evaluation.sets]
    grid = metrics.paper_grid_misclassification(scores[0], digits.correct).to_dict()
    assert numbers["paper_grid_misclassification"]["digits"] == grid
    assert numbers["paper_grid_detection"] == {
        printed.name: metrics.paper_grid_detection(scores[0], scores[1]).to_dict(),
        photos.name: metrics.paper_grid_detection(scores[0], scores[2]).to_dict(),
    }
    assert {key: value for key, value in numbers.items() if "paper" not in key} == summary.summarise(evaluation)


def test_clusterings_of_the_paper_appear_when_the_sets_are_large_enough():
    assert "paper_trimmed_clustering_cat_dog" not in summarise(sample_evaluation(size=60))
    summary = summarise(sample_evaluation(size=250))
    assert "shuffled_accuracy" in summary["paper_trimmed_clustering_cat_dog"]
    assert "paper_trimmed_clustering" not in summary
    assert "shuffled_accuracy" in summarise(sample_evaluation(size=9000))["paper_trimmed_clustering"]


def test_without_id_data_or_with_a_constant_score_there_is_no_grid():
    evaluation = sample_evaluation()
    assert "paper_grid_detection" not in summarise(sample_evaluation(sets=evaluation.sets[1:]))
    sets = [
        sample_set(name, tier, 20, 0, scores={"entropy": np.ones(20, np.float32)})
        for name, tier in (("a", "id"), ("b", "semi"), ("c", "full"))
    ]
    numbers = summarise(sample_evaluation(sets=tuple(sets)))
    assert not any("paper" in key for key in numbers)


def test_pairs_have_the_clustering_of_single_sets():
    a, b, c = sample_evaluation(size=250).sets
    other = sample_set("letters", "semi", 260, 5)
    pairs = summarise(sample_evaluation(sets=(a, b, other, c)))["pairs"]
    for semi in (b, other):
        alone = summarise(sample_evaluation(sets=(a, semi, c), thresholds=None))
        paper = {"paper_trimmed_clustering_cat_dog": alone["paper_trimmed_clustering_cat_dog"]}
        assert pairs[f"{semi.name} < {c.name}"] == {**alone["tiers"], **paper}


def test_records_with_the_papers_numbers_recompute(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(size=250), tmp_path, "e", summary=summarise))
    assert "paper_trimmed_clustering_cat_dog" in record.metrics
    assert summarise(record.evaluation()) == record.metrics and disagreements(record, 0) == {}
