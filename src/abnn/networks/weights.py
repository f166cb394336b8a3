"""Weights of a backbone from a file: safetensors, or a .pt/.pth state dict. Reading them never runs code."""

from __future__ import annotations

import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from abnn.errors import FileFormatError, InputError, explain
from abnn.tensors import read_tensors

PICKLED = (".pt", ".pth", ".bin", ".ckpt")
INSIDE = ("state_dict", "model_state_dict", "model")  # where training scripts put the state dict in a larger checkpoint
PREFIXES = ("module.", "_orig_mod.", "model.")  # what DataParallel, torch.compile and Lightning put before every name


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name, on the CPU."""
    path = Path(path)
    if not path.is_file():
        raise InputError(explain("weights", f"{path}, which is no file", "a .safetensors, .pt or .pth file"))
    if path.suffix.lower() == ".safetensors":
        return read_tensors(path)
    if path.suffix.lower() not in PICKLED:
        accepted = f".safetensors, or a state dict as {', '.join(PICKLED)}"
        raise InputError(explain("weights", f"a file {path.suffix or 'without extension'}", accepted))
    try:
        if tarfile.is_tarfile(path):
            raise pickle.UnpicklingError("a tar, which would be unpacked into files")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001, for the reader of old formats raises whatever it comes across
        why = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0][:200]  # torch goes on with advice
        fault = "cannot be read: it is damaged or of another format"
        if isinstance(error, pickle.UnpicklingError):
            fault = "holds more than tensors, or is damaged, and is not loaded because that could run code"
        fix = "Save model.state_dict() again, not the model."
        raise FileFormatError(f"weights: {path} {fault} ({why}). {fix}") from None
    for name in INSIDE:
        if isinstance(content, Mapping) and isinstance(content.get(name), Mapping):
            content = content[name]
    if not isinstance(content, Mapping) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        accepted = f"a state dict, or a dict with one as {', '.join(INSIDE)}"
        raise FileFormatError(explain("weights", f"{path}, which holds a {type(content).__name__}", accepted))
    return {str(name): value.detach() for name, value in content.items()}


def load_weights(network: nn.Module, path: str | Path, new_head: bool = False) -> list[str]:
    """Load a file into ``network``; returns the names of tensors that were left as they are.

    Every tensor must be there and fit. With ``new_head`` tensors of another shape are left alone, as those of the last
    layer are when the classes are others.
    """
    state, tensors = network.state_dict(), read_weights(path)
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in tensors) and not all(name in state for name in tensors):
            tensors = {name.removeprefix(prefix): value for name, value in tensors.items()}
    missing = [name for name in state if name not in tensors and not name.endswith("num_batches_tracked")]
    foreign = [name for name in tensors if name not in state]
    if missing or foreign:
        parts = []
        for names, what in ((missing, "are missing"), (foreign, "are not part of the network")):
            listed = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            parts += [f"{len(names)} tensors {what} ({listed})"] if names else []
        fix = "Check that the file was made with this very backbone."
        actual = f"{path}, in which {' and '.join(parts)}"
        raise InputError(explain("weights", actual, "all tensors, and no others", fix))
    others = [name for name in state if name in tensors and tensors[name].shape != state[name].shape]
    if others and not new_head:
        name = others[0]
        actual = f"{path}, in which {name} has shape {tuple(tensors[name].shape)}"
        fix = "If the classes are others, the last layer has to be trained: pass --train-backbone."
        raise InputError(explain("weights", actual, f"shape {tuple(state[name].shape)}", fix))
    if len(others) == len(tensors):
        actual = f"{path}, in which no tensor has the right shape"
        raise InputError(explain("weights", actual, "this backbone's weights"))
    network.load_state_dict({name: value for name, value in tensors.items() if name not in others}, strict=False)
    return others
