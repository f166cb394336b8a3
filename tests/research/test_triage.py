"""The check of the promise on run records: the numbers are those of the splits, from the arrays of the record alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import read_record, write_record
from abnn.triage import check_guarantee
from research import triage
from research.triage import main


def result(name: str, tier: str, count: int, seed: int) -> SetResult:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), count).astype(np.float32)
    scores = {"own": rng.exponential(size=count).astype(np.float32), "other": np.zeros(count, np.float32)}
    return SetResult(name, tier, probs, rng.integers(0, 3, count), scores, data_hash=f"hash of {name}")


def record(folder: Path, *sets: SetResult, name: str = "some model") -> Path:
    config = {"data": {"name": "made up"}}
    evaluation = Evaluation(name, "own", sets, None, 3, config, {"training": 1.5})
    return write_record(evaluation, folder, "any experiment", "some device")


def test_all_in_distribution_inputs_are_split_and_nothing_else(tmp_path: Path) -> None:
    first, second, far = result("a", "id", 300, 0), result("b", "id", 101, 1), result("c", "full", 50, 2)
    path = record(tmp_path, first, second, far)
    found = triage.check_record(read_record(path), splits=200, seed=5)
    good = np.concatenate([first.scores["own"], second.scores["own"]])
    for check, share in zip(found["guarantee"], triage.SHARES):
        again = check_guarantee(good, share, 200, 5)
        assert (check["mean"], check["worst"], check["calibration"]) == (again.mean, again.worst, 200)
        assert check["holds"] == again.holds and abs(again.mean - again.exact) <= 4 * again.standard_error
    assert found["data"] == {"name": "a, b", "sha256": "hash of a, hash of b", "calibration": 200, "good": 401}
    kept = found["record"]
    assert kept["seed"] == 3 and kept["device"] == "some device" and kept["config"] == {"data": {"name": "made up"}}
    assert kept["arrays_sha256"] and found["versions"]["numpy"] == np.__version__
    with pytest.raises(InputError, match="c \\(full\\)"):
        triage.check_record(read_record(record(tmp_path, far, name="without")))


def test_stated_probabilities_are_checked_on_the_other_half() -> None:
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.full(4, 0.3), 2001)
    labels = (probs.cumsum(1) > rng.random((2001, 1))).argmax(1)
    cautious = probs**0.5 / (probs**0.5).sum(1, keepdims=True)
    found = triage.check_probabilities(cautious, labels, splits=5)
    assert found is not None and (found["calibration"], found["test"]) == (1000, 1001)
    assert found["temperature"] == pytest.approx(0.5, rel=0.1)
    assert found["gap_after"] < 0.04 < found["gap_before"] and found["nll_after"] < found["nll_before"]
    assert triage.check_probabilities(cautious[:1], labels[:1]) is None


def test_records_are_checked_and_rendered_into_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record(tmp_path / "runs", result("a", "id", 1000, 0))
    document, output = tmp_path / "page.md", tmp_path / "checks"
    places = [f"<!-- abnn:table {name} -->\n<!-- /abnn:table -->\n" for name in ("guarantee", "stated")]
    document.write_text(f"before\n{'between'.join(places)}after\n")
    main(["--record", str(path), "--output", str(output), "--into", str(document)])
    written = output / "any-experiment-some-model-seed3.json"
    assert str(written) in capsys.readouterr().out
    check = json.loads(written.read_text())["guarantee"][1]
    line = next(line for line in document.read_text().splitlines() if line.startswith("| a |"))
    assert f"| 500 | 500 | {100 * json.loads(written.read_text())['guarantee'][0]['mean']:.2f} ± " in line
    assert f" {100 * check['mean']:.2f} ± {100 * check['standard_error']:.2f} % " in line
    (output / "other.json").write_text("{}")  # passed over
    text = document.read_text()
    main(["--table", "--output", str(output), "--into", str(document)])
    assert document.read_text() == text


@pytest.mark.filterwarnings("ignore:The attachments cost accuracy")
def test_mnist_is_trained_for_a_moment_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With made-up images in the place of MNIST: a record with everything that led to it, and a check from it."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 200), ("test", 240)):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        images = rng.integers(0, 256, (count, 28, 28)).astype(np.uint8)
        np.savez(tmp_path / "mnist" / f"{split}.npz", images=images, labels=rng.integers(0, 10, count))
    backbone = {**triage.MNIST["backbone"], "width": 4, "blocks": 1}
    quick = {**triage.MNIST, "images": 128, "draws": 2, "backbone": backbone}
    monkeypatch.setattr(triage, "MNIST", quick)
    folders = ["--output", str(tmp_path / "triage"), "--records", str(tmp_path)]
    main(["--mnist", "--data-root", str(tmp_path), *folders, "--quiet"])
    found = read_record(tmp_path / "quick-mnist" / "attached-network-seed0.json")
    assert found.config["images"] == 128 and found.config["backbone"]["width"] == 4
    assert set(found.config["data"]) == {"train", "test"} and found.config["method"]["pretrain"] == pytest.approx(2 / 3)
    assert [(each.name, each.tier, each.inputs) for each in found.sets] == [("mnist/test", "id", 240)]
    checked = json.loads((tmp_path / "triage" / "quick-mnist-attached-network-seed0.json").read_text())
    assert checked["record"]["arrays_sha256"] == found.arrays_sha256
