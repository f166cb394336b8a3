"""``abnn evaluate``: any saved model on any sets, nothing done twice, nothing lost, every error before the work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

import abnn
from abnn.attached import Attached
from abnn.cli.evaluate import evaluate
from abnn.cli.report import page_from_records
from abnn.errors import AbnnError, AbnnWarning, FileFormatError, InputError, NotFittedError
from abnn.evaluate import resume
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records import Record, find_records, read_record
from abnn.files import write_json
from abnn.networks.by_name import build_backbone
from abnn.store import saved
from abnn.tensors import read_tree, write_tensors, write_tree
from abnn.triage import Triage
from tests.conftest import alter, mlp, randomise_attachments

NAMES = ["cross", "disc", "square"]
PREPROCESS = {"mean": [0.5], "std": [0.25]}
RECIPE: dict[str, Any] = {"width": 8, "blocks": 2, "stem": "small"}
app = typer.Typer()
app.command()(evaluate)


def run(checkpoint: Path, *arguments: object, fails: bool = False) -> str:
    texts = [str(checkpoint), "--quiet", *map(str, arguments)]
    result = CliRunner().invoke(app, texts, env={"COLUMNS": "200"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def the_record(output: Path) -> Record:
    (record,) = find_records(output / "records", experiment="evaluate")
    return record


def same(one: Evaluation, other: Evaluation) -> bool:
    """Everything that the model said is bit for bit the same."""
    return len(one.sets) == len(other.sets) and all(
        a.name == b.name
        and a.tier == b.tier
        and a.data_hash == b.data_hash
        and a.skipped == b.skipped
        and a.scores.keys() == b.scores.keys()
        and all(np.array_equal(a.scores[name], b.scores[name]) for name in a.scores)
        and all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("probs", "labels", "shown", "images"))
        for a, b in zip(one.sets, other.sets)
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network = build_backbone("paper-resnet", 3, 1, **RECIPE)
    torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.3)
    model = randomise_attachments(abnn.attach(network.eval(), torch.zeros(1, 1, 8, 8), draws=2))
    triage = Triage(0.9, 1.0, 0.05, 0.01, "entropy", 10, 0, 100)
    extra = {"class_names": NAMES, "preprocess": PREPROCESS}
    return model.save(tmp_path_factory.mktemp("models") / "shapes", backbone=True, triage=triage, extra=extra)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """30 grey pictures with labels, a folder of 11 colour ones in two classes, 13 pictures without labels."""
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    np.savez_compressed(
        folder / "known.npz", images=rng.integers(0, 256, (30, 8, 8), np.uint8), labels=np.arange(30) % 3
    )
    for number in range(11):
        place = folder / "drawn" / ("disc" if number % 2 else "Square")
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (12, 10, 3), np.uint8)).save(place / f"{number:02d}.png")
    np.savez(folder / "noise.npz", images=rng.integers(0, 256, (13, 9, 9), np.uint8))
    return {name: folder / name for name in ("known.npz", "drawn", "noise.npz")}


@pytest.fixture
def tiers(sources: dict[str, Path]) -> list[object]:
    known, drawn, noise = sources.values()
    return ["--id", known, "--semi", drawn, "--full", f"white noise={noise}", "--batch-size", 4, "--no-report"]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every batch that any model predicts, but for the single input that probes it."""
    sizes: list[int] = []
    predict = Attached.predict

    def counted(self: Attached, x: Any, *arguments: Any, **options: Any) -> Any:
        if len(x) > 1 or x.any():
            sizes.append(len(x))
        return predict(self, x, *arguments, **options)

    monkeypatch.setattr(Attached, "predict", counted)
    return sizes


