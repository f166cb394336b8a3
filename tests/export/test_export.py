"""What was exported says what the model says, for any number of inputs, and is refused when it was changed."""

from __future__ import annotations

import copy
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import abnn
from abnn.errors import FileFormatError, InputError
from abnn.export import Answers, Exported
from abnn.export.graph import Graph
from abnn.export.proof import ExportError, compare
from abnn.predict.prediction import LabelPrediction, NumberPrediction
from abnn.serve.answers import Answerer
from tests.conftest import alter, generator, mlp
from tests.export.models import drawing_table_model, every_kind, picture_model, pictures, regression_model, word_model


def assert_same(answers: Answers, prediction: abnn.Prediction, spread: float) -> None:
    """Verdicts are equal; so are labels, and scores within 1e-4 of their spread, or of themselves where they are larger.

    Where the network overflows and torch has NaN, onnxruntime may have numbers. Both reject.
    """
    score = prediction.score.numpy()
    assert answers.verdict == prediction.verdict
    number = np.isfinite(score)
    assert answers.label is not None and np.array_equal(answers.label[number], prediction.label.numpy()[number])
    assert (np.abs(answers.score - score)[number] <= 1e-4 * np.maximum(spread, np.abs(score))[number]).all()
    assert prediction.stated is not None and answers.stated is not None and prediction.parts is not None
    np.testing.assert_allclose(answers.stated[number], prediction.stated[number], rtol=0, atol=1e-5)
    np.testing.assert_allclose(answers.samples[:, number], prediction.samples[:, number], rtol=0, atol=1e-5)
    assert answers.parts is not None and list(answers.parts) == list(prediction.parts)


def test_pictures_of_every_kind(folder: Path) -> None:
    model, exported = picture_model(), Exported(folder)
    x = every_kind(pictures(60, 3)[0])  # more than fit into one pass
    prediction = model.predict(x)
    assert {"accept", "notice", "reject"} == set(prediction.verdict)
    assert exported.description.spread is not None
    assert_same(exported.predict(x.numpy()), prediction, exported.description.spread)
    for rows in (slice(0, 1), slice(3, 10)):
        assert_same(exported.predict(x[rows].numpy()), model.predict(x[rows]), exported.description.spread)


def test_offsets_of_rare_classes_are_exported(tmp_path: Path) -> None:
    model, x = copy.deepcopy(picture_model()), every_kind(pictures(20, 3)[0])
    assert model.triage is not None
    model.triage = replace(model.triage, offsets=(0.0, -2.0, 0.5))
    exported, said = Exported(model.export(tmp_path / "folder")), model.predict(x)
    assert_same(exported.predict(x.numpy()), said, exported.description.spread)
    assert said.stated is not None and not torch.equal(said.stated, picture_model().predict(x).stated)


def test_the_folder_says_what_it_is(folder: Path) -> None:
    said = json.loads((folder / "export.json").read_text())
    assert said["format"] == "abnn-export" and set(said["files"]) == {"model.onnx"} and said["task"] == "classification"
    exported, model = Exported(folder), picture_model()
    assert exported.triage == model.triage and exported.extra == model.extra
    assert (exported.classes, exported.input_shape, exported.score) == (3, (1, 8, 8), "combined")
    content = (folder / "model.onnx").read_bytes()
    assert b".py" not in content and Path(__file__).parts[-3].encode() not in content  # no paths of anybody's files


def test_causes_are_those_of_the_model(folder: Path) -> None:
    x = every_kind(pictures(6, 3)[0])[:24]  # those without numbers that have no end
    own, other = Answerer(picture_model())(x), Answerer(Exported(folder))(x.numpy())
    assert sum(bool(each["causes"]) for each in own) > 10
    for each, exported in zip(own, other):
        assert exported["reason"] == each["reason"] and set(exported["parts"]) == set(each["parts"])
        for name in each["causes"].keys() | exported["causes"].keys():  # those below 0.05 are left out
            first, second = (said["causes"].get(name, 0.05) for said in (each, exported))
            assert first == pytest.approx(second, rel=1e-3, abs=2e-3)


@pytest.mark.no_cover
def test_sentences_of_any_length(tmp_path: Path) -> None:
    model = word_model()
    exported = Exported(model.export(tmp_path / "out"))
    assert exported.input_shape == (None,) and exported.description.spread is not None
    assert exported.description.length == 6  # texts are filled up to it, as for the model
    for length in (6, 2, 11):
        x = torch.randint(9, (50, length), generator=generator(length))
        assert_same(exported.predict(x.numpy()), model.predict(x), exported.description.spread)


