"""abnn predict: every kind of input gives the model's own answer, in every format, with the right exit status."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner, Result

import abnn
from abnn.cli.predict import predict
from abnn.cli.steps import inputs
from abnn.cli.steps.predicting import FORMATS, Row
from abnn.data import InputForm, load_digits
from abnn.data.drawing import read_drawing
from abnn.errors import AbnnError, FileFormatError, InputError
from abnn.networks.by_name import PaperResNet, build_backbone
from abnn.triage import Triage
from abnn.triage.drift import DriftMonitor
from tests.conftest import alter, mlp
from tests.train.test_fit import QUIET, data, loader

app = typer.Typer()
app.command()(predict)
NAMES = ["top", "middle", "bottom"]
SMALL: dict[str, Any] = {"width": 8, "blocks": 2, "stem": "small", "kaiming": False}


def own_network() -> PaperResNet:
    torch.manual_seed(0)
    return PaperResNet(1, 3, **SMALL)


def table_network() -> torch.nn.Module:
    return mlp(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with thresholds, ten good images and four of noise, and the good ones as .npz."""
    root = tmp_path_factory.mktemp("predict")
    torch.manual_seed(0)
    network = build_backbone("paper-resnet", 3, 1, **SMALL)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    x, y = data()
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    model = abnn.attach(network.eval(), x[:1])
    abnn.fit(model, loader(), epochs=4, lr=1e-2, **QUIET)
    triage = Triage.calibrate(model, loader(shuffle=False), draws=4, seed=3)
    model.save(root / "model", backbone=True, triage=triage, extra={"class_names": NAMES})
    pixels = (x[:10, 0].numpy() * 255).round().astype(np.uint8)
    noise = np.random.default_rng(0).integers(0, 2, (4, 8, 8)).astype(np.uint8) * 255
    for place, images in (("good", pixels), ("noise", noise)):
        (root / place / "deep").mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(root / place / ("deep" if number % 2 else "") / f"{number}.png")
    (root / "good" / ".hidden.png").write_bytes(b"x")
    (root / "good" / "notes.txt").write_text("no image")
    np.savez(root / "good.npz", images=pixels)
    return root


def bare(folder: Path) -> None:
    """The same model without thresholds and names."""
    model = abnn.load(folder / "model")
    model.triage = None
    model.save(folder / "bare", backbone=True, extra={})


def run(*arguments: object, input: bytes | None = None) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments], input=input)
    if result.exception is not None and not isinstance(result.exception, SystemExit | AbnnError):
        raise result.exception
    return result


def rows(*arguments: object, input: bytes | None = None) -> list[dict[str, Any]]:
    result = run(*arguments, "--format", "jsonl", input=input)
    assert result.exit_code in (0, 10, 11), result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def expected(folder: Path, paths: list[Path]) -> list[dict[str, Any]]:
    """By the library, one image at a time."""
    model = abnn.load(folder / "model")
    form = InputForm.of(model)
    assert model.triage is not None
    found = []
    for path in paths:
        x = form.images(np.array(Image.open(path))[None])
        prediction = model.predict(x, draws=4, seed=3)
        verdicts = model.triage(prediction)
        label = int(prediction.label)
        numbers = {"probability": model.triage.probabilities(prediction).max().item(), "score": verdicts.score.item()}
        names = {"input": str(path), "label": label, "class_name": NAMES[label], "verdict": verdicts.verdict[0]}
        found.append({**names, **numbers})
    return found


def same(left: list[dict[str, Any]], right: list[dict[str, Any]], ignore: tuple[str, ...] = ()) -> bool:
    """Up to the rounding of float32 sums in batches of another size, which distances of features make larger."""

    def close(one: dict[str, Any], two: dict[str, Any]) -> bool:
        keys = set(one) - set(ignore)
        return one.keys() == two.keys() and all(
            one[k] == pytest.approx(two[k], rel=1e-4, abs=1e-5) if isinstance(one[k], float) else one[k] == two[k]
            for k in keys
        )

    return len(left) == len(right) and all(map(close, left, right))


def good_paths(folder: Path) -> list[Path]:
    return [folder / "good" / f"{n}.png" for n in (0, 2, 4, 6, 8)] + [
        folder / "good" / "deep" / f"{n}.png" for n in (1, 3, 5, 7, 9)
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 64])
@pytest.mark.no_cover
def test_folders_images_and_patterns_give_the_models_answers(folder: Path, batch_size: int) -> None:
    wanted = expected(folder, good_paths(folder))
    options = (folder / "model", "--batch-size", batch_size)
    assert same(rows(*options, folder / "good"), wanted)
    assert same(rows(*options, *good_paths(folder)), wanted)
    assert same(rows(*options, f"{folder}/good/*.png", f"{folder}/good/de*"), wanted)
    everything = rows(*options, f"{folder}/good/**/*.png")
    assert sorted(row["input"] for row in everything) == sorted(row["input"] for row in wanted)


