"""What comes from elsewhere: names, streams, archives and state files that are not as they should be give one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import abnn
from abnn import cli
from abnn.cli._common import visible
from abnn.cli.fit import FitRequest
from abnn.cli.steps.inputs import list_names
from abnn.data import ArraySource, InputForm, arrays
from abnn.errors import AbnnError, FileFormatError, InputError, readable
from abnn.evaluate.records import find_records
from abnn.networks.by_name import build_backbone
from abnn.triage import Triage
from abnn.triage.drift import split_reference

ESCAPE = "\x1b]0;owned\x07\x1b[31mred\u202e\n"
STRAY = "stray\udcff"  # the byte 0xff, which no text in UTF-8 holds


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = build_backbone("paper-resnet", 2, 1, width=4, blocks=1, stem="small")
    reference = split_reference(np.linspace(0, 1, 80))
    triage = Triage(0.5, 1.0, 0.05, 0.01, "entropy", 2, 0, 80, reference=reference)
    attached = abnn.attach(network.eval(), torch.zeros(1, 1, 8, 8))
    folder = tmp_path_factory.mktemp("hostile") / "model"
    return attached.save(folder, backbone=True, triage=triage, extra={"class_names": ["a", "b"]})


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Images with hostile names in a folder; one of each two cannot be read."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number, name in enumerate((ESCAPE, STRAY)):
        Image.fromarray(np.full((8, 8), 50 + number, np.uint8)).save(folder / f"good {name}.png")
        (folder / f"bad {name}.png").write_bytes(b"?")
    return folder


def call(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: object
) -> tuple[int, str, str]:
    """The exit status of the command, and what is shown."""
    monkeypatch.setattr("sys.argv", ["abnn", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    shown = capfd.readouterr()
    return stop.value.code, shown.out, shown.err  # type: ignore[return-value]


def steers(text: str) -> bool:
    return any(not (character.isprintable() or character == "\n") for character in text)


def test_what_would_steer_a_terminal_is_shown_and_not_sent() -> None:
    assert visible("a \x1b[2J\r\n\x9b\u202e\udcff ü [b]") == r"a \x1b[2J\r\n\x9b\u202e\udcff ü [b]"
    assert not steers(visible("".join(map(chr, range(0x300)))))
    assert readable(STRAY) == "stray\ufffd" and readable("ü") == "ü"


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_predict_shows_hostile_names(capfd: Any, monkeypatch: Any, model: Path, images: Path, form: str) -> None:
    options = ("--skip-unreadable", "--exit-zero", "--format", form)
    status, out, err = call(capfd, monkeypatch, "predict", model, images, *options)
    assert status == 0 and not steers(out) and not steers(err)
    assert "skipped" in err and r"\x1b]0;owned\x07" in err and "stray\ufffd" in err
    if form == "jsonl":
        names = [json.loads(line)["input"] for line in out.splitlines()]
        assert sorted(names) == sorted(str(images / f"good {name}.png") for name in (ESCAPE, "stray\ufffd"))
    else:
        assert r"\x1b]0;owned\x07" in out and len(out.splitlines()) >= 3
    status, out, err = call(capfd, monkeypatch, "predict", model, images)
    assert status == 2 and err.startswith("abnn: INPUT: got ") and err.count("\n") == 1 and not steers(err)


def test_evaluate_shows_hostile_names(capfd: Any, monkeypatch: Any, model: Path, images: Path, tmp_path: Path) -> None:
    hostile = images.rename(tmp_path / f"set {ESCAPE}{STRAY}")
    options = ("--full", hostile, "--output", tmp_path / "out", "--no-report", "--quiet")
    status, out, err = call(capfd, monkeypatch, "evaluate", model, *options)
    assert status == 2 and err.count("\n") == 1 and not steers(err)
    status, out, err = call(capfd, monkeypatch, "evaluate", model, *options, "--skip-unreadable")
    assert status == 0 and not steers(out) and not steers(err) and r"\x1b]0;owned\x07" in out, err
    (record,) = find_records(tmp_path / "out" / "records")
    assert len(record.evaluation().sets[0].skipped) == 2


def test_fit_refuses_classes_that_cannot_be_saved(capfd: Any, monkeypatch: Any, images: Path, tmp_path: Path) -> None:
    for name in (STRAY, "other"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("L", (8, 8)).save(tmp_path / "data" / name / "a.png")
    options = ("--backbone", "paper-resnet", "--output", tmp_path / "out", "--train-backbone")
    status, _, err = call(capfd, monkeypatch, "fit", "--data", tmp_path / "data", *options)
    assert status == 2 and "names in UTF-8" in err and err.count("\n") == 1 and not steers(err)
    with pytest.raises(TypeError):
        FitRequest(backbone="x", data=tmp_path)  # type: ignore[call-arg]


def test_closed_standard_output_is_one_line(model: Path, images: Path) -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "abnn", "predict", str(model), "a.png"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr == "abnn: standard output is closed; send it to a file, or to /dev/null.\n"


def test_closed_standard_input_is_one_line(capfd: Any, monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as Python starts without it
    status, _, err = call(capfd, monkeypatch, "predict", model, "-")
    assert status == 2 and err.startswith("abnn: INPUT: got standard input, which is closed") and err.count("\n") == 1
    for inputs, file in ((["-"], None), ([], "-")):
        with pytest.raises(InputError, match="standard input, which is closed"):
            list_names(inputs, file)
    assert list(list_names(["a"], None)) == ["a"]


@pytest.mark.parametrize("form", ["table", "csv", "jsonl"])
def test_a_reader_that_goes_away_ends_the_command_without_a_word(
    capfd: Any, monkeypatch: Any, model: Path, images: Path, form: str
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    monkeypatch.setattr("sys.stdout", os.fdopen(writing, "w"))
    arguments = ("predict", model, images, "--skip-unreadable", "--format", form)
    status, _, err = call(capfd, monkeypatch, *arguments)
    assert status == 1 and err == ""


def write_bomb(path: Path, name: str, shape: tuple[int, ...], dtype: str = "|u1", rows: int = 0) -> Path:
    """An archive with an array of zeros of which a few bytes are left by compression, and ``rows`` images beside it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        if rows:
            with archive.open("images.npy", "w") as file:
                np.save(file, np.full((rows, 8, 8), 9, np.uint8))
        with archive.open(f"{name}.npy", "w") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})
            left = int(np.prod(shape)) * np.dtype(dtype).itemsize
            while left > 0:
                file.write(bytes(min(left, 2**20)))
                left -= 2**20
    return path


