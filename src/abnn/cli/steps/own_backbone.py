"""A user's backbone: built by name or by their own function, with its weights, and the inputs that it takes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import nn

from abnn.cli.fit import FitRequest
from abnn.cli.steps.image_data import Look
from abnn.data import InputForm
from abnn.errors import AbnnError, InputError, explain
from abnn.networks.by_name import build_backbone
from abnn.networks.weights import load_weights
from abnn.predict import Plain
from abnn.store.saved import backbone_from_function
from abnn.train.randomness import preserved_random_state, seed_everything

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation that torchvision's weights were trained with."""
LARGEST_OWN_SIDE = 256
"""Images that all have one size are used at that size up to here; larger or mixed ones are resized."""


def make_backbone(request: FitRequest, classes: int, sample: Look) -> tuple[nn.Module, int, list[str]]:
    """Return the network, its channels, and the tensors that its weights did not fill because the classes are others.

    Unless asked for, channels are what the user's own network has, 3 for torchvision's, else what the images have.
    """
    name, channels, train = request.backbone, request.channels, request.train_backbone
    by_images = 3 if is_torchvision(name) or not sample.grey else 1
    with preserved_random_state():
        seed_everything("backbone", request.seed)  # a run that goes on begins with the same values
        if ":" in name:
            network = backbone_from_function(name)
            first = next((part for part in network.modules() if isinstance(part, nn.Conv2d)), None)
            channels = channels or (by_images if first is None else first.in_channels)
        else:
            channels = by_images if channels is None else channels
            try:
                network = build_backbone(name, classes, channels)
            except InputError as error:
                raise InputError(f"{error} A network of your own code is given as module:function.") from None
    if ":" not in name and request.weights is None and not train:
        fix = "Pass --weights FILE, or --train-backbone to train it from nothing."
        raise InputError(explain("--weights", "none, so that the backbone would guess", "trained weights", fix))
    new_tensors = load_weights(network, request.weights, new_head=train) if request.weights is not None else []
    return network.eval(), channels, new_tensors


def choose_form(request: FitRequest, network: nn.Module, channels: int, sample: Look) -> InputForm:
    """Return size and normalisation of the inputs; see docs/how-to/fit.md for the rules."""
    config = getattr(network, "default_cfg", None) or {}
    fixed = getattr(network, "image_size", None)  # torchvision's transformers
    if config.get("fixed_input_size"):
        fixed = config["input_size"][1]
    if request.size is not None:
        side = (request.size, request.size)
    elif isinstance(fixed, int):
        side = (fixed, fixed)
    elif sample.size is not None and max(sample.size) <= LARGEST_OWN_SIDE:
        side = sample.size
    elif config.get("input_size"):
        side = tuple(config["input_size"][1:])
    elif is_torchvision(request.backbone):
        side = (224, 224)
    else:
        actual = "images of different or large sizes"
        raise InputError(explain("--size", actual, "the side in pixels that the backbone was made for", "Pass --size."))
    mean, std = _normalisation(request.normalise, request.backbone, config, channels)
    return InputForm((channels, *side), torch.float32, mean, std)


def check_output(network: nn.Module, form: InputForm, class_names: tuple[str, ...]) -> None:
    """Raise an error if the network cannot take such inputs, or has another number of outputs than there are classes."""
    try:
        outputs = Plain(network, torch.zeros(1, *form.shape)).classes
    except AbnnError:
        raise
    except Exception as error:
        actual = f"inputs of shape {form.shape}, on which the backbone fails: {str(error).splitlines()[0][:200]}"
        raise InputError(explain("--size, --channels", actual, "what the backbone was made for")) from error
    if outputs != len(class_names):
        actual = f"{len(class_names)} classes ({', '.join(class_names[:5])}{', ...' if len(class_names) > 5 else ''})"
        fix = "Its outputs must be the classes, in the order of the folders' names."
        raise InputError(explain("--data", actual, f"{outputs}, the number of the backbone's outputs", fix))


def at_chance(accuracy: float, labels: np.ndarray) -> float | None:
    """Return the share of the most frequent class, if ``accuracy`` is not clearly better than always naming it.

    Clearly: by more than two standard errors sqrt(p (1 - p) / n) of the share p.
    """
    share = np.bincount(labels).max() / len(labels)
    return share if accuracy <= share + 2 * math.sqrt(share * (1 - share) / len(labels)) else None


def is_torchvision(name: str) -> bool:
    return name != "paper-resnet" and ":" not in name and not name.startswith("timm/")


def _normalisation(text: str, name: str, config: dict[str, Any], channels: int) -> tuple[Any, Any]:
    pair: Any = None
    if text == "auto" and config.get("mean"):
        pair = (tuple(config["mean"]), tuple(config["std"]))
    elif text == "imagenet" or (text == "auto" and is_torchvision(name)):
        pair = IMAGENET
    elif text not in ("auto", "none"):
        accepted = "auto, none, imagenet, or MEAN/STD such as 0.5/0.25 or 0.49,0.48,0.45/0.25,0.24,0.26"
        try:
            mean, std = (tuple(float(part) for part in side.split(",")) for side in text.split("/"))
        except ValueError:
            raise InputError(explain("--normalise", repr(text), accepted)) from None
        if len(mean) not in (1, channels) or len(std) not in (1, channels) or min(std) <= 0:
            raise InputError(explain("--normalise", repr(text), accepted, f"There are {channels} channels."))
        pair = mean, std
    if pair is None:
        return None, None
    mean, std = (each if len(each) == channels else (sum(each) / len(each),) * channels for each in pair)
    return mean, std  # grey inputs get the mean of three
