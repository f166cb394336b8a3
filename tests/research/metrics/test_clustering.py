"""The paper's clustering on selected inputs: the selection itself, and what chance gives under it."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import confusion_matrix
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from abnn import metrics as m
from abnn.errors import InputError
from research.metrics import paper_trimmed_clustering, paper_trimmed_clustering_cat_dog
from tests.metrics.samples import generator

PAPER_SIZES = (10_000, 25_856, 9_984)
CAT_DOG_SIZES = (10_000, 768, 10_000)


def test_matrix_is_k_means_on_the_least_uncertain_of_each_tier() -> None:
    rng = generator(0)
    sets = rng.normal(0, 1, 300), rng.normal(6, 1, 400), rng.normal(12, 1, 200)
    result = paper_trimmed_clustering(*sets, keep=(100, 50, 150), shuffles=2)
    pooled = np.concatenate([sorted(group)[:number] for group, number in zip(sets, (100, 50, 150), strict=True)])
    with threadpool_limits(1):  # its threads wait for each other longer than they compute
        model = KMeans(3, n_init=10, random_state=0).fit(pooled[:, None])
    rank = np.argsort(np.argsort(model.cluster_centers_[:, 0]))
    expected = confusion_matrix(np.repeat([0, 1, 2], [100, 50, 150]), rank[model.labels_])
    assert np.array_equal(result.matrix, expected)
    assert result.accuracy == np.trace(expected) / 300
    assert (result.kept_id, result.kept_semi, result.kept_full) == (100 / 300, 50 / 400, 150 / 200)
    assert result.untrimmed_balanced_accuracy == m.cluster_confusion(*sets).balanced_accuracy
    json.dumps(result.to_dict(), allow_nan=False)


def test_cat_dog_selection() -> None:
    """Tiers that do not overlap, with one odd value just outside each selected range that must not be seen."""
    id_scores = np.append(np.linspace(0, 1, 100), 1e6)
    semi_scores = np.append(np.linspace(10, 11, 100), 1e6)
    full_scores = np.concatenate(
        [np.full(60, -1e6), np.linspace(20, 21, 100), np.full(340, 1e6)]
    )  # every second is taken
    result = paper_trimmed_clustering_cat_dog(id_scores, semi_scores, full_scores, shuffles=2)
    assert result.matrix == ((100, 0, 0), (0, 100, 0), (0, 0, 100))
    assert result.kept_full == 50 / 500


@pytest.mark.parametrize(
    ("sample", "low", "high"),
    [
        (lambda rng, n: rng.beta(2, 2, n), 0.79, 0.87),
        (lambda rng, n: rng.random(n), 0.66, 0.73),
        (lambda rng, n: rng.beta(0.5, 3, n), 0.42, 0.50),
    ],
    ids=["beta-2-2", "uniform", "beta-half-3"],
)
def test_cat_dog_selection_manufactures_the_known_accuracy(
    sample: Callable[[np.random.Generator, int], np.ndarray], low: float, high: float
) -> None:
    """Equal distributions in all three roles; the means over 20 draws were measured as 82.8, 69.4 and 46.2 %."""
    rng = generator(0)
    results = []
    for _ in range(5):
        id_scores, semi_scores, full_scores = (sample(rng, n) for n in CAT_DOG_SIZES)
        results.append(paper_trimmed_clustering_cat_dog(id_scores, semi_scores, full_scores, shuffles=2))
    assert low < np.mean([result.accuracy for result in results]) < high
    assert results[0].untrimmed_balanced_accuracy < 0.37


def test_first_selection_under_chance() -> None:
    rng = generator(0)
    id_scores, semi_scores, full_scores = (rng.random(n) for n in PAPER_SIZES)
    result = paper_trimmed_clustering(id_scores, semi_scores, full_scores)
    assert 0.24 < result.accuracy < 0.37
    assert abs(result.accuracy - result.shuffled_accuracy) < 5 * result.shuffled_std


def test_shuffled_accuracy_is_the_mean_over_dealt_out_scores() -> None:
    rng = generator(0)
    sets = rng.normal(0, 1, 30), rng.normal(1, 1, 40), rng.normal(2, 1, 20)
    result = paper_trimmed_clustering(*sets, keep=(20, 20, 20), shuffles=7, seed=5)
    again, pooled = generator(5), np.concatenate(sets)
    accuracies = []
    for _ in range(7):
        dealt = np.split(again.permutation(pooled), [30, 70])
        accuracies.append(m.cluster_confusion(*(np.sort(group)[:20] for group in dealt)).accuracy)
    assert result.shuffled_accuracy == pytest.approx(np.mean(accuracies), abs=1e-15)
    assert result.shuffled_std == pytest.approx(np.std(accuracies, ddof=1), abs=1e-15)
    assert result.shuffles == 7
    assert paper_trimmed_clustering(*sets, keep=(20, 20, 20), shuffles=7, seed=5) == result


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ((4, 3, 3), "keep: got 4 for id_scores; accepted: at most 3"),
        ((3, 3, 9000), "keep: got 9000 for full_scores"),
        ((0, 3, 3), "keep for id_scores: got 0; accepted: a whole number of at least 1"),
        ((3, 3), "keep: got .3, 3.; accepted: three whole numbers"),
        (3, "keep: got 3; accepted: three whole numbers"),
    ],
)
def test_keep_must_fit(keep: object, message: str) -> None:
    sets = [0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    with pytest.raises(InputError, match=message):
        paper_trimmed_clustering(*sets, keep=keep)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((99, 100, 250), "id_scores: got 99 values; accepted: at least 100"),
        ((100, 99, 250), "semi_scores: got 99"),
        ((100, 100, 249), "full_scores: got 249 values; accepted: at least 250"),
    ],
)
def test_cat_dog_selection_needs_enough_inputs(sizes: tuple[int, int, int], message: str) -> None:
    id_scores, semi_scores, full_scores = (np.arange(float(n)) for n in sizes)
    with pytest.raises(InputError, match=message):
        paper_trimmed_clustering_cat_dog(id_scores, semi_scores, full_scores)


@pytest.mark.parametrize(("options", "name"), [({"shuffles": 1}, "shuffles"), ({"seed": -1}, "seed")])
def test_options_are_checked(options: dict[str, int], name: str) -> None:
    with pytest.raises(InputError, match=f"{name}: got"):
        paper_trimmed_clustering([0.0, 1.0], [1.0, 2.0], [2.0, 3.0], keep=(2, 2, 2), **options)  # type: ignore[arg-type]