def test_arrays_standard_input_and_lists(folder: Path) -> None:
    by_number = expected(folder, sorted(good_paths(folder), key=lambda path: int(path.stem)))
    arrays = rows(folder / "model", folder / "good.npz", "--batch-size", 4)
    assert same(arrays, by_number, ignore=("input",))
    between = rows(folder / "model", by_number[0]["input"], folder / "good.npz", by_number[1]["input"])
    assert same(between, by_number[:1] + by_number + by_number[1:2], ignore=("input",))
    assert arrays[3]["input"] == f"{folder / 'good.npz'}[3]"
    piped = rows(folder / "model", "-", input=good_paths(folder)[0].read_bytes())
    assert same(piped, by_number[:1], ignore=("input",)) and piped[0]["input"] == "standard input"
    listed = "\n".join(str(row["input"]) for row in by_number) + "\n\n"
    assert same(rows(folder / "model", "--from-file", "-", input=listed.encode()), by_number)
    (folder / "list.txt").write_text(listed)
    mixed = rows(folder / "model", folder / "good" / "0.png", "--from-file", folder / "list.txt", "-q")
    assert same(mixed, by_number[:1] + by_number)


def test_csv_and_table_say_the_same(folder: Path) -> None:
    batches = ("--batch-size", 4)
    wanted = rows(folder / "model", folder / "good", *batches)
    lines = list(csv.DictReader(io.StringIO(run(folder / "model", folder / "good", *batches, "-f", "csv").stdout)))
    assert [{k: str(v) for k, v in row.items()} for row in wanted] == lines
    table = run(folder / "model", folder / "good", *batches).stdout.splitlines()
    assert table[0].split() == ["input", "class", "probability", "score", "verdict"]
    for row, line in zip(wanted, table[1:], strict=True):
        cells = [row["label"], row["class_name"], f"{100 * row['probability']:.1f}", "%", f"{row['score']:.4f}"]
        assert line.split() == [row["input"], *map(str, cells), row["verdict"]]


def test_exit_status_follows_the_worst_verdict(folder: Path) -> None:
    verdicts = {row["input"]: row["verdict"] for row in rows(folder / "model", folder / "good", folder / "noise")}
    accepted = [path for path, verdict in verdicts.items() if verdict == "accept"]
    rejected = [path for path, verdict in verdicts.items() if verdict == "reject"]
    assert accepted and rejected
    assert run(folder / "model", *accepted).exit_code == 0
    result = run(folder / "model", *accepted, *rejected)
    assert result.exit_code == 11
    assert f"{len(accepted)} accepted, 0 noticed, {len(rejected)} rejected" in result.stderr
    assert run(folder / "model", *accepted, *rejected, "--exit-zero").exit_code == 0
    assert run(folder / "model", *accepted, "-q").stderr == ""
    strict = abnn.load(folder / "model")
    low, high = sorted(row["score"] for row in expected(folder, good_paths(folder)[:2]))
    assert strict.triage is not None
    state = {**strict.triage.to_dict(), "notice": (low + high) / 2, "reject": high + 1}
    strict.save(folder / "strict", backbone=True, triage=Triage.from_dict(state))
    assert run(folder / "strict", *good_paths(folder)[:2]).exit_code == 10


def test_models_without_thresholds_or_names(folder: Path) -> None:
    bare(folder)
    result = run(folder / "bare", folder / "noise", "-f", "jsonl")
    row = json.loads(result.stdout.splitlines()[0])
    assert result.exit_code == 0 and row["verdict"] is None and row["class_name"] is None
    assert "saved without thresholds" in result.stderr


def test_class_names_that_do_not_fit(folder: Path, tmp_path: Path) -> None:
    wrong = shutil.copytree(folder / "model", tmp_path / "wrong")
    description = json.loads((wrong / "abnn.json").read_text())
    description["extra"]["class_names"] = NAMES[:1]
    alter(wrong, **description)
    error = run(wrong, folder / "good").exception
    assert isinstance(error, InputError) and "class_names of the model: got 1 names; accepted: 3" in str(error)


