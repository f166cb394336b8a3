"""Measuring networks of a work folder: one entry per part, gone on with, and never mixed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from abnn.errors import FileFormatError, InputError
from research.paper.beyond import parts
from research.paper.beyond.parts import COUNTS
from research.paper.beyond.run import Beyond, choice, read_entry, rounded
from research.paper.cells import Runner
from research.tasks import DRAWS
from tests.conftest import alter
from tests.research.paper.samples import OURS


@pytest.fixture(scope="module")
def work(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    Runner(folder / "results", folder, (0,), root, progress=False).networks(OURS, [0])
    return folder


def beyond(output: Path, work: Path, root: Path, **options: Any) -> tuple[Beyond, list[str]]:
    notes: list[str] = []
    settings = {"seeds": (0,), "inputs": 5, **options}
    return Beyond(output, work, root=root, note=notes.append, **settings), notes


@pytest.fixture(scope="module")
def finished(root: Path, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("results")
    beyond(output, work, root)[0].run(["mnist"], ["far", "draws"])
    return output


def test_one_entry_for_each_part(finished: Path) -> None:
    record = read_entry(finished / "beyond" / "mnist-seed0.json")
    assert list(record["parts"]) == ["draws", "far"] and (record["seed"], record["name"]) == (0, "mnist")
    for name, entry in record["parts"].items():
        assert {"config", "data", "device", "seconds", "versions", "code", "written"} < set(entry)
        assert entry["data"]["inputs"] == 5 and entry["config"]["inputs"] == 5
        assert set(entry["config"]["networks"]) == {"threshold", "abnn"} == set(entry["results"])
        assert len(entry["data"]["sha256"]) == (4 if name == "draws" else 1)
        assert entry["config"]["networks"]["abnn"]["config"]["method"]["name"] == "abnn"
        assert entry["usual_draws"] == {"threshold": DRAWS, "abnn": 0}
    found = record["parts"]["draws"]["results"]
    assert found["abnn"]["draws"] == list(COUNTS) and found["abnn"]["width"] > 0 and found["threshold"]["width"] is None


def test_a_finished_run_does_nothing_and_a_further_part_is_added(
    finished: Path, root: Path, work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = Path(shutil.copytree(finished, tmp_path / "copy"))
    path = output / "beyond" / "mnist-seed0.json"
    before = path.read_bytes()
    again, notes = beyond(output, work, root)
    assert again.run(["mnist"], ["far", "draws"]) == [path] and notes == [] and path.read_bytes() == before
    monkeypatch.setattr(parts, "STRENGTHS", (1,))
    assert again.run(["mnist"], ["far", "corrupted"]) == [path]
    assert len(notes) == 1 and "mnist, seed 0: corrupted" in notes[0]
    record = json.loads(path.read_bytes())
    assert record["parts"].pop("corrupted")["results"]["abnn"]["blur"]["accuracy"]
    assert record == json.loads(before)


def test_a_repeated_part_gives_the_same_numbers(finished: Path, root: Path, work: Path, tmp_path: Path) -> None:
    path = beyond(tmp_path, work, root)[0].run(["mnist"], ["far"])[0]
    one, other = (read_entry(each)["parts"]["far"] for each in (path, finished / "beyond" / path.name))
    assert one["results"] == other["results"] and one["config"] == other["config"]


def test_other_settings_do_not_mix(finished: Path, root: Path, work: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'far' was made with other settings"):
        beyond(finished, work, root, inputs=4)[0].run(["mnist"], ["far"])
    other = Path(shutil.copytree(work, tmp_path / "work"))
    folder = other / "paper-mnist" / "threshold-seed0"
    text = (folder / "method.json").read_text()
    alter(folder, **json.loads(text.replace('"epochs": 1', '"epochs": 2')))
    with pytest.raises(InputError, match="other settings or networks"):
        beyond(finished, other, root)[0].run(["mnist"], ["far"])


def test_other_data_than_the_networks_were_recorded_with(root: Path, work: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(root, tmp_path / "data"))
    images = np.zeros((12, 28, 28), np.uint8)
    np.savez(other / "mnist" / "test.npz", images=images, labels=np.arange(12) % 10)
    with pytest.raises(InputError, match="data_root.*mnist/test"):
        beyond(tmp_path / "out", work, other)[0].run(["mnist"], ["far"])
    assert not (tmp_path / "out").exists()


def test_seeds_without_networks_are_passed_over(finished: Path, root: Path, work: Path) -> None:
    again, notes = beyond(finished, work, root, seeds=(0, 3))
    assert len(again.run(["mnist", "svhn"], ["far"])) == 1
    assert ["left out: no network of threshold and abnn" in note for note in notes] == [True] * 3


def test_a_damaged_record_is_named(root: Path, work: Path, tmp_path: Path) -> None:
    path = tmp_path / "beyond" / "mnist-seed0.json"
    path.parent.mkdir()
    path.write_text("{}")
    with pytest.raises(FileFormatError, match="mnist-seed0.json is not a record"):
        beyond(tmp_path, work, root)[0].run(["mnist"], ["far"])


def test_choice_is_fixed() -> None:
    chosen = choice(1000, 50)
    assert len(set(chosen.tolist())) == 50 and torch.equal(chosen, chosen.sort().values)
    assert torch.equal(choice(1000, 50), chosen) and not torch.equal(chosen, torch.arange(50))
    for wanted in (0, 10, 11):
        assert choice(10, wanted).tolist() == list(range(10))


def test_rounded() -> None:
    assert rounded({"a": [0.123456789, 123456.7, None, 3], "b": "x"}) == {"a": [0.12346, 123460.0, None, 3], "b": "x"}
