"""A trained method: predicts like an attached model, and is saved as a folder of JSON and safetensors.

my-model/
  method.json            the method with its hyper-parameters, how its backbone is built, what inputs look like
  network.safetensors    everything that prediction needs
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from abnn.attached import Attached
from abnn.baselines.base import Method, make_method, state_of
from abnn.baselines.options import check_choice
from abnn.config import DRAWS
from abnn.errors import AbnnError, FileFormatError, InputError, at_least_one, explain, not_negative
from abnn.model.blocks import of_any_output
from abnn.model.calls import evaluating
from abnn.networks.by_name import build_backbone
from abnn.networks.recipe import rebuild
from abnn.predict import Prediction
from abnn.predict.inputs import check_inputs
from abnn.predict.plain import device_of
from abnn.scores import find_score
from abnn.store.folder import LEARNT, check_tensors, read_folder, write_folder
from abnn.store.model import check_classes, follow_padding, rules_of
from abnn.store.saved import LOADERS
from abnn.store.schema import TrainedMethod
from abnn.tensors import read_tensors
from abnn.train.trainable import History
from abnn.triage import Triage

(NETWORK,) = TrainedMethod.PARTS
EXAMPLE = "abnn.example"  # the name of the saved input among the network's tensors
Backbone = str | Mapping[str, Any] | nn.Module | Callable[[], nn.Module]


class Trained:
    """A method with its network: what scores, calibrates or evaluates attached models takes one of these too."""

    def __init__(
        self, method: Method, network: nn.Module, example: Tensor, classes: int, recipe: dict[str, Any] | None = None
    ) -> None:
        self.method, self.network, self.classes = method, network, classes
        self.recipe = recipe  # how the backbone is built by name, if it was
        self.input_shape, self.input_dtype = tuple(example.shape[1:]), example.dtype
        self.example = example[:1].detach().cpu().clone()
        self.score = method.score
        self.triage: Triage | None = (
            None  # thresholds, once abnn.calibrate() has set them; they are saved with the model
        )
        self.history: dict[str, History] = {}  # of each training stage, by its name
        self.extra: dict[str, Any] = {}  # further notes that are saved with the model, as JSON can hold them

    @property
    def size(self) -> int:
        """Return how many numbers the network learns."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    def predict(self, x: Any, draws: int | None = None, seed: int | None = 0, score: str | None = None) -> Prediction:
        """Return what the method says about a batch.

        draws  for methods with random predictions; others, and those with a fixed set of networks, use all they have. None: what
               an attached model's preset says, else 10
        seed   the draws belong to it alone; None: fresh ones, from torch's global random state
        score  the score that ``Prediction.score`` shows
        """
        if draws is None:
            draws = getattr(self.network, "usual_draws", DRAWS)
        else:
            draws = (not_negative if isinstance(self.network, Attached) else at_least_one)("draws", draws)
        x = check_inputs(self, x)
        shown = score or self.score
        check_choice(f"score of method {self.method.name!r}", shown, self.method.scores)
        number = int(torch.randint(2**62, ())) if seed is None else seed
        with torch.inference_mode(), evaluating(self.network):
            prediction = self.method.predict(self.network, x.to(device_of(self.network, x.device)), draws, number)
        if shown not in prediction.own:  # one that was never learnt is an error here, not later
            find_score(shown, tuple(prediction.own), prediction.distribution).check(prediction)
        prediction = replace(prediction.apply(Tensor.clone), default=shown)  # usable under autograd again
        return prediction if self.triage is None else self.triage.add_to(prediction)

    def save(self, path: str | Path) -> Path:
        """Write the folder ``path``, which is complete or absent at every moment."""
        fields = {
            "method": self.method.to_config(),
            "backbone": self.recipe,
            "input_shape": list(self.input_shape),
            "input_dtype": str(self.input_dtype).removeprefix("torch."),
            "classes": self.classes,
            "score": self.score,
            "views": self.network.views if isinstance(self.network, Attached) else None,
            "extra": self.extra,
            "triage": None if self.triage is None else self.triage.to_dict(),
        }
        fields |= rules_of(self.network) if isinstance(self.network, Attached) else {}
        tensors = {**state_of(self.network), EXAMPLE: self.example}
        return write_folder(path, TrainedMethod, fields, {NETWORK: tensors})


