"""Save attachments to a small folder and clip them onto a fresh copy of the network: safetensors and JSON, no pickle.

my-attachment/
  abnn.json                 what was attached where, the backbone's fingerprint, thresholds
  attachments.safetensors   posterior means and rhos, the closed form and the score that a fit learnt, one input
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

from abnn.bayes.priors import Gaussian, ScaleMixture
from abnn.config import AttachConfig
from abnn.errors import AbnnWarning, FileFormatError, InputError, explain
from abnn.files import as_json
from abnn.model.blocks import of_any_output
from abnn.model.inputs import MASK, Batch, Inputs, rows_of
from abnn.model.network import AttachedNetwork
from abnn.networks.recipe import rebuild
from abnn.predict.plain import device_of
from abnn.scores.combined import DIRECTION, NEVER
from abnn.store.folder import FIX, LEARNT, OTHER_METHOD, check_tensors, fingerprint, read_folder, write_folder
from abnn.store.names import check_class_names
from abnn.store.schema import AttachedModel
from abnn.tasks import TASKS
from abnn.tasks.classification import UNCLAIMED
from abnn.tensors import read_tensors, tensor_digest
from abnn.triage import Triage

ATTACHMENTS, BACKBONE = AttachedModel.PARTS
MOST_NOISE = 2**31  # bytes of the draws that a loaded model holds
PARTS_AT = {"centre": 0, "unit": 0, "anchor": 0, "readable": 0, "linear": 1, "inner": 1}
"""Tensors of the combined score that have an entry for each part, and in which dimension."""
SILENT = {"unit": NEVER, "readable": NEVER}
"""The entries of a part that counts nothing; of all others they are 0."""
PRIORS: dict[Any, Any] = {prior.__name__: prior for prior in (Gaussian, ScaleMixture)}


def save(
    model: Any,
    path: str | Path,
    backbone: bool = False,
    triage: Triage | None = None,
    extra: dict[str, Any] | None = None,
    example: bool = True,
) -> Path:
    """Write ``model`` into the folder ``path``, which is complete or absent at every moment, and return it.

    backbone  also write the backbone's weights, so that the folder is all that is needed; a warning says where they are
              left out although they were trained with the attachments
    triage    thresholds to keep with the model; None: ``model.triage``
    extra     anything else to keep, as JSON can hold it: class names, preprocessing. It becomes ``model.extra``, so that later saves and
              exports keep it; None: ``model.extra`` as it is
    example   also write the input that the model was attached with, for the probing pass of :func:`load`. False, for private
              data: that pass gets zeros, which a network must be able to take
    """
    triage = model.triage if triage is None else triage
    if triage is not None and not isinstance(triage, Triage):
        raise InputError(explain("triage", repr(triage)[:80], "what abnn.calibrate() returned, or None"))
    extra = as_json("extra", model.extra if extra is None else extra)
    if not isinstance(extra, dict):
        raise InputError(explain("extra", repr(extra)[:80], "a dict, or None for what the model has"))
    check_class_names(extra.get("class_names"), model.classes, 'extra["class_names"]', "Give one name for each class.")
    if model.backbone_changed and not backbone:
        weights = "False, but the backbone's weights were trained with the attachments or came from a saved model"
        accepted = "True, or False where you keep the weights yourself"
        fix = f"Without them nothing can load {path}: save with backbone=True."
        warnings.warn(explain("backbone", weights, accepted, fix), AbnnWarning, stacklevel=3)  # of model.save()
    spec = model.spec
    fields = {
        **{name: getattr(model, name) for name in ("preset", "score", "classes", "seed", "views")},
        "at": model.block_names,
        "spec": {**asdict(spec), "prior": {"kind": type(spec.prior).__name__, **asdict(spec.prior)}},
        "input_shape": list(model.input_shape),
        "input_dtype": str(model.input_dtype).removeprefix("torch."),
        "draws": 0 if model.mean_weights else model.draws,
        "fingerprint": fingerprint(model.backbone),
        "backbone": getattr(model.backbone, "abnn_recipe", None),
        "triage": triage.to_dict() if triage is not None else None,
        "task": model.task.name,
        "task_options": model.task.options(),
        "extra": extra,
    }
    if model.input_forms is not None:
        fields["inputs"] = [
            {"name": name, "shape": list(shape), "dtype": str(dtype).removeprefix("torch.")}
            for name, (shape, dtype) in model.input_forms.items()
        ]
    fields |= rules_of(model)
    tensors: dict[str, Tensor] = {f"attachments.{name}": value for name, value in model.attachment_parameters()}
    tensors |= _learnt(model) if model.is_judge else {}
    tensors |= _example_tensors(model.example) if example else {}
    parts = {ATTACHMENTS: tensors}
    if backbone:
        state = model.backbone.state_dict()
        parts[BACKBONE] = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    folder = write_folder(path, AttachedModel, fields, parts)
    model.extra = extra
    return folder


def load(path: str | Path, backbone: nn.Module | None, attach: Callable[..., Any]) -> Any:
    """Return the model that :func:`save` wrote, on ``backbone`` or on the one that was saved with it.

    It holds the same draws, so that ``model(x)`` is what it was, and has ``triage`` and ``extra`` as they were saved. If
    ``backbone`` has other weights and the model was saved with ``backbone=True``, the saved weights are loaded into it, in
    place; without saved weights, or where they do not fit, it is refused and left as it was.

    attach  the function that clips attachments onto a network
    """
    path = Path(path)
    saved = read_folder(path, AttachedModel)
    tensors = read_tensors(path / ATTACHMENTS)
    probe = _probe(path, saved, tensors)
    changed = backbone is None or fingerprint(backbone) != saved.fingerprint
    backbone = _with_saved_weights(path, saved, backbone) if changed or backbone is None else backbone
    device = device_of(backbone, torch.device("cpu"))
    spec, prior, seed = saved.spec, dict(saved.spec.prior), saved.seed or 0
    try:
        own_prior = PRIORS[prior.pop("kind")](**prior)
        config = AttachConfig(width=spec.width, share=spec.share, prior=own_prior, init=spec.init, views=saved.views)
        task = type(TASKS[saved.task])(**saved.task_options)
        options: dict[str, Any] = {"at": saved.at, "kind": spec.kind, "preset": saved.preset, "task": task}
        example = rows_of(probe, lambda rows: rows.to(device))
        with of_any_output(not saved.first_output):
            model = attach(backbone, example, **options, draws=1, seed=seed, config=config)
    except (InputError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        problem = f"is not complete or does not fit ({type(error).__name__}: {error})"
        raise FileFormatError(f"{path} {problem}; save the model again.") from error
    check_classes(path, saved.classes, model.classes)
    follow_padding(model, saved.skips_padding)
    _fill(path, model, _of_earlier(saved.version, path, model, tensors))
    if saved.draws * model.noise_bytes > MOST_NOISE:
        accepted = f"so many that their noise takes at most {MOST_NOISE >> 20:,} MiB"
        raise FileFormatError(f"{path}: draws is {saved.draws}; accepted: {accepted}. {FIX}")
    model.resample(saved.draws, seed=seed)
    model.backbone_changed = changed
    model.score, model.triage, model.extra = saved.score, saved.triage, saved.extra
    return model.eval()


def rules_of(model: AttachedNetwork) -> dict[str, bool]:
    """Return the fields of the description about padding and outputs, if they say anything: they are newer than format 12."""
    rules = {"skips_padding": model.state.padding is not None, "first_output": model.is_of_first_output}
    return {name: True for name, holds in rules.items() if holds}


def follow_padding(model: AttachedNetwork, skips_padding: bool) -> None:
    """Let padding that only the embeddings tell count where it counted when the model was saved."""
    if not skips_padding:
        model.state.padding = None


def _example_tensors(example: Batch) -> dict[str, Tensor]:
    """The example as tensors to save, by names that begin with "example"."""
    if not isinstance(example, Inputs):
        return {"example": example}
    return {f"example.{name}": value.contiguous() for name, value in example.values.items()}


def _probe(path: Path, saved: AttachedModel, tensors: dict[str, Tensor]) -> Batch:
    """Return the saved example, taken out of ``tensors``; zeros where there is none, with a mask that hides nothing."""

    def zeros(shape: list[int], dtype: str) -> Tensor:
        return torch.zeros(1, *shape, dtype=getattr(torch, dtype))

    expected: Batch = zeros(saved.input_shape, saved.input_dtype)
    if saved.inputs is not None:
        forms = {each.name: zeros(each.shape, each.dtype) for each in saved.inputs}
        expected = Inputs({name: torch.ones_like(each) if name == MASK else each for name, each in forms.items()})
    names = _example_tensors(expected)
    example = {name: tensors.pop(name) for name in names if name in tensors}
    if not example:
        return expected
    check_tensors(path, example, names)
    if not isinstance(expected, Inputs):
        return example["example"].to(expected.dtype)
    return Inputs({name: example[f"example.{name}"].to(each.dtype) for name, each in expected.values.items()})


def check_classes(path: Path, said: int, classes: int) -> None:
    """Refuse a description of a network with another number of classes."""
    if said != classes:
        raise FileFormatError(f"{path}: classes is {said}; accepted: {classes}, as many as the network has. {FIX}")


def other_network(path: Path, fingerprint: str) -> FileFormatError:
    """Return the error about a backbone that is not the one of the model in ``path``."""
    return FileFormatError(
        f"backbone: {path} was fitted on a network with other weights or layers; accepted: the network whose "
        f"fingerprint is {fingerprint[:16]}... Load the weights that the attachments were fitted on."
    )


def _with_saved_weights(path: Path, saved: AttachedModel, network: nn.Module | None) -> nn.Module:
    """Return ``network``, or the one that the folder names, with the weights of the folder.

    All is checked first, for a network that is refused must not be changed.
    """
    there = (path / BACKBONE).exists()
    if network is None and not (there and saved.backbone is not None):
        accepted = "the network that the attachments were fitted on"
        fix = "Pass it, on the command line by --backbone; or save with backbone=True a model whose backbone abnn.build_backbone() made."
        raise InputError(explain("backbone", "None", accepted, fix))
    if not there:
        raise other_network(path, saved.fingerprint)
    weights = read_tensors(path / BACKBONE)
    if tensor_digest(weights) != saved.fingerprint:
        raise FileFormatError(f"{path}: the saved backbone does not have the fingerprint that was saved with it. {FIX}")
    if network is None:
        with torch.random.fork_rng(devices=[]):  # its random values are replaced below
            network = rebuild(path, saved.backbone, weights).eval()
    forms, own = ({n: (v.shape, v.dtype) for n, v in state.items()} for state in (weights, network.state_dict()))
    if other := sorted(name for name in forms.keys() | own.keys() if forms.get(name) != own.get(name)):
        actual = f"{path} was fitted on a network with other layers, which differ in {', '.join(other[:4])}"
        more = ", ..." if len(other) > 4 else ""
        raise FileFormatError(f"backbone: {actual}{more}; accepted: a network of the same layers, with any weights.")
    network.load_state_dict(weights)
    if fingerprint(network) != saved.fingerprint:  # a network that changes what it loads
        raise other_network(path, saved.fingerprint)
    return network


def _fill(path: Path, model: AttachedNetwork, tensors: dict[str, Tensor]) -> None:
    """Check all tensors before they are copied, for copying makes of any tensor one that fits."""
    parameters = {f"attachments.{name}": parameter for name, parameter in model.attachment_parameters()}
    learns = model.combined is not None and any(name.startswith(LEARNT) for name in tensors)
    learnt = _learnt(model) if learns else {}
    check_tensors(path, tensors, {**parameters, **learnt})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[name])
        for owner in ("closed_form", "combined") if learnt else ():
            part = getattr(model, owner)
            state = part.state_dict()
            for field, own in state.items():
                value = tensors[f"{owner}.{field}"].to(own)
                if _is_lower(field):
                    own[tuple(torch.tril_indices(len(own), len(own), device=own.device))] = value
                else:
                    own.copy_(value)
            part.load_state_dict(state)


def _learnt(model: AttachedNetwork) -> dict[str, Tensor]:
    """Return what a fit learns beside attachments, by name, without the upper halves of matrices, which are zero."""
    state = {}
    for owner in ("closed_form", "combined"):
        for name, value in getattr(model, owner).state_dict().items():
            index = tuple(torch.tril_indices(len(value), len(value))) if _is_lower(name) else ...
            state[f"{owner}.{name}"] = value[index]
    return state


def _is_lower(name: str) -> bool:
    """Whether the tensor of this name has zeros above its diagonal."""
    return name.rpartition(".")[2].startswith("whitening")


def _of_earlier(version: int, path: Path, model: AttachedNetwork, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a model of some version as this version reads them.

    Format 7 had no witness (:mod:`abnn.bayes.witness`), up to format 10 no part told what classes claim (:mod:`abnn.bayes.claims`), and up to
    format 11 none where features point (:mod:`abnn.bayes.direction`). With such parts that count nothing, a model says what it said. Models of words of format 7 are refused: their closed form had other places. Up
    to format 8 attachments counted for every input, and up to format 9 as much as the plain network at most.
    """
    if model.combined is None or model.closed_form is None or "combined.centre" not in tensors:
        return tensors
    if version == 7:
        if model.closed_form.words is not None:
            raise FileFormatError(f"{path}: {OTHER_METHOD}")
        tensors = _with_silent_parts(
            model, tensors, lambda name: name.startswith("looks ") or name in (UNCLAIMED, DIRECTION)
        )
        tensors["combined.readable"] = torch.full((len(model.combined.names),), NEVER)
        for name, value in model.closed_form.witness.state_dict().items():
            tensors[f"closed_form.witness.{name}"] = torch.zeros_like(value, device="cpu")
    elif version <= 11:
        later = (UNCLAIMED, DIRECTION) if version <= 10 else (DIRECTION,)
        tensors = _with_silent_parts(model, tensors, later.__contains__)
    if version <= 11 and model.combined.direction is not None:
        blank = {name: torch.zeros_like(value, device="cpu") for name, value in _learnt(model).items()}
        tensors = {**{name: value for name, value in blank.items() if ".direction." in name}, **tensors}
    if version <= 8:
        tensors = {**tensors, "combined.familiar": torch.tensor(-NEVER)}
    if version <= 9:
        tensors = {**tensors, "combined.trust": torch.tensor(0.5)}
    return tensors


def _with_silent_parts(
    model: AttachedNetwork, tensors: dict[str, Tensor], is_new: Callable[[str], bool]
) -> dict[str, Tensor]:
    """Return the tensors of a combined score that lacks the parts with some names, where these count nothing."""
    names = model.combined.names
    old = torch.tensor([place for place, name in enumerate(names) if not is_new(name)])
    found = dict(tensors)
    for name, dimension in PARTS_AT.items():
        value = found.get(f"combined.{name}")
        if value is None or value.ndim <= dimension or value.shape[dimension] != len(old):
            continue  # not the tensors of such a model, which is said where they are checked
        shape = [len(names) if place == dimension else size for place, size in enumerate(value.shape)]
        wide = torch.full(shape, SILENT.get(name, 0.0), dtype=value.dtype)
        found[f"combined.{name}"] = wide.index_copy(dimension, old, value)
    return found
