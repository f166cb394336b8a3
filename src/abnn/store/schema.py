"""What is saved: the fields of each kind of folder, their bounds, and the versions that can be read."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from abnn.bayes.layers import Init
from abnn.config import DEFAULT_TASK
from abnn.files import only
from abnn.model.views import STEPS
from abnn.networks.recipe import MOST_NUMBERS, is_recipe, is_shape
from abnn.scores import SCORES
from abnn.store.folder import OTHER_METHOD, Description, Digest, Strict
from abnn.tasks import TASKS
from abnn.triage import Triage


def _has_few_parts(method: dict[str, Any]) -> bool:
    """Whether what decides how much memory a method's network takes is within bounds."""
    numbers = [method.get(name, 1) for name in ("members", "samples", "diffusion_convs")]
    return all(isinstance(number, int) and 1 <= number <= 1000 for number in numbers)


Shape = Annotated[list[int], only(is_shape, f"a list of whole numbers from 1, at most {MOST_NUMBERS:,} in all")]
TYPES = ("float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64")
Type = Annotated[str, only(TYPES.__contains__, f"one of {', '.join(TYPES)}")]
Recipe = Annotated[
    dict[str, Any] | None,
    only(is_recipe, "an architecture's name with plain sizes within bounds, or null"),
]
Score = Annotated[str, only(SCORES.__contains__, f"one of {', '.join(SCORES)}")]
Views = Annotated[int, Field(ge=1, le=len(STEPS))]


class SavedInput(Strict):
    """One of several inputs: its name, or its place in the call, and the form of one row."""

    name: Annotated[int, Field(ge=0, le=100)] | Annotated[str, Field(max_length=200)]
    shape: Annotated[list[int], only(lambda shape: shape == [] or is_shape(shape), "a list of whole numbers from 1")]
    dtype: Type


class WithNetwork(Description):
    """What a folder says about its network: inputs, classes, how the backbone is built.

    ``skips_padding`` is whether padding that only the embeddings tell counts nowhere. It did count before there was this
    field, also in the features that such a model has learnt. ``first_output`` is whether blocks and the last layer are
    those of the first of several outputs; before, they were those of all.
    """

    input_shape: Shape
    input_dtype: Type
    classes: Annotated[int, Field(ge=1, le=2**20)]
    backbone: Recipe
    extra: dict[str, Any]
    skips_padding: bool = False
    first_output: bool = False
    triage: Triage | None = None

    @model_validator(mode="after")
    def _check_by_class(self) -> WithNetwork:
        for name, what in (("by_class", "pairs"), ("offsets", "numbers")):
            count = 0 if self.triage is None else len(getattr(self.triage, name))
            if count not in (0, self.classes):
                accepted = f"{self.classes}, one for each class, or none"
                raise ValueError(f"triage.{name} is {count} {what}; accepted: {accepted}.")
        return self


class SavedSpec(Strict):
    """How attachments are built, see :class:`abnn.config.Spec`; the prior has its class's name as ``kind``."""

    kind: str
    width: Annotated[int, Field(ge=1, le=4096)] | None
    share: bool | None
    prior: dict[str, float | str]
    init: Init | None


class AttachedModel(WithNetwork):
    """A network with attachments. ``seed`` and ``draws`` say which draws it holds; null: of no seed, and others are held.

    ``inputs`` has the forms of all inputs where there are several; ``input_shape`` and ``input_dtype`` are those of the main one.
    """

    FILE, FORMAT, OLDEST, NEWEST, SEALED = "abnn.json", "abnn-model", 7, 12, 7
    EARLIER, PARTS = OTHER_METHOD, ("attachments.safetensors", "backbone.safetensors")

    inputs: Annotated[list[SavedInput], Field(max_length=100)] | None = None
    preset: str
    score: Score
    at: Annotated[list[str], Field(min_length=1)]
    spec: SavedSpec
    draws: Annotated[int, Field(ge=0, le=10_000)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = 0
    views: Views = 1
    fingerprint: Digest
    triage: Triage | None
    task: Annotated[str, only(TASKS.__contains__, f"one of {', '.join(TASKS)}")] = DEFAULT_TASK
    task_options: dict[str, bool | int | float | str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_triage(self) -> AttachedModel:
        if self.triage is not None and self.triage.score not in SCORES:
            raise ValueError(f"triage.score is {self.triage.score!r}; accepted: one of {', '.join(SCORES)}.")
        return self


class TrainedMethod(WithNetwork):
    """A trained method with its network; ``views`` where that has attachments. Up to version 3 there were no thresholds."""

    FILE, FORMAT, OLDEST, NEWEST, SEALED = "method.json", "abnn-method", 2, 4, 3
    WHAT, PARTS = "a saved method", ("network.safetensors",)

    method: Annotated[dict[str, Any], only(_has_few_parts, "members, samples and diffusion_convs from 1 to 1,000")]
    score: str
    views: Views | None = None


class SavedScore(Strict):
    """A post-hoc score with its settings."""

    name: str
    settings: dict[str, Any]


class PostHocScores(Description):
    """Post-hoc scores of a model that is saved by its own means. Up to version 2 there were no thresholds.

    ``skips_padding`` and ``first_output`` are those of :class:`WithNetwork`.
    """

    FILE, FORMAT, OLDEST, NEWEST, SEALED = "posthoc.json", "abnn-posthoc", 1, 3, 2
    WHAT, PARTS = "a saved set of post-hoc scores", ("scores.safetensors",)

    scores: Annotated[list[SavedScore], Field(min_length=1)]
    score: str
    of: str
    at: str | list[str] | None
    fingerprint: Digest
    skips_padding: bool = False
    first_output: bool = False
    triage: Triage | None = None
