"""An exported model, read and run without torch: the folder is checked as saved models are, onnxruntime computes.

Nothing in the folder is code: ONNX names operators of a fixed list, and JSON is data. A folder of format "torch" is not loaded here, for
``torch.export.load`` runs what the file says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from abnn.decisions import VERDICTS, check_promise
from abnn.errors import FileFormatError, InputError, MissingExtraError, NotFittedError, explain, import_extra
from abnn.export.guard import check_onnx
from abnn.export.learnt import Learnt
from abnn.export.schema import SAID, ExportedInput, ExportedModel, said_by
from abnn.files import check_regular
from abnn.store.folder import FIX, read_folder
from abnn.triage.triage import Triage

ONNX, TORCH = ExportedModel.PARTS
INPUT = "x"
AT_ONCE = 256  # inputs in one pass; more are passed one part after the other
MOST_BYTES = 2**31  # of a file in the format of ONNX


@dataclass(frozen=True)
class Answers:
    """What a model says about a batch of B inputs, as arrays. What does not belong to its task, or was not learnt, is None.

    score    how uncertain each prediction is, [B]
    samples  the predictive distribution of every draw, [S, B, K]; see :class:`abnn.Prediction`
    parts    what the score is made of, by name, each [B]
    verdict  "accept", "notice" or "reject" for each input
    label    of classes: the most probable one, [B]
    labels   of several labels at once: which are more probable than not, [B, K]
    probs    of classes or labels, averaged over the samples, [B, K]
    stated   probabilities that come true on data like the calibration data, [B, K]
    mean     of numbers, [B, D]
    std, aleatoric, epistemic   of numbers, [B, D]
    """

    score: np.ndarray
    samples: np.ndarray
    parts: dict[str, np.ndarray] | None = None
    verdict: list[str] | None = None
    label: np.ndarray | None = None
    labels: np.ndarray | None = None
    probs: np.ndarray | None = None
    stated: np.ndarray | None = None
    mean: np.ndarray | None = None
    std: np.ndarray | None = None
    aleatoric: np.ndarray | None = None
    epistemic: np.ndarray | None = None
    triage: Triage | None = None

    def interval(self, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Return lower and upper ends, [B, D] each, between which a number lies with probability ``coverage``, as calibrated."""
        check_promise("coverage", coverage)
        intervals = None if self.triage is None else self.triage.intervals
        if self.mean is None or self.std is None or intervals is None:
            raise NotFittedError("interval: only a calibrated regression has intervals.")
        half = self.std * np.array(intervals.quantiles(coverage), self.std.dtype)
        return self.mean - half, self.mean + half

    def __len__(self) -> int:
        return len(self.score)


