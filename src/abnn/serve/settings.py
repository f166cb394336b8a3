"""The limits that a server keeps, checked once when it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from abnn.errors import InputError, at_least_one, explain

PATIENCE = 0.25  # share of its time that a request may wait in one queue; where more is likely, it is refused at once


@dataclass(frozen=True)
class Settings:
    """What one server may use; hosts None: any, drift None: in memory only, threads None: as torch has it."""

    max_batch: int = 32  # images that the model takes at once; 1 switches batching off
    wait: float = 0.004  # seconds to wait for requests that are on their way before a batch starts
    queue: int = 256  # requests under way at once, and images waiting for the model; further ones are answered with 503
    timeout: float = 10.0  # seconds that one request may take, from its first byte to its answer
    max_bytes: int = 10 * 2**20  # size of one request's body
    max_pixels: int = 25_000_000  # width times height of one image, checked before it is unpacked
    max_images: int = 64  # images in one batch request
    body_memory: int = 256 * 2**20  # bytes of all bodies that are held at once, until their answer
    connections: int = 512  # open at once, also those that send nothing; further ones are closed with 503
    token: str | None = None  # bearer token that every request for the model must carry, if set
    hosts: tuple[str, ...] | None = None  # values of the Host header that are answered, without their port
    drift: Path | None = None  # file that the state of the drift monitor is kept in
    threads: int | None = None  # that the model computes with, for batches of four images and more

    def __post_init__(self) -> None:
        for name in ("max_batch", "queue", "max_bytes", "max_pixels", "max_images", "body_memory", "connections"):
            at_least_one(name, getattr(self, name))
        if self.threads is not None:
            at_least_one("threads", self.threads)
        if not (math.isfinite(self.timeout) and self.timeout > 0):
            raise InputError(explain("timeout", self.timeout, "a positive number of seconds"))
        if not 0 <= self.wait < self.timeout:
            raise InputError(explain("wait", self.wait, "seconds from 0 up to the timeout"))
        if self.max_images > self.queue:
            fix = "A batch request that is larger than the queue could never be taken."
            raise InputError(explain("max_images", self.max_images, f"at most queue = {self.queue}", fix))
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise InputError(explain("token", "a token that a header cannot carry", "printable ASCII characters"))
