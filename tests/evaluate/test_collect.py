"""Scoring whole sets: nothing lost, nothing reordered, pictures of the extremes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from abnn.errors import InputError
from abnn.evaluate.collect import Pool, all_scores, as_pictures, evaluate_set
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.predict import Plain, Prediction
from abnn.scores import ONE_DRAW_SCORES, SAMPLE_SCORES
from tests.train.test_fit import attached, backbone, data

X, Y = data(50)


def batches(size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(X.split(size), Y.split(size)))


def test_result_does_not_depend_on_the_batches() -> None:
    model = attached()
    one, many = (evaluate_set(model, batches(size), "a", "id", draws=3) for size in (50, 7))
    np.testing.assert_allclose(one.probs, many.probs, atol=1e-6)
    assert one.scores.keys() == many.scores.keys()
    for name in one.scores:
        np.testing.assert_allclose(one.scores[name], many.scores[name], atol=1e-5)
    direct = model.predict(X, draws=3)
    np.testing.assert_allclose(one.probs, direct.probs.numpy(), atol=1e-6)
    assert (one.labels == Y.numpy()).all() and (one.predicted == direct.label.numpy()).all()


def test_hash_belongs_to_inputs_and_labels_alone() -> None:
    model = Plain(backbone(), X[:1])
    one, many = (evaluate_set(model, batches(size), "a", "id") for size in (50, 7))
    assert one.data_hash == many.data_hash and len(one.data_hash) == 64
    changed = X.clone()
    changed[17, 0, 0, 0] += 0.5
    relabelled = Y.clone()
    relabelled[3] = -1
    hashes = [
        evaluate_set(model, [pair], "a", "id").data_hash for pair in ((changed, Y), (X, relabelled), (X[:-1], Y[:-1]))
    ]
    assert len({one.data_hash, *hashes}) == 4


def test_choice_of_pictures_does_not_depend_on_the_batches() -> None:
    scores = np.random.default_rng(3).integers(0, 6, 200).astype(float)  # many ties
    x = torch.arange(200.0)[:, None, None, None].expand(-1, 1, 2, 2) / 255
    chosen = []
    for sizes in ([200], [7] * 28 + [4], [1] * 200):
        pool, first = Pool(5, seed=1), 0
        for size in sizes:
            pool.add(scores[first : first + size], x[first : first + size], as_pictures)
            first += size
        chosen.append(pool.numbers.tolist())
        assert (pool.images[:, 0, 0] == pool.numbers).all() and (pool.scores == scores[pool.numbers]).all()
    assert chosen[0] == chosen[1] == chosen[2]
    at_random = [Pool(5, seed)._keys(np.arange(200)).argsort()[:5].tolist() for seed in range(4)]
    assert len({tuple(each) for each in at_random}) == 4


def test_pictures_of_the_extremes_and_a_random_choice() -> None:
    model = Plain(backbone(), X[:1])
    result = evaluate_set(model, batches(8), "a", "id", shown=3)
    order = np.argsort(result.scores["entropy"], kind="stable")
    assert {*order[:3], *order[-3:]} <= set(result.shown.tolist()) and 6 <= len(result.shown) <= 9
    expected = (X[result.shown][:, 0] * 255).round().byte().numpy()
    np.testing.assert_array_equal(result.images, expected)
    assert len(evaluate_set(model, batches(8), "a", "id", shown=0).images) == 0


def test_pictures_of_normalised_colour_and_of_other_shapes() -> None:
    colour = as_pictures(torch.randn(4, 3, 5, 5))
    assert colour.shape == (4, 5, 5, 3) and colour.min() == 0 and colour.max() == 255
    assert len(as_pictures(torch.randn(4, 7))) == 0


def test_empty_sets() -> None:
    with pytest.raises(InputError, match="set 'a': got no inputs"):
        evaluate_set(Plain(backbone(), X[:1]), [], "a", "id")


def test_evaluations_check_their_parts() -> None:
    probs, labels = np.full((3, 2), 0.5, np.float32), np.zeros(3, np.int64)
    with pytest.raises(InputError, match="tier"):
        SetResult("a", "almost", probs, labels, {})
    with pytest.raises(InputError, match="3, one for each input"):
        SetResult("a", "id", probs, labels, {"entropy": np.zeros(2)})
    one = SetResult("a", "id", probs, labels, {"entropy": np.arange(3.0)})
    two = SetResult("b", "id", probs, labels - 1, {"entropy": np.arange(3.0) + 5})
    evaluation = Evaluation("m", "entropy", (one, two))
    assert evaluation.scores("id").tolist() == [0, 1, 2, 5, 6, 7]
    assert one.labelled and not two.labelled and two.correct.tolist() == [False] * 3 and len(one) == 3


def test_all_scores_are_those_that_a_prediction_can_give() -> None:
    samples = torch.rand(2, 4, 3).softmax(-1)
    parts = {
        "energy": torch.arange(4.0),
        "odds": torch.ones(4),
        "distance at input": torch.ones(4),
        "distance at 0": torch.full((4,), 3.0),
    }
    learnt = all_scores(Prediction(samples, torch.arange(4.0) + 1, parts))
    assert set(learnt) == {*SAMPLE_SCORES, "combined", "failures", "energy", "distance"}
    assert learnt["combined"].tolist() == [1, 2, 3, 4] and learnt["distance"].tolist() == [2] * 4
    del parts["energy"]
    assert set(all_scores(Prediction(samples, torch.arange(4.0), parts))) == {*SAMPLE_SCORES, "combined", "distance"}
    assert set(all_scores(Prediction(samples))) == set(SAMPLE_SCORES)
    assert set(all_scores(Prediction(samples[:1], own={"mine": torch.ones(4)}))) == {*ONE_DRAW_SCORES, "mine"}
