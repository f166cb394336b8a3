"""abnn fit: from a folder of images to a saved model, and everything that a user can get wrong on the way."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner, Result

import abnn
from abnn.cli.fit import FitRequest, fit
from abnn.cli.steps import fitting, image_data, own_backbone, own_report
from abnn.cli.steps.fitting import split_held_out
from abnn.cli.steps.image_data import (
    Files,
    Look,
    OwnData,
    Reading,
    look,
    open_folders,
    read_outliers,
    read_own,
    stratified,
)
from abnn.cli.steps.own_backbone import IMAGENET, at_chance, choose_form
from abnn.data import FolderSource, InputForm
from abnn.errors import AbnnError, AbnnWarning, FileFormatError, InputError
from abnn.networks.by_name import PaperResNet
from abnn.networks.weights import load_weights, read_weights
from abnn.store.folder import fingerprint
from abnn.tensors import read_tensors, write_tensors, write_tree
from abnn.triage.thresholds import least_count
from tests.train.test_fit import data

app = typer.Typer()
app.command()(fit)
NAMES = ("bottom", "middle", "top")
HERE = f"{__name__}:own_network"


def own_network(classes: int = 3) -> PaperResNet:
    torch.manual_seed(0)
    return PaperResNet(1, classes, width=8, blocks=2, stem="small", kaiming=False)


def unseeded_network() -> PaperResNet:
    return PaperResNet(1, 3, width=8, blocks=1, stem="small", kaiming=False)


def not_a_network() -> int:
    return 1


def write_images(root: Path, count: int = 150, colour: bool = False) -> None:
    """The class is the third of the rows that is bright; folders are named in another order than labels."""
    x, y = data(count)
    for number, (image, label) in enumerate(zip(x, y.tolist())):
        folder = root / ("top", "middle", "bottom")[label]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = (image[0].numpy() * 255).round().astype(np.uint8)
        Image.fromarray(np.stack([pixels] * 3, -1) if colour else pixels).save(folder / f"{number}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of images, and trained weights with the classes in the order of the folders' names."""
    root = tmp_path_factory.mktemp("fit")
    write_images(root / "images")
    network = own_network()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    x, y = data()
    for _ in range(20):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), 2 - y).backward()
        optimizer.step()
    torch.save({"state_dict": {f"module.{k}": v for k, v in network.state_dict().items()}}, root / "weights.pt")
    return root


@pytest.fixture
def short_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the page alone: figures take most of the time."""

    def write(evaluations: Any, path: Path, title: str, intro: str, *_: Any, alert: str) -> Path:
        path.write_text(f"{title}\n{alert}\n{intro}")
        return path

    monkeypatch.setattr(own_report, "write_report", write)


def run(*arguments: object, quiet: bool = True) -> Result:
    options = ["--quiet", "--device", "cpu"] if quiet else []
    result = CliRunner().invoke(app, [*map(str, arguments), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit | AbnnError):
        raise result.exception
    return result


@pytest.mark.usefixtures("few_figures")
def test_one_line_is_enough(place: Path, tmp_path: Path) -> None:
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--epochs", 4)
    result = run(*call, "--output", tmp_path / "a")
    assert result.exit_code == 0, result.exception
    assert "120 images to fit, 30 held out, 3 classes" in result.stdout and "100.0% of the held-out" in result.stdout
    assert "at chance" not in result.stderr and "--backbone tests.cli.test_cli_fit:own_network" in result.stdout
    network = own_network()
    load_weights(network, place / "weights.pt")
    model = abnn.load(tmp_path / "a" / "model", network.eval())  # the fingerprint says: the backbone was not changed
    assert model.extra["class_names"] == list(NAMES) and "preprocess" not in model.extra
    assert model.triage is not None and model.triage.inputs == 30 and model.input_shape == (1, 8, 8)
    x, y = data()
    good = model.predict(x)
    assert (good.label == 2 - y).float().mean() > 0.95
    assert model.triage(good).verdict.count("accept") > 0.8 * len(x)
    page = (tmp_path / "a" / "report.html").read_text()
    for text in ("Only the held-out images (id) are real", "on the very images shown here", "content destroyed"):
        assert text in page
    again = run(*call, "--output", tmp_path / "a", "--no-report")
    assert again.exit_code == 0 and not (tmp_path / "a" / "report.html").exists()  # it was about another model
    second = abnn.load(tmp_path / "a" / "model", network.eval())
    assert all(
        torch.equal(p, q) for (_, p), (_, q) in zip(model.attachment_parameters(), second.attachment_parameters())
    )


@pytest.mark.usefixtures("short_page")
def test_a_warning_is_said_once_and_the_next_command_can_be_copied(place: Path, tmp_path: Path) -> None:
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--epochs", 0)
    with pytest.warns(AbnnWarning) as warned:
        result = run(*call, "--output", tmp_path / "with a space")
    texts = [str(each.message) for each in warned]
    assert any("30 good inputs" in each for each in texts) and len(texts) == len(set(texts))
    line = next(each for each in result.stdout.splitlines() if each.startswith("Next: "))
    assert shlex.split(line)[3] == str(tmp_path / "with a space" / "model")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an earlier run has left: a model and its page."""
    output = tmp_path_factory.mktemp("finished")
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--output", output)
    assert run(*call, "--epochs", 1, "--no-report").exit_code == 0
    (output / "report.html").write_text("about this model")
    return output


