import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abnn import files
from abnn.errors import FileFormatError, InputError
from abnn.evaluate import records
from abnn.evaluate.records import find_records, read_record, record_path, write_record
from abnn.evaluate.summary import summarise
from tests.evaluate.records.samples import everything_in
from tests.evaluate.test_summary import sample_evaluation, sample_set


def test_round_trip(tmp_path: Path):
    evaluation = sample_evaluation(seed=3)
    path = write_record(evaluation, tmp_path, "Digits, 8x8", device="cuda")
    assert (
        path
        == tmp_path / "digits-8x8" / "plain-network-seed3.json"
        == record_path(tmp_path, "Digits, 8x8", "plain network", 3)
    )
    record = read_record(path)
    for field in ("name", "score", "seed", "config", "thresholds", "seconds"):
        assert getattr(record, field) == getattr(evaluation, field)
    assert (record.experiment, record.device) == ("Digits, 8x8", "cuda")
    assert record.versions["numpy"] == np.__version__ and {"abnn", "python", "torch"} <= set(record.versions)
    assert [each.data_hash for each in record.sets] == [each.data_hash for each in evaluation.sets]
    for stored, original in zip(record.evaluation().sets, evaluation.sets, strict=True):
        assert (stored.name, stored.tier, stored.skipped) == (original.name, original.tier, original.skipped)
        assert list(stored.scores) == list(original.scores)
        for name in original.scores:
            np.testing.assert_array_equal(stored.scores[name], original.scores[name], strict=True)
        for name in ("labels", "shown", "images", "predicted"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(original, name), strict=True)
        assert stored.probs.dtype == np.float32
        exact, rounded = np.log(original.probs.astype(float)), np.log(stored.probs.astype(float))
        # half a step of float16, then exp in float32
        assert (np.abs(rounded - exact) <= np.abs(exact) * 2.0**-11 + 2.0**-23).all()


def test_images_can_be_left_out(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (50, 28, 28), dtype=np.uint8)
    one = sample_set("digits", "id", 50, 0, shown=np.arange(50), images=noise)
    evaluation = sample_evaluation(sets=(one,), thresholds=None)
    full = read_record(write_record(evaluation, tmp_path / "full", "e"))
    small = read_record(write_record(evaluation, tmp_path / "small", "e", images=False))
    assert len(small.evaluation().sets[0].images) == len(small.evaluation().sets[0].shown) == 0
    assert small.metrics == full.metrics
    assert small.arrays_path.stat().st_size < full.arrays_path.stat().st_size - 0.9 * noise.size


def test_arrays_can_be_left_out(tmp_path: Path):
    evaluation = sample_evaluation(size=300)
    whole = read_record(write_record(evaluation, tmp_path, "e"))
    assert whole.arrays_path.exists()
    path = write_record(evaluation, tmp_path, "e", arrays=False)
    bare = read_record(path)
    assert set(everything_in(tmp_path)) == {"e/plain-network-seed0.json"}  # the old arrays belong to nobody now
    assert bare.metrics == {name: part for name, part in whole.metrics.items() if name != "by_score"}
    assert bare.arrays_sha256 == whole.arrays_sha256 and bare.sets == whole.sets
    with pytest.raises(FileFormatError, match="without its arrays"):
        bare.evaluation()
    assert summarise(read_record(write_record(evaluation, tmp_path, "e")).evaluation()) == whole.metrics


def test_infinite_thresholds_and_empty_sets_survive(tmp_path: Path):
    empty = sample_set("nothing", "full", 0, 1)
    evaluation = sample_evaluation(sets=(*sample_evaluation().sets[:2], empty), thresholds=(0.5, math.inf))
    record = read_record(write_record(evaluation, tmp_path, "e"))
    assert record.thresholds == (0.5, math.inf) and len(record.evaluation().sets[2]) == 0
    assert summarise(record.evaluation()) == record.metrics


