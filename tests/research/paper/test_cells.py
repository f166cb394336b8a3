"""Cells on small made-up files in the place of the real ones: trained once, evaluated, recorded, and gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from abnn.errors import InputError
from abnn.evaluate.records import Record, read_record
from research.metrics import summarise
from research.paper import cells
from research.paper.cells import Cell, Runner
from tests.research.paper.samples import OURS, PLAIN, SMALL

ENERGY = Cell("energy (post-hoc)", "mnist", start=PLAIN, posthoc="energy")
TOGETHER = Cell("deep-ensemble", "mnist", start=PLAIN, ensemble=True)
SEEDS = (0, 1)


@dataclass
class Place:
    """Folders of a runner, what it said, and which seeds it trained."""

    folder: Path
    root: Path
    notes: list[str] = field(default_factory=list)
    trained: list[list[int]] = field(default_factory=list)

    def run(self, *wanted: Cell, seeds: tuple[int, ...] = SEEDS) -> dict[tuple[str, int], Record]:
        self.notes.clear(), self.trained.clear()
        runner = Runner(
            self.folder / "results", self.folder / "work", seeds, self.root, progress=False, note=self.notes.append
        )
        records = [read_record(path) for path in runner.run(wanted)]
        return {(record.name, record.seed): record for record in records}

    def copy(self, folder: Path) -> Place:
        return Place(Path(shutil.copytree(self.folder, folder / "copy")), self.root)


@pytest.fixture(scope="module")
def finished(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("runs"), root)
    place.run(PLAIN, OURS, ENERGY, TOGETHER)
    return place


@pytest.fixture
def place(finished: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    copied, train = finished.copy(tmp_path), cells.train_seeds

    def counted(*arguments: Any, seeds: list[int], **options: Any) -> Any:
        copied.trained.append(list(seeds))
        return train(*arguments, seeds=seeds, **options)

    monkeypatch.setattr(cells, "train_seeds", counted)
    yield copied


def test_one_record_for_each_cell_and_seed(finished: Place) -> None:
    records = {path.stem: read_record(path) for path in (finished.folder / "results" / "paper-mnist").glob("*.json")}
    both = [f"{name}-seed{seed}" for name in ("abnn", "energy-post-hoc", "threshold") for seed in SEEDS]
    assert sorted(records) == sorted([*both, "deep-ensemble-seed0"])
    assert sorted(finished.notes) == sorted(f"paper-mnist: {each.name}, seed {each.seed}" for each in records.values())
    for record in records.values():
        assert [each.name for each in record.sets] == ["MNIST", "SEMEION", "SVHN", "CIFAR-10"]
        assert record.config["data"]["name"] == "mnist" and set(record.sets[0].scores) == {record.score}
        assert "by_score" not in record.metrics or record.arrays_file
    kept = [name for name, record in records.items() if record.arrays_file]
    assert kept == ["abnn-seed0"] and summarise(records["abnn-seed0"].evaluation()) == records["abnn-seed0"].metrics
    assert records["abnn-seed0"].config["start"]["method"]["name"] == "threshold"
    assert records["energy-post-hoc-seed1"].score == "energy"
    assert records["deep-ensemble-seed0"].config["members"] == list(SEEDS)


def test_post_hoc_scores_and_attachments_start_from_the_networks_of_their_seed(place: Place) -> None:
    records = place.run(PLAIN, OURS, ENERGY)
    for seed in SEEDS:
        plain, energy = (records[name, seed].numbers for name in ("threshold", "energy (post-hoc)"))
        assert plain["accuracy.MNIST"] == energy["accuracy.MNIST"]
        assert plain["calibration.MNIST.nll"] == pytest.approx(energy["calibration.MNIST.nll"], rel=1e-3)
    networks = [records["threshold", seed].numbers["calibration.MNIST.nll"] for seed in SEEDS]
    assert networks[0] != networks[1]


def test_a_finished_run_does_nothing(place: Place) -> None:
    files = {path: path.stat().st_mtime_ns for path in place.folder.rglob("*") if path.is_file()}
    records = place.run(PLAIN, OURS, ENERGY, TOGETHER)
    assert len(records) == 7 and place.notes == [] and place.trained == []
    assert files == {path: path.stat().st_mtime_ns for path in place.folder.rglob("*") if path.is_file()}


def test_a_lost_record_comes_back_without_training(place: Place) -> None:
    before = place.run(PLAIN, OURS, ENERGY)
    for name in ("abnn", "energy (post-hoc)"):
        before[name, 1].path.unlink()
    after = place.run(PLAIN, OURS, ENERGY)
    assert place.trained == [] and sorted(place.notes) == [
        f"paper-mnist: {each}, seed 1" for each in ("abnn", "energy (post-hoc)")
    ]
    assert {key: record.metrics for key, record in after.items()} == {key: each.metrics for key, each in before.items()}


def test_a_lost_network_is_trained_again_for_its_seed_alone(place: Place) -> None:
    before = place.run(OURS)
    before["abnn", 1].path.unlink()
    shutil.rmtree(place.folder / "work" / "paper-mnist" / "abnn-seed1")
    after = place.run(OURS)
    assert place.trained == [[1]] and place.notes == ["paper-mnist: abnn, seed 1"]
    assert after["abnn", 1].numbers == pytest.approx(before["abnn", 1].numbers)
    more = place.run(PLAIN, seeds=(0, 1, 2))
    assert place.trained == [[2]] and ("threshold", 2) in more


def test_an_ensemble_grows_with_the_seeds_and_stays_when_they_are_fewer(place: Place) -> None:
    assert place.run(TOGETHER, seeds=(0,))["deep-ensemble", 0].config["members"] == [0, 1] and place.notes == []
    more = place.run(PLAIN, TOGETHER, seeds=(0, 1, 2))
    assert more["deep-ensemble", 0].config["members"] == [0, 1, 2] and place.trained == [[2]]


def test_checkpoints_of_other_seeds_stay(place: Place) -> None:
    work = place.folder / "work" / "paper-mnist"
    others = [work / f"threshold-seed{name}.safetensors" for name in ("3", "10", "10-backbone")]
    for other in others:
        other.write_bytes(b"half way")
    place.run(PLAIN, seeds=(0, 1, 2))
    assert place.trained == [[2]] and sorted(work.glob("threshold-seed*.safetensors")) == sorted(others)


def test_other_settings_do_not_mix(place: Place) -> None:
    with pytest.raises(InputError, match="made with other settings"):
        place.run(replace(PLAIN, epochs=2))
    with pytest.raises(InputError, match="made with other settings"):
        place.run(replace(OURS, start=replace(PLAIN, epochs=2)))
    assert place.trained == []


@pytest.mark.parametrize("cell", [ENERGY, TOGETHER])
def test_a_cell_that_needs_networks_says_so(cell: Cell) -> None:
    with pytest.raises(InputError, match="start.*takes its networks from"):
        replace(cell, start=None)


def test_real_outliers_are_in_the_settings(place: Place) -> None:
    cell = Cell("oe, real", "mnist", "oe", epochs=1, outliers="svhn/test", backbone=SMALL)
    record = place.run(cell, seeds=(0,))["oe, real", 0]
    assert record.config["outliers"]["source"] == "svhn/test" and len(record.config["outliers"]["sha256"]) == 64