@pytest.fixture(scope="module")
def undisturbed(checkpoint: Path, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    output = tmp_path_factory.mktemp("undisturbed")
    known, drawn, noise = sources.values()
    sets = ["--id", known, "--semi", drawn, "--full", f"white noise={noise}"]
    run(checkpoint, *sets, "--batch-size", 4, "--no-report", "--output", output)
    return the_record(output).evaluation()


def test_result_is_that_of_the_model(checkpoint: Path, sources: dict[str, Path], undisturbed: Evaluation) -> None:
    model = abnn.load(checkpoint)
    with np.load(sources["known.npz"]) as arrays:
        x = (torch.from_numpy(arrays["images"])[:, None].float() / 255 - 0.5) / 0.25
        y = torch.from_numpy(arrays["labels"])
    direct = evaluate_set(model, zip(x.split(4), y.split(4)), "known", "id", draws=10)
    known, drawn, noise = undisturbed.sets
    assert known.data_hash == direct.data_hash and (known.labels == direct.labels).all()
    np.testing.assert_array_equal(known.scores["entropy"], direct.scores["entropy"])
    np.testing.assert_allclose(known.probs, direct.probs, rtol=2e-3)  # stored as float16 logarithms
    assert [each.name for each in undisturbed.sets] == ["known", "drawn", "white noise"]
    assert drawn.labels.tolist() == [2] * 6 + [1] * 5 and (noise.labels == -1).all()
    assert drawn.images.shape[1:] == (8, 8) and undisturbed.thresholds == (0.9, 1.0)


@pytest.mark.usefixtures("few_figures")
@pytest.mark.no_cover
def test_table_record_and_page(checkpoint: Path, tiers: list[object], tmp_path: Path) -> None:
    text = run(checkpoint, *tiers[:-1], "--output", tmp_path / "out", "--name", "my [net]", "--figures")
    for words in ("my [net]", "white noise", "accuracy", "AUROC", "reject", "semi", "30"):
        assert words in text
    record = the_record(tmp_path / "out")
    assert record.name == "my [net]" and record.experiment == "evaluate" and record.config["class_names"] == NAMES
    assert record.config["preprocess"] == PREPROCESS and record.config["draws"] == 10 and record.device == "cpu"
    assert "tiers.ordered_triples" in record.numbers and record.score == "entropy"
    page = (tmp_path / "out" / "report.html").read_bytes()
    assert b"white noise" in page and list((tmp_path / "out" / "report_figures").glob("*.svg"))
    again = page_from_records([read_record(record.path)], tmp_path / "again.html")
    assert again.read_bytes() == page


def test_verdicts_are_those_of_the_saved_triage(sources: dict[str, Path], tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_backbone("paper-resnet", 3, 1, **RECIPE)
    torch.nn.init.normal_(network.get_parameter("head.weight"), std=0.3)
    model = randomise_attachments(abnn.attach(network.eval(), torch.zeros(1, 1, 8, 8), draws=2))
    with np.load(sources["known.npz"]) as arrays:
        x = torch.from_numpy(arrays["images"])[:, None].float() / 255
    prediction = model.predict(x, draws=3, seed=5)
    entropy, labels = prediction.score_by("entropy"), prediction.label
    middle = [float(entropy[labels == k].median()) if (labels == k).any() else 0.0 for k in range(3)]
    by_class = tuple((value, value + 0.01) for value in middle)
    triage = Triage(-1.0, 9.0, 0.05, 0.01, "entropy", 3, 5, 100, by_class=by_class)
    saved_at = model.save(tmp_path / "model", backbone=True, triage=triage)
    run(saved_at, "--id", sources["known.npz"], "--score", "entropy", "--output", tmp_path / "out", "--no-report")
    record = the_record(tmp_path / "out")
    assert (record.config["draws"], record.seed, record.class_thresholds) == (3, 5, by_class)
    verdicts = triage(prediction).verdict
    shares = {word: record.numbers[f"verdicts.known.{word}"] for word in ("accept", "notice", "reject")}
    assert shares == pytest.approx({word: verdicts.count(word) / len(verdicts) for word in shares})
    run(saved_at, "--id", sources["known.npz"], "--draws", 2, "--seed", 0, "--output", tmp_path / "own", "--no-report")
    assert (the_record(tmp_path / "own").config["draws"], the_record(tmp_path / "own").seed) == (2, 0)
    model.save(tmp_path / "model", backbone=True, triage=replace(triage, drawn=4))
    with pytest.warns(AbnnWarning, match="prediction: got 3 samples; accepted: 4, as calibrated"):
        run(saved_at, "--id", sources["known.npz"], "--draws", 2, "--output", tmp_path / "other", "--no-report")


def test_finished_sets_are_not_done_again(
    checkpoint: Path, sources: dict[str, Path], tiers: list[object], tmp_path: Path, calls: list[int]
) -> None:
    to = ["--output", tmp_path / "out"]
    run(checkpoint, *tiers, *to)
    assert sum(calls) == 30 + 11 + 13
    first = the_record(tmp_path / "out").evaluation()
    calls.clear()
    run(checkpoint, *tiers, *to)
    run(checkpoint, *tiers, *to, "--batch-size", 7)
    assert calls == [] and same(the_record(tmp_path / "out").evaluation(), first)
    known = sources["known.npz"]
    for more, expected in (
        (["--semi", f"known again={known}"], 0),  # the same inputs with the same labels
        (["--full", f"known without labels={known}"], 30),
        (["--draws", 3], 54),
        (["--seed", 1], 54),
        (["--score", "mutual-information"], 54),
    ):
        calls.clear()
        run(checkpoint, *tiers, *to, *more)
        assert sum(calls) == expected, more


def test_changed_data_and_changed_models_are_done_again(
    checkpoint: Path, sources: dict[str, Path], tmp_path: Path, calls: list[int]
) -> None:
    folder = shutil.copytree(sources["drawn"], tmp_path / "drawn")
    model = shutil.copytree(checkpoint, tmp_path / "model")
    sets = ["--semi", folder, "--output", tmp_path / "out", "--no-report"]
    run(model, *sets)
    shutil.copy(folder / "disc" / "01.png", folder / "disc" / "99.png")
    calls.clear()
    run(model, *sets)
    assert sum(calls) == 12
    description = json.loads((model / "abnn.json").read_text())
    description["extra"]["preprocess"]["std"] = [0.5]
    alter(model, **description)
    calls.clear()
    run(model, *sets)
    assert sum(calls) == 12


class Killed(BaseException):
    pass


@pytest.fixture
def kill_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """The process dies in the batch after so many: nothing is written from then on."""
    left = [10**9]
    predict = Attached.predict

    def dying(self: Attached, x: Any, *arguments: Any, **options: Any) -> Any:
        if len(x) > 1 or x.any():
            left[0] -= 1
        if left[0] < 0:
            raise Killed
        return predict(self, x, *arguments, **options)

    def alive(method: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any) -> Any:
            if left[0] < 0:
                raise Killed
            return method(*arguments)

        return guarded

    monkeypatch.setattr(Attached, "predict", dying)
    monkeypatch.setattr(resume, "_write_part", alive(resume._write_part))
    monkeypatch.setattr(resume, "BATCHES_PER_PART", 2)

    def set_left(batches: int) -> None:
        left[0] = batches

    return set_left


@pytest.mark.parametrize(("batches", "done"), [(1, 0), (3, 8), (5, 16), (8, 30), (9, 30), (10, 38), (12, 41), (14, 49)])
def test_killed_evaluation_goes_on(
    *,
    checkpoint: Path,
    tiers: list[object],
    tmp_path: Path,
    undisturbed: Evaluation,
    kill_after: Any,
    batches: int,
    done: int,
) -> None:
    """8 batches of known, 3 of drawn, 4 of noise; parts of 2 batches."""
    kill_after(batches)
    with pytest.raises(Killed):
        run(checkpoint, *tiers, "--output", tmp_path)
    assert not (tmp_path / "records").exists()
    kill_after(10**9)
    sizes: list[int] = []
    inner = Attached.predict

    def counted(self: Attached, x: Any, *arguments: Any, **options: Any) -> Any:
        if len(x) > 1 or x.any():
            sizes.append(len(x))
        return inner(self, x, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attached, "predict", counted)
        run(checkpoint, *tiers, "--output", tmp_path)
    assert sum(sizes) == 54 - done
    assert same(the_record(tmp_path).evaluation(), undisturbed)


def test_interrupted_evaluation_keeps_every_batch(
    checkpoint: Path, tiers: list[object], tmp_path: Path, undisturbed: Evaluation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike a killed process, an interrupted one can write down what it has."""
    predict, sizes = Attached.predict, []

    def interrupted(self: Attached, x: Any, *arguments: Any, **options: Any) -> Any:
        if len(x) > 1 or x.any():
            sizes.append(len(x))
            if len(sizes) == 4:
                raise KeyboardInterrupt
        return predict(self, x, *arguments, **options)

    monkeypatch.setattr(Attached, "predict", interrupted)
    run(checkpoint, *tiers, "--output", tmp_path, fails=True)
    sizes.clear()
    sizes += [0] * 10
    run(checkpoint, *tiers, "--output", tmp_path)
    assert sum(sizes) == 54 - 12
    assert same(the_record(tmp_path).evaluation(), undisturbed)


@pytest.mark.parametrize("where", ["pool", "after the pool", "on_batch", "after a part"])
def test_interrupts_anywhere_count_no_batch_twice_and_lose_none(
    checkpoint: Path, tiers: list[object], tmp_path: Path, undisturbed: Evaluation, where: str
) -> None:
    """Each time in the fourth batch, the second of its part."""
    times = [0]

    def interrupting(method: Callable[..., Any], after: bool) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            times[0] += 1
            if times[0] == 4 and not after:
                raise KeyboardInterrupt
            made = method(*arguments, **options)
            if times[0] == 4:
                raise KeyboardInterrupt
            return made

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resume, "BATCHES_PER_PART", 1 if where == "after a part" else 2)
        if where == "on_batch":
            patch.setattr("rich.progress.Progress.advance", interrupting(lambda *_: None, after=False))
        elif where == "after a part":
            patch.setattr(resume, "write_tree", interrupting(resume.write_tree, after=True))
        else:
            patch.setattr(resume.Pool, "add", interrupting(resume.Pool.add, after=where == "after the pool"))
        run(checkpoint, *tiers, "--output", tmp_path, fails=True)
    assert times[0] >= 4
    run(checkpoint, *tiers, "--output", tmp_path)
    assert same(the_record(tmp_path).evaluation(), undisturbed)


def test_parts_with_too_many_rows_are_made_again(
    checkpoint: Path, tiers: list[object], tmp_path: Path, undisturbed: Evaluation, kill_after: Any
) -> None:
    kill_after(7)
    with pytest.raises(Killed):
        run(checkpoint, *tiers, "--output", tmp_path)
    first = min(tmp_path.rglob("part-*"))
    tree = read_tree(first)
    write_tree(first, {**tree, "rows": {name: torch.cat([rows] * 2) for name, rows in tree["rows"].items()}})
    kill_after(10**9)
    run(checkpoint, *tiers, "--output", tmp_path)
    assert same(the_record(tmp_path).evaluation(), undisturbed)


def test_damaged_parts_are_made_again(
    checkpoint: Path, tiers: list[object], tmp_path: Path, undisturbed: Evaluation, kill_after: Any
) -> None:
    kill_after(7)
    with pytest.raises(Killed):
        run(checkpoint, *tiers, "--output", tmp_path)
    parts = sorted(tmp_path.rglob("part-*"))
    assert [each.name for each in parts] == [f"part-{place:010d}.safetensors" for place in (0, 8, 16)]
    parts[1].write_bytes(parts[1].read_bytes()[:50])
    kill_after(10**9)
    run(checkpoint, *tiers, "--output", tmp_path)
    assert same(the_record(tmp_path).evaluation(), undisturbed)
    for part in tmp_path.rglob("part-*"):
        part.write_bytes(b"")
    run(checkpoint, *tiers, "--output", tmp_path)
    assert same(the_record(tmp_path).evaluation(), undisturbed)


@pytest.mark.usefixtures("few_figures")
def test_unreadable_images(checkpoint: Path, sources: dict[str, Path], tmp_path: Path, calls: list[int]) -> None:
    folder = shutil.copytree(sources["drawn"], tmp_path / "drawn")
    (folder / "disc" / "05.png").write_bytes(b"no picture")
    (folder / "disc" / "07.png").write_bytes((folder / "disc" / "07.png").read_bytes()[:60])
    sets = ["--semi", folder, "--output", tmp_path / "out", "--batch-size", 2]
    with pytest.raises(InputError, match=r"disc/05\.png: no image of a known format.*--skip-unreadable"):
        run(checkpoint, *sets)
    assert sum(calls) == 8  # the six squares and the two discs before the bad one
    calls.clear()
    text = run(checkpoint, *sets, "--skip-unreadable")
    assert sum(calls) == 1  # what was done before is kept
    (result,) = the_record(tmp_path / "out").evaluation().sets
    assert len(result) == 9 and result.labels.tolist() == [2] * 6 + [1] * 3
    assert [line.split(":")[0] for line in result.skipped] == ["disc/05.png", "disc/07.png"] and "skipped" in text
    assert "disc/05.png" in (tmp_path / "out" / "report.html").read_text()
    with pytest.raises(InputError, match="05.png"):
        run(checkpoint, *sets)
    for image in folder.rglob("*.png"):
        image.write_bytes(b"no picture")
    with pytest.raises(InputError, match="got no inputs.*11 inputs could not be read"):
        run(checkpoint, *sets, "--skip-unreadable")


def test_flat_models(tmp_path: Path) -> None:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    network = mlp()
    model = randomise_attachments(abnn.attach(network, torch.zeros(1, 6), draws=2))
    model.save(tmp_path / "model")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def build():\n"
        "    sizes = [(6, 16), (16, 16), (16, 3)]\n"
        "    layers = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]\n"
        "    return nn.Sequential(*layers[:-1])\n"
        "def broken():\n"
        "    raise KeyError('weights')\n"
        "number = int\n"
    )
    write_tensors(tmp_path / "weights.safetensors", network.state_dict())
    np.savez(tmp_path / "table.npz", features=rng.normal(size=(20, 6)), target=np.arange(20) % 3)
    sets = ["--id", tmp_path / "table.npz", "--output", tmp_path / "out", "--no-report"]
    weights = ["--weights", tmp_path / "weights.safetensors"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        run(tmp_path / "model", *sets, "--backbone", "nets:build", *weights)
        for bad, message in (
            ("nets:broken", "fails with KeyError"),
            ("nets:nothing", "fails with AttributeError"),
            ("absent:build", "fails with ModuleNotFoundError"),
            ("nets:number", "returns a int"),
            ("paper-resnet", "does not fit the backbone"),
        ):
            with pytest.raises(AbnnError, match=message):
                run(tmp_path / "model", *sets, "--backbone", bad, *weights)
        with pytest.raises(FileFormatError, match="other weights or layers"):
            run(tmp_path / "model", *sets, "--backbone", "nets:build")
    with pytest.raises(InputError, match="does not say how to build it"):
        run(tmp_path / "model", *sets, *weights)
    with pytest.raises(InputError, match="the network that the attachments were fitted on"):
        run(tmp_path / "model", *sets)
    result = the_record(tmp_path / "out").evaluation().sets[0]
    assert len(result) == 20 and len(result.images) == 0 and result.labelled


def test_backbone_by_its_recipe(checkpoint: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    """A model saved without its backbone knows how it was built, so weights alone are enough."""
    alone = shutil.copytree(checkpoint, tmp_path / "model")
    weights = (alone / "backbone.safetensors").rename(tmp_path / "weights.safetensors")
    sets = ["--id", sources["known.npz"], "--no-report", "--output"]
    run(alone, *sets, tmp_path / "a", "--weights", weights)
    run(alone, *sets, tmp_path / "b", "--weights", weights, "--backbone", "paper-resnet")
    run(checkpoint, *sets, tmp_path / "c", "--name", "model")
    one, two, three = (the_record(tmp_path / name).evaluation() for name in "abc")
    assert same(one, two) and same(one, three)


def test_other_methods(sources: dict[str, Path], tmp_path: Path) -> None:
    from abnn.baselines import Trained, make_method

    method = make_method("threshold")
    example = torch.zeros(1, 1, 8, 8)
    recipe = {"name": "paper-resnet", "classes": 3, "in_channels": 1, **RECIPE}
    network = method.build(lambda: build_backbone(**recipe), example)
    Trained(method, network.eval(), example, 3, recipe).save(tmp_path / "plain")
    run(tmp_path / "plain", "--id", sources["known.npz"], "--no-report", "--output", tmp_path / "out")
    record = the_record(tmp_path / "out")
    assert record.score == method.score and record.thresholds is None and "accuracy.known" in record.numbers


def test_models_that_do_not_fit_fail_before_any_work(
    checkpoint: Path, sources: dict[str, Path], tmp_path: Path, calls: list[int]
) -> None:
    known = sources["known.npz"]
    np.savez(tmp_path / "table.npz", features=np.zeros((4, 6)))
    np.savez(tmp_path / "many.npz", images=np.full((4, 8, 8), 9, np.uint8), labels=np.arange(4))
    cases: list[tuple[list[object], str]] = [
        (["--id", known, "--full", tmp_path / "table.npz"], "rows of features, for a model"),
        (["--id", tmp_path / "many.npz"], "a label of 3"),
        (["--id", "digits/test"], "classes 0, 1, 2"),
        (["--id", known, "--semi", tmp_path / "absent.npz"], "does not exist"),
        (["--id", known, "--semi", known], "several called 'known'.*NAME=SOURCE"),
        (["--id", known, "--score", "gated"], "--score.*entropy"),
        (["--id", known, "--device", "cuda:77"], "--device"),
        ([], "at least one of --id, --semi and --full"),
        (["--id", known, "--output", known], "--output: got .* is a file"),
        (["--id", known, "--output", known / "sub"], "--output: got .* is a file"),
    ]
    for arguments, message in cases:
        with pytest.raises(InputError, match=message):
            run(checkpoint, "--output", tmp_path / "out", *arguments)
    with pytest.raises(NotFittedError, match="'combined' needs what abnn.fit"):
        run(checkpoint, "--output", tmp_path / "out", "--id", known, "--score", "combined")
    assert calls == [] and not (tmp_path / "out").exists()
    run(checkpoint, "--draws", -1, fails=True)


def test_what_is_no_checkpoint(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        run(tmp_path / "absent")
    with pytest.raises(FileFormatError, match="is no saved model"):
        run(tmp_path)
    write_json(tmp_path / "model" / "other.json", {"format": "foreign"})
    with pytest.raises(FileFormatError, match="'foreign'; accepted: one of the formats abnn-model, abnn-method"):
        run(tmp_path / "model")
    monkeypatch.setitem(saved.LOADERS, "foreign", lambda path, network: (path.name, network))
    assert saved.load_model(tmp_path / "model") == ("model", None)
    (tmp_path / "exported").mkdir()
    write_json(tmp_path / "exported" / "export.json", {})
    with pytest.raises(InputError, match="checkpoint: got .*, which was exported; accepted: a folder that model.save"):
        run(tmp_path / "exported")
    misnamed = shutil.copytree(checkpoint, tmp_path / "misnamed")
    description = json.loads((misnamed / "abnn.json").read_text())
    description["extra"]["class_names"] = ["one"]
    alter(misnamed, **description)
    with pytest.raises(InputError, match="class_names of the model: got 1 names"):
        run(misnamed, "--full", "digits/full", "--output", tmp_path / "out")


def test_notes_are_told(checkpoint: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(sources["drawn"], tmp_path / "drawn")
    (folder / "README.txt").write_text("drawings")
    (folder / "disc").rename(folder / "star")
    text = " ".join(run(checkpoint, "--semi", folder, "--no-report", "--output", tmp_path / "out").split())
    assert "drawn: 1 files that are no images were left out" in text and "does not know (star)" in text
    assert len(the_record(tmp_path / "out").config["sets"]["drawn"]["notes"]) == 2


def test_a_page_of_an_earlier_run_does_not_stay(checkpoint: Path, sources: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("of another model")
    run(checkpoint, "--id", sources["known.npz"], "--no-report", "--output", tmp_path)
    assert not (tmp_path / "report.html").exists()
