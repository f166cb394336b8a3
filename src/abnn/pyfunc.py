"""A model as a pyfunc of MLflow, so that ``mlflow models serve`` and ``mlflow.pyfunc.load_model`` work. No pickle is written.

    from abnn.pyfunc import log_model, save_model

    save_model(model, "folder/")           # then: mlflow models serve -m folder/ --env-manager local
    log_model(model, "reader")             # into the active run

A prediction is a table with label, score, verdict and the probability of each class.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pandas
import torch
from mlflow.models import ModelSignature
from mlflow.types import Schema, TensorSpec

from abnn._version import __version__
from abnn.attached import Attached
from abnn.store.names import class_names_of
from abnn.store.saved import load_model

FOLDER = "abnn"


class Predictor:
    """What MLflow calls."""

    def __init__(self, model: Attached) -> None:
        self.model, self.names = model, class_names_of(model)

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> pandas.DataFrame:
        """Return a row for each input: an array of them, a table with a feature in each column, or arrays by name."""
        if isinstance(model_input, dict):
            x: Any = {name: torch.tensor(np.asarray(value)) for name, value in model_input.items()}
        else:
            values = model_input.to_numpy() if isinstance(model_input, pandas.DataFrame) else np.asarray(model_input)
            x = torch.tensor(values, dtype=self.model.input_dtype)
        return self.model.predict(x).to_pandas(self.names)


def save_model(model: Attached, path: str | Path, **options: Any) -> None:
    """Write the model, with its backbone, as an MLflow model; ``options`` are those of ``mlflow.pyfunc.save_model``."""
    with _saved(model) as fields:
        mlflow.pyfunc.save_model(str(path), **fields, **options)


def log_model(model: Attached, name: str, **options: Any) -> Any:
    """Log the model, with its backbone, to the active run; ``options`` are those of ``mlflow.pyfunc.log_model``."""
    with _saved(model) as fields:
        return mlflow.pyfunc.log_model(name=name, **fields, **options)


@contextmanager
def _saved(model: Attached) -> Iterator[dict[str, Any]]:
    """Yield what MLflow is told about the model, whose folder is there while the block runs."""
    if model.input_forms is None:
        specs = [_spec(model.input_shape, model.input_dtype)]
    else:
        specs = [_spec(shape, kind, str(name)) for name, (shape, kind) in model.input_forms.items()]
    with tempfile.TemporaryDirectory() as scratch:
        folder = model.save(Path(scratch) / FOLDER, backbone=True)
        yield {
            "loader_module": __name__,
            "data_path": str(folder),
            "signature": ModelSignature(inputs=Schema(specs)),
            "model_config": {"backbone": ""},  # so that another one can be named when it is loaded
            "pip_requirements": [f"abnn=={__version__}", f"torch=={version('torch').partition('+')[0]}", "pandas"],
        }


def _spec(shape: tuple[int, ...], kind: torch.dtype, name: str | None = None) -> TensorSpec:
    return TensorSpec(np.dtype(str(kind).removeprefix("torch.")), (-1, *shape), name)


def _load_pyfunc(path: str, model_config: dict[str, Any] | None = None) -> Predictor:
    """Return the model of a folder. MLflow calls this; ``model_config={"backbone": "module:function"}`` names a network of
    the caller's own code."""
    return Predictor(load_model(path, (model_config or {}).get("backbone") or None))
