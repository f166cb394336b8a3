"""Save attachments to a small folder and clip them onto a fresh copy of the network: safetensors and JSON, no pickle.

my-attachment/
  abnn.json                 what was attached where, the backbone's fingerprint, thresholds
  attachments.safetensors   posterior means and rhos, statistics of the training data's features
  backbone.safetensors      only with save(..., backbone=True)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from abnn._version import __version__
from abnn.bayes.layers import Init
from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.config import AttachConfig
from abnn.errors import AbnnError, AbnnWarning, FileFormatError, InputError, explain
from abnn.files import (
    as_json,
    check_replaceable,
    read_description,
    read_tensors,
    tensor_digest,
    write_json,
    write_tensors,
    writing_directory,
)
from abnn.model.network import AttachedNetwork
from abnn.networks.recipe import rebuild
from abnn.scores import SCORES
from abnn.store.integrity import (
    MODEL,
    Field,
    check_classes,
    check_fields,
    check_finite,
    check_names,
    check_quantiles,
    check_shapes,
    check_types,
    forget_statistics,
)
from abnn.triage import Triage

FORMAT, VERSION = "abnn-model", 5
STATISTICS_SINCE = 5  # the version since which statistics are of features with attachments


def save(
    model: Any,
    path: str | Path,
    backbone: bool = False,
    triage: Triage | None = None,
    extra: dict[str, Any] | None = None,
) -> Path:
    """Write ``model`` into the folder ``path``, which is complete or absent at every moment.

    backbone  also write the backbone's weights, so that the folder is all that is needed; a warning says where they are
              left out although they were trained with the attachments
    triage    thresholds to keep with the model; None: ``model.triage``
    extra     anything else to keep, as JSON can hold it: class names, preprocessing; None: ``model.extra``
    """
    triage = model.triage if triage is None else triage
    if triage is not None and not isinstance(triage, Triage):
        raise InputError(explain("triage", repr(triage)[:80], "what abnn.Triage.calibrate() returned, or None"))
    extra = as_json("extra", model.extra if extra is None else extra)
    if not isinstance(extra, dict):
        raise InputError(explain("extra", repr(extra)[:80], "a dict, or None for what the model has"))
    check_class_names(extra.get("class_names"), model.classes, 'extra["class_names"]', "Give one name for each class.")
    path = Path(path)
    check_replaceable(path, "abnn.json")
    if model.backbone_changed and not backbone:
        warnings.warn(
            explain(
                "backbone",
                "False, but the backbone's weights were trained with the attachments or came from a saved model",
                "True, or False where you keep the weights yourself",
                f"Without them nothing can load {path}: save with backbone=True.",
            ),
            AbnnWarning,
            stacklevel=3,  # of model.save()
        )
    tensors: dict[str, Tensor] = {f"attachments.{name}": value for name, value in model.attachment_parameters()}
    tensors |= {f"distance.{name}": value for name, value in _pack(model.distance.state_dict()).items()}
    network = model.backbone
    description = {
        "format": FORMAT,
        "version": VERSION,
        "abnn": __version__,
        "preset": model.preset,
        "score": model.score,
        "at": model.block_names,
        "spec": _spec_to_json(model),
        "input_shape": list(model.input_shape),
        "input_dtype": str(model.input_dtype).removeprefix("torch."),
        "classes": model.classes,
        "draws": model.draws,
        "views": model.views,
        "fingerprint": fingerprint(network),
        "backbone": getattr(network, "abnn_recipe", None),
        "triage": triage.to_dict() if triage is not None else None,
        "extra": extra,
    }
    with writing_directory(path) as folder:
        write_json(folder / "abnn.json", description)
        write_tensors(folder / "attachments.safetensors", tensors)
        if backbone:
            write_tensors(folder / "backbone.safetensors", _unshared(network.state_dict()))
    return path


def load(path: str | Path, backbone: nn.Module | None = None, attach: Callable[..., Any] | None = None) -> Any:
    """The model that :func:`save` wrote, on ``backbone`` or on the one that was saved with it.

    If ``backbone`` has other weights and the model was saved with ``backbone=True``, the saved weights are loaded into
    it, in place; without saved weights, or where they do not fit, it is refused and left as it was.
    The returned model has ``triage`` and ``extra`` as they were saved, and keeps them when it is saved again.
    """
    assert attach is not None
    path = Path(path)
    # Before the second version, statistics had too little for the score.
    description = read_description(path / "abnn.json", "a saved model", FORMAT, VERSION, oldest=2)
    check_fields(path, description, MODEL)
    triage = _triage_from_json(path, description)
    tensors = read_tensors(path / "attachments.safetensors")
    check_finite(path, tensors)
    changed = backbone is None or fingerprint(backbone) != description["fingerprint"]
    if backbone is None:
        backbone = _saved_backbone(path, description)
    elif changed:
        _load_saved_weights(path, description, backbone)
    device = next((parameter.device for parameter in backbone.parameters()), torch.device("cpu"))
    try:
        spec = description["spec"]
        model = attach(
            backbone,
            torch.zeros(
                1, *description["input_shape"], dtype=getattr(torch, description["input_dtype"]), device=device
            ),
            at=description["at"],
            kind=spec["kind"],
            preset=description["preset"],
            draws=description["draws"],
            config=AttachConfig(
                width=spec["width"],
                share=spec["share"],
                prior=_prior_from_json(spec["prior"]),
                init=None if spec["init"] is None else Init(**spec["init"]),
                views=description.get("views", 1),  # there were none before
            ),
        )
    except (KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise FileFormatError(
            f"{path} is not complete or does not fit ({type(error).__name__}: {error}); save the model again."
        ) from error
    check_classes(path, description["classes"], model.classes)
    _fill(path, model, tensors)
    model.backbone_changed = changed
    model.score, model.triage, model.extra = description["score"], triage, description["extra"]
    if description["version"] < STATISTICS_SINCE:
        outdated = triage is not None and SCORES[triage.score].statistics
        if outdated:
            model.triage = None
        forget_statistics(path, model.distance, "model.distance.fit(loader)", thresholds=outdated)
    return model.eval()


def check_class_names(names: Any, classes: int, argument: str, fix: str) -> list[str] | None:
    """Names of classes as a list, None where there are none, or an error that calls them ``argument``."""
    if names is None:
        return None
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise InputError(explain(argument, repr(names)[:80], f"a list of {classes} strings, or None", fix))
    if len(names) != classes:
        raise InputError(explain(argument, f"{len(names)} names", f"{classes}, the number of classes", fix))
    return list(names)


def fingerprint(network: nn.Module) -> str:
    """sha256 over names, shapes, types and bytes of all parameters and buffers."""
    return tensor_digest(network.state_dict())


def other_network(path: Path, description: dict[str, Any]) -> FileFormatError:
    """The error about a backbone that is not the one of the model in ``path``."""
    return FileFormatError(
        f"backbone: {path} was fitted on a network with other weights or layers; accepted: the network whose "
        f"fingerprint is {description['fingerprint'][:16]}... Load the weights that the attachments were fitted on."
    )


def _saved_backbone(path: Path, description: dict[str, Any]) -> nn.Module:
    recipe = description.get("backbone")
    if not (path / "backbone.safetensors").exists() or recipe is None:
        raise InputError(
            explain(
                "backbone",
                "None",
                "the network that the attachments were fitted on",
                "Pass it, or save with backbone=True a model whose backbone abnn.build_backbone() made.",
            )
        )
    weights = read_tensors(path / "backbone.safetensors")
    network = rebuild(path, recipe, weights)
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise FileFormatError(
            f"{path}: the saved backbone cannot be rebuilt ({error}); save the model again."
        ) from error
    if fingerprint(network) != description["fingerprint"]:
        raise FileFormatError(f"{path}: the saved backbone does not have the fingerprint that was saved with it.")
    return network.eval()


def _load_saved_weights(path: Path, description: dict[str, Any], network: nn.Module) -> None:
    """All is checked first, for a network that is refused must not be changed."""
    file = path / "backbone.safetensors"
    if not file.exists():
        raise other_network(path, description)
    saved, own = read_tensors(file), network.state_dict()
    if tensor_digest(saved) != description["fingerprint"]:
        raise FileFormatError(f"{path}: the saved backbone does not have the fingerprint that was saved with it.")
    if differing := sorted(name for name in saved.keys() | own.keys() if _form(saved, name) != _form(own, name)):
        raise FileFormatError(
            f"backbone: {path} was fitted on a network with other layers, which differ in {', '.join(differing[:4])}"
            f"{', ...' if len(differing) > 4 else ''}; accepted: a network of the same layers, with any weights."
        )
    network.load_state_dict(saved)
    if fingerprint(network) != description["fingerprint"]:  # a network that changes what it loads
        raise other_network(path, description)


def _form(state: dict[str, Tensor], name: str) -> object:
    return (state[name].shape, state[name].dtype) if name in state else None


def _fill(path: Path, model: AttachedNetwork, tensors: dict[str, Tensor]) -> None:
    """All tensors are checked before they are copied, for copying makes of any tensor one that fits."""
    parameters = {f"attachments.{name}": parameter for name, parameter in model.attachment_parameters()}
    own = model.distance.state_dict()
    known = {**parameters, "distance.fitted": own["fitted"]}
    check_names(path, {n: v for n, v in tensors.items() if n in known or n.startswith("attachments.")}, known)
    check_shapes(path, tensors, known)
    check_types(path, tensors, known)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
    if not tensors["distance.fitted"]:
        return
    wanted = {f"distance.{name}": value for name, value in _pack({**own, "fitted": torch.tensor(True)}).items()}
    statistics = {name: tensors[name] for name in wanted if name in tensors}
    check_names(path, statistics, wanted)
    check_shapes(path, statistics, wanted)
    check_types(path, statistics, wanted)
    check_quantiles(path, statistics)
    whitening = torch.zeros_like(own["whitening"])
    rows, columns = torch.tril_indices(len(whitening), len(whitening), device=whitening.device)
    whitening[rows, columns] = statistics["distance.whitening"].to(whitening)
    state = {name.removeprefix("distance."): value for name, value in statistics.items()}
    model.distance.load_state_dict({**state, "whitening": whitening})


def _triage_from_json(path: Path, description: dict[str, Any]) -> Triage | None:
    if description["triage"] is None:
        return None
    try:
        triage = Triage.from_dict(description["triage"])
    except (AbnnError, TypeError) as error:  # of Triage or of its Costs
        raise FileFormatError(f"{path}: {error}") from error
    classes = description["classes"]
    fields: dict[str, Field] = {
        "score": MODEL["score"],
        "by_class": (lambda value: len(value) in (0, classes), f"{classes} pairs, one for each class, or none"),
    }
    check_fields(path, vars(triage), fields, "triage.")
    return triage


def _pack(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The whitening matrix is lower triangular: keep that half only, and nothing at all before it was gathered."""
    if not state["fitted"]:
        return {"fitted": state["fitted"]}
    size = len(state["whitening"])
    rows, columns = torch.tril_indices(size, size)
    return {**state, "whitening": state["whitening"][rows, columns]}


def _spec_to_json(model: AttachedNetwork) -> dict[str, Any]:
    spec = model.spec
    return {
        "kind": spec.kind,
        "width": spec.width,
        "share": spec.share,
        "prior": {"kind": type(spec.prior).__name__, **asdict(spec.prior)},
        "init": None if spec.init is None else asdict(spec.init),
    }


def _prior_from_json(prior: dict[str, Any]) -> Gaussian | ScaleMixture:
    kinds = {"Gaussian": Gaussian, "ScaleMixture": ScaleMixture}
    return kinds[prior["kind"]](**{name: value for name, value in prior.items() if name != "kind"})


def _unshared(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}