def test_losing_accuracy_is_an_error_that_saves_nothing(place: Path, finished: Path) -> None:
    """Chains can lose it; what bounded attachments can do to a prediction is half of what they say."""
    before = contents(finished)
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--epochs", 2)
    result = run(*call, "--output", finished, "--kind", "chain", "--lr", 1.0)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and contents(finished) == before
    assert "abnn: The attachments cost accuracy: of 30 held-out images" in result.stderr
    lost = re.search(r"That is (\d+\.\d) percentage points less", result.stderr)
    assert lost is not None and float(lost.group(1)) > 1
    assert all(words in result.stderr for words in ("lower --lr", "Nothing was saved", "--accept-loss"))


@pytest.mark.usefixtures("few_figures")
@pytest.mark.no_cover
def test_a_loss_may_be_accepted_and_is_a_red_box_on_the_page(place: Path, tmp_path: Path) -> None:
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--epochs", 1)
    result = run(*call, "--output", tmp_path, "--kind", "chain", "--lr", 1.0, "--accept-loss")
    assert result.exit_code == 0, result.exception
    assert "The attachments cost accuracy: of 30 held-out images" in result.stderr and "saved" not in result.stderr
    assert '<p class="alert" role="alert">The attachments cost accuracy' in (tmp_path / "report.html").read_text()
    assert (tmp_path / "model" / "abnn.json").exists()


