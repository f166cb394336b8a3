"""Records of experiments: rounding changes no verdict and no order, and wrong numbers are named."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abnn.errors import InputError
from abnn.evaluate.records import read_record, write_record
from abnn.evaluate.summary import summarise
from research.records import disagreements, round_bits, rounded
from tests.evaluate.records.samples import edit
from tests.evaluate.test_summary import sample_evaluation, sample_set

FLOATS = hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32, allow_nan=False, allow_infinity=False))


@given(values=FLOATS, bits=st.integers(8, 24))
def test_rounding_keeps_the_order_and_the_size(values: np.ndarray, bits: int):
    rounded = round_bits(values, bits)
    order = np.argsort(values, kind="stable")
    assert (np.diff(rounded[order].astype(float)) >= 0).all()
    step = np.ldexp(1.0, np.frexp(np.maximum(np.abs(values), np.finfo(np.float32).smallest_normal))[1] - bits)
    assert (np.abs(rounded.astype(float) - values) <= step / 2).all()
    np.testing.assert_array_equal(round_bits(rounded, bits), rounded)
    np.testing.assert_array_equal(round_bits(-values, bits), -rounded)
    np.testing.assert_array_equal(round_bits(values, 24), values)


def test_rounding_keeps_the_verdicts_of_scores_at_a_threshold(tmp_path: Path):
    sevenths = (np.random.default_rng(0).integers(0, 7, 60) / np.float32(7)).astype(np.float32)
    evaluation = sample_evaluation(
        sets=(sample_set("digits", "id", 60, 0, scores={"entropy": sevenths}),), thresholds=(3 / 7, 5 / 7)
    )
    by_class = replace(evaluation, class_thresholds=((1 / 7, 5 / 7), (2 / 7, 3 / 7), (3 / 7, 3 / 7), (0.0, math.inf)))
    for each in (evaluation, by_class):
        verdicts = summarise(each)["verdicts"]
        for bits in (24, 16, 12, 8):
            record = read_record(write_record(rounded(each, bits), tmp_path, "e"))
            assert record.metrics["verdicts"] == verdicts == summarise(record.evaluation())["verdicts"]
    exact = read_record(write_record(by_class, tmp_path, "e"))
    assert (exact.thresholds, exact.class_thresholds) == (by_class.thresholds, by_class.class_thresholds)


@pytest.mark.parametrize("bits", [8, 16, 24])
def test_rounded_records_recompute_exactly(tmp_path: Path, bits: int):
    record = read_record(write_record(rounded(sample_evaluation(size=300), bits), tmp_path, "e"))
    assert disagreements(record, tolerance=0) == {} and summarise(record.evaluation()) == record.metrics


def test_bits_must_be_few_but_not_too_few():
    for bits in (4, 25, 12.0):
        with pytest.raises(InputError, match=f"bits: got {bits}"):
            rounded(sample_evaluation(), bits)  # type: ignore[arg-type]


def test_disagreements_name_the_number(tmp_path: Path):
    path = write_record(sample_evaluation(), tmp_path, "e")
    record = read_record(path)
    metrics = json.loads(json.dumps(record.metrics))
    true = metrics["accuracy"]["digits"]
    metrics["accuracy"]["digits"] = true + 1e-6
    metrics["accuracy"]["gone"] = 0.5
    edit(path, metrics=metrics)
    wrong = disagreements(read_record(path))
    assert wrong == {"accuracy.digits": (true + 1e-6, true), "accuracy.gone": (0.5, None)}
    del metrics["accuracy"], metrics["tiers"]
    edit(path, metrics=metrics)
    assert disagreements(read_record(path)) == {}
