"""From predictions to answers: numbers for programs, and sentences for people."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from abnn.errors import InputError, explain
from abnn.export.artefact import Answers, Exported, ask, check_about_classes
from abnn.export.learnt import CUT, WEIGHT_OF_ODDS, Learnt
from abnn.store.names import class_names_of
from abnn.triage.thresholds import seven_digits

PLAIN, ATTACHED = "without attachments", "with attachments"
FAR = "far away"  # the term of the learnt score that grows without bound outside of the data
LEAST_CAUSE = 0.05  # of a score; what counts less is left out
WORDS = {
    "energy": "the network recognises little in it",
    "odds": "other classes come close to the predicted one",
    "entropy": "the network spreads its answer over several classes",
    "change of mind": "the attachments change the network's answer",
    "widened energy": "the network recognises little in it for how far it is from the training data",
    "misfit": "what the network finds in it does not fit the predicted class",
    "smallness": "the network finds few features in it",
    "clipped energy": "the network recognises little in it, once extreme features are cut",
    "unclaimed": "what the network finds in it belongs to none of its classes",
    "direction": "what the network finds in it is an unfamiliar mixture",
    "distance at input": "as a picture, it is unlike the training data",
    "nearest class at input": "as a picture, it is like none of the classes",
    "looks changed": "it looks changed: blurred, noisy, drawn or the like",
    "looks destroyed": "it looks as if there were nothing to read",
    "distance at words": "it has words that are rare in the training data",
    "nearest class at words": "its words are those of none of the classes",
    "distance at meaning": "its words mean something unlike the training data",
    "nearest class at meaning": "its words mean something unlike all classes",
    FAR: "it lies far outside of everything that was seen in training",
}
"""What it means where a part of the learnt score is large; see :mod:`abnn.tasks`."""
WORDS_OF_PLACES = {"distance": "it is unlike the training data", "nearest class": "it is like none of the classes"}
"""The same of parts that each block has."""


class Answerer:
    """A model with its thresholds: inputs [B, ...] to one answer for each, in the form of :class:`abnn.serve.schema.Answer`.

    parts  what it means where a part of the score is large, by the name of the part; {} for a model without a learnt score
    """

    def __init__(self, model: Any) -> None:
        if getattr(model, "triage", None) is None:
            fix = "Choose thresholds with abnn.calibrate(model, held_out), then save it again."
            raise InputError(explain("model", "a model without thresholds", "a model saved with its triage", fix))
        check_about_classes(model)
        self.model, self.triage = model, model.triage
        self.names = class_names_of(model) or [str(number) for number in range(model.classes)]
        if isinstance(model, Exported):
            learnt, self.plain, self.learnt = model.description.parts, model.description.plain, model.learnt
        else:
            judges = getattr(model, "is_judge", False)
            learnt = model.combined.names if judges else []
            self.learnt = Learnt.of(model.combined) if judges else None
            self.plain = getattr(model, "comes_along", False)
        self.parts = {name: in_words(name) for name in ([*learnt, FAR] if learnt else ())}

    def __call__(self, x: Any) -> list[dict[str, Any]]:
        answers = ask(self.model, x, self.triage.draws, self.triage.seed)
        samples, scores, probs = answers.samples, answers.score, answers.stated
        if not (np.isfinite(samples).all() and np.isfinite(scores).all()):
            raise FloatingPointError("the model gave NaN or infinite values")
        assert probs is not None and answers.probs is not None and answers.verdict is not None
        names = sample_names(len(samples), self.triage.draws, self.plain)
        parts: Any = [None] * len(answers)
        if answers.parts:
            columns = np.stack([*answers.parts.values()], axis=1).tolist()
            parts = [{name: float(f"{value:.6g}") for name, value in zip(answers.parts, row)} for row in columns]
        causes: Any = self.causes_of(answers) or [None] * len(answers)
        rows = zip(samples.swapaxes(0, 1), answers.probs, probs, scores.tolist(), answers.verdict, parts, causes)
        return [self._describe(names, *row) for row in rows]

    def causes_of(self, answers: Answers) -> list[dict[str, float]]:
        """Return for each input by how much the learnt score would be lower if a part of it were usual, the largest first.

        A part counts where it is above usual; ``FAR`` is the term that grows outside of the data. [] without a learnt score.
        """
        if self.learnt is None or not answers.parts or self.triage.score not in ("combined", "failures"):
            return []
        names, causes = [*answers.parts, FAR], []
        of_odds = np.zeros_like(answers.score)
        if self.triage.score == "failures":
            of_odds = WEIGHT_OF_ODDS * np.clip(answers.parts["odds"], -CUT, CUT)
        found = self.learnt.drops(np.stack([*answers.parts.values()], 1), answers.score - of_odds)
        if "odds" in names:
            found[:, names.index("odds")] += np.maximum(of_odds, 0)
        for row in found.tolist():
            drops = sorted(zip(names, row), key=lambda pair: -pair[1])
            causes.append({name: float(f"{drop:.4g}") for name, drop in drops if drop >= LEAST_CAUSE})
        return causes

    def _describe(self, names: list[str], *of_input: Any) -> dict[str, Any]:
        samples, means, probs, score, verdict, parts, causes = of_input
        triage, (label, second) = self.triage, np.argsort(-probs, kind="stable")[:2].tolist()
        of_label, labels, probability = samples[:, label], samples.argmax(1), float(probs[label])
        place = share_below(triage.calibration, score) if triage.calibration else None
        agreeing = (labels == label).tolist()
        say = voters(names, agreeing)
        notice, reject = triage.by_class[label] if triage.by_class else (triage.notice, triage.reject)
        return {
            "label": label,
            "class_name": self.names[label],
            "probability": round(probability, 6),
            "probabilities": _rounded(probs),
            "score": score,
            "verdict": verdict,
            "reason": reason(verdict, self.names[label], self.names[second], probability, say, place, causes),
            "thresholds": {"notice": notice, "reject": reject},
            "calibration": {"share_below": None if place is None else round(place, 6)},
            "samples": {
                "names": names,
                "agreement": round(sum(agreeing) / len(agreeing), 6),
                "spread": round(float(of_label.std()), 6),
                "labels": labels.tolist(),
                "probabilities": _rounded(of_label),
                "mean": round(float(means[label]), 6),
            },
            "parts": parts,
            "causes": causes,
        }


def sample_names(count: int, draws: int, plain: bool) -> list[str]:
    """Return what to call the samples of a prediction; ``plain``: whether the first is the network without attachments."""
    if not plain:
        return ["the model"] if count == 1 else [f"draw {number}" for number in range(1, count + 1)]
    if draws == 0 and count == 2:
        return [PLAIN, ATTACHED]
    return [PLAIN, *(f"{'draw' if draws else 'view'} {number}" for number in range(1, count))]


def voters(names: Sequence[str], agreeing: Sequence[bool]) -> str:
    """Return which samples name the predicted class on their own, as the subject of "say" or "says"."""
    count, votes = len(names), sum(agreeing)
    if count == 1:
        return "the model says"
    if list(names) == [PLAIN, ATTACHED]:
        if votes == 1:
            here, there = (PLAIN, "with") if agreeing[0] else (ATTACHED, "without")
            return f"the network {here}, but not {there}, says"
        return "the network with and without attachments says" if votes else "only both answers together say"
    what = "samples" if PLAIN in names else "draws"
    return f"all {count} {what} say" if votes == count else f"{votes} of {count} {what} say"


def reason(
    verdict: str,
    name: str,
    second: str,
    probability: float,
    votes: str,
    place: float | None,
    causes: Mapping[str, float] | None = None,
) -> str:
    """Return why the verdict is what it is, in one to three sentences without technical words.

    name, second  the most probable class, and the next one
    votes         who names the predicted class, see :func:`voters`
    place         at least this share of the calibration scores lies below, 1 if all do; None: not known
    causes        of the learnt score, the largest first; it gets a sentence
    """
    if verdict == "accept":
        return f"This looks like the data that the model was trained on, and {votes} “{name}”."
    if verdict == "notice" and probability < 0.5:
        first = f"The model hesitates between “{name}” and “{second}”."
    elif verdict == "notice":
        first = f"The model is less sure than usual: {votes} “{name}”."
    elif probability < 0.5:
        first = f"The model cannot tell what this is: {votes} “{name}”, which may be chance."
    else:
        first = f"This does not look like what the model was trained on, though {votes} “{name}”."
    sentences = [first]
    if causes:
        sentences.append(f"What counts most against it: {in_words(next(iter(causes)))}.")
    if place is not None and place >= 0.9:
        share = "None" if place >= 1 else f"At most {100 * (1 - place):.0f} %"
        verb = "was" if place >= 1 else "were"
        sentences.append(f"{share} of the good inputs used for calibration {verb} as uncertain.")
    return " ".join(sentences)


def in_words(part: str) -> str:
    """Return what it means where a part of the learnt score is large."""
    if "attached " in part:
        return f"with attachments, {in_words(part.replace('attached ', ''))}"
    kind, _, block = part.partition(" at ")
    if part not in WORDS and kind in WORDS_OF_PLACES:
        return f"inside the network, at {block}, {WORDS_OF_PLACES[kind]}"
    return WORDS.get(part, f"“{part}” is large")


def share_below(quantiles: Sequence[float], score: float) -> float:
    """Return the largest share that the quantiles vouch for: at least so many calibration scores are smaller.

    Kept quantiles have seven digits, so that the score of a calibration input may be a little above its own quantile; with
    as many digits the two are equal.
    """
    return max(0, bisect_left(quantiles, seven_digits(score)) - 1) / (len(quantiles) - 1)


def _rounded(values: np.ndarray) -> list[float]:
    return [round(value, 6) for value in values.astype(float).tolist()]