def test_thresholds_by_class_survive_and_records_without_them_are_as_before(tmp_path: Path):
    by_class = ((0.1, 0.2), (0.4, 0.9), (0.6, math.inf), (0.2, 0.3))
    record = read_record(write_record(sample_evaluation(class_thresholds=by_class), tmp_path, "by class"))
    assert record.class_thresholds == record.evaluation().class_thresholds == by_class
    assert summarise(record.evaluation()) == record.metrics
    common = write_record(sample_evaluation(), tmp_path, "common")
    assert "class_thresholds" not in json.loads(common.read_text()) and read_record(common).class_thresholds == ()


def test_replacing_leaves_only_the_new_arrays(tmp_path: Path):
    path = write_record(sample_evaluation(), tmp_path, "e")
    first = read_record(path).arrays_path
    other = write_record(sample_evaluation(seed=10), tmp_path, "e")
    assert write_record(sample_evaluation(size=40), tmp_path, "e") == path
    second = read_record(path).arrays_path
    assert not first.exists() and second.exists() and read_record(other).evaluation()
    before = everything_in(tmp_path)[str(second.relative_to(tmp_path))]
    write_record(sample_evaluation(size=40), tmp_path, "e")
    assert second.read_bytes() == before and len(everything_in(tmp_path)) == 4


@pytest.mark.parametrize("failing_call", [1, 2])
def test_a_failure_keeps_the_old_record_and_leaves_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: int
):
    """The first rename puts the arrays in place, the second the JSON; the disk is full at either."""
    write_record(sample_evaluation(), tmp_path / "old", "e")
    before = everything_in(tmp_path)
    calls = 0

    def replace(source: str, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError("no space left on device")
        real(source, target)

    real = os.replace
    monkeypatch.setattr(files.os, "replace", replace)
    for folder in ("old", "new"):
        calls = 0
        with pytest.raises(OSError, match="no space"):
            write_record(sample_evaluation(size=40), tmp_path / folder, "e")
    assert everything_in(tmp_path) == before
    assert summarise((record := find_records(tmp_path)[0]).evaluation()) == record.metrics


def test_a_failure_while_the_same_run_is_written_again_keeps_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_record(sample_evaluation(), tmp_path, "e")

    def fail(path: Path, content: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        write_record(sample_evaluation(), tmp_path, "e")
    assert summarise((record := read_record(path)).evaluation()) == record.metrics


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path):
    a, b, _ = sample_evaluation().sets
    bad_scores = sample_set("x", "id", 3, 0, scores={"entropy": np.array([0, np.inf, 1], np.float32)})
    bad_other = sample_set("x", "id", 3, 0, scores={"entropy": np.ones(3), "other": np.array([0, np.inf, 1])})
    cases: list[tuple[dict[str, Any], str]] = [
        ({"config": {"model": object()}}, "config: got something that JSON cannot hold"),
        ({"config": {"rate": math.nan}}, "config"),
        ({"seconds": {"fit": math.inf}}, "seconds"),
        ({"thresholds": (0.9, 0.4)}, "notice <= reject"),
        ({"thresholds": (math.nan, 0.4)}, "thresholds"),
        ({"sets": (a, b, a)}, "sets"),
        ({"sets": ()}, "got no sets"),
        ({"sets": (bad_scores,)}, "'entropy'.*'x'.*not finite"),
        ({"sets": (bad_other,)}, "'other'.*'x'.*not finite"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            write_record(sample_evaluation(**changes), tmp_path, "e")
    assert everything_in(tmp_path) == {}


def test_names_that_share_a_file_are_refused_and_damaged_files_replaced(tmp_path: Path):
    path = write_record(sample_evaluation(name="Plain (network)"), tmp_path, "e")
    with pytest.raises(InputError, match=r"'plain network'.*holds 'Plain \(network\)'"):
        write_record(sample_evaluation(name="plain network"), tmp_path, "e")
    path.write_text("{ cut sho")
    assert read_record(write_record(sample_evaluation(name="plain network"), tmp_path, "e")).name == "plain network"
    assert len(list(tmp_path.rglob("*.npz"))) == 1