class Exported:
    """The model of a folder that ``model.export(path)`` wrote.

    ``predict`` takes an array, or a dict of arrays for a network of several inputs, and returns :class:`Answers`. ``triage`` has the thresholds, ``extra`` what was saved with the model.

    path     the folder
    threads  that one prediction may use; None: one for each core
    """

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        self.path = Path(path)
        self.description = read_folder(self.path, ExportedModel)
        if self.description.runtime != "onnx":
            fix = "Load it yourself if you trust the file, torch.export.load() runs what is in it; or export to ONNX."
            raise InputError(explain("path", f"{path}, exported for torch", "a model that was exported to ONNX", fix))
        said = self.description
        self.input_shape, self.input_dtype = tuple(said.inputs[said.main].shape), np.dtype(said.inputs[said.main].dtype)
        self.input_forms = None if list(said.inputs) == [INPUT] else said.inputs
        self.classes, self.task, self.score = said.classes, said.task, said.score
        self.triage, self.extra = said.triage, said.extra
        self.learnt = None if said.learnt is None else Learnt.from_dict(said.learnt, len(said.parts))
        self.session = _open(self.path / ONNX, said, threads)

    def predict(self, x: Any, draws: int | None = None, seed: int | None = None) -> Answers:
        """Return what the model says about a batch; ``draws`` and ``seed``: those that it was exported with, or None."""
        for name, number in (("draws", draws), ("seed", seed)):
            if number is not None and number != (own := getattr(self.description, name)):
                fix = "Export again for another number."
                raise InputError(explain(name, number, f"{own}, as the model was exported with", fix))
        inputs = self._read(x)
        count = len(inputs[self.description.main])
        rows = [
            self._run({name: each[first : first + AT_ONCE] for name, each in inputs.items()})
            for first in range(0, count, AT_ONCE)
        ]
        columns: dict[str, Any] = {
            name: np.concatenate([row[name] for row in rows], axis=int(name == "samples")) for name in rows[0]
        }
        if "verdict" in columns:
            columns["verdict"] = [VERDICTS[level] for level in columns["verdict"].tolist()]
        if "parts" in columns:
            columns["parts"] = dict(zip(self.description.parts, columns["parts"].T))
        return Answers(**columns, triage=self.triage)

    def _run(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        said = self.description
        try:
            values = dict(zip(said.outputs, self.session.run(said.outputs, inputs)))
        except Exception as error:  # noqa: BLE001 - of many kinds: what abnn exported runs for all inputs that were checked
            raise FileFormatError(f"{self.path / ONNX} cannot be run ({str(error)[:200]}). {FIX}") from None
        rows = len(inputs[said.main])
        for name, value in values.items():
            if not isinstance(value, np.ndarray) or not _fits(name, value, rows, said):
                form = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
                raise FileFormatError(f"{self.path / ONNX} gives {name} as {form} for {rows} inputs. {FIX}")
        return values

    def _read(self, x: Any) -> dict[str, np.ndarray]:
        """Return a batch by the names of its inputs, checked: an array, or a dict or tuple of arrays for a model of several."""
        forms = self.description.inputs
        if isinstance(x, tuple | list) and len(x) == len(forms) > 1:
            x = {str(place): value for place, value in enumerate(x)}
        if not isinstance(x, Mapping):
            x = {self.description.main: x}
        if set(x) != set(forms):
            raise InputError(explain("x", f"inputs {list(x)}", f"inputs {list(forms)}, as in the example"))
        inputs = {name: _check(name, value, forms[name]) for name, value in x.items()}
        if len({len(each) for each in inputs.values()}) > 1:
            sizes = {name: len(each) for name, each in inputs.items()}
            raise InputError(explain("x", f"rows {sizes}", "as many rows in each"))
        return inputs


def ask(model: Any, x: Any, draws: int | None = None, seed: int | None = None) -> Answers:
    """Return what any model says, an exported one or one of torch; draws and seed None: as its thresholds were calibrated, or its usual ones."""
    if isinstance(model, Exported):
        return model.predict(x, draws, seed)
    from abnn.triage.calibrate import draws_and_seed

    draws, seed = draws_and_seed(model, draws, seed)
    prediction = model.predict(x, draws=draws, seed=seed)
    triage, verdict, said = getattr(model, "triage", None), None, said_by(prediction)
    if triage is not None:
        judgement = triage(prediction)
        said["score"], verdict = judgement.score, judgement.verdict
        if prediction.distribution != "numbers":
            said["stated"] = triage.probabilities(prediction)
    arrays: dict[str, Any] = {name: None if each is None else _array(each) for name, each in said.items()}
    parts = {name: _array(part) for name, part in (prediction.parts or {}).items()}
    return Answers(**arrays, parts=parts or None, verdict=verdict, triage=triage)


def kind_of(model: Any) -> str:
    """Return what predictions of any model consist of, an exported one or one of torch: "classes", "labels" or "numbers"."""
    if isinstance(model, Exported):
        return next(kind for kind, names in SAID.items() if set(names) <= set(model.description.outputs))
    return getattr(getattr(model, "task", None), "distribution", "classes")


def check_about_classes(model: Any) -> None:
    """Refuse a model of labels or numbers where an answer has room for one class."""
    if (kind := kind_of(model)) != "classes":
        from_python = "abnn.load(...).predict(x), abnn.export.Exported(...).predict(x)"
        fix = f"Take abnn score, or predict from Python: {from_python}."
        raise InputError(explain("model", f"a model of {kind}", "a model of classes", fix))


def _array(tensor: Any) -> Any:
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


def _check(name: str, x: Any, form: ExportedInput) -> np.ndarray:
    """Return one input in the type that the model takes, or raise an error that says how it differs."""
    argument = "x" if name == INPUT else f"x[{name!r}]"
    if not hasattr(x, "__array__"):
        raise InputError(explain(argument, type(x).__name__, "an array with one batch of inputs"))
    x, own = np.asarray(x), np.dtype(form.dtype)
    sizes = ", ".join("any" if size is None else str(size) for size in form.shape)
    fits = x.ndim == len(form.shape) + 1 and len(x) > 0
    if not fits or any(size not in (None, actual) for size, actual in zip(form.shape, x.shape[1:])):
        raise InputError(explain(argument, f"shape {x.shape}", f"shape (batch, {sizes}), at least one input"))
    if (x.dtype.kind == "f") != (own.kind == "f") or x.dtype.kind not in "fiub":
        raise InputError(explain(argument, f"dtype {x.dtype}", f"dtype {own}", "Scale and convert it as in training."))
    with np.errstate(over="ignore"):  # said below
        converted = np.ascontiguousarray(x, own)
    if own.kind == "f" and not np.isfinite(converted).all():
        bad = np.flatnonzero(~np.isfinite(converted.reshape(len(x), -1)).all(1))[:5].tolist()
        actual = f"NaN or infinite values in rows {bad}"
        raise InputError(explain(argument, actual, "finite values", "Clean the input."))
    if own.kind != "f" and own != x.dtype and not np.array_equal(converted, x):
        fix = "Convert as in training."
        raise InputError(explain(argument, "numbers that do not fit", f"what {own} can hold", fix))
    return converted


def _fits(name: str, value: np.ndarray, rows: int, said: ExportedModel) -> bool:
    """Return whether an output has the shape and the type that belong to its name."""
    if name in ("verdict", "label"):
        count = len(VERDICTS) if name == "verdict" else said.classes
        return value.shape == (rows,) and value.dtype.kind == "i" and bool(((value >= 0) & (value < count)).all())
    sizes = value.shape[1:] if name == "samples" and value.ndim == 3 else value.shape
    usual = sizes[1:2] if "mean" in said.outputs else (said.classes,)
    last = {"score": (), "parts": (len(said.parts),)}.get(name, usual)
    return sizes == (rows, *last) and value.dtype.kind == ("b" if name == "labels" else "f")


def is_exported(path: Path) -> bool:
    return (path / ExportedModel.FILE).is_file()


def open_session(content: bytes, threads: int | None) -> Any:
    """Return onnxruntime's session of a model in the format of ONNX."""
    onnxruntime = import_extra("onnxruntime", "onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised, and not printed
    options.add_session_config_entry("session.load_model_format", "ONNX")  # and not its own, which is not checked
    if threads is not None:
        options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def _open(file: Path, said: ExportedModel, threads: int | None) -> Any:
    """Return the session of a file whose inputs and outputs are those of the description."""
    if not file.exists():
        raise FileFormatError(f"{file} does not exist. {FIX}")
    content = check_regular(file, MOST_BYTES).read_bytes()
    try:
        check_onnx(content)
        session = open_session(content, threads)
        inputs = {
            each.name: [size if isinstance(size, int) else None for size in each.shape] for each in session.get_inputs()
        }
        outputs = [each.name for each in session.get_outputs()]
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - of many kinds, all of them about the file
        raise FileFormatError(f"{file} cannot be run by onnxruntime ({str(error)[:200]}). {FIX}") from None
    own = {name: [None, *form.shape] for name, form in said.inputs.items()}
    if inputs != own or not set(said.outputs) <= set(outputs):
        actual = f"inputs {inputs} and outputs {outputs}"
        raise FileFormatError(f"{file} has {actual}, other than {ExportedModel.FILE} says. {FIX}")
    return session