def test_unreadable_inputs_are_named_and_counted(folder: Path) -> None:
    bad = folder / "bad.png"
    bad.write_bytes(b"not an image")
    good = good_paths(folder)[0]
    stopped = run(folder / "model", good, bad, "-f", "jsonl")
    assert isinstance(stopped.exception, InputError) and "bad.png, which cannot be read: no image" in str(
        stopped.exception
    )
    assert len(stopped.stdout.splitlines()) == 1  # what could be read before is there
    skipped = run(folder / "model", good, bad, folder / "missing.png", "--skip-unreadable")
    assert skipped.exit_code in (0, 10, 11) and "1 input: " in skipped.stderr and "2 skipped" in skipped.stderr
    assert "skipped" in skipped.stderr and "missing.png: no such file" in skipped.stderr.replace("\n", "")
    nothing = run(folder / "model", bad, "--skip-unreadable")
    assert isinstance(nothing.exception, InputError) and "1 inputs, none of which" in str(nothing.exception)
    empty = run(folder / "model", "-", input=b"")
    assert "standard input, which cannot be read: nothing came in" in str(empty.exception)


def test_too_much_on_standard_input(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MOST_STDIN", 10)
    assert "more than" in str(run(folder / "model", "-", input=b"x" * 11).exception)


def test_what_a_user_can_get_wrong(folder: Path, tmp_path: Path) -> None:
    image = good_paths(folder)[0]
    (tmp_path / "empty").mkdir()
    features = tmp_path / "features.npz"
    np.savez(features, features=np.zeros((2, 5), np.float32))
    for arguments, text in (
        ((), "INPUT: got nothing"),
        (("-", "--from-file", "-"), "standard input twice"),
        ((image, "--from-file", tmp_path / "none.txt"), "which is no file"),
        ((image, "--format", "xml"), "csv, jsonl, table"),
        ((image, "--device", "nowhere"), "--device: got 'nowhere'"),
        ((f"{tmp_path}/*.png",), "nothing matches"),
        ((tmp_path / "empty",), "a folder without images"),
        ((features,), "rows of features"),
        ((image, "--drift", tmp_path), "--drift: got"),
    ):
        result = run(folder / "model", *arguments)
        assert isinstance(result.exception, InputError) and text in str(result.exception), (text, result.exception)
    assert isinstance(run(tmp_path, image).exception, FileFormatError)


def test_features_need_arrays(folder: Path, tmp_path: Path) -> None:
    form = InputForm((4,))
    with pytest.raises(InputError, match="rows of 4 features"):
        list(inputs.read_inputs([str(good_paths(folder)[0])], form, 2))
    np.savez(tmp_path / "rows.npz", features=np.eye(4, dtype=np.float32))
    batches = list(inputs.read_inputs([str(tmp_path / "rows.npz")], form, 3))
    assert [len(batch.names) for batch in batches] == [3, 1]
    assert torch.equal(torch.cat([batch.x for batch in batches]), torch.eye(4))


def test_rows_that_are_no_numbers_are_named_and_skipped(tmp_path: Path) -> None:
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    model = abnn.attach(mlp(4).eval(), x[:1])
    model.save(tmp_path / "model", backbone=True)
    values = x.numpy().copy()
    values[2, 1], values[4, 0] = np.nan, np.inf
    np.savez(tmp_path / "t.npz", features=values)
    call = (tmp_path / "model", tmp_path / "t.npz", "--backbone", f"{__name__}:table_network", "--batch-size", 3)
    stopped = run(*call)
    assert isinstance(stopped.exception, InputError)
    assert f"{tmp_path / 't.npz'}[2], which cannot be read: holds NaN or infinite values" in str(stopped.exception)
    skipped = run(*call, "--skip-unreadable", "--format", "csv")
    assert "4 inputs: 2 skipped" in skipped.stderr
    assert [row["input"][-3:] for row in csv.DictReader(io.StringIO(skipped.stdout))] == ["[0]", "[1]", "[3]", "[5]"]


@pytest.mark.parametrize(("task", "kind"), [("multilabel", "labels"), ("regression", "numbers")])
def test_models_of_labels_and_numbers_are_refused(tmp_path: Path, task: str, kind: str) -> None:
    """One row for each input has room for one class: of several labels it would say the most probable one alone."""
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    model = abnn.attach(mlp(4).eval(), x[:1], config=abnn.AttachConfig(task=task))
    model.save(tmp_path / "model", backbone=True)
    np.savez(tmp_path / "t.npz", features=x.numpy())
    refused = run(tmp_path / "model", tmp_path / "t.npz", "--backbone", f"{__name__}:table_network")
    assert isinstance(refused.exception, InputError)
    assert f"model: got a model of {kind}; accepted: a model of classes. Take abnn score" in str(refused.exception)


def test_json_lines_have_null_for_what_is_no_number() -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    stream = io.StringIO()
    FORMATS["jsonl"](stream, [Row("a", 0, None, math.nan, s, None) for s in (math.nan, math.inf, 0.5)], True)
    found = [json.loads(line, parse_constant=refuse) for line in stream.getvalue().splitlines()]
    assert [row["score"] for row in found] == [None, None, 0.5] and found[0]["probability"] is None


def test_memory_is_bounded_by_the_batch(folder: Path) -> None:
    """No more than the batch that is handed out and the one that is read ahead are ever asked for."""
    asked: list[str] = []

    def names() -> Any:
        for _ in range(100):
            for path in good_paths(folder):
                asked.append(str(path))
                yield str(path)

    form = InputForm.of(abnn.load(folder / "model"))
    for number, batch in enumerate(inputs.read_inputs(names(), form, 7)):
        assert len(batch.names) <= 7 and len(asked) <= 7 * (number + 2)


def test_odd_file_names(folder: Path, tmp_path: Path) -> None:
    odd = tmp_path / "a [1] ü\udcff.png"
    odd.write_bytes(good_paths(folder)[0].read_bytes())
    for form in ("csv", "jsonl", "table"):
        result = run(folder / "model", tmp_path, "--format", form)
        assert result.exit_code in (0, 10, 11) and "a [1] " in result.stdout


def test_drift_is_watched_from_call_to_call(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "drift.json"
    assert run(folder / "model", folder / "good", "--drift", state).exit_code in (0, 10, 11)
    assert DriftMonitor.load(state).seen == 10
    for _ in range(12):
        result = run(folder / "model", folder / "noise", "--drift", state)
    assert DriftMonitor.load(state).seen == 58 and DriftMonitor.load(state).direction == "higher"
    assert "drift, noticed earlier: scores are higher" in result.stderr
    other = DriftMonitor([0.0], [1, 1])
    other.save(state)
    assert "kept for another model" in str(run(folder / "model", folder / "good", "--drift", state).exception)
    state.unlink()
    refused = run(folder / "model", folder / "good", "--drift", state, "--draws", "9")
    assert "--draws 9; accepted: --draws 4, as calibrated" in str(refused.exception) and not state.exists()
    bare(folder)
    assert "nothing to compare" in str(run(folder / "bare", folder / "good", "--drift", state).exception)


def test_backbones_from_the_users_own_code(folder: Path) -> None:
    x, _ = data()
    model = abnn.attach(own_network().eval(), x[:1])
    model.save(folder / "own", backbone=True, extra={"backbone": f"{__name__}:own_network"})
    refused = run(folder / "own", folder / "noise")
    assert isinstance(refused.exception, InputError) and f"--backbone {__name__}:own_network" in str(refused.exception)
    assert run(folder / "own", folder / "noise", "--backbone", f"{__name__}:own_network").exit_code == 0


def test_digits_on_paper_are_read_as_ink(tmp_path: Path) -> None:
    """A model of the form of the embedded digits; what it is given is what a drawing is made into."""
    network = build_backbone("paper-resnet", 10, 1, **SMALL)
    digits = load_digits()
    model = abnn.attach(network.eval(), digits.train.x[:1])
    triage = Triage.calibrate(model, [digits.val], draws=2)
    strict = replace(triage, notice=-1.0, reject=-1.0)  # refuses everything
    model.save(tmp_path / "model", backbone=True, triage=strict, extra={"class_names": list("0123456789")})
    sheet = np.full((60, 50), 250, np.uint8)
    sheet[10:50, 20:28] = 30
    Image.fromarray(sheet).save(tmp_path / "one.png")
    Image.fromarray(np.full((9, 9), 255, np.uint8)).save(tmp_path / "empty.png")
    (found,) = rows(tmp_path / "model", tmp_path / "one.png", "--ink")
    prediction = abnn.load(tmp_path / "model").predict(read_drawing(sheet)[None], draws=2)
    assert found["probability"] == pytest.approx(float(strict.probabilities(prediction).max()), abs=1e-5)
    assert "--ink" not in run(tmp_path / "model", tmp_path / "one.png", "--ink").stderr
    assert "digit written on paper: --ink" in run(tmp_path / "model", tmp_path / "one.png").stderr
    assert "no ink" in str(run(tmp_path / "model", tmp_path / "empty.png", "--ink").exception)


def test_other_models_read_no_ink(folder: Path) -> None:
    assert "embedded digits" in str(run(folder / "model", folder / "good", "--ink").exception)
    assert "--ink" not in run(folder / "model", folder / "noise").stderr
