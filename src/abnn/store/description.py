"""What every saved folder says about itself; the kinds of folders are in :mod:`abnn.store.schema` and :mod:`abnn.export.schema`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field

Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
OTHER_METHOD = (
    "It was fitted by an earlier version, with another method, and cannot be converted: attach to the same backbone and fit again, "
    "with abnn.attach() and abnn.fit(), or with abnn fit."
)


class Strict(BaseModel):
    """No unknown fields, no text in the place of numbers, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Description(Strict):
    """The JSON file of a saved folder, and what is common to all folders of its kind.

    EARLIER  what to do with folders of versions before OLDEST
    SEALED   the first version whose folders have checksums
    files    sha256 of every other file of the folder, by its name
    digest   sha256 of all fields but this one. Folders of older versions have neither
    """

    FILE: ClassVar[str]
    WHAT: ClassVar[str] = "a saved model"
    FORMAT: ClassVar[str]
    OLDEST: ClassVar[int]
    NEWEST: ClassVar[int]
    SEALED: ClassVar[int]
    EARLIER: ClassVar[str] = "Fit the model again and save it."
    PARTS: ClassVar[tuple[str, ...]]

    format: str
    version: int
    abnn: str
    files: dict[str, Digest] = {}
    digest: Digest | None = None
