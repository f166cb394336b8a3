from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abnn.evaluate.arrays import log_probabilities
from abnn.evaluate.records import read_record, write_record
from tests.evaluate.test_summary import sample_evaluation, sample_set


def test_equal_runs_give_equal_arrays(tmp_path: Path):
    paths = [write_record(sample_evaluation(), tmp_path / name, "e") for name in ("a", "b")]
    first, second = (read_record(path).arrays_path for path in paths)
    assert first.name == second.name and first.read_bytes() == second.read_bytes()


def test_arrays_can_be_read_with_numpy_alone(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    with np.load(record.arrays_path, allow_pickle=False) as arrays:
        assert {"0/log_probs", "0/labels", "0/scores", "0/shown", "0/images"} <= set(arrays)
        np.testing.assert_allclose(np.exp(arrays["0/log_probs"].astype(float)).sum(1), 1, atol=1e-3)


def test_a_run_of_three_sets_of_700_is_small(tmp_path: Path):
    """10 classes, seven scores without structure: the worst case for compression."""
    rng = np.random.default_rng(0)
    sets = []
    for tier in ("id", "semi", "full"):
        probs = rng.dirichlet(np.full(10, 0.3), 700).astype(np.float32)
        scores = {f"score {number}": rng.normal(size=700).astype(np.float32) for number in range(7)}
        sets.append(sample_set(tier, tier, 700, 0, probs=probs, labels=rng.integers(0, 10, 700), scores=scores))
    record = read_record(write_record(sample_evaluation(sets=tuple(sets), score="score 0"), tmp_path, "e"))
    assert record.arrays_path.stat().st_size < 110_000
    assert record.path.stat().st_size < 60_000


@settings(max_examples=200)
@given(
    hnp.arrays(np.float32, st.tuples(st.integers(1, 8), st.integers(2, 6)), elements=st.floats(0, 1, width=32)),
    st.sampled_from([1.0, 1e-4, 1e-7]),
)
def test_stored_probabilities_predict_the_same_class(weights: np.ndarray, closeness: float):
    """Rows that are almost ties, where rounding alone would change the prediction."""
    rows = 1 + weights.astype(np.float64) * closeness
    probs = (rows / rows.sum(1, keepdims=True)).astype(np.float32)
    stored = np.exp(log_probabilities(probs).astype(np.float64)).astype(np.float32)
    np.testing.assert_array_equal(stored.argmax(1), probs.argmax(1))
    assert stored.max() <= 1 and np.abs(stored - probs).max() <= 2.0**-10


def test_extreme_probabilities_are_kept():
    probs = np.array([[1.0, 0.0], [1 - 2.0**-24, 2.0**-24], [1e-30, 1.0], [1.0000001, 0.0]], np.float32)
    stored = np.exp(log_probabilities(probs).astype(float))
    np.testing.assert_allclose(stored, np.minimum(probs.astype(float), 1), rtol=70 * 2.0**-11)
    assert stored[0, 1] == 0 and stored[1, 0] < 1
