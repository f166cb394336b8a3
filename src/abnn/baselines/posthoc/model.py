"""A trained model with post-hoc scores: fitted together in one pass, predicted together in one pass."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from abnn.attached import Attached
from abnn.baselines.options import check_choice
from abnn.baselines.posthoc.base import PostHoc, build_posthoc
from abnn.baselines.posthoc.reader import MOST, Reader
from abnn.errors import FileFormatError, InputError, NotFittedError, explain
from abnn.model.blocks import of_any_output
from abnn.predict import Plain, Prediction
from abnn.predict.inputs import check_inputs
from abnn.scores import SAMPLE_SCORES, SCORES
from abnn.store.folder import fingerprint, read_folder, write_folder
from abnn.store.schema import PostHocScores
from abnn.tensors import read_tensors
from abnn.triage import Triage

DEFAULT = ("energy", "mahalanobis", "mahalanobis-blocks")  # these need no extra


class PostHocModel:
    """A plain network or an attached model whose predictions also carry post-hoc scores, in ``Prediction.own``.

    model   a network as abnn.predict.Plain(network, x[:1]), or an attached model
    scores  names from abnn.baselines.posthoc.POSTHOC, or PostHoc objects with settings of their own
    of      where the features of an attached model come from: "model" (averaged over its draws) or "backbone"
    at      names of the blocks whose statistics are read; None finds them
    score   the score that ``Prediction.score`` shows; default: the first of ``scores``

    "entropy" is a score of every prediction already and keeps that one meaning, whatever ``of`` says.
    """

    def __init__(
        self,
        model: Attached | Plain,
        scores: Sequence[str | PostHoc] = DEFAULT,
        of: str = "model",
        at: str | Sequence[str] | None = None,
        score: str | None = None,
    ) -> None:
        self.reader = Reader(model, of, at)
        self.model, self.of, self.at = model, of, at
        self.input_shape, self.input_dtype, self.classes = model.input_shape, model.input_dtype, model.classes
        self.input_forms = getattr(model, "input_forms", None)
        if isinstance(scores, str) or not scores:
            raise InputError(explain("scores", repr(scores), "a list with one or more names of scores"))
        built = [each if isinstance(each, PostHoc) else build_posthoc(each) for each in scores]
        self.scores = {each.name: each for each in built}
        if len(self.scores) < len(built):
            raise InputError(explain("scores", ", ".join(each.name for each in built), "each score once"))
        for name, each in self.scores.items():
            for part in each.needs:
                if part in self.reader.missing:
                    lack = f"{name!r} for a network with {self.reader.missing[part]}"
                    raise InputError(explain("scores", lack, f"scores that do not need {part!r}"))
        self.score = next(iter(self.scores)) if score is None else score
        self.triage: Triage | None = (
            None  # thresholds, once abnn.calibrate() has set them; they are saved with the scores
        )
        self.check_score("score", self.score)

    def check_score(self, argument: str, score: str) -> None:
        """Refuse a score that no prediction of this model has."""
        check_choice(argument, score, dict.fromkeys((*self.scores, *SCORES, self.model.score)))

    def fit(self, batches: Iterable[Any], draws: int | None = None, seed: int = 0, most: int = MOST) -> PostHocModel:
        """Fit every score on the features of (x, y) training batches, in one pass; see :meth:`Reader.gather`."""
        for each in self.scores.values():
            each.prepare()
        learning = [each for each in self.scores.values() if each.learns]
        if learning:
            keep = {part for each in learning for part in each.needs}
            notes = [each for each in learning if each.takes_notes]
            features = self.reader.gather(batches, draws, seed, most, keep, notes)
            for each in learning:
                each.fit(features)
        return self

    def predict(self, x: Any, draws: int | None = None, seed: int | None = 0, score: str | None = None) -> Prediction:
        """The model's own prediction, with every post-hoc score in ``own``."""
        waiting = [name for name, each in self.scores.items() if not each.fitted]
        if waiting:
            fix = "call fit(train_loader) first, or leave them out."
            raise NotFittedError(f"scores: {', '.join(waiting)} learn from training data; {fix}")
        shown = self.score if score is None else score
        x = check_inputs(self, x)
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        parts: dict[str, list[Tensor]] = {name: [] for name in self.scores if name not in SAMPLE_SCORES}
        logits = []
        for features in self.reader.chunks(x, draws, seed):
            logits.append(features.logits)
            for name, values in parts.items():
                values.append(self.scores[name].score(features))
        own = {name: torch.cat(values) for name, values in parts.items()}
        if type(self.model) is Plain:
            prediction = Prediction(torch.cat(logits).softmax(1)[None])
        else:
            prediction = self.model.predict(x, draws=draws, seed=seed)
        prediction = dataclasses.replace(prediction, default=shown, own={**prediction.own, **own})
        prediction.score_by(shown)  # a score that this model cannot give is an error here, not later
        return prediction if self.triage is None else self.triage.add_to(prediction)

    def save(self, path: str | Path) -> Path:
        """Write the scores and what they learned into the folder ``path``; the model itself is saved by its own means."""
        fields: dict[str, Any] = {
            "scores": [{"name": name, "settings": each.settings} for name, each in self.scores.items()],
            "score": self.score,
            "of": self.of,
            "at": self.at if self.at is None or isinstance(self.at, str) else list(self.at),
            "fingerprint": fingerprint(self.reader.network),
            "triage": None if self.triage is None else self.triage.to_dict(),
        }
        rules = {"skips_padding": self.reader.padding is not None, "first_output": self.reader.is_of_first_output}
        fields |= {name: True for name, holds in rules.items() if holds}  # they are newer than format 3
        tensors = {f"{name}/{key}": value for name, each in self.scores.items() for key, value in each.state.items()}
        return write_folder(path, PostHocScores, fields, {"scores.safetensors": tensors})

    @classmethod
    def load(cls, path: str | Path, model: Attached | Plain) -> PostHocModel:
        """What :meth:`save` wrote, on the same model."""
        path = Path(path)
        saved = read_folder(path, PostHocScores)
        tensors = read_tensors(path / "scores.safetensors")
        try:
            scores = [build_posthoc(each.name, **each.settings) for each in saved.scores]
            with of_any_output(not saved.first_output):
                loaded = cls(model, scores, saved.of, saved.at, saved.score)
            if not saved.skips_padding:
                loaded.reader.padding = None
            loaded.triage = saved.triage
            if saved.triage is not None:
                loaded.check_score("triage.score", saved.triage.score)
        except (KeyError, TypeError, InputError) as error:
            raise FileFormatError(
                f"{path} is not complete or does not fit ({type(error).__name__}: {error}); save the scores again."
            ) from error
        if fingerprint(loaded.reader.network) != saved.fingerprint:
            raise FileFormatError(
                f"model: {path} was fitted on a model with other weights or layers, of fingerprint {saved.fingerprint[:16]}... "
                "Load the weights that the scores were fitted on, or fit the scores again."
            )
        for name, value in tensors.items():
            score, _, key = name.partition("/")
            if score not in loaded.scores:
                raise FileFormatError(f"{path} holds tensors of {score!r}, which its description does not name.")
            loaded.scores[score].state[key] = value.clone()  # aligned in memory, so that it rounds like the fitted one
        try:
            loaded.predict(loaded.reader.example[:1], draws=1)
        except NotFittedError:
            pass  # saved before it was fitted, which is fine
        except (ArithmeticError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{path} holds tensors that its scores cannot use ({str(error)[:200]}); save the scores again."
            ) from error
        return loaded