@pytest.mark.no_cover
def test_draws_and_thresholds_of_classes_through_torch_export(tmp_path: Path) -> None:
    model = drawing_table_model()
    assert model.triage is not None and len(model.triage.by_class) == 3
    folder = model.export(tmp_path / "out", format="torch")
    said = json.loads((folder / "export.json").read_text())
    assert (said["draws"], said["seed"], said["runtime"]) == (3, 5, "torch")
    program = torch.export.load(io.BytesIO((folder / "model.pt2").read_bytes()))
    x = every_kind(torch.randn(30, 6, generator=generator(4)))
    prediction = model.predict(x, draws=3, seed=5)
    with torch.no_grad():
        values = dict(zip(said["outputs"], program.module()(x)))
    levels = ["accept", "notice", "reject"]
    assert [levels[each] for each in values["verdict"].tolist()] == prediction.verdict
    assert torch.equal(values["label"], prediction.label)
    torch.testing.assert_close(values["score"], prediction.score, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(values["stated"], prediction.stated, rtol=1e-5, atol=1e-6)
    assert b".py" not in (folder / "model.pt2").read_bytes()
    with pytest.raises(InputError, match="exported for torch; accepted: a model that was exported to ONNX"):
        Exported(folder)


@pytest.mark.no_cover
def test_numbers_from_several_inputs(tmp_path: Path) -> None:
    model, x = regression_model()
    exported = Exported(model.export(tmp_path / "out"))
    arrays, prediction = {name: each.numpy() for name, each in x.items()}, model.predict(x)
    answers = exported.predict(arrays)
    assert isinstance(prediction, NumberPrediction) and answers.verdict == prediction.verdict and answers.label is None
    for name in ("mean", "std", "aleatoric", "epistemic"):
        np.testing.assert_allclose(getattr(answers, name), getattr(prediction, name), rtol=1e-4, atol=1e-5)
    for own, torchs in zip(answers.interval(0.8), prediction.interval(0.8)):
        np.testing.assert_allclose(own, torchs, rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match="got inputs \\['left'\\]; accepted: inputs \\['left', 'right'\\]"):
        exported.predict({"left": arrays["left"]})
    with pytest.raises(InputError, match="as many rows in each"):
        exported.predict({"left": arrays["left"], "right": arrays["right"][:3]})


def test_several_labels_at_once() -> None:
    x = torch.randn(120, 6, generator=generator(8))
    model = abnn.attach(mlp().eval(), x[:1], config=abnn.AttachConfig(task="multilabel"))
    batches = [(x, (x[:, :3] > 0).float())]
    abnn.fit(model, batches, epochs=0, progress=False)
    abnn.calibrate(model, batches, progress=False)
    prediction = model.predict(x)
    graph = Graph(model, prediction, 0, 0)
    with torch.no_grad():
        values = dict(zip(graph.names, graph(x)))
    assert isinstance(prediction, LabelPrediction) and torch.equal(values["labels"], prediction.labels)
    torch.testing.assert_close(values["stated"], prediction.stated)
    assert [["accept", "notice", "reject"][each] for each in values["verdict"].tolist()] == prediction.verdict


@pytest.mark.no_cover
def test_several_labels_of_a_network_that_is_very_sure(tmp_path: Path) -> None:
    x = torch.randn(120, 6, generator=generator(8))
    network = mlp().eval()
    with torch.no_grad():
        network[-1].weight.mul_(1000)
    model = abnn.attach(network, x[:1], task="multilabel")
    assert network(x).abs().max() > 100
    batches = [(x, (x[:, :3] > 0).float())]
    abnn.fit(model, batches, epochs=0, progress=False)
    abnn.calibrate(model, batches, progress=False)
    exported, prediction = Exported(model.export(tmp_path / "out", check=x)), model.predict(x)
    answers = exported.predict(x.numpy())
    assert answers.verdict == prediction.verdict and answers.parts is not None
    for name, part in prediction.parts.items():
        np.testing.assert_allclose(answers.parts[name], part, rtol=1e-3, atol=1e-3)


def test_models_without_a_fit_have_neither_parts_nor_verdicts() -> None:
    x = torch.randn(9, 6, generator=generator(5))
    model = abnn.attach(mlp().eval(), x[:1])
    prediction = model.predict(x)
    graph = Graph(model, prediction, 0, 0)
    assert graph.names == ["score", "samples", "label", "probs"]
    with torch.no_grad():
        torch.testing.assert_close(graph(x)[0], prediction.score)


def test_views_are_part_of_the_artefact() -> None:
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(2704, 3)
    )
    x = torch.rand(4, 1, 28, 28, generator=generator(6))
    model = abnn.attach(network.eval(), x[:1], config=abnn.AttachConfig(views=5))
    prediction = model.predict(x)
    with torch.no_grad():
        samples = Graph(model, prediction, 0, 0)(x)[1]
    torch.testing.assert_close(samples, prediction.samples)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("score", "gives a score of"),
        ("label", "predictions or verdicts differ"),
        ("verdict", "predictions or verdicts differ"),
    ],
)
def test_what_does_not_say_the_same_is_refused(output: str, message: str) -> None:
    model, x = picture_model(), pictures(5, 8)[0]
    prediction = model.predict(x)
    graph = Graph(model, prediction, 0, 0)
    with torch.no_grad():
        values = dict(zip(graph.names, map(np.array, graph(x))))
    compare(prediction, values, 1.0)
    with pytest.raises(ExportError, match=message):
        compare(prediction, {**values, output: values[output] + 1}, 1.0)


