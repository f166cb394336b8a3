"""Write a model as an artefact: traced by torch.export for any number of inputs, translated to ONNX, and compared with the model.

out/
  export.json   what goes in and comes out, names of classes, thresholds, the spread of scores, preprocessing, checksums
  model.onnx    or model.pt2, a program of torch.export
"""

from __future__ import annotations

import copy
import io
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, MissingExtraError, explain, unknown
from abnn.export.artefact import INPUT, MOST_BYTES, ONNX, TORCH, open_session
from abnn.export.graph import Graph
from abnn.export.learnt import Learnt
from abnn.export.proof import ExportError, compare, longer, trial_inputs
from abnn.export.schema import TYPES, ExportedModel
from abnn.files import as_json
from abnn.model.calls import summary
from abnn.model.inputs import TIED, Batch, Inputs, read
from abnn.store.folder import write_folder
from abnn.triage.calibrate import usual_draws

FORMATS = {"onnx": ONNX, "torch": TORCH}
OPSET = 20
Shapes = dict[str, list[int | None]]


def export(model: Any, path: str | Path, format: str = "onnx", check: Any = None) -> Path:
    """Write ``model`` into the folder ``path``, complete or not at all, and return it.

    The artefact predicts as the model does with the draws and views of its thresholds, or its usual ones without thresholds.

    format  "onnx": runs with onnxruntime, without torch, by ``abnn predict``, ``abnn serve`` or :class:`abnn.export.Exported`.
            "torch": a program for ``torch.export.load``
    check   a batch of inputs to compare both on; None: the model's example, as it is and changed
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    for package in ("onnx", "onnxruntime", "onnxscript") if format == "onnx" else ():
        if find_spec(package) is None:
            raise MissingExtraError(package, "export")
    model = _on_cpu(model)
    draws, seed = (usual_draws(model), 0) if model.triage is None else (model.triage.draws, model.triage.seed)
    x = trial_inputs(model) if check is None else read(check)[0]
    prediction = model.predict(x, draws=draws, seed=seed)
    graph = Graph(model, prediction, draws, seed).eval()
    content, shapes = _write_sentences(graph, model, x, format) or _write(graph, model, [x], format, any_length=False)
    types = {name: str(each.dtype).removeprefix("torch.") for name, each in _by_name(model.example).items()}
    fields = {
        "runtime": format, "task": model.task.name, "classes": model.classes, "outputs": graph.names, "parts": graph.parts,
        "inputs": {name: {"shape": shape, "dtype": types[name]} for name, shape in shapes.items()},
        "main": str(model.example.main) if isinstance(model.example, Inputs) else INPUT,
        "score": graph.score, "draws": draws, "seed": seed, "views": prediction.views or 1, "plain": model.comes_along,
        "spread": spread_of(graph.triage), "extra": as_json("extra", model.extra),
        "triage": None if graph.triage is None else graph.triage.to_dict(),
        "length": model.input_shape[0] if shapes.get(INPUT) == [None] else None,
        "learnt": Learnt.of(model.combined).to_dict() if graph.parts else None,
    }  # fmt: skip
    return write_folder(path, ExportedModel, fields, {FORMATS[format]: content})


def spread_of(triage: Any) -> float | None:
    """Return Q_95 - Q_5 of the scores that thresholds were chosen on; None where they were not kept."""
    return None if triage is None or not triage.calibration else triage.calibration[95] - triage.calibration[5]


def _on_cpu(model: Any) -> Any:
    """Return the model, or a copy of it, on the CPU."""
    model.check_attached()
    types = {str(each.dtype).removeprefix("torch.") for each in _by_name(model.example).values()}
    if not types <= set(TYPES) or model.weight_dtype not in (torch.float32, torch.float64):
        actual = f"weights of {model.weight_dtype} and inputs of {', '.join(sorted(types))}"
        fix = "Convert the network before attaching."
        raise InputError(explain("model", actual, f"weights of float32 or float64, inputs of {', '.join(TYPES)}", fix))
    return model if model.device.type == "cpu" else copy.deepcopy(model).to("cpu")


def _by_name(x: Batch) -> dict[str, Tensor]:
    return {str(name): each for name, each in x.values.items()} if isinstance(x, Inputs) else {INPUT: x}


def _write_sentences(graph: Graph, model: Any, x: Batch, format: str) -> tuple[bytes, Shapes] | None:
    """Return the artefact of a network that reads sentences of any length; None where it is none, or cannot be written as one."""
    if (other := longer(x)) is None:
        return None
    try:  # tracing and translating may take the length of the example for a constant: another length tells
        return _write(graph, model, [x, other], format, any_length=True)
    except Exception:  # noqa: BLE001 - of any kind: then sentences have the length of the example
        return None


def _write(graph: Graph, model: Any, checks: list[Batch], format: str, any_length: bool) -> tuple[bytes, Shapes]:
    """Return the file and the shapes of its inputs, after a proof that it says what the model says about ``checks``."""
    names = list(_by_name(model.example))
    program = _trace(graph, model, any_length)
    signs = [node.meta["val"] for node in program.graph.nodes if node.name in program.graph_signature.user_inputs]
    content = _onnx_bytes(program, names, graph.names) if format == "onnx" else _torch_bytes(program)
    for x in checks:
        inputs = _by_name(x)
        if format == "onnx":
            said = open_session(content, None).run(graph.names, {name: inputs[name].numpy() for name in names})
        else:
            with torch.no_grad():
                said = program.module()(*(inputs[name] for name in names))
        prediction = model.predict(x, draws=graph.draws, seed=graph.seed)
        compare(prediction, dict(zip(graph.names, map(np.asarray, said))), spread_of(graph.triage))
    sizes = [[size if isinstance(size, int) else None for size in each.shape[1:]] for each in signs]
    return content, dict(zip(names, sizes))


def _trace(graph: Graph, model: Any, any_length: bool) -> torch.export.ExportedProgram:
    """Return the program of a graph for any number of inputs, and of sentences of any length."""
    examples = _by_name(model.example)
    fixed = {size for each in examples.values() for size in each.shape}
    count = next(size for size in (3, 5, 7, 11, 13) if size not in fixed)  # another number than all that are fixed
    batch = torch.export.Dim("batch", min=1, max=2**20)
    main = str(model.example.main) if isinstance(model.example, Inputs) else INPUT
    values, sizes = [], []
    for name, example in examples.items():
        values.append(example.expand(count, *example.shape[1:]).contiguous())
        words = any_length and example.ndim == 2 and (name == main or name in TIED)
        sizes.append({0: batch, **({1: torch.export.Dim.AUTO} if words else {})})
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.export(graph, tuple(values), dynamic_shapes=(tuple(sizes),), strict=False)
    except Exception as error:
        message = f"torch.export cannot trace this network for any number of inputs ({summary(error)})"
        fix = "it must not turn the size of a batch into a plain number, as len(x) does"
        raise ExportError(f"{message}; {fix}.") from error


def _torch_bytes(program: torch.export.ExportedProgram) -> bytes:
    """Return the program as a file, without the example and without the paths of source files, which are nobody's business."""
    graphs = [part.graph for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    for node in (node for graph in graphs for node in graph.nodes):
        for name in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            node.meta.pop(name, None)
    program.example_inputs = None  # type: ignore[assignment]
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _onnx_bytes(program: torch.export.ExportedProgram, inputs: list[str], outputs: list[str]) -> bytes:
    """Return the program in the format of ONNX, checked, without the paths of source files."""
    import onnx

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            translated = torch.onnx.export(
                program, dynamo=True, input_names=inputs, opset_version=OPSET, verbose=False,
                custom_translation_table={torch.ops.aten.expm1.default: _expm1},
            )  # fmt: skip
        assert translated is not None
        proto = translated.model_proto
        _name_outputs(proto.graph, outputs)
        for node in proto.graph.node:
            del node.metadata_props[:]
            node.ClearField("doc_string")
        if (size := proto.ByteSize()) >= MOST_BYTES:
            raise ExportError(f"the network takes {size >> 20:,} MiB; a file in the format of ONNX has at most 2,047.")
        onnx.checker.check_model(proto, full_check=True)
        return proto.SerializeToString()
    except ExportError:
        raise
    except Exception as error:
        raise ExportError(f"the network cannot be written as ONNX ({summary(error)}); try format='torch'.") from error


def _expm1(x: Any) -> Any:
    """e^x - 1 = 2 t / (1 - t) with t = tanh(x / 2) where x is small, for which torch's own translation to ONNX leaves nothing."""
    from onnxscript import opset18 as op

    one, two = (op.CastLike(op.Constant(value_float=value), x) for value in (1.0, 2.0))
    t = op.Tanh(op.Div(x, two))
    small = op.Div(op.Mul(two, t), op.Sub(one, t))
    return op.Where(op.Less(op.Abs(x), one), small, op.Sub(op.Exp(x), one))


def _name_outputs(graph: Any, outputs: list[str]) -> None:
    """Give the outputs their names; values inside that have one of these get another. torch.onnx.export would use a name twice."""
    names = {name: f"{name}.inner" for name in outputs} | {old.name: new for old, new in zip(graph.output, outputs)}
    for node in graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(name, name) for name in values]
    for value in (*graph.output, *graph.value_info, *graph.initializer):
        value.name = names.get(value.name, value.name)
