import dataclasses
import hashlib
import json
import math
import os
import subprocess
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from abnn import files, records
from abnn.errors import FileFormatError, InputError
from abnn.evaluation import Evaluation
from abnn.records import (
    NoArraysError,
    disagreements,
    find_records,
    log_probabilities,
    read_record,
    record_path,
    round_bits,
    slug,
    write_record,
)
from abnn.summary import flatten, summarise
from tests.test_summary import sample_evaluation, sample_set


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


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


def test_recomputing_gives_equal_numbers(tmp_path: Path):
    for bits in (24, 12):
        record = read_record(write_record(sample_evaluation(size=300), tmp_path, "e", score_bits=bits))
        assert record.recompute() == record.metrics
        assert disagreements(record, tolerance=0) == {}


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


def test_equal_runs_give_equal_arrays(tmp_path: Path):
    paths = [write_record(sample_evaluation(), tmp_path / name, "e") for name in ("a", "b")]
    first, second = (read_record(path).arrays_path for path in paths)
    assert first.name == second.name and first.read_bytes() == second.read_bytes()


def test_arrays_can_be_read_with_numpy_alone(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    with np.load(record.arrays_path, allow_pickle=False) as arrays:
        assert {"0/log_probs", "0/labels", "0/scores", "0/shown", "0/images"} <= set(arrays)
        np.testing.assert_allclose(np.exp(arrays["0/log_probs"].astype(float)).sum(1), 1, atol=1e-3)


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
    whole = read_record(write_record(evaluation, tmp_path, "e", score_bits=12))
    assert whole.arrays_path.exists()
    path = write_record(evaluation, tmp_path, "e", score_bits=12, arrays=False)
    bare = read_record(path)
    assert set(everything_in(tmp_path)) == {"e/plain-network-seed0.json"}  # the old arrays belong to nobody now
    assert bare.metrics == {name: part for name, part in whole.metrics.items() if name != "by_score"}
    assert bare.arrays_sha256 == whole.arrays_sha256 and bare.sets == whole.sets
    for ask in (bare.evaluation, bare.recompute, lambda: disagreements(bare)):
        with pytest.raises(NoArraysError, match="without its arrays"):
            ask()
    assert read_record(write_record(evaluation, tmp_path, "e", score_bits=12)).recompute() == whole.metrics


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


def test_infinite_thresholds_and_empty_sets_survive(tmp_path: Path):
    empty = sample_set("nothing", "full", 0, 1)
    evaluation = sample_evaluation(sets=(*sample_evaluation().sets[:2], empty), thresholds=(0.5, math.inf))
    record = read_record(write_record(evaluation, tmp_path, "e"))
    assert record.thresholds == (0.5, math.inf) and len(record.evaluation().sets[2]) == 0
    assert record.recompute() == record.metrics


def test_replacing_leaves_only_the_new_arrays(tmp_path: Path):
    path = write_record(sample_evaluation(), tmp_path, "e")
    first = read_record(path).arrays_path
    other = write_record(sample_evaluation(seed=10), tmp_path, "e")
    assert write_record(sample_evaluation(size=40), tmp_path, "e") == path
    second = read_record(path).arrays_path
    assert not first.exists() and second.exists() and read_record(other).recompute()
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
    assert disagreements(find_records(tmp_path)[0]) == {}


def test_a_failure_while_the_same_run_is_written_again_keeps_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = write_record(sample_evaluation(), tmp_path, "e")

    def fail(path: Path, content: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(records, "write_json", fail)
    with pytest.raises(KeyboardInterrupt):
        write_record(sample_evaluation(), tmp_path, "e")
    assert disagreements(read_record(path)) == {}


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path):
    a, b, _ = sample_evaluation().sets
    bad_scores = sample_set("x", "id", 3, 0, scores={"entropy": np.array([0, np.inf, 1], np.float32)})
    cases = [
        (sample_evaluation(config={"model": object()}), {}, "config: got something that JSON cannot hold"),
        (sample_evaluation(config={"rate": math.nan}), {}, "config"),
        (sample_evaluation(seconds={"fit": math.inf}), {}, "seconds"),
        (sample_evaluation(thresholds=(0.9, 0.4)), {}, "notice <= reject"),
        (sample_evaluation(thresholds=(math.nan, 0.4)), {}, "thresholds"),
        (sample_evaluation(sets=(a, b, a)), {}, "sets"),
        (sample_evaluation(sets=()), {}, "sets: got none"),
        (sample_evaluation(sets=(bad_scores,)), {}, "'entropy'.*'x'.*not finite"),
        (sample_evaluation(), {"score_bits": 4}, "score_bits: got 4"),
    ]
    for evaluation, options, message in cases:
        with pytest.raises(InputError, match=message):
            write_record(evaluation, tmp_path, "e", **options)
    assert everything_in(tmp_path) == {}


def test_names_that_share_a_file_are_refused_and_damaged_files_replaced(tmp_path: Path):
    path = write_record(sample_evaluation(name="Plain (network)"), tmp_path, "e")
    with pytest.raises(InputError, match=r"'plain network'.*holds 'Plain \(network\)'"):
        write_record(sample_evaluation(name="plain network"), tmp_path, "e")
    path.write_text("{ cut sho")
    assert read_record(write_record(sample_evaluation(name="plain network"), tmp_path, "e")).name == "plain network"
    assert len(list(tmp_path.rglob("*.npz"))) == 1


def test_slugs_are_safe_and_keep_foreign_names_apart():
    assert slug("Attached network (α=1, 10 draws)").startswith("attached-network-1-10-draws-")
    assert slug("../../etc/passwd") == "etc-passwd"
    assert slug("Café") == "cafe"
    assert len({slug("数字"), slug("字数"), slug("..."), slug("")}) == 4


@settings(max_examples=50)
@given(st.text(max_size=12))
def test_slugs_are_plain_file_names(name: str):
    assert slug(name) == slug(name) and set(slug(name)) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") and slug(name)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def damage_hidden_path(path: Path) -> None:
    edit(path, arrays_file="../../secret.npz")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damage_cut, "not valid JSON"),
        (lambda path: path.write_text("[1, 2]"), "not a run record"),
        (lambda path: path.write_text('{"format": "other"}'), "not a run record"),
        (lambda path: edit(path, version=2), "version 2.*update abnn"),
        (lambda path: edit(path, version="1"), "version '1'"),
        (lambda path: edit(path, seed="0"), "damaged.*seed is a str"),
        (lambda path: edit(path, metrics={"a": "high"}), r"damaged.*metrics\.a"),
        (lambda path: edit(path, metrics={"a": math.nan}), r"damaged.*metrics\.a"),
        (lambda path: edit(path, sets=[{"name": "x"}]), "damaged.*scores"),
        (lambda path: edit(path, sets=[1]), "damaged"),
        (lambda path: edit(path, thresholds=[1]), "damaged"),
        (damage_hidden_path, "damaged.*plain file name"),
        (lambda path: path.write_text('{"format": "abnn-record", "version": 1}'), "damaged"),
        (lambda path: path.unlink(), "does not exist"),
    ],
)
def test_damaged_foreign_and_newer_files_are_named(tmp_path: Path, damage, message: str):
    path = write_record(sample_evaluation(), tmp_path, "e")
    damage(path)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_record(path)
    assert str(path) in str(caught.value)


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
        record.recompute()