@pytest.mark.usefixtures("short_score")
@pytest.mark.parametrize("step", ["choose_thresholds", "own_report.write_own_report", "Attached.save"])
def test_a_failure_leaves_the_earlier_model_as_it_was(
    place: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    before = contents(finished)
    monkeypatch.setattr(f"abnn.cli.steps.fitting.{step}", fail)
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--output", finished)
    with pytest.raises(OSError, match="No space left"):
        run(*call, "--epochs", 1, "--seed", 1, *(() if "report" in step else ("--no-report",)))
    assert contents(finished) == before


def test_what_few_held_out_images_do_not_show_is_looked_for_among_the_others(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fitting._right

    def forget(model: Any, loader: Any, **options: Any) -> torch.Tensor:
        right = real(model, loader, **options)
        to_fit = isinstance(getattr(loader.dataset, "indices", None), range)
        return torch.zeros_like(right) if to_fit and isinstance(model, abnn.Attached) else right

    monkeypatch.setattr(fitting, "_right", forget)
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--no-report")
    result = run(*call, "--output", tmp_path / "out", "--epochs", 1)
    assert result.exit_code == 0, result.exception
    assert re.search(r"The attachments cost accuracy: of \d+ images to fit 0.0%", result.stderr)


@pytest.mark.usefixtures("short_page", "short_score")
@pytest.mark.no_cover
def test_the_backbone_may_learn_along(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[nn.Module] = []
    write = own_report.write_own_report

    def look_at_plain(path: Path, models: dict[str, Any], *arguments: Any, **options: Any) -> Path:
        shown.append(models["plain network"][0].network)
        return write(path, models, *arguments, **options)

    monkeypatch.setattr(own_report, "write_own_report", look_at_plain)
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--joint")
    result = run(*call, "--output", tmp_path / "a", "--epochs", 3)
    assert result.exit_code == 0, result.exception
    assert "are classified right now and 100.0% were before" in result.stdout and "cost accuracy" not in result.stderr
    given = own_network()
    load_weights(given, place / "weights.pt")
    changed = _with_weights(tmp_path / "a")
    assert fingerprint(changed) != fingerprint(given) == fingerprint(shown[0])  # the page compares with what was given
    assert "the plain network on this page is as it was before" in (tmp_path / "a" / "report.html").read_text()
    x, y = data()
    assert (abnn.load(tmp_path / "a" / "model", changed).predict(x).label == 2 - y).float().mean() > 0.95
    slower = run(*call, "--output", tmp_path / "b", "--epochs", 3, "--backbone-lr", 1e-9, "--no-report")
    assert slower.exit_code == 0
    moved = [
        max((p - q).abs().max() for p, q in zip(_with_weights(tmp_path / name).parameters(), given.parameters()))
        for name in "ab"
    ]
    assert moved[1] < 1e-6 and moved[0] > 1e-3
    lost = run(*call, "--output", tmp_path / "c", "--epochs", 1, "--lr", 1.0, "--backbone-lr", 3.0)
    text = "Training the backbone with the attachments cost accuracy: of 30 held-out images"
    assert lost.exit_code == 1 and text in lost.stderr and "Leave out --joint" in lost.stderr
    assert not (tmp_path / "c").exists()


@pytest.mark.usefixtures("short_page", "short_score")
@pytest.mark.no_cover
def test_train_and_val_folders_new_head_and_resume(place: Path, tmp_path: Path) -> None:
    """Weights for five classes: all but the last layer are taken over, and the backbone is trained on."""
    write_images(tmp_path / "data" / "train", 60)
    write_images(tmp_path / "data" / "val", 240)
    write_tensors(tmp_path / "five.safetensors", own_network(5).state_dict())
    call = [
        *("--backbone", HERE, "--weights", tmp_path / "five.safetensors", "--data", tmp_path / "data"),
        *("--train-backbone", "--backbone-epochs", 12, "--backbone-lr", 0.01, "--epochs", 2, "--batch-size", 16),
        *("--checkpoint", tmp_path / "check.safetensors", "--normalise", "0.2/0.3", "--noticed", 0.2, "--draws", 3),
    ]
    result = run(*call, "--output", tmp_path / "a")
    assert result.exit_code == 0, result.exception
    assert "60 images to fit, 240 held out" in result.stdout
    assert "because the shapes differ: head.weight, head.bias" in result.stdout
    model = abnn.load(tmp_path / "a" / "model", _with_weights(tmp_path / "a"))
    assert model.extra["preprocess"] == {"mean": [0.2], "std": [0.3]}
    assert model.triage is not None and model.triage.inputs == 119 and model.triage.draws == 3
    assert "other held-out images than those shown here" in (tmp_path / "a" / "report.html").read_text()
    # Finished stages are not done again, and give the same model.
    assert (tmp_path / "check-backbone.safetensors").exists()
    run(*call, "--output", tmp_path / "b", "--no-report")
    one, two = (read_tensors(tmp_path / name / "model" / "attachments.safetensors") for name in "ab")
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = run(*call, "--epochs", 3, "--output", tmp_path / "b")
    assert "written by a run with other settings" in str(other.exception)


@pytest.mark.usefixtures("short_score")
@pytest.mark.parametrize("head_alone", [False, True])
@pytest.mark.no_cover
def test_a_killed_run_goes_on_and_ends_as_one_that_was_not(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_alone: bool
) -> None:
    """The backbone's initial values belong to the seed, whatever was drawn before."""
    more: list[object] = []
    if head_alone:
        state = {name: value for name, value in unseeded_network().state_dict().items() if "head" not in name}
        write_tensors(
            tmp_path / "w.safetensors", {**state, "head.weight": torch.ones(5, 8), "head.bias": torch.ones(5)}
        )
        more = ["--weights", tmp_path / "w.safetensors"]

    def call(name: str, drawn: int, *options: object) -> Result:
        torch.manual_seed(drawn)
        return run(
            *("--backbone", f"{__name__}:unseeded_network", "--data", place / "images", "--output", tmp_path / name),
            *("--train-backbone", "--backbone-epochs", 4, "--epochs", 1, "--draws", 2, "--no-report", *more, *options),
        )

    def saved(name: str) -> list[torch.Tensor]:
        files = (tmp_path / name / "model" / f"{part}.safetensors" for part in ("backbone", "attachments"))
        return [tensor for file in files for _, tensor in sorted(read_tensors(file).items())]

    assert call("whole", 1).exit_code == 0
    written: list[Path] = []

    def write_and_stop(path: Path, tree: Any) -> None:
        write_tree(path, tree)
        written.append(path)
        if len(written) == 2:
            raise KeyboardInterrupt

    check = ("--checkpoint", tmp_path / "check.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr("abnn.train.checkpoint.write_tree", write_and_stop)
        assert call("cut", 2, *check).exit_code != 0 and len(written) == 2
    resumed = call("cut", 3, *check)
    assert resumed.exit_code == 0, resumed.exception
    assert all(torch.equal(one, two) for one, two in zip(saved("whole"), saved("cut"), strict=True))
    assert call("other", 1, "--seed", 1).exit_code == 0
    assert not all(torch.equal(one, two) for one, two in zip(saved("whole"), saved("other"), strict=True))


def _with_weights(output: Path) -> nn.Module:
    network = own_network()
    network.load_state_dict(read_tensors(output / "model" / "backbone.safetensors"))
    return network.eval()


@pytest.mark.usefixtures("short_page", "short_score")
def test_backbones_by_name_and_weights_at_chance(tmp_path: Path) -> None:
    write_images(tmp_path / "data", 60, colour=True)
    (tmp_path / "strange").mkdir()
    for number in range(5):
        noise = np.random.default_rng(number).integers(0, 256, (8, 8, 3)).astype(np.uint8)
        Image.fromarray(noise).save(tmp_path / "strange" / f"{number}.png")
    weights = abnn.build_backbone("squeezenet1_1", 3).state_dict()
    write_tensors(tmp_path / "w.safetensors", weights)
    result = run(
        *("--backbone", "squeezenet1_1", "--weights", tmp_path / "w.safetensors", "--data", tmp_path / "data"),
        *("--output", tmp_path / "out", "--epochs", 1, "--held-out", 0.4, "--draws", 2, "--last", 1, "--size", 24),
        *("--outliers", tmp_path / "strange", "--kind", "bounded"),
    )
    assert result.exit_code == 0, result.exception
    assert "The backbone is at chance" in result.stderr and "--train-backbone" in result.stderr
    model = abnn.load(tmp_path / "out" / "model")  # its recipe is in the folder
    assert model.input_shape == (3, 24, 24)
    assert model.extra["preprocess"] == {"mean": list(IMAGENET[0]), "std": list(IMAGENET[1])}
    assert "The backbone is at chance" in (tmp_path / "out" / "report.html").read_text()


def test_what_a_user_can_get_wrong(place: Path, tmp_path: Path) -> None:
    images, weights = place / "images", place / "weights.pt"
    (tmp_path / "flat").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "flat" / "a.png")
    write_images(tmp_path / "few", 40)
    write_images(tmp_path / "val" / "train", 40)
    (tmp_path / "val" / "val" / "sideways").mkdir(parents=True)
    (tmp_path / "val" / "val" / "upwards").mkdir(parents=True)
    for name in ("sideways", "upwards"):
        Image.new("L", (8, 8)).save(tmp_path / "val" / "val" / name / "a.png")
    for part in ("train", "test"):
        write_images(tmp_path / "split" / part, 30)
    write_images(tmp_path / "bad", 60)
    (tmp_path / "bad" / "top" / "x.png").write_bytes(b"?")
    (tmp_path / "taken" / "model").mkdir(parents=True)
    torch.save(own_network(), tmp_path / "pickled.pt")
    torch.save(own_network(4).state_dict(), tmp_path / "four.pt")
    base: dict[str, Any] = {"--backbone": HERE, "--weights": weights, "--data": images, "--output": tmp_path / "o"}
    for change, text in (
        ({"--data": tmp_path / "none"}, "which is no folder"),
        ({"--data": tmp_path / "flat"}, "with no sub-folders"),
        ({"--data": tmp_path / "few"}, "8 held-out images; accepted: at least 19 to promise 5.0%"),
        ({"--data": tmp_path / "val"}, "with the classes sideways, upwards"),
        ({"--data": tmp_path / "split"}, "with classes in train/ and test/; accepted: train/ and val/. Rename test/"),
        ({"--data": tmp_path / "bad"}, "images that cannot be read: top/x.png"),
        ({"--backbone": "resnt18"}, "Did you mean"),
        ({"--backbone": "mynets"}, "given as module:function"),
        ({"--backbone": "paper-resnet", "--weights": None}, "so that the backbone would guess"),
        ({"--backbone": f"{__name__}:not_a_network"}, "returns a int"),
        ({"--backbone": "no_such_module:f"}, "ModuleNotFoundError"),
        ({"--weights": tmp_path / "none.pt"}, "which is no file"),
        ({"--weights": tmp_path / "pickled.pt"}, "could run code (Weights only load failed). Save"),
        ({"--weights": tmp_path / "four.pt"}, "head.weight has shape (4, 8)"),
        ({"--output": tmp_path / "taken"}, "is not a saved model"),
        ({"--noticed": 2}, "--noticed: got 2.0"),
        ({"--output": place / "weights.pt"}, "is a file"),
        ({"--checkpoint": tmp_path}, ", which is a folder"),
        ({"--normalise": "a/b"}, "MEAN/STD"),
        ({"--normalise": "0.1,0.2/0.3"}, "1 channels"),
        ({"--channels": 3}, "on which the backbone fails"),
        ({"--outliers": tmp_path / "none"}, "--outliers"),
    ):
        options = {key: value for key, value in {**base, **change}.items() if value is not None}
        result = run(*(part for pair in options.items() for part in pair), "--epochs", 1, "--no-report")
        assert isinstance(result.exception, AbnnError) and text in str(result.exception), (text, result.exception)
    assert not (tmp_path / "o").exists()
    options = {**base, "--data": tmp_path / "bad", "--noticed": 0.2, "--epochs": 1}
    result = run(*(part for pair in options.items() for part in pair), "--no-report", "--skip-unreadable")
    assert result.exit_code == 0 and "skipped top/x.png" in result.stdout


@pytest.mark.parametrize(
    "option, value, text",
    [
        ("--held-out", 2, "--held-out: got 2.0"),
        ("--kind", "foo", "kind: got 'foo'"),
        ("--device", "foo", "--device: got 'foo'"),
    ],
)
def test_options_are_checked_before_images_are_read(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, value: object, text: str
) -> None:
    read: list[object] = []
    monkeypatch.setattr(image_data, "read_own", lambda *arguments, **options: read.append(arguments))
    call = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--output", tmp_path)
    result = run(*call, option, value, "--quiet", quiet=False)
    assert isinstance(result.exception, InputError) and text in str(result.exception) and not read


def test_outputs_must_be_the_classes(place: Path) -> None:
    form = InputForm((1, 8, 8))
    with pytest.raises(InputError, match="2 classes .*accepted: 3"):
        own_backbone.check_output(own_network().eval(), form, ("a", "b"))


def test_split_is_stratified_seeded_and_complete() -> None:
    labels = np.repeat([0, 1, 2], [50, 20, 2])
    kept, held = stratified(labels, NAMES, 0.2, seed=1)
    assert np.bincount(labels[held]).tolist() == [10, 4, 1]
    assert sorted([*kept, *held]) == list(range(72))
    assert np.array_equal(held, stratified(labels, NAMES, 0.2, seed=1)[1])
    assert not np.array_equal(held, stratified(labels, NAMES, 0.2, seed=2)[1])
    with pytest.raises(InputError, match="1 readable images of 'top'"):
        stratified(labels[:-1], NAMES, 0.2, seed=1)


def test_large_folders_stay_on_disk(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, given = open_folders(place / "images")
    form = InputForm((1, 8, 8))
    held = read_own(source, given, Reading(form, False), 0.2, 0)
    monkeypatch.setattr(image_data, "IN_MEMORY", 0)
    read: list[int] = []
    files = read_own(source, given, Reading(form, False, read.append), 0.2, 0)
    assert isinstance(files.train, Files) and not isinstance(held.train, Files) and sum(read) == 150
    for one, two in ((held.train, files.train), (held.held_out, files.held_out)):
        assert len(one) == len(two)  # type: ignore[arg-type]
        for number in range(0, len(two), 7):  # type: ignore[arg-type]
            assert torch.equal(one[number][0], two[number][0]) and int(one[number][1]) == two[number][1]


def test_chance_is_the_most_frequent_class() -> None:
    labels = np.repeat([0, 1], [70, 30])
    error = math.sqrt(0.7 * 0.3 / 100)
    assert at_chance(0.7 + 1.9 * error, labels) == pytest.approx(0.7)
    assert at_chance(0.7 + 2.1 * error, labels) is None


def test_rules_for_inputs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = look(FolderSource(place / "images"))
    assert seen == Look((8, 8), True)
    plain, timm, transformer = own_network(), own_network(), own_network()
    timm.default_cfg = {"input_size": (3, 160, 160), "mean": (0.4, 0.5, 0.6), "std": (0.5, 0.5, 0.5)}  # type: ignore
    transformer.image_size = 32  # type: ignore[assignment]
    mixed = Look(None, False)

    def ask(name: str, **options: Any) -> FitRequest:
        return FitRequest(backbone=name, data=place, output=place, **options)

    def form(name: str, network: nn.Module, channels: int, sample: Look, size: Any, normalise: str) -> tuple[Any, ...]:
        chosen = choose_form(ask(name, size=size, normalise=normalise), network, channels, sample)
        return chosen.shape, chosen.mean, chosen.std

    assert form("a:b", plain, 1, seen, None, "auto") == ((1, 8, 8), None, None)
    assert form("a:b", plain, 1, seen, 16, "0.5/0.2") == ((1, 16, 16), (0.5,), (0.2,))
    assert form("resnet18", plain, 3, mixed, None, "auto") == ((3, 224, 224), *IMAGENET)
    assert form("vit_b_16", transformer, 3, seen, None, "none") == ((3, 32, 32), None, None)
    assert form("timm/x", timm, 3, mixed, None, "auto") == ((3, 160, 160), (0.4, 0.5, 0.6), (0.5,) * 3)
    assert form("timm/x", timm, 1, seen, None, "auto") == ((1, 8, 8), (0.5,), (0.5,))
    timm.default_cfg = {**timm.default_cfg, "fixed_input_size": True}  # type: ignore
    assert form("timm/x", timm, 3, seen, None, "imagenet") == ((3, 160, 160), *IMAGENET)
    with pytest.raises(InputError, match="Pass --size"):
        choose_form(ask("a:b"), plain, 1, mixed)
    with monkeypatch.context() as patch:
        patch.setattr(own_backbone, "build_backbone", lambda *arguments: own_network())
        for name, channels, images, expected in (
            ("resnet18", None, seen, 3),
            ("resnet18", 1, seen, 1),
            ("timm/x", None, seen, 1),
            ("timm/x", None, mixed, 3),
            (HERE, None, mixed, 1),
        ):
            request = ask(name, channels=channels, train_backbone=True)
            assert own_backbone.make_backbone(request, 3, images)[1] == expected


def test_weights_in_all_their_wrappings(tmp_path: Path) -> None:
    network = own_network()
    state = {name: torch.randn_like(value) for name, value in network.state_dict().items()}
    torch.save(state, tmp_path / "plain.pth")
    torch.save({"model": {f"_orig_mod.{k}": v for k, v in state.items()}, "epoch": 3}, tmp_path / "wrapped.ckpt")
    write_tensors(tmp_path / "safe.safetensors", state)
    for name in ("plain.pth", "wrapped.ckpt", "safe.safetensors"):
        fresh = own_network()
        assert load_weights(fresh, tmp_path / name) == []
        assert all(torch.equal(value, state[key]) for key, value in fresh.state_dict().items())
    torch.save({k: v for k, v in state.items() if "head" not in k} | {"extra": torch.ones(1)}, tmp_path / "part.pt")
    with pytest.raises(InputError, match=r"2 tensors are missing \(head.weight.* and 1 tensors are not part"):
        load_weights(network, tmp_path / "part.pt")
    torch.save({k: torch.zeros(1, 2, 3) for k in state}, tmp_path / "other.pt")
    with pytest.raises(InputError, match="no tensor has the right shape"):
        load_weights(network, tmp_path / "other.pt", new_head=True)
    torch.save({"w": nn.Parameter(torch.ones(2))}, tmp_path / "parameters.pt")
    assert not read_weights(tmp_path / "parameters.pt")["w"].requires_grad
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(FileFormatError, match="holds a list"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "plain.pth").read_bytes()[:500])
    (tmp_path / "empty.pt").write_bytes(b"")
    (tmp_path / "junk.pt").write_bytes(b"junk")
    for name in ("cut.pt", "empty.pt", "junk.pt"):
        with pytest.raises(FileFormatError, match=name):
            read_weights(tmp_path / name)
    (tmp_path / "w.txt").write_text("")
    with pytest.raises(InputError, match="a file .txt"):
        read_weights(tmp_path / "w.txt")


def test_a_trained_backbone_still_knows_how_it_is_built(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the model can be loaded without its backbone."""
    small = abnn.build_backbone("paper-resnet", 3, 1, width=4, blocks=1, stem="small")
    before = {name: value.clone() for name, value in small.state_dict().items()}
    monkeypatch.setattr(own_backbone, "build_backbone", lambda *_: small)
    call = ("--backbone", "paper-resnet", "--data", place / "images", "--output", tmp_path, "--train-backbone")
    result = run(*call, "--backbone-epochs", 2, "--epochs", 1, "--draws", 2, "--no-report", "--accept-loss")
    assert result.exit_code == 0, result.exception
    trained = abnn.load(tmp_path / "model").backbone
    assert not torch.equal(trained.head.weight, before["head.weight"]) and not trained.training


def test_classes_without_readable_images(tmp_path: Path) -> None:
    write_images(tmp_path / "train", 30)
    write_images(tmp_path / "val", 30)
    form = InputForm((1, 8, 8))
    for image in (tmp_path / "train" / "top").iterdir():
        image.write_bytes(b"?")
    with pytest.raises(InputError, match="no readable image of top"):
        read_own(*open_folders(tmp_path), Reading(form, True), 0.2, 0)
    for image in (tmp_path / "val").glob("*/*"):
        image.write_bytes(b"?")
    with pytest.raises(InputError, match="in which no image can be read"):
        read_own(*open_folders(tmp_path), Reading(form, True), 0.2, 0)


def test_the_example_follows_a_backbone_that_training_moved(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta device stands in for a GPU."""
    seen: list[tuple[str, str]] = []
    original = abnn.attach

    def record(network: nn.Module, example: torch.Tensor, **options: Any) -> Any:
        seen.append((next(network.parameters()).device.type, example.device.type))
        if example.is_meta:
            raise InputError("far enough")
        return original(network, example, **options)

    monkeypatch.setattr(fitting, "attach", record)
    monkeypatch.setattr(fitting, "train_backbone", lambda job: job.network.to("meta"))
    monkeypatch.setattr(fitting, "_right", lambda *_: torch.ones(1, dtype=torch.bool))
    result = run("--backbone", HERE, "--data", place / "images", "--output", tmp_path / "o", "--train-backbone")
    assert "far enough" in str(result.exception) and seen[-1] == ("meta", "meta")


def test_what_is_wrong_is_said_before_training(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "x.png").write_bytes(b"?")
    monkeypatch.setattr(fitting, "train_backbone", lambda job: pytest.fail("trained"))
    base = ("--backbone", HERE, "--data", place / "images", "--output", tmp_path / "o", "--train-backbone")
    for options, text in (
        (("--kind", "convex"), "kind: got 'convex'"),
        (("--last", 9), "last: got 9; accepted: 1 to"),
        (("--views", 10), "views: got 10; accepted: a whole number from 1 to 9"),
        (("--views", 5), "views: got 5 for inputs of shape (1, 8, 8)"),
        (("--lr", 0), "--lr: got 0.0; accepted: a positive number"),
        (("--lr", "nan"), "--lr: got nan"),
        (("--backbone-lr", -1), "--backbone-lr: got -1.0"),
        (("--outliers", tmp_path / "none"), "--outliers: got"),
        (("--outliers", tmp_path / "empty"), "--outliers: got"),
        (("--outliers", tmp_path / "damaged"), "--outliers: got images that cannot be read: x.png"),
        (("--outliers", tmp_path / "damaged", "--skip-unreadable"), "in which no image can be read"),
        (("--per-class",), "30 held-out images; accepted: at least 57 to promise 5.0% within each class"),
    ):
        result = run(*base, *options)
        assert isinstance(result.exception, InputError) and text in str(result.exception), (text, result.exception)
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("options", "views"), [((), 1), (("--views", 3), 3)])
def test_views(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], views: int
) -> None:
    attached: list[int] = []

    def stop(model: Any, *_: Any, **__: Any) -> None:
        attached.append(model.views)
        raise InputError("far enough")

    monkeypatch.setattr(fitting, "fit", stop)
    base = ("--backbone", HERE, "--weights", place / "weights.pt", "--data", place / "images", "--size", 28)
    run(*base, "--output", tmp_path / "o", *options)
    assert attached == [views]


def test_looking_ahead_leaves_the_backbone_alone(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[nn.Module] = []

    def stop(job: fitting.Job) -> None:
        given.append(job.network)
        raise InputError("far enough")

    monkeypatch.setattr(fitting, "train_backbone", stop)
    run("--backbone", HERE, "--data", place / "images", "--output", tmp_path / "o", "--train-backbone")
    fresh = own_network().eval()
    assert fingerprint(given[0]) == fingerprint(fresh)
    for one, two in zip(given[0].modules(), fresh.modules(), strict=True):
        assert type(one) is type(two) and one.training == two.training and one.__dict__.keys() == two.__dict__.keys()
    assert all(parameter.requires_grad and parameter.grad is None for parameter in given[0].parameters())


def test_damaged_outliers_can_be_left_out(place: Path, tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "x.png").write_bytes(b"?")
    Image.new("L", (9, 7), 200).save(tmp_path / "strange" / "y.png")
    form = InputForm((1, 8, 8))
    outliers, skipped = read_outliers(tmp_path / "strange", Reading(form, True))
    assert len(outliers) == 1 and outliers[0][0].shape == form.shape  # type: ignore[arg-type]
    assert skipped == ("x.png: no image of a known format",)


def test_thresholds_get_as_many_images_as_they_need() -> None:
    labels = np.arange(240) % 3
    held_out = TensorDataset(torch.zeros(240, 1), torch.from_numpy(labels))
    images = OwnData(NAMES, held_out, held_out, labels, labels, (), ())
    shown, chosen = split_held_out(images, 0, least_count(0.01), keep_whole=False)
    assert len(shown) == len(chosen) == 120 and not {*shown.indices} & {*chosen.indices}
    shown, chosen = split_held_out(images, 0, least_count(0.005), keep_whole=False)  # 199, for which a half is too few
    assert shown is chosen is held_out


def test_nothing_is_saved_without_thresholds(place: Path, finished: Path, tmp_path: Path) -> None:
    """A network that has never seen "top" predicts it for nothing, so that there is nothing to promise for it."""
    network = own_network()
    load_weights(network, place / "weights.pt")
    with torch.no_grad():
        network.head.bias[NAMES.index("top")] = -1000
    write_tensors(tmp_path / "blind.safetensors", network.state_dict())
    before = contents(finished)
    result = run(
        *("--backbone", HERE, "--weights", tmp_path / "blind.safetensors", "--data", place / "images"),
        *("--output", finished, "--epochs", 1, "--noticed", 0.2, "--per-class", "--no-report"),
    )
    assert isinstance(result.exception, InputError)
    assert "predicted as top (0)" in str(result.exception) and "Nothing was saved" in str(result.exception)
    assert contents(finished) == before
