"""A saved model on its device, as predict, evaluate and serve open it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import abnn.baselines  # noqa: F401 - its saved models, by their format
from abnn.errors import InputError, explain
from abnn.store.saved import load_model


def open_model(path: Path, backbone: str | None, weights: Path | None, device: str) -> tuple[Any, str]:
    """Return the model of a folder, on a device, and the name of that device."""
    model = load_model(path, backbone, weights)
    return model, move_to_device(model, device)


def move_to_device(model: Any, device: str) -> str:
    """Put a loaded model onto a device by name, "auto": a GPU if there is one, and say where it is."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    module = model if isinstance(model, torch.nn.Module) else model.network
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:
        fix = str(error).split("\n")[0]
        raise InputError(explain("--device", repr(device), "a device of this machine", fix)) from None
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def draws_and_seed(model: Any, draws: int | None, seed: int | None) -> tuple[int, int]:
    """Return what was asked for; else what the thresholds were calibrated with, else 10 and 0."""
    triage = getattr(model, "triage", None)
    calibrated = (triage.draws, triage.seed) if triage is not None else (10, 0)
    return draws or calibrated[0], calibrated[1] if seed is None else seed
