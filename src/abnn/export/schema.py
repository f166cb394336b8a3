"""What the JSON file of an exported model says."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from abnn.export.learnt import Learnt
from abnn.files import only
from abnn.store.folder import Description, Strict
from abnn.triage.triage import Triage

MOST_NUMBERS = 2**28  # of one input
TYPES = ("float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
SAID = {"classes": ("label", "probs"), "labels": ("labels", "probs"), "numbers": ("mean",)}
"""What predictions of each kind say beside score, samples, parts and verdicts."""
WIDTHS = ("std", "aleatoric", "epistemic")
OUTPUTS = ("score", "samples", "parts", "verdict", "stated", *WIDTHS)
"""What may come beside that."""
Size = Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


def said_by(prediction: Any) -> dict[str, Any]:
    """Return what a prediction says by itself, by name: all but parts, verdicts and stated probabilities."""
    widths = WIDTHS if prediction.distribution == "numbers" and prediction.noise is not None else ()
    return {name: getattr(prediction, name) for name in ("score", "samples", *SAID[prediction.distribution], *widths)}


class ExportedInput(Strict):
    """The shape of one input, without the batch, and its type; null where the length may differ from batch to batch."""

    shape: Annotated[list[Size | None], Field(max_length=8)]
    dtype: Annotated[str, only(TYPES.__contains__, f"one of {', '.join(TYPES)}")]

    @model_validator(mode="after")
    def _check(self) -> ExportedInput:
        if math.prod(size or 1 for size in self.shape) > MOST_NUMBERS:
            raise ValueError(f"shape is {self.shape}; accepted: at most {MOST_NUMBERS:,} numbers.")
        return self


class ExportedModel(Description):
    """An exported model.

    runtime      what runs it: "onnx", the file model.onnx, or "torch", the file model.pt2 of torch.export
    task         what its outputs mean, see :mod:`abnn.tasks`
    inputs       what goes in, by name; of a network with one input its name is "x"
    main         the name of the input that matters most: the words, the image
    outputs      the names of what it returns, in their order
    parts        the names of the columns of "parts"
    score        the name of the score
    draws, seed, views   of the predictions; draws 0: mean weights
    plain        whether the first of "samples" is the network without attachments
    length       of the example's sentence, where any length will do: what texts are filled up to for a model without a mask
    learnt       numbers of the learnt score, to say what counts in it; see :class:`abnn.export.learnt.Learnt`. null: it has none
    spread       Q_95 - Q_5 of the scores of good inputs; differences far below it mean nothing. null: not known
    """

    FILE, FORMAT, OLDEST, NEWEST, SEALED, WHAT = "export.json", "abnn-export", 1, 1, 1, "an exported model"
    EARLIER = "Export the model again."
    PARTS = ("model.onnx", "model.pt2")

    runtime: Literal["onnx", "torch"]
    task: Name
    inputs: Annotated[dict[Name, ExportedInput], Field(min_length=1, max_length=32)]
    main: Name
    classes: Annotated[int, Field(ge=1, le=2**20)]
    outputs: Annotated[list[Name], Field(min_length=1, max_length=32)]
    parts: Annotated[list[Name], Field(max_length=4096)]
    score: Name
    draws: Annotated[int, Field(ge=0, le=10_000)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)]
    views: Annotated[int, Field(ge=1, le=100)]
    plain: bool
    spread: Annotated[float, Field(ge=0)] | None
    triage: Triage | None
    extra: dict[str, Any]
    length: Size | None = None
    learnt: dict[str, list[Any]] | None = None

    @model_validator(mode="after")
    def _check(self) -> ExportedModel:
        if self.main not in self.inputs:
            raise ValueError(f"main is {self.main!r}; accepted: one of {', '.join(self.inputs)}.")
        if self.learnt is not None:
            Learnt.from_dict(self.learnt, len(self.parts))
        own = next((each for each in SAID.values() if set(each) <= set(self.outputs)), None)
        if own is None or not {"score", "samples"} <= set(self.outputs) <= {*OUTPUTS, *own}:
            accepted = "score, samples and what belongs to classes, labels or numbers"
            raise ValueError(f"outputs is {self.outputs}; accepted: {accepted}.")
        if (self.triage is not None) != ("verdict" in self.outputs):
            accepted = "a verdict where there are thresholds, and only there"
            raise ValueError(f"outputs is {self.outputs}; accepted: {accepted}.")
        return self
