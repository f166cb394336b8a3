"""The forms of answers, by which FastAPI writes them and describes them in OpenAPI."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

Verdict = Literal["accept", "notice", "reject"]
Share = Annotated[float, Field(ge=0, le=1)]
Threshold = Annotated[float, Field(description="Scores above it get this verdict, or a worse one.")]


class Samples(BaseModel):
    """How far the answers agree that the prediction is made of."""

    names: list[str] = Field(
        description='Such as "without attachments" and "with attachments", or "draw 1", "draw 2", ...'
    )
    agreement: Share = Field(description="Of the samples that name the predicted class on their own.")
    spread: float = Field(ge=0, description="Standard deviation over the samples of the predicted class's probability.")
    labels: list[int] = Field(description="The class that each sample names.")
    probabilities: list[float] = Field(description="The probability that each sample gives to the predicted class.")
    mean: Share = Field(
        description="What the prediction makes of them; `probability` is this, made to come true on calibration data."
    )


class Place(BaseModel):
    """Where the score lies among those of the good inputs that the thresholds were calibrated on."""

    share_below: float | None = Field(description="At least so many have a smaller score; null if they were not kept.")


class Thresholds(BaseModel):
    notice: Threshold
    reject: Threshold


class Picture(BaseModel):
    """What the model was given."""

    width: int
    height: int
    png: str = Field(description="The prepared input as PNG, base64.")


class Answer(BaseModel):
    """One prediction and what to do with it."""

    label: int = Field(ge=0)
    class_name: str
    probability: Share = Field(description="Of the predicted class, made to come true on calibration data.")
    probabilities: list[float] = Field(description="Of all classes, in the order of class_names of GET /model.")
    score: float = Field(description="Larger = more uncertain.")
    verdict: Verdict = Field(description="accept: use it; notice: use it with care; reject: do not use it.")
    reason: str = Field(description="Why, in plain words.")
    thresholds: Thresholds
    calibration: Place
    samples: Samples
    parts: dict[str, float] | None = Field(
        description="What the score is made of, by the names of parts of GET /model. 0 is usual, and 1 as far above that as one "
        "ordinary input in six; null where the model has no learnt score."
    )
    causes: dict[str, float] | None = Field(
        description="By how much the score would be lower if one part of it were usual, the largest first; null like parts."
    )
    input: Picture | None = Field(default=None, description="With show_input=true.")


class ErrorContent(BaseModel):
    code: str = Field(description="For programs.")
    message: str = Field(description="For people.")


class Failure(BaseModel):
    error: ErrorContent


class BatchAnswer(BaseModel):
    """One entry for each image, in the order of the request: an answer, or why there is none."""

    results: list[Answer | Failure]


class Calibration(BaseModel):
    """``noticed`` and ``rejected`` are promised: at most so many good inputs, on average."""

    inputs: int = Field(description="Good inputs that the thresholds were calibrated on.")
    noticed: float
    rejected: float
    quantiles: list[float] | None = Field(description="Evenly spaced quantiles of their scores, if they were kept.")


class ModelInfo(BaseModel):
    """The model behind this server."""

    name: str
    version: str = Field(description="Version of abnn.")
    classes: int
    class_names: list[str]
    input_shape: list[int]
    preparation: str = Field(description="What is done with an image.")
    drawing: bool = Field(description="Whether prepare=ink is accepted.")
    score: str
    parts: dict[str, str] = Field(description="What it means where a part of the score is large, in plain words.")
    draws: int = Field(description="Of the weights for each prediction; 0: their means.")
    notice: Threshold
    reject: Threshold
    calibration: Calibration
    limits: dict[Literal["max_bytes", "max_pixels", "max_images"], int]


class Drift(BaseModel):
    """Whether the images so far look like those of calibration. Without watching, only the first three and the message."""

    watching: bool = Field(description="Whether the model keeps what is needed to tell.")
    alarm: bool = Field(description="Whether drift was noticed. It stays on until DELETE /drift.")
    images: int = Field(description="Images that were looked at.")
    false_alarm_rate: float | None = Field(None, description="Probability of ever an alarm if nothing drifts, at most.")
    alarm_after: int | None = Field(None, description="Number of the image that raised the alarm.")
    p_value: float | None = Field(None, description='Of "nothing drifts", valid however often one looks.')
    direction: Literal["higher", "lower"] | None = Field(None, description="Of scores, after an alarm.")
    message: str = Field(description="The same in plain words.")


class SampleImage(BaseModel):
    group: str = Field(description="Images of one group are shown together.")
    about: str = Field(description="What the group is; may be empty.")
    title: str
    type: str = Field(description="Such as image/png.")
    content: str = Field(description="The file, base64.")


class SampleImages(BaseModel):
    samples: list[SampleImage]


class State(BaseModel):
    status: Literal["ok"]


def body_of(field: str, most: int) -> dict[str, Any]:
    """Return the description of the body of /predict ("image") and /predict/batch ("images"): a form or JSON."""
    content = {}
    for kind, form in (("multipart/form-data", "binary"), ("application/json", "image-base64")):
        one = {"type": "string", "format": form, "description": "PNG, JPEG, WebP, BMP or GIF"}
        value = one if field == "image" else {"type": "array", "items": one, "minItems": 1, "maxItems": most}
        schema = {"type": "object", "properties": {field: value}, "required": [field]}
        content[kind] = {"schema": {**schema, "additionalProperties": form == "binary"}}
    return {"requestBody": {"required": True, "content": content}}


FAILURES = (400, 401, 403, 408, 413, 415, 421, 422, 500, 503)


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the descriptions of answers that are not successes; all of them unless some are named."""
    return {each: {"model": Failure, "description": HTTPStatus(each).phrase} for each in statuses or FAILURES}
