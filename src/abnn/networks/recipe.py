"""How a saved folder may describe its backbone: an architecture from a list and plain sizes, nothing else.

A recipe is read from JSON that anyone can have written. It never reaches an option that fetches, opens or loads something
(``pretrained_cfg``, ``checkpoint_path``, ``weights``, ...), and it is built without memory first, so that sizes which do not
go with the saved weights are refused before they cost anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from abnn.errors import AbnnError, FileFormatError, whole_number
from abnn.networks.by_name import build_backbone

Check = Callable[[Any], bool]
MOST_NUMBERS = 2**23  # of one input: 1,600 pixels a side in colour, or a volume of 200 a side
SPARE = 16  # a backbone may have so many times the numbers of the weights file: methods share or replace blocks
FEW = 10_000  # classes of a backbone whose size cannot be told beforehand
ALWAYS_FINE = 2**24  # numbers of a backbone, whatever the file holds
FIX = "The folder was changed: restore it, or save the model again."


def _whole(least: int, most: int) -> Check:
    return lambda value: (number := whole_number(value)) is not None and least <= number <= most


def _sizes(value: Any) -> bool:
    sides = value if isinstance(value, list) and len(value) == 2 else [value]
    return all(_whole(1, 2048)(side) for side in sides)


def _share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _flag(value: Any) -> bool:
    return isinstance(value, bool)


_ALWAYS: dict[str, Check] = {"classes": _whole(1, 2**20), "in_channels": _whole(1, 2**12)}
_DEPTH, _WIDTH = _whole(1, 256), _whole(1, 2**14)
OPTIONS: dict[str, dict[str, Check]] = {
    "paper-resnet": {"width": _WIDTH, "blocks": _DEPTH, "stem": ("paper", "small").__contains__, "kaiming": _flag},
    "torchvision": {"small": _flag, "image_size": _sizes, "patch_size": _sizes, "dropout": _share, "mlp_dim": _WIDTH}
    | {"num_layers": _DEPTH, "num_heads": _DEPTH, "hidden_dim": _WIDTH, "stochastic_depth_prob": _share},
    "timm": {"img_size": _sizes, "patch_size": _sizes, "window_size": _sizes, "depth": _DEPTH, "num_heads": _DEPTH}
    | {"embed_dim": _WIDTH, "drop_rate": _share, "drop_path_rate": _share},
}
"""What a recipe may hold beside name, classes and input channels, and which values."""
FETCHING = ("pretrained", "weights", "weights_backbone", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir")
"""Options of build_backbone that say where weights come from; a recipe leaves them out, for the folder has the weights."""


def make_recipe(name: str, classes: int, in_channels: int, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the recipe to save; None where the network was built with options that a folder may not hold."""
    saved = {key: value for key, value in options.items() if key not in FETCHING}
    recipe = {"name": name, "classes": classes, "in_channels": in_channels, **saved}
    return recipe if is_recipe(recipe) else None


def rebuild(path: Path, recipe: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the network of a recipe from the folder ``path``, whose weights file holds ``weights``."""
    if not is_recipe(recipe):
        raise FileFormatError(f"{path}: backbone is {repr(recipe)[:80]}; accepted: a name with plain sizes. {FIX}")
    try:
        size, classes = _numbers(recipe), recipe["classes"]
        room = max(ALWAYS_FINE, SPARE * sum(value.numel() for value in weights.values()))
        if size is not None and size > room:
            raise FileFormatError(f"{path}: its backbone has {size:,} numbers, far more than its weights file. {FIX}")
        if size is None and classes > FEW and not any(value.shape[:1] == (classes,) for value in weights.values()):
            raise FileFormatError(f"{path}: no weight of its file is of {classes:,} classes, as its backbone. {FIX}")
        return build_backbone(**recipe)
    except FileFormatError:
        raise
    except (AbnnError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise FileFormatError(f"{path}: its backbone cannot be rebuilt ({error}); save the model again.") from error


def is_shape(value: Any) -> bool:
    """Return whether ``value`` is the shape of an input that a folder may ask for."""
    sides = isinstance(value, list) and len(value) <= 8 and all(_whole(1, MOST_NUMBERS)(side) for side in value)
    return sides and math.prod(value) <= MOST_NUMBERS


def is_recipe(value: Any) -> bool:
    """Return whether a folder may describe its backbone like that. Null is no recipe, which is fine."""
    if value is None:
        return True
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return False
    family = name if name == "paper-resnet" else "timm" if name.startswith("timm/") else "torchvision"
    allowed, options = {**_ALWAYS, **OPTIONS[family]}, {key: each for key, each in value.items() if key != "name"}
    return _ALWAYS.keys() <= options.keys() <= allowed.keys() and all(allowed[key](options[key]) for key in options)


def _numbers(recipe: dict[str, Any]) -> int | None:
    """Return how many numbers the network has, without making them; None where it cannot be built without memory."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            network = build_backbone(**recipe)
    except RuntimeError as error:  # of which NotImplementedError is one
        if isinstance(error, NotImplementedError) or "meta" in str(error).lower():
            return None
        raise
    return sum(value.numel() for value in network.state_dict().values())