def test_networks_that_count_their_inputs_are_named(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x.reshape(len(x), 6))

    model = abnn.attach(Counting().eval(), torch.randn(1, 6, generator=generator(7)))
    with pytest.raises(ExportError, match="any number of inputs"):
        model.export(tmp_path / "out", format="torch")
    with pytest.raises(InputError, match="format: got 'tflite'"):
        model.export(tmp_path / "out", format="tflite")


def test_damaged_and_foreign_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    def copy(name: str) -> Path:
        return Path(shutil.copytree(folder, tmp_path / name))

    broken = copy("bytes")
    content = bytearray((broken / "model.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (broken / "model.onnx").write_bytes(content)
    with pytest.raises(FileFormatError, match="model.onnx is not the file that was saved"):
        Exported(broken)
    noise = copy("noise")
    (noise / "model.onnx").write_bytes(b"\x08\x0a" + bytes(range(200)))
    with pytest.raises(FileFormatError, match="cannot be run by onnxruntime"):
        Exported(alter(noise))
    edited = copy("edited")
    said = json.loads((edited / "export.json").read_text())
    (edited / "export.json").write_text(json.dumps({**said, "score": "entropy"}))
    with pytest.raises(FileFormatError, match="was changed since it was saved"):
        Exported(edited)
    for name, fields, message in (
        ("shape", {"inputs": {"x": {"shape": [1, 9, 9], "dtype": "float32"}}}, "other than export.json says"),
        ("outputs", {"outputs": [*said["outputs"], "std"]}, "other than export.json says"),
        ("size", {"inputs": {"x": {"shape": [2**20, 2**20], "dtype": "float32"}}}, "at most 268,435,456 numbers"),
        ("type", {"inputs": {"x": {"shape": [1, 8, 8], "dtype": "object"}}}, "dtype is 'object'"),
        ("main", {"main": "y"}, "main is 'y'"),
        ("verdicts", {"triage": None}, "a verdict where there are thresholds"),
        ("version", {"version": 9}, "written in format 9"),
    ):
        with pytest.raises(FileFormatError, match=message):
            Exported(alter(copy(name), **fields))
    missing = copy("missing")
    (missing / "model.onnx").unlink()
    with pytest.raises(FileFormatError, match="model.onnx"):
        Exported(missing)
    with pytest.raises(FileFormatError, match="is not an exported model"):
        Exported(tmp_path)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([[1.0]], "x: got list"),
        (np.zeros((2, 1, 8, 9), np.float32), "shape \\(batch, 1, 8, 8\\)"),
        (np.zeros((0, 1, 8, 8), np.float32), "at least one input"),
        (np.zeros((1, 8, 8), np.float32), "shape \\(1, 8, 8\\)"),
        (np.zeros((2, 1, 8, 8), np.int64), "dtype int64"),
        (np.full((2, 1, 8, 8), np.nan, np.float32), "NaN or infinite values in rows \\[0, 1\\]"),
        (np.full((2, 1, 8, 8), 1e300), "NaN or infinite values"),
    ],
)
def test_inputs_that_do_not_fit(folder: Path, x: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Exported(folder).predict(x)


def test_other_draws_need_another_export(folder: Path) -> None:
    exported, x = Exported(folder), np.zeros((1, 1, 8, 8), np.float32)
    assert exported.predict(x, draws=0, seed=0).score.shape == (1,)
    with pytest.raises(InputError, match="draws: got 10; accepted: 0, as the model was exported with"):
        exported.predict(x, draws=10)
