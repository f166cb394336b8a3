"""The model that users hold: attach it, predict with it, save it, take it off again."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from abnn.config import DRAWS, AttachConfig
from abnn.config import preset as choose_preset
from abnn.errors import AbnnWarning, AttachError, FileFormatError, InputError, explain, not_negative
from abnn.files import write_text
from abnn.model.attach import check_backbone, choose_blocks, watched_blocks
from abnn.model.beside import changes_outputs
from abnn.model.blocks import check_example, probe
from abnn.model.folding import choose_fold
from abnn.model.inputs import Inputs
from abnn.model.network import AttachedNetwork
from abnn.model.passes import Pass
from abnn.model.views import check_views
from abnn.model.written import WriteCounts
from abnn.predict import Prediction, concatenate
from abnn.predict import predict as predict_batch
from abnn.predict.compiled_pass import CompiledPass
from abnn.predict.heap import keep_heap
from abnn.predict.inputs import split_batch
from abnn.predict.runtime import runtime_of
from abnn.scores import Combined, find_score
from abnn.store import hub
from abnn.store import model as store
from abnn.store.saved import LOADERS
from abnn.store.schema import AttachedModel
from abnn.tasks import Task, make_task
from abnn.train.watch import progress_bar
from abnn.triage import Triage

WRITTEN = "weights, or statistics of norms, that were written to after thresholds were chosen"
CALIBRATE = "Predict in eval mode. After training, call abnn.fit and abnn.calibrate again."


class Attached(AttachedNetwork):
    """A backbone with attachments: made by :func:`attach`, undone by :func:`detach`.

    ``triage`` has its thresholds, once abnn.calibrate() has set them; they are saved with the model. Predictions warn where weights were
    written to since.
    """

    @property
    def triage(self) -> Triage | None:
        return self.__dict__["triage"]

    @triage.setter
    def triage(self, chosen: Triage | None) -> None:
        self.__dict__["triage"] = chosen
        self.__dict__["_write_counts"] = WriteCounts(None if chosen is None else self)

    @property
    def score(self) -> str:
        """The name of the score that predictions show; an unknown one is an error when it is set."""
        return self.__dict__["score"]

    @score.setter
    def score(self, name: str) -> None:
        find_score(name, about=None if self.task is None else self.task.distribution)
        self.__dict__["score"] = name

    def predict(
        self,
        x: Any,
        draws: int | None = None,
        seed: int | None = 0,
        score: str | None = None,
        views: int | None = None,
        memory_limit: int | None = None,
        replay: bool = True,
        progress: bool = True,
    ) -> Prediction:
        """Return what the model says about a batch, or about all batches of a loader.

        x             a tensor or array of inputs on any device; for a network of several inputs a dict or tuple of them; or an
                      iterable of batches: inputs, pairs that begin with them, or dicts, as a DataLoader yields
        draws         how many weight draws the prediction is averaged over; 0: mean weights. None: what the preset says
        seed          the draws belong to it alone: an input gets the same result, up to rounding, whatever batch it comes
                      in. None: fresh draws, from torch's global random state
        score         the score that ``Prediction.score`` shows; None: the model's
        views         how many views of each image the draws look at; None: the model's
        memory_limit  bytes that activations may take. None: 1 GiB, on CUDA a sixteenth of the device's memory
        replay        on CUDA, run repeated passes of one shape as one graph
        progress      show a bar while a loader is read
        """
        if self._is_batch(x):
            made = predict_batch(self, x, draws, seed, score, memory_limit, replay, views)
            known = self.triage is not None and self.triage.is_about(made)
            if known and self.__dict__["_write_counts"].have_grown():
                warnings.warn(explain("model", WRITTEN, "weights as they were", CALIBRATE), AbnnWarning, stacklevel=2)
            return replace(made, triage=self.triage) if known else made
        parts = []
        with progress_bar(disable=not progress) as bar:
            task = bar.add_task("predicting", total=len(x) if isinstance(x, Sized) else None, status="")
            for batch in x:
                parts.append(self.predict(split_batch(self, batch)[0], draws, seed, score, views, memory_limit, replay))
                bar.advance(task)
        if not parts:
            fix = "Iterators are empty after use."
            raise InputError(explain("x", "a loader without batches", "at least one batch", fix))
        return concatenate(parts)

    def _is_batch(self, x: Any) -> bool:
        if isinstance(x, Tensor | np.ndarray | Mapping | Inputs) or not isinstance(x, Iterable):
            return True
        if isinstance(x, str | bytes) or hasattr(x, "to_numpy"):
            return True  # which check_inputs() refuses: these are iterables of letters and of columns, not of batches
        several = self.input_forms is not None and isinstance(x, tuple | list) and len(x) == len(self.input_forms)
        return several and all(isinstance(each, Tensor | np.ndarray) for each in x)

    def compile(self, *args: Any, disable: bool = False, **options: Any) -> None:
        """Run :meth:`predict`, and ``model(x)``, compiled from now on; ``disable=True`` goes back.

        Takes what ``torch.compile`` takes. Nothing is compiled before the first prediction, which then takes up to a
        minute; so does the first of another batch size, after which sizes do not matter. Draws and results are the same
        up to rounding. On CUDA predictions are one graph with and without compiling, so that modes which add graphs
        ("reduce-overhead", "max-autotune") do so for ``model(x)`` alone. Copies of the model compile anew, and
        nothing of it is saved. Training has an option of its own, see :class:`abnn.FitConfig`.
        """
        if disable:
            self._compiled_call_impl = runtime_of(self).compiled = None
            return
        super().compile(*args, **options)
        runtime_of(self).compiled = CompiledPass(options)

    def save(
        self,
        path: str | Path,
        backbone: bool = False,
        triage: Triage | None = None,
        extra: dict[str, Any] | None = None,
        example: bool = True,
    ) -> Path:
        """Write the attachments, and the backbone's weights if asked; see :func:`abnn.store.model.save`."""
        return store.save(self, path, backbone, triage, extra, example)

    def save_pretrained(
        self, path: str | Path, backbone: bool = False, records: Sequence[str | Path] = (), example: bool = True
    ) -> Path:
        """Write what :meth:`save` does, with a card about the model as README.md, and return the folder.

        records  run records of this model, as ``abnn evaluate`` writes them: the card shows their data and metrics
        """
        card = hub.make_card(self, str(path), backbone, records)
        folder = self.save(path, backbone, example=example)
        write_text(folder / hub.CARD, card)
        return folder

    def push_to_hub(
        self,
        repo: str,
        backbone: bool = False,
        records: Sequence[str | Path] = (),
        private: bool | None = None,
        token: str | None = None,
        example: bool = False,
    ) -> str:
        """Put the model and a card about it onto the Hugging Face Hub as one commit, and return the commit's address.

        repo     "user/repo"; made where it does not exist
        backbone also push the backbone's weights, so that nobody needs another file
        records  as in :meth:`save_pretrained`
        private  whether a new repository is; None: as the account says
        token    of the Hub; None: the one that huggingface_hub keeps. It is neither written nor shown
        example  also push the input that the model was attached with, which is one of your data. Without it loading probes the
                 network with zeros
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.save(Path(scratch) / "model", backbone, example=example)
            write_text(folder / hub.CARD, hub.make_card(self, repo, backbone, records))
            return hub.push(folder, repo, private, token)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, backbone: nn.Module | None = None, revision: str | None = None, token: str | None = None
    ) -> Attached:
        """Return the model of a folder, or of a repository on the Hub, as :func:`load` does; at a revision if one is named."""
        if not hub.is_repository(path):
            return store.load(path, backbone, attach)
        folder = hub.fetch(str(path), revision, token)
        try:
            return store.load(folder, backbone, attach)
        except FileFormatError as error:
            raise FileFormatError(f"{error} It came from {path}; delete {folder} to fetch it again.") from None

    def export(self, path: str | Path, format: str = "onnx", check: Any = None) -> Path:
        """Write the whole model as one artefact that needs no torch ("onnx"), or for "torch"; see :func:`abnn.export.write.export`."""
        from abnn.export.write import export

        return export(self, path, format, check)


def attach(
    backbone: nn.Module,
    example: Any,
    at: str | Sequence[str] | None = None,
    kind: str | None = None,
    *,
    preset: str = "default",
    task: str | Task | None = None,
    last: int | None = None,
    draws: int | None = None,
    seed: int = 0,
    config: AttachConfig | None = None,
) -> Attached:
    """Clip a Bayesian attachment beside each block of a network.

    The backbone is not copied and not changed: the returned model is a second view that shares its weights.

    backbone  any module that maps a batch to logits or, for regression, to numbers, on any device
    example   one or a few inputs, for one probing pass: a tensor, or for a network of several inputs a dict, a tokenizer's
              encoding, or a tuple. Labels in a dict are left out
    at        names of blocks, or patterns such as "layer4.*". None: bounded attachments go to the last few blocks, so that
              a prediction costs hardly more than the plain network's, others to all blocks that are found
    kind      "bounded", "chain" or "replace"; see :class:`abnn.config.Spec`. None: what the preset says
    preset    "default", "paper" or "authors": where all other settings come from, here and in :func:`abnn.fit`
    task      what the network's output means: "classification", "regression", "multilabel", or a task such as
              abnn.tasks.Regression(variance=True). None: what ``config`` says
    last      attach to the last so many blocks only
    draws     how many draws ``model(x)`` averages over at first; 0: mean weights. None: what the preset says
    seed      of the attachments' initial values and first draws; the global random state is left alone
    config    everything else: widths, how many numbers may be learnt, prior, views
    """
    check_backbone(backbone)
    config = config or AttachConfig()
    example = check_example(backbone, example)
    chosen = choose_preset(preset)
    chosen_task = make_task(config.task if task is None else task)
    views = check_views(chosen.views if config.views is None else config.views, example.shape[1:], example.dtype)
    spec = chosen.spec(kind, config)
    structure = probe(backbone, example)
    keep_heap()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's alone, which is what fork_rng gives back here
        blocks, spec = choose_blocks(structure, example, at, last, config.budget, spec)
        output = structure.calls[""].output
        classes = None if output is None else chosen_task.check_outputs(output, structure.batch, structure.logits)
        watched = watched_blocks(structure, blocks) if spec.kind == "bounded" else []
        class_count = 0 if classes is None else chosen_task.told_classes(classes)
        model = Attached(backbone, example, blocks, spec, structure, watched, class_count)
        model.task, model.classes = chosen_task, classes or model.classes
        readout = model.__dict__["readout"]
        last_width = None if readout is None else readout.block.in_features
        chosen_task.prepare(model.classes, len(model.places), last_width)
        if watched:
            assert model.closed_form is not None
            hides = bool(chosen_task.hidden_classes(model.classes, 1, torch.Generator()))
            model.combined = Combined(chosen_task, model.places, last_width, model.closed_form.classes > 0, hides)
            model.combined.__dict__["head"] = None if readout is None else readout.block
            model.combined.to(model.device, torch.float32)
        model.preset, model.score, model.views = preset, chosen.score, views
        model.usual_draws = chosen.draws or (0 if watched else DRAWS)
        choose_fold(model, example)
        model.state.allows_beside = bool(watched) and not changes_outputs(
            Pass(model, noting=True), example[:1].to(model.device)
        )
    model.resample(model.usual_draws if draws is None else not_negative("draws", draws), seed=seed)
    own_modules = set(backbone.modules())
    for module in model.modules():  # what is new starts in the backbone's mode
        if module not in own_modules:
            module.training = backbone.training
    return model


def detach(model: Attached) -> nn.Module:
    """Take the attachments off and return the backbone: the same object, with modes and gradient flags as it came."""
    if not isinstance(model, AttachedNetwork):
        raise AttachError(
            f"model: got {type(model).__name__}, which has no attachments; accepted: what abnn.attach() returned."
        )
    backbone = model.backbone
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(model._requires_grad.get(name, parameter.requires_grad))
    for name, module in backbone.named_modules():
        module.training = model._modes.get(name, module.training)
    model.__dict__["_backbone"] = None
    return backbone


def load(path: str | Path, backbone: nn.Module | None = None) -> Attached:
    """The model that ``model.save()`` wrote, on ``backbone`` or on the one that was saved with it.

    If ``backbone`` has other weights and the model was saved with ``backbone=True``, the saved weights are loaded into
    it, in place; without saved weights, or where they do not fit, it is refused and left as it was.
    The returned model has ``triage`` and ``extra`` as they were saved, and keeps them when it is saved again.

    A text like "user/repo" that is no folder here is fetched from the Hugging Face Hub. A ``Path`` is never fetched.
    """
    return Attached.from_pretrained(path, backbone)


LOADERS[AttachedModel.FORMAT] = load  # of a Path, which is never fetched
