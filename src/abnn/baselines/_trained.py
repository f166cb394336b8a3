"""A trained method: predicts like an attached model, and is saved as a folder of JSON and safetensors.

my-model/
  method.json            the method with its hyper-parameters, how its backbone is built, what inputs look like
  network.safetensors    everything that prediction needs
  example.safetensors    one input, with which the network is built again
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from abnn import files
from abnn._version import __version__
from abnn.baselines.base import Method, make_method, state_of
from abnn.baselines.options import check_choice
from abnn.errors import AbnnError, FileFormatError, InputError, explain
from abnn.model.attached import Attached, check_draws
from abnn.model.blocks import evaluating
from abnn.networks.by_name import build_backbone
from abnn.networks.recipe import rebuild
from abnn.predict.prediction import Prediction, check_inputs, device_of, without_statistics
from abnn.scores.formulas import DISTANCE_SCORES
from abnn.store import integrity
from abnn.train.trainable import History

FORMAT, VERSION = "abnn-method", 2
STATISTICS_SINCE = 2  # the version since which statistics are of features with attachments
Backbone = str | Mapping[str, Any] | nn.Module | Callable[[], nn.Module]


class Trained:
    """A method with its network: what scores, calibrates or evaluates attached models takes one of these too.

    example  one input, [1, ...]
    recipe   how the backbone is built by name, if it was
    history  of each training stage, by its name
    extra    further notes that are saved with the model, as JSON can hold them
    """

    def __init__(
        self, method: Method, network: nn.Module, example: Tensor, classes: int, recipe: dict[str, Any] | None = None
    ) -> None:
        self.method, self.network, self.classes, self.recipe = method, network, classes, recipe
        self.example = example[:1].detach().cpu()
        self.input_shape, self.input_dtype = tuple(example.shape[1:]), example.dtype
        self.score = method.score
        self.history: dict[str, History] = {}
        self.extra: dict[str, Any] = {}

    @property
    def again(self) -> dict[str, int]:
        """For the record of a run: how often it began again, see :mod:`abnn.train.rescue`; nothing if it did not."""
        times = sum(history.begun_again for history in self.history.values())
        return {"times it began again": times} if times else {}

    @property
    def size(self) -> int:
        """How many numbers the network learns."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def predict(self, x: Any, draws: int = 10, seed: int | None = 0, score: str | None = None) -> Prediction:
        """What the method says about a batch.

        draws  for methods with random predictions; others, and those with a fixed set of networks, use all they have
        seed   the draws belong to it alone; None: fresh ones, from torch's global random state
        score  the score that ``Prediction.score`` shows
        """
        draws = check_draws(draws)
        x = check_inputs(self, x)  # type: ignore[arg-type]
        shown = score or self.score
        check_choice(f"score of method {self.method.name!r}", shown, self.method.scores)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        with torch.inference_mode(), evaluating(self.network):
            prediction = self.method.predict(self.network, x.to(device_of(self.network, x.device)), draws, seed)
        if shown in DISTANCE_SCORES and prediction.distance is None:
            raise without_statistics(shown)
        return replace(prediction.apply(Tensor.clone), default=shown)  # usable under autograd again

    def save(self, path: str | Path) -> Path:
        """Write the folder ``path``, which is complete or absent at every moment."""
        path = Path(path)
        files.check_replaceable(path, "method.json")
        description = {
            "format": FORMAT,
            "version": VERSION,
            "abnn": __version__,
            "method": self.method.to_config(),
            "backbone": self.recipe,
            "input_shape": list(self.input_shape),
            "input_dtype": str(self.input_dtype).removeprefix("torch."),
            "classes": self.classes,
            "score": self.score,
            "extra": self.extra,
        }
        if isinstance(self.network, Attached):
            description["views"] = self.network.views
        with files.writing_directory(path) as folder:
            files.write_json(folder / "method.json", description)
            files.write_tensors(folder / "network.safetensors", state_of(self.network))
            files.write_tensors(folder / "example.safetensors", {"example": self.example})
        return path


