import dataclasses
import hashlib
import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abnn.errors import FileFormatError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records import Record, read_record, write_record
from abnn.evaluate.summary import flatten, summarise
from tests.evaluate.test_summary import sample_evaluation, sample_set


def test_recomputing_gives_equal_numbers(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(size=300), tmp_path, "e"))
    assert summarise(record.evaluation()) == record.metrics


@settings(max_examples=10, deadline=None)
@given(sizes=st.tuples(*[st.integers(0, 9)] * 3), seed=st.integers(0, 1000))
def test_any_record_recomputes_exactly(sizes: tuple[int, ...], seed: int):
    tiers = ("id", "semi", "full")
    sets = tuple(sample_set(tier, tier, size, seed) for tier, size in zip(tiers, sizes, strict=True))
    evaluation = Evaluation("m", "entropy", sets, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = read_record(write_record(evaluation, folder, "e"))
        assert summarise(record.evaluation()) == record.metrics


def test_metrics_of_scores_are_those_of_the_run_and_calibration_is_close(tmp_path: Path):
    evaluation = sample_evaluation(size=400)
    live = flatten(summarise(evaluation))
    stored = read_record(write_record(evaluation, tmp_path, "e")).numbers
    assert live.keys() == stored.keys()
    for path, number in live.items():
        if path.startswith("calibration") and not path.endswith("accuracy"):
            # |p' - p| <= p |log p| 2^-11 <= 2^-11 / e for each p, and relative 2^-11 for each -log p
            bound = 2.0**-11 * max(number, 1.0) * (4 if "brier" in path else 1)
            assert stored[path] == pytest.approx(number, abs=bound), path
        else:
            assert stored[path] == number, path


def test_damaged_arrays_are_named(tmp_path: Path):
    path = write_record(sample_evaluation(), tmp_path, "e")
    record = read_record(path)
    content = bytearray(record.arrays_path.read_bytes())
    content[len(content) // 2] ^= 1
    record.arrays_path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"another sha256.*restore"):
        record.evaluation()
    record.arrays_path.unlink()
    with pytest.raises(FileFormatError, match=r"does not exist.*restore"):
        record.evaluation()


def with_arrays(record: Record, content: bytes) -> Record:
    record.arrays_path.write_bytes(content)
    return dataclasses.replace(record, arrays_sha256=hashlib.sha256(content).hexdigest())


def test_arrays_that_do_not_fit_the_record_are_named(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    other = read_record(write_record(sample_evaluation(size=50), tmp_path, "other"))
    odd = io.BytesIO()
    with zipfile.ZipFile(odd, "w") as archive:
        archive.writestr(
            "0/log_probs.npy", b"\x93NUMPY\1\0\3\0[(\n"
        )  # numpy's parser of headers gives up in its own way
    for content in (other.arrays_path.read_bytes(), b"no archive", b"", odd.getvalue()):
        with pytest.raises(FileFormatError, match="does not hold the arrays"):
            with_arrays(record, content).evaluation()


def test_loading_never_unpickles(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    bomb = tmp_path / "bomb.npz"
    np.savez(bomb, **{"0/log_probs": np.array([print], dtype=object)})
    assert "0/log_probs.npy" in zipfile.ZipFile(bomb).namelist()
    with pytest.raises(FileFormatError, match="allow_pickle"):
        with_arrays(record, bomb.read_bytes()).evaluation()