def with_arrays(record: records.Record, content: bytes) -> records.Record:
    record.arrays_path.write_bytes(content)
    return dataclasses.replace(record, arrays_sha256=hashlib.sha256(content).hexdigest())


def test_arrays_that_do_not_fit_the_record_are_named(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    other = read_record(write_record(sample_evaluation(size=50), tmp_path, "other"))
    for content in (other.arrays_path.read_bytes(), b"no archive", b""):
        with pytest.raises(FileFormatError, match="does not hold the arrays"):
            with_arrays(record, content).evaluation()


def test_loading_never_unpickles(tmp_path: Path):
    record = read_record(write_record(sample_evaluation(), tmp_path, "e"))
    bomb = tmp_path / "bomb.npz"
    np.savez(bomb, **{"0/log_probs": np.array([print], dtype=object)})
    assert "0/log_probs.npy" in zipfile.ZipFile(bomb).namelist()
    with pytest.raises(FileFormatError, match="allow_pickle"):
        with_arrays(record, bomb.read_bytes()).evaluation()


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


def test_find_records(tmp_path: Path):
    for experiment in ("b", "a"):
        for name in ("y", "x"):
            for seed in (2, 0, 10):
                write_record(sample_evaluation(seed, name, size=12), tmp_path, experiment, device="cpu")
    (tmp_path / "notes.json").write_text('{"format": "something else"}')
    (tmp_path / "list.json").write_text("[]")
    keys = [(each.experiment, each.name, each.seed) for each in find_records(tmp_path)]
    assert keys == [(e, n, s) for e in "ab" for n in "xy" for s in (0, 2, 10)]
    assert len(find_records(tmp_path, experiment="a", seed=[0, 10])) == 4
    assert [each.name for each in find_records(tmp_path, seed=2, name="y")] == ["y", "y"]
    assert find_records(tmp_path, name="z") == []
    with pytest.raises(InputError, match="filter: got 'sed'.*Did you mean 'seed'"):
        find_records(tmp_path, sed=1)
    with pytest.raises(InputError, match="no folder"):
        find_records(tmp_path / "nowhere")
    (tmp_path / "a" / "x-seed0.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"x-seed0\.json"):
        find_records(tmp_path)


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "src"
    package.mkdir()
    (package / "_version.py").write_text("1")
    monkeypatch.setattr(records, "__file__", str(package / "records.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init")
    assert records._code() == {}, "a repository that does not track the package says nothing about it"
    git("add", ".")
    git("commit", "-m", "first")
    assert records._code() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "results.json").write_text("{}")
    assert records._code()["dirty"] is False, "results beside the package are no change of code"
    (package / "new.py").write_text("2")
    assert records._code()["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert records._code() == {}


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


@settings(max_examples=10, deadline=None)
@given(sizes=st.tuples(*[st.integers(0, 9)] * 3), seed=st.integers(0, 1000), bits=st.sampled_from([8, 16, 24]))
def test_any_record_recomputes_exactly(sizes: tuple[int, ...], seed: int, bits: int):
    tiers = ("id", "semi", "full")
    sets = tuple(sample_set(tier, tier, size, seed) for tier, size in zip(tiers, sizes, strict=True))
    evaluation = Evaluation("m", "entropy", sets, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        record = read_record(write_record(evaluation, folder, "e", score_bits=bits))
        assert record.recompute() == record.metrics