def load_trained(path: str | Path, backbone: Backbone | None = None) -> Trained:
    """Return what :meth:`Trained.save` wrote; ``backbone`` is needed if the model was not built by a backbone's name."""
    path = Path(path)
    saved = read_folder(path, TrainedMethod)
    tensors = read_tensors(path / NETWORK)
    zeros = torch.zeros(1, *saved.input_shape, dtype=getattr(torch, saved.input_dtype))
    example = tensors.pop(EXAMPLE, zeros)  # older folders have none
    check_tensors(path, {EXAMPLE: example}, {EXAMPLE: zeros})
    recipe = saved.backbone
    if backbone is None and recipe is None:
        accepted = "the network that the model was trained with, or a function that makes it"
        fix = f"{path} does not say how to build it; its weights are in the file, so any of the same form will do."
        raise InputError(explain("backbone", "None", accepted, fix))
    try:
        config = dict(saved.method)
        method = make_method(config.pop("name"), **config)
        source = (lambda: rebuild(path, recipe, tensors)) if backbone is None else backbone
        with torch.random.fork_rng(devices=[]), of_any_output(not saved.first_output):
            network = method.build(backbone_maker(source, example, None, method), example)
        _fill(path, network, tensors)
        if isinstance(network, Attached):  # whose predictions had one view before there were more
            network.views = int(saved.views or config.get("views") or 1)
            follow_padding(network, saved.skips_padding)
            check_classes(path, saved.classes, network.classes)
        trained = Trained(method, network, example, saved.classes, recipe)
        trained.score, trained.extra, trained.triage = saved.score, saved.extra, saved.triage
        if saved.triage is not None:
            check_choice("triage.score", saved.triage.score, method.scores)
    except FileFormatError:
        raise
    except (KeyError, TypeError, AttributeError, RuntimeError, AbnnError) as error:
        raise FileFormatError(
            f"{path} is not complete or does not fit ({type(error).__name__}: {error}); save the model again, or load it "
            "with the backbone that it was trained with."
        ) from error
    network.eval()
    return trained


def backbone_maker(backbone: Backbone, example: Tensor, classes: int | None, method: Method) -> Callable[[], nn.Module]:
    """Return a function that makes the backbone: from its name, a recipe with options, a network to copy, or as it is."""
    if isinstance(backbone, nn.Module):
        return partial(copy.deepcopy, backbone)
    if isinstance(backbone, str | Mapping):
        recipe: dict[str, Any] = {"name": backbone} if isinstance(backbone, str) else dict(backbone)
        recipe.setdefault("in_channels", example.shape[1] if example.ndim > 2 else 1)
        recipe.setdefault("classes", classes)
        if recipe["classes"] is None:
            fix = "Pass classes=..., for example 10."
            raise InputError(explain("classes", "None", "the number of classes, for a backbone by name", fix))
        if recipe.get("name") == "paper-resnet":
            recipe.setdefault("kaiming", method.kaiming)
        return partial(build_backbone, **recipe)
    if callable(backbone):
        return backbone
    accepted = "a name, a dict with a name and options, a network, or a function that makes one"
    raise InputError(explain("backbone", type(backbone).__name__, accepted))


def _fill(path: Path, network: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Take the saved tensors, all of them; only a score that was never learnt may be absent."""
    learned = {name for name, _ in network.named_parameters()}  # a network's buffers may hold infinity, as masks do
    without = not any(name.startswith(LEARNT) for name in tensors)
    own = {n: value for n, value in network.state_dict().items() if not (without and n.startswith(LEARNT))}
    fix = "Restore the folder, save the model again, or load it with the backbone that it was trained with."
    check_tensors(path, tensors, own, learned, fix)
    network.load_state_dict(tensors, strict=not without)


LOADERS[TrainedMethod.FORMAT] = load_trained  # type: ignore[assignment]
