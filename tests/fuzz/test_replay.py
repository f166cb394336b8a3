"""Cases that once failed, and new ones: the same answers as before or one clear error, nothing else touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from abnn.errors import FileFormatError
from abnn.evaluate.records import read_record
from abnn.files import MOST_JSON, read_json
from abnn.networks.weights import read_weights
from abnn.tensors import read_tree, write_tree
from abnn.triage.drift import DriftMonitor
from tests.fuzz.campaign import Worker
from tests.fuzz.cases import Failure, attempt, generator, run_files
from tests.fuzz.mutate import Files
from tests.fuzz.subjects import READERS, Subject, write_files
from tests.fuzz.watch import Violation, watching

CORPUS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "corpus.json").read_text())
"""Cases by kind and number, each with what it once did."""
FOLDERS = [name for name, (_, _, description) in READERS.items() if description is not None]
cheap = settings(
    max_examples=40,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: f"{entry['subject']}-{entry['number']}")
def test_cases_that_once_failed(entry: dict[str, Any], worker: Worker) -> None:
    name, number = entry["subject"], entry["number"]
    if name in ("images", "requests"):
        worker.case(name, entry["seed"], number)
    else:
        run_files(
            generator(entry["kind"], entry["seed"], number), worker.subjects[name], worker.expected[name], worker.folder
        )


@pytest.mark.parametrize("name", sorted(READERS))
@cheap
@given(number=st.integers(0, 2**32))
def test_changed_files_are_refused_or_mean_the_same(name: str, number: int, worker: Worker) -> None:
    run_files(generator(name, 1, number), worker.subjects[name], worker.expected[name], worker.folder)


@pytest.mark.parametrize("kind", ["images", "requests"])
@cheap
@given(number=st.integers(0, 2**32))
def test_changed_images_and_requests_are_answered_or_refused(kind: str, number: int, worker: Worker) -> None:
    assert worker.case(kind, 1, number) in ("same", "refused", "taken", "answered")


def _refusal(subject: Subject, files: Files, folder: Path) -> str:
    """Return the error of reading these files, under watch."""
    write_files(folder, files)
    with pytest.raises(FileFormatError) as error, watching(folder), warnings.catch_warnings():
        subject.read(folder)
    return str(error.value)


@pytest.mark.parametrize("special", [("fifo",), ("link", "/dev/zero"), ("link", "/proc/self/mem"), ("folder",)])
@pytest.mark.parametrize("name", [*FOLDERS, "drift", "checkpoint"])
def test_pipes_devices_and_folders_are_no_files(name: str, special: tuple[str, ...], worker: Worker) -> None:
    subject = worker.subjects[name]
    for file in subject.files:
        _refusal(subject, {**subject.files, file: special}, worker.folder)


@pytest.mark.parametrize("text", [b"[" * 100_000, b"1" * 5000, b'{"a":' * 50_000, b"\xff\xfe", b""])
def test_json_without_end_is_not_valid(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(FileFormatError, match="is not valid JSON"):
        read_json(tmp_path / "x.json")


def test_huge_json_is_refused_unread(tmp_path: Path) -> None:
    with open(tmp_path / "x.json", "wb") as file:
        file.truncate(MOST_JSON + 1)  # a sparse file
    with pytest.raises(FileFormatError, match="accepted: at most"):
        read_json(tmp_path / "x.json")


def test_every_changed_byte_of_a_state_tree_is_refused(tmp_path: Path, worker: Worker) -> None:
    """Checkpoints and parts of evaluations: a run that goes on from a damaged one would end elsewhere, unnoticed."""
    path, content = tmp_path / "x.safetensors", worker.subjects["checkpoint"].files["run.safetensors"]
    rng = generator("tree", 0, 0)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            tree = read_tree(path)
        except FileFormatError:
            continue
        path.write_bytes(content)
        assert repr(tree) == repr(read_tree(path))  # white space of the header


def test_a_state_tree_of_an_older_version_is_read(tmp_path: Path) -> None:
    from abnn.tensors import read_tensors, write_tensors

    write_tree(tmp_path / "x", {"a": [1, 2.5, None], "b": ("c",)})
    tensors = read_tensors(tmp_path / "x")
    write_tensors(tmp_path / "x", {name: each for name, each in tensors.items() if name != "digest"})
    assert read_tree(tmp_path / "x") == {"a": [1, 2.5, None], "b": ("c",)}


def test_a_changed_drift_file_is_refused_and_an_older_one_is_read(tmp_path: Path, worker: Worker) -> None:
    values = json.loads(worker.subjects["drift"].files["drift.json"])
    path = tmp_path / "drift.json"
    path.write_text(json.dumps({**values, "peak": values["peak"] + 0.5}))
    with pytest.raises(FileFormatError, match="changed since it was saved"):
        DriftMonitor.load(path)
    del values["digest"]
    path.write_text(json.dumps(values))
    assert DriftMonitor.load(path).seen == 50


def test_a_tar_of_weights_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "storages").write_bytes(b"")
    with tarfile.open(tmp_path / "net.pt", "w") as archive:
        archive.add(tmp_path / "storages", "storages")
    with pytest.raises(FileFormatError, match="tar"), watching(tmp_path):
        read_weights(tmp_path / "net.pt")


def test_a_record_of_a_score_that_it_lacks_is_damaged(tmp_path: Path, samples: Path) -> None:
    folder = shutil.copytree(samples / "record", tmp_path / "record")
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "score": "other"}))
    with pytest.raises(FileFormatError, match="score of set .*other"):
        read_record(folder / "run.json").evaluation()


def _import_from(folder: Path) -> None:
    sys.path.insert(0, str(folder))
    __import__("abnn_fuzz_evil")


@pytest.mark.parametrize(
    "act",
    [
        lambda folder: os.system("true"),
        lambda folder: subprocess.run(["true"], check=False),
        lambda folder: __import__("socket").create_connection(("127.0.0.1", 9), 0.1),
        lambda folder: (folder.parent / "outside").write_text(""),
        lambda folder: os.rename(folder, folder.parent / "elsewhere"),
        lambda folder: __import__("pickle").loads(b"cos\nsystem\n."),
        lambda folder: _import_from(folder),
        lambda folder: "a" * (1 << 50),
    ],
)
def test_the_watch_sees_what_it_is_there_for(act: Any, tmp_path: Path) -> None:
    """The cases prove something only if a violation would be noticed, even where it is caught as an Exception."""
    folder = tmp_path / "case"
    folder.mkdir()
    (folder / "abnn_fuzz_evil.py").write_text("")

    def hidden() -> None:
        try:
            act(folder)
        except Violation:
            pass

    path = list(sys.path)
    try:
        with pytest.raises(Failure):
            attempt(hidden, folder, "a trial")
    finally:
        sys.path[:] = path
    assert folder.exists() and not (tmp_path / "outside").exists()
