"""A file of ONNX that does more than compute is refused before onnxruntime sees it; one that computes something else, with one error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from abnn.errors import FileFormatError
from abnn.export import Exported
from abnn.export.guard import check_onnx
from abnn.store.folder import file_digest, seal
from tests.fuzz.subjects import EXPORTED

X = np.zeros((3, 4), np.float32)


def _changed(folder: Path, change: Callable[[Any], object], fields: dict[str, Any] | None = None) -> Path:
    """Write the exported model with a change, and checksums that fit, as an attacker would."""
    shutil.unpack_archive(EXPORTED, folder)
    proto = onnx.load(folder / "model.onnx")
    change(proto)
    (folder / "model.onnx").write_bytes(proto.SerializeToString())
    values = {**json.loads((folder / "export.json").read_text()), **(fields or {})}
    values["files"] = {"model.onnx": file_digest(folder / "model.onnx")}
    (folder / "export.json").write_text(json.dumps(seal(values)))
    return folder


def _from_a_file(proto: Any) -> None:
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def _in_a_branch(proto: Any) -> None:
    """The same in a graph inside of a node."""
    tensor = TensorProto(name="t", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    branch = helper.make_graph([helper.make_node("Constant", [], ["y"], value=tensor)], "branch", [], [])
    proto.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_from_a_file, "in another file"),
        (_in_a_branch, "in another file"),
        (lambda proto: proto.graph.node.append(helper.make_node("Loop", ["", ""], ["z"])), "operator Loop"),
        (
            lambda proto: proto.graph.node.append(helper.make_node("Run", [], ["z"], domain="evil")),
            "operator of b'evil'",
        ),
        (lambda proto: proto.functions.add(name="f", domain="d"), "functions"),
    ],
)
def test_what_does_more_than_compute_is_refused(change: Any, word: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=word):
        Exported(_changed(tmp_path / "out", change))


def _answer(name: str, value: Any) -> Callable[[Any], object]:
    """Let an output always be the same."""

    def change(proto: Any) -> None:
        for node in proto.graph.node:
            node.output[:] = [f"{each}.old" if each == name else each for each in node.output]
            node.input[:] = [f"{each}.old" if each == name else each for each in node.input]
        proto.graph.node.append(helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(value)))
        place = next(each for each in proto.graph.output if each.name == name)
        place.ClearField("type")

    return change


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verdict", np.array([0, 1, 7])),
        ("label", np.array([0, 1, 2])),
        ("score", np.zeros((3, 2), np.float32)),
        ("parts", np.zeros((3, 1), np.float32)),
        ("samples", np.zeros((2, 3), np.float32)),
        ("probs", np.array(["a", "b", "c"])),
    ],
)
def test_answers_of_another_form_are_one_error(name: str, value: np.ndarray, tmp_path: Path) -> None:
    exported = Exported(_changed(tmp_path / "out", _answer(name, value)))
    with pytest.raises(FileFormatError, match=f"gives {name} as"):
        exported.predict(X)


@pytest.mark.parametrize("outputs", [["score"], ["score", "samples", "label", "probs", "parts", "verdict", "evil"]])
def test_outputs_that_do_not_belong_together_are_refused(outputs: list[str], tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="outputs"):
        Exported(_changed(tmp_path / "out", lambda proto: None, {"outputs": outputs}))


@pytest.mark.parametrize(
    "content", [b"\x0b", b"\xff" * 11, b"\x3a\x7f\x00", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"]
)
def test_what_is_not_in_this_format_is_refused(content: bytes) -> None:
    with pytest.raises(FileFormatError, match="the format of ONNX"):
        check_onnx(content)


def test_what_it_was_is_read(tmp_path: Path) -> None:
    assert Exported(_changed(tmp_path / "out", lambda proto: None)).predict(X).verdict is not None
