"""Load a saved model of any kind from its folder, with a backbone that was not saved with it if need be."""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from abnn.errors import AbnnError, FileFormatError, InputError, explain
from abnn.files import left_behind, read_json
from abnn.networks.by_name import build_backbone
from abnn.networks.recipe import rebuild
from abnn.store.folder import fingerprint as network_fingerprint
from abnn.store.folder import read_folder
from abnn.store.model import other_network
from abnn.store.schema import AttachedModel, TrainedMethod, WithNetwork
from abnn.tensors import read_tensors

KINDS: dict[str, type[WithNetwork]] = {kind.FORMAT: kind for kind in (AttachedModel, TrainedMethod)}
LOADERS: dict[str, Callable[[Path, nn.Module | None], Any]] = {}
"""By the "format" that the JSON of a saved model names. A room with a format of its own adds its loader."""


def load_model(path: str | Path, backbone: str | None = None, weights: str | Path | None = None) -> Any:
    """Return the model of a folder that ``save`` wrote: it has ``predict``, ``input_shape``, ``classes`` and ``score``.

    backbone  for models that were saved without: a name for abnn.build_backbone, or "module:function", a function without
              arguments that returns the network; None: as the model itself says
    weights   a safetensors file with the weights of that backbone; None: those in the folder, if there are any
    """
    path = Path(path)
    description = describe(path)
    name = description["format"]
    if name not in LOADERS:
        accepted = f"one of the formats {', '.join(LOADERS)}"
        raise FileFormatError(explain("checkpoint", f"{path} of format {name!r}", accepted))
    extra = description.get("extra")
    own = extra.get("backbone") if isinstance(extra, dict) else None
    if backbone is None and description.get("backbone") is None and isinstance(own, str) and ":" in own:
        # A model on a backbone from the user's own code needs that code, and a saved folder must never choose what runs.
        fix = f"Pass --backbone {own} if you trust that code; it must be importable from here."
        raise InputError(explain("backbone", "None", f"the function that made this model's backbone, {own}", fix))
    if backbone is None and weights is None:
        return LOADERS[name](path, None)
    saved = read_folder(path, KINDS[name])
    network = _build(path, saved, backbone).eval()
    if weights is not None:
        try:
            network.load_state_dict(read_tensors(Path(weights)))
        except RuntimeError as error:
            summary = " ".join(str(error).split())[:300]
            raise FileFormatError(f"weights: {weights} does not fit the backbone ({summary}).") from None
        if isinstance(saved, AttachedModel) and saved.fingerprint != network_fingerprint(network):
            raise other_network(path, saved.fingerprint)  # not to be replaced by those in the folder, unasked
    return LOADERS[name](path, network)


def describe(path: Path) -> dict[str, Any]:
    """Return the JSON of a saved model, unchecked but for its format."""
    contents = [read_json(file) for file in sorted(path.glob("*.json"))] if path.is_dir() else []
    described = [each for each in contents if isinstance(each, dict) and isinstance(each.get("format"), str)]
    if not described:
        fix = left_behind(path).strip() or "`abnn demo` leaves one in demo/model."
        place = f"{path}, which {'is no saved model' if path.exists() else 'does not exist'}"
        raise FileFormatError(explain("checkpoint", place, "a folder that model.save() wrote", fix))
    return next((each for each in described if each["format"] in LOADERS), described[0])


def fingerprint(path: Path, backbone: str | None = None) -> str:
    """Return the sha256 over the files of a saved model. It holds the fingerprint of a backbone that is kept elsewhere, too.

    The model's card is no part of it.
    """
    digest = hashlib.sha256(f"{backbone}\0".encode())
    for file in sorted(each for each in path.iterdir() if each.is_file() and each.suffix != ".md"):
        digest.update(f"{file.name} {file.stat().st_size}\0".encode())
        with open(file, "rb") as content:
            while block := content.read(2**20):
                digest.update(block)
    return digest.hexdigest()


def _build(path: Path, saved: WithNetwork, backbone: str | None) -> nn.Module:
    if backbone is not None and ":" in backbone:
        return backbone_from_function(backbone)
    recipe, shape = saved.backbone, saved.input_shape
    if backbone is not None and not (recipe and recipe["name"] == backbone):
        return build_backbone(backbone, saved.classes, shape[0] if len(shape) == 3 else 1)
    if recipe is None:
        fix = "Pass --backbone with a name, or with module:function."
        raise InputError(explain("backbone", "None", "a network; the model does not say how to build it", fix))
    return rebuild(path, recipe, {})


def backbone_from_function(text: str) -> nn.Module:
    """Return what the user's own "module:function" makes."""
    module, _, function = text.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` does: the user's own file beside the data is what is meant
    try:
        network = getattr(importlib.import_module(module), function)()
    except AbnnError:
        raise
    except Exception as error:  # whatever the user's own code raises
        actual = f"{text!r}, which fails with {type(error).__name__}: {error}"
        raise InputError(explain("backbone", actual, "module:function, called without arguments")) from error
    finally:
        sys.path.remove(here)
    if not isinstance(network, nn.Module):
        kind = f"{text!r}, which returns a {type(network).__name__}"
        raise InputError(explain("backbone", kind, "a function that returns a torch.nn.Module"))
    return network
