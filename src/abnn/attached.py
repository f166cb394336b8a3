"""The model that users work with: attach, predict, save, load and detach."""

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

    ``triage`` holds the thresholds that abnn.calibrate() has set; they are saved with the model. Predictions warn if
    weights were written to since then.
    """

    @property
    def triage(self) -> Triage | None:
        return self.__dict__["triage"]

    @triage.setter
    def triage(self, triage: Triage | None) -> None:
        self.__dict__["triage"] = triage
        self.__dict__["_write_counts"] = WriteCounts(None if triage is None else self)

    @property
    def score(self) -> str:
        """The name of the score that predictions show. Setting an unknown name raises an error."""
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
        """Return the prediction for a batch, or for all batches of a loader.

        x             a tensor or array of inputs on any device; for a network of several inputs a dict or tuple of
                      them; or an iterable of batches (inputs, pairs that begin with inputs, or dicts), such as a
                      DataLoader
        draws         number of weight draws to average over; 0: mean weights; None: as the preset says
        seed          of the draws. An input gets the same result, up to rounding, in every batch. None: fresh draws,
                      from torch's global random state
        score         name of the score that ``Prediction.score`` shows; None: the model's
        views         number of views of each image that the draws look at; None: the model's
        memory_limit  bytes that activations may take; None: 1 GiB, on CUDA a sixteenth of the device's memory
        replay        on CUDA, run repeated passes of one shape as one graph
        progress      show a progress bar while a loader is read
        """
        if self._is_batch(x):
            prediction = predict_batch(self, x, draws, seed, score, memory_limit, replay, views)
            has_thresholds = self.triage is not None and self.triage.is_about(prediction)
            if has_thresholds and self.__dict__["_write_counts"].have_grown():
                warnings.warn(explain("model", WRITTEN, "weights as they were", CALIBRATE), AbnnWarning, stacklevel=2)
            return replace(prediction, triage=self.triage) if has_thresholds else prediction
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
        """Return whether ``x`` is one batch, and not an iterable of batches."""
        if isinstance(x, Tensor | np.ndarray | Mapping | Inputs) or not isinstance(x, Iterable):
            return True
        if isinstance(x, str | bytes) or hasattr(x, "to_numpy"):
            return True  # iterables of letters or columns, not of batches: check_inputs() refuses them
        several = self.input_forms is not None and isinstance(x, tuple | list) and len(x) == len(self.input_forms)
        return several and all(isinstance(each, Tensor | np.ndarray) for each in x)

    def compile(self, *args: Any, disable: bool = False, **options: Any) -> None:
        """Compile :meth:`predict` and ``model(x)`` from now on; ``disable=True`` switches it off.

        Arguments are those of ``torch.compile``. The first prediction compiles, which takes up to a minute. So does the
        first one with another batch size; after that, sizes do not matter. Draws and results are the same up to
        rounding.

        On CUDA predictions are one graph with and without compiling. So modes that add graphs ("reduce-overhead",
        "max-autotune") do so for ``model(x)`` alone. Copies of the model compile again, and nothing of it is saved.
        Training has an option of its own, see :class:`abnn.FitConfig`.
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
        """Write the attachments, and the backbone's weights if ``backbone``; see :func:`abnn.store.model.save`."""
        return store.save(self, path, backbone, triage, extra, example)

    def save_pretrained(
        self, path: str | Path, backbone: bool = False, records: Sequence[str | Path] = (), example: bool = True
    ) -> Path:
        """Write the files of :meth:`save` and a model card, README.md; return the folder.

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
        """Push the model and a model card to the Hugging Face Hub as one commit; return the commit's address.

        repo      "user/repo"; it is created if it does not exist
        backbone  also push the backbone's weights, so that nobody needs another file
        records   as in :meth:`save_pretrained`
        private   whether a new repository is private; None: the account's default
        token     of the Hub; None: the one that huggingface_hub keeps. It is neither written nor shown
        example   also push the input that the model was attached with. It is one of your data. Without it, loading
                  probes the network with zeros
        """
        with tempfile.TemporaryDirectory() as scratch:
            folder = self.save(Path(scratch) / "model", backbone, example=example)
            write_text(folder / hub.CARD, hub.make_card(self, repo, backbone, records))
            return hub.push(folder, repo, private, token)

    @classmethod
    def from_pretrained(
        cls, path: str | Path, backbone: nn.Module | None = None, revision: str | None = None, token: str | None = None
    ) -> Attached:
        """Return the model of a folder or of a repository on the Hub, as :func:`load` does.

        revision  of the repository; None: the newest
        """
        if not hub.is_repository(path):
            return store.load(path, backbone, attach)
        folder = hub.fetch(str(path), revision, token)
        try:
            return store.load(folder, backbone, attach)
        except FileFormatError as error:
            raise FileFormatError(f"{error} It came from {path}; delete {folder} to fetch it again.") from None

    def export(self, path: str | Path, format: str = "onnx", check: Any = None) -> Path:
        """Write the whole model into the folder ``path`` and return it; see :func:`abnn.export.write.export`.

        format  "onnx", which needs no torch to run, or "torch"
        """
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
    """Return a network with a Bayesian attachment beside each of its chosen blocks.

    The backbone is neither copied nor changed: the returned model is a second view that shares its weights.

    backbone  any module, on any device, that maps a batch to logits or, for regression, to numbers
    example   one or a few inputs, for one probing pass: a tensor, or for a network of several inputs a dict, a
              tokenizer's encoding, or a tuple. Labels in a dict are left out
    at        names of blocks, or patterns such as "layer4.*". None: bounded attachments go to the last few blocks, so
              that a prediction costs hardly more than the plain network's; others go to all blocks that are found
    kind      "bounded", "chain" or "replace"; see :class:`abnn.config.Spec`. None: as the preset says
    preset    "default", "paper" or "authors": the source of all other settings, here and in :func:`abnn.fit`
    task      what the network's output means: "classification", "regression", "multilabel", or a task such as
              abnn.tasks.Regression(variance=True). None: as ``config`` says
    last      attach to the last so many blocks only
    draws     number of draws that ``model(x)`` averages over at first; 0: mean weights; None: as the preset says
    seed      of the attachments' initial values and first draws; the global random state does not change
    config    everything else: widths, how many numbers may be learnt, prior, views
    """
    check_backbone(backbone)
    config = config or AttachConfig()
    example = check_example(backbone, example)
    defaults = choose_preset(preset)
    chosen_task = make_task(config.task if task is None else task)
    views = check_views(defaults.views if config.views is None else config.views, example.shape[1:], example.dtype)
    spec = defaults.spec(kind, config)
    structure = probe(backbone, example)
    keep_heap()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # of the CPU alone: fork_rng restores no other here
        blocks, spec = choose_blocks(structure, example, at, last, config.budget, spec)
        output = structure.calls[""].output
        classes = None if output is None else chosen_task.check_outputs(output, structure.batch, structure.logits)
        watched = watched_blocks(structure, blocks) if spec.kind == "bounded" else []
        class_count = 0 if classes is None else chosen_task.told_classes(classes)
        model = Attached(backbone, example, blocks, spec, structure, watched, class_count)
        model.task, model.classes = chosen_task, classes or model.classes
        head = None if model.readout is None else model.readout.block
        last_width = None if head is None else head.in_features
        chosen_task.prepare(model.classes, len(model.places), last_width)
        if watched:
            assert model.closed_form is not None
            hides = bool(chosen_task.hidden_classes(model.classes, 1, torch.Generator()))
            model.combined = Combined(chosen_task, model.places, last_width, model.closed_form.classes > 0, hides)
            model.combined.__dict__["head"] = head
            model.combined.to(model.device, torch.float32)
        model.preset, model.score, model.views = preset, defaults.score, views
        model.usual_draws = defaults.draws or (0 if watched else DRAWS)
        choose_fold(model, example)
        model.state.allows_beside = bool(watched) and not changes_outputs(
            Pass(model, noting=True), example[:1].to(model.device)
        )
    model.resample(model.usual_draws if draws is None else not_negative("draws", draws), seed=seed)
    own_modules = set(backbone.modules())
    for module in model.modules():  # new modules start in the mode of the backbone
        if module not in own_modules:
            module.training = backbone.training
    return model


def detach(model: Attached) -> nn.Module:
    """Take the attachments off and return the backbone: the same object, with its former modes and gradient flags."""
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
    """Return the model that ``model.save()`` wrote, on ``backbone`` or on the one that was saved with it.

    If ``backbone`` has other weights and the model was saved with ``backbone=True``, the saved weights are loaded into
    it, in place. Without saved weights, or if they do not fit, an error is raised and ``backbone`` does not change. The
    returned model has ``triage`` and ``extra`` as they were saved, and keeps them when it is saved again.

    A text like "user/repo" that is no local folder is fetched from the Hugging Face Hub. A ``Path`` is never fetched.
    """
    return Attached.from_pretrained(path, backbone)


LOADERS[AttachedModel.FORMAT] = load  # of a Path, which is never fetched
