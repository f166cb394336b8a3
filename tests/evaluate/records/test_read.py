import math
from pathlib import Path

import pytest

from abnn.errors import FileFormatError, InputError
from abnn.evaluate.records import find_records, read_record, write_record
from tests.evaluate.records.samples import edit
from tests.evaluate.test_summary import sample_evaluation


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
        (lambda path: edit(path, version=2), "format 2.*Update abnn"),
        (lambda path: edit(path, version="1"), "format 1.*Update abnn"),
        (lambda path: edit(path, seed="0"), "damaged.*seed is '0'; accepted: a valid integer"),
        (lambda path: edit(path, metrics={"a": "high"}), r"damaged.*metrics\.a"),
        (lambda path: edit(path, metrics={"a": math.nan}), r"damaged.*metrics\.a"),
        (lambda path: edit(path, sets=[{"name": "x"}]), "damaged.*sets.*tier"),
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
    with pytest.raises(InputError, match="no folder"):
        find_records(tmp_path / "nowhere")
    (tmp_path / "a" / "x-seed0.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"x-seed0\.json"):
        find_records(tmp_path)