@pytest.mark.parametrize(
    "name, shape, dtype, rows",
    [
        ("images", (64, 1024, 1024), "|u1", 0),
        ("images", (1, 8192, 4096), "|u1", 0),
        ("labels", (2**23,), "<i8", 4),
        ("names", (2**14,), "<U1024", 4),
    ],
)
def test_bombs_are_refused_before_they_are_unpacked(
    capfd: Any, monkeypatch: Any, model: Path, tmp_path: Path, name: str, shape: Any, dtype: str, rows: int
) -> None:
    monkeypatch.setattr(arrays, "AT_ONCE", 2**24)  # a sixteenth, so that small bombs will do
    bomb = write_bomb(tmp_path / "bomb.npz", name, shape, dtype, rows)
    assert bomb.stat().st_size < 2**20
    tracemalloc.start()
    try:
        for words in (("predict", model, bomb), ("evaluate", model, "--id", bomb, "--output", tmp_path / "out")):
            status, out, err = call(capfd, monkeypatch, *words)
            assert status == 2 and out == "" and err.startswith(f"abnn: {name}.npy of ") and err.count("\n") == 1
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()


def test_headers_that_promise_more_than_is_there(tmp_path: Path) -> None:
    for name, shape in (("images", (2**50, 8, 8)), ("images", (5, 8, 8)), ("labels", (2**50,))):
        with zipfile.ZipFile(tmp_path / "lies.npz", "w") as archive:
            if name != "images":
                with archive.open("images.npy", "w") as file:
                    np.save(file, np.full((4, 8, 8), 9, np.uint8))
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
                file.write(bytes(256))
        with pytest.raises(FileFormatError, match=r"lies\.npz cannot be read"):
            ArraySource(tmp_path / "lies.npz")


def test_large_rows_are_unpacked_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (20, 16, 16), np.uint8)
    np.savez(tmp_path / "a.npz", images=pictures)
    rows, form = np.array([0, 1, 2, 7, 11, 12, 19]), InputForm((1, 8, 8))
    whole = ArraySource(tmp_path / "a.npz").take(rows, form)
    monkeypatch.setattr(arrays, "AT_ONCE", 3 * 16 * 16)
    source, sizes = ArraySource(tmp_path / "a.npz"), []
    raw = source.raw
    monkeypatch.setattr(source, "raw", lambda first, last: sizes.append(last - first) or raw(first, last))
    assert torch.equal(source.take(rows, form).x, whole.x) and max(sizes) <= 3
    monkeypatch.setattr(arrays, "AT_ONCE", 255)
    with pytest.raises(InputError, match="inputs of at most"):
        ArraySource(tmp_path / "a.npz")


def test_damaged_drift_files(capfd: Any, monkeypatch: Any, model: Path, images: Path, tmp_path: Path) -> None:
    state, good = tmp_path / "drift.json", str(images / f"good {STRAY}.png")
    assert call(capfd, monkeypatch, "predict", model, good, "--drift", state, "--exit-zero")[0] == 0
    values = json.loads(state.read_text())
    changes: list[dict[str, Any]] = [
        {"peak": -1e308},
        {"peak": 1e999},
        {"pool": [0.0]},
        {"pool": [None] * len(values["pool"])},
        {"counts": [1]},
        {"seen": -1},
        {"alarm": 2},
        {"edges": values["edges"][::-1]},
        {"format": "another"},
        {"more": 1},
    ]
    texts = ["", "[]", "null", "{", "1" * 5000, "[" * 100_000, "\ud800", json.dumps(values)[:-40]]
    for text in (*texts, *(json.dumps({**values, **change}) for change in changes)):
        content = text.encode(errors="surrogatepass")
        state.write_bytes(content)
        status, out, err = call(capfd, monkeypatch, "predict", model, good, "--drift", state)
        assert status == 2 and out == "" and err.startswith(f"abnn: --drift: {state}"), (text[:60], err)
        assert err.count("\n") == 1 and state.read_bytes() == content  # to be restored, not lost
    os.unlink(state)
    assert call(capfd, monkeypatch, "predict", model, good, "--drift", state, "--exit-zero")[0] == 0


def test_usage_errors_are_no_tracebacks(model: Path) -> None:
    result = CliRunner().invoke(cli.app, ["predict", str(model), "--draws", "none"])
    assert result.exit_code == 2 and not isinstance(result.exception, AbnnError)