def load_trained(path: str | Path, backbone: Backbone | None = None) -> Trained:
    """What :meth:`Trained.save` wrote. ``backbone`` is needed if the model was not built by a backbone's name."""
    path = Path(path)
    description = files.read_description(path / "method.json", "a saved method", FORMAT, VERSION)
    integrity.check_fields(path, description, integrity.METHOD)
    tensors = files.read_tensors(path / "network.safetensors")
    recipe = description.get("backbone")
    if backbone is None and recipe is None:
        accepted = "the network that the model was trained with, or a function that makes it"
        fix = f"{path} does not say how to build it; its weights are in the file, so any of the same form will do."
        raise InputError(explain("backbone", "None", accepted, fix))
    try:
        config = dict(description["method"])
        method = make_method(config.pop("name"), **config)
        example = _read_example(path, description)
        with torch.random.fork_rng(devices=[]):
            by_recipe = backbone is None
            make = (lambda: rebuild(path, recipe, tensors)) if by_recipe else maker(backbone, example, None, method)
            network = method.build(make, example)
        _fill(path, network, tensors)
        if isinstance(network, Attached):  # whose predictions had one view before there were more
            network.views = int(description.get("views") or config.get("views") or 1)
            integrity.check_classes(path, description["classes"], network.classes)
            if description["version"] < STATISTICS_SINCE:
                integrity.forget_statistics(path, network.distance, "model.network.distance.fit(loader)")
        trained = Trained(method, network, example, description["classes"], recipe)
        trained.score, trained.extra = description["score"], description["extra"]
    except FileFormatError:
        raise
    except (KeyError, TypeError, AttributeError, RuntimeError, AbnnError) as error:
        raise FileFormatError(
            f"{path} is not complete or does not fit ({type(error).__name__}: {error}); save the model again, or load it "
            "with the backbone that it was trained with."
        ) from error
    network.eval()
    return trained


def maker(backbone: Backbone | None, example: Tensor, classes: int | None, method: Method) -> Callable[[], nn.Module]:
    """A function that makes the backbone: from its name, a recipe with options, a network to copy, or as given."""
    if isinstance(backbone, nn.Module):
        return lambda: copy.deepcopy(backbone)
    if isinstance(backbone, str | Mapping):
        recipe: dict[str, Any] = {"name": backbone} if isinstance(backbone, str) else dict(backbone)
        recipe.setdefault("in_channels", example.shape[1] if example.ndim > 2 else 1)
        recipe.setdefault("classes", classes)
        if recipe["classes"] is None:
            fix = "Pass classes=..., for example 10."
            raise InputError(explain("classes", "None", "the number of classes, for a backbone by name", fix))
        if recipe.get("name") == "paper-resnet":
            recipe.setdefault("kaiming", method.kaiming)
        return lambda: build_backbone(**recipe)
    if callable(backbone):
        return backbone
    accepted = "a name, a dict with a name and options, a network, or a function that makes one"
    raise InputError(explain("backbone", type(backbone).__name__, accepted))


def _read_example(path: Path, description: Mapping[str, Any]) -> Tensor:
    """The saved input; zeros in its place for models that were saved without one."""
    shape, dtype = (1, *description["input_shape"]), getattr(torch, description["input_dtype"])
    if not (path / "example.safetensors").exists():
        return torch.zeros(shape, dtype=dtype)
    example = files.read_tensors(path / "example.safetensors")["example"]
    if example.shape != shape or example.dtype != dtype:
        raise KeyError(f"example has shape {tuple(example.shape)} and type {example.dtype}, not {shape} and {dtype}")
    return example


def _fill(path: Path, network: nn.Module, tensors: dict[str, Tensor]) -> None:
    """The saved tensors, all of them; only statistics that were never gathered may be absent."""
    learned = {name for name, _ in network.named_parameters()}  # a network's buffers may hold infinity, as masks do
    integrity.check_finite(
        path, {name: value for name, value in tensors.items() if name in learned or "distance." in name}
    )
    integrity.check_types(path, tensors, network.state_dict())
    integrity.check_quantiles(path, tensors)
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    if not any(name.startswith("distance.") for name in tensors):
        missing = [name for name in missing if not name.startswith("distance.")]
    if missing or unexpected:
        raise KeyError(f"tensors {sorted([*missing, *unexpected])[:4]} are missing or not expected")
