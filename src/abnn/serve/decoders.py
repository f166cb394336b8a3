"""Images are unpacked in two processes of their own, which can be ended at any moment and have a limit of memory.

    small   requests of at most SMALL_BYTES and SMALL_PIXELS
    large   all others, and small ones that took longer than SMALL_SECONDS or that ended their process

Each process has its own queue, so a small request never waits for a large one, and refuses at once what it would answer late.
Waiting and unpacking count towards the request's deadline: when it comes, the process is ended and another is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import PATIENCE, Settings

SMALL_BYTES, SMALL_PIXELS, SMALL_SECONDS = 64 * 2**10, 1_000_000, 0.5
MOST_LARGE = 16  # requests that wait for the decoder of large images, and at most a quarter of all
BYTES_PER_PIXEL, SPARE_BYTES = 32, 128 * 2**20
"""Memory of a decoder, beyond what it has at its start: for the largest image that is accepted, and for copies."""
Input = Tensor | Problem
Prepare = Callable[[np.ndarray], Awaitable[Input]]


class DecoderEndedError(Exception):
    """The process has ended before its reply: out of memory, or crashed by the image."""


class TooManyPixelsError(Exception):
    """The images of one request have more pixels than this decoder may unpack; the number is the argument."""


class Decoder:
    """One process, see :mod:`abnn.serve.worker`, and the requests that wait for it."""

    def __init__(self, settings: Settings, most_waiting: int, most_pixels: int, seconds: float | None = None) -> None:
        memory = BYTES_PER_PIXEL * settings.max_pixels + 3 * settings.max_bytes + SPARE_BYTES
        program, path = str(Path(__file__).with_name("worker.py")), json.dumps(sys.path)
        self.command = [sys.executable, "-I", program, path, str(memory)]
        self.process: Process | None = None
        self.waiting = 0
        self._limits = {"max_pixels": settings.max_pixels, "most_pixels": most_pixels}
        self._most_waiting, self._most_seconds = most_waiting, seconds
        self._mean_seconds = 0.0  # of one request, a moving average

    async def read(self, contents: list[bytes], channels: int, prepare: Prepare, inputs: list[Input]) -> None:
        """Append the input of each image; one of the two errors above, or a timeout, may come in between."""
        self.waiting += 1
        try:
            async with self._lock:
                process, clock = await self._start(), asyncio.get_running_loop().time
                started = clock()
                try:
                    job = self._ask(process, contents, channels, prepare, inputs)
                    await asyncio.wait_for(job, self._most_seconds)
                except TooManyPixelsError:
                    raise
                except BaseException:  # the next request must not get the rest of this one's reply
                    self._end()
                    raise
                finally:
                    self._mean_seconds += 0.2 * (clock() - started - self._mean_seconds)
        finally:
            self.waiting -= 1

    def check_place(self, deadline: float) -> None:
        """Refuse with 503 what would wait for too many others, or for a good part of its time."""
        left, expected = deadline - asyncio.get_running_loop().time(), self.waiting * self._mean_seconds
        if self.waiting >= self._most_waiting or expected > PATIENCE * left:
            raise busy("The server has as many images to decode as it can take; try again.", expected)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the process; at the end, end it."""
        self._lock = asyncio.Lock()  # of this event loop
        await self._start()
        try:
            yield
        finally:
            if (process := self._end()) is not None:
                await process.wait()

    async def _start(self) -> Process:
        """Return the process, a new one if the last one has ended, when it has loaded what it needs."""
        if self.process is None or self.process.returncode is not None:
            few_threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=2**20, env={**os.environ, **few_threads}
            )
            try:
                await _read_line(self.process)
            except BaseException:
                self._end()
                raise
        return self.process

    def _end(self) -> Process | None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return process

    async def _ask(
        self, process: Process, contents: list[bytes], channels: int, prepare: Prepare, inputs: list[Input]
    ) -> None:
        assert process.stdin is not None
        job = {**self._limits, "channels": channels, "lengths": [len(each) for each in contents]}
        with contextlib.suppress(OSError):  # of a process that has ended, as its reply shows
            for part in (json.dumps(job).encode() + b"\n", *contents):
                process.stdin.write(part)
            await process.stdin.drain()
        if (pixels := await _read_line(process)) > self._limits["most_pixels"]:
            raise TooManyPixelsError(pixels)
        for _ in contents:
            row = await _read_line(process)
            inputs.append(Problem(*row) if len(row) > 3 else await prepare(await _read_array(process, row)))


async def _read_line(process: Process) -> Any:
    assert process.stdout is not None
    try:
        return json.loads(await process.stdout.readline())
    except (OSError, ValueError) as error:
        raise DecoderEndedError from error


async def _read_array(process: Process, shape: list[int]) -> np.ndarray:
    assert process.stdout is not None
    array, place = np.empty(shape, np.uint8), 0
    view = array.data.cast("B")
    while place < len(view):
        chunk = await process.stdout.read(min(2**20, len(view) - place))
        if not chunk:
            raise DecoderEndedError
        view[place : place + len(chunk)] = chunk
        place += len(chunk)
    return array


class Decoders:
    """From the bytes of a request's images to inputs of the model."""

    def __init__(self, settings: Settings) -> None:
        self._timeout, most_large = settings.timeout, min(MOST_LARGE, max(1, settings.queue // 4))
        self.most_pixels = 4 * settings.max_pixels  # in one request
        self.small = Decoder(settings, settings.queue, SMALL_PIXELS, SMALL_SECONDS)
        self.large = Decoder(settings, most_large, self.most_pixels)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.small.running(), self.large.running():
            yield

    async def read(self, contents: list[bytes], channels: int, prepare: Prepare, deadline: float) -> list[Input]:
        """Return an input or a problem for each image; 503 if there are none before the deadline."""
        try:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            return await asyncio.wait_for(self._read(contents, channels, prepare, deadline), left)
        except asyncio.TimeoutError:
            raise busy(f"The images were not decoded within {self._timeout:g} seconds; try again.") from None

    async def _read(self, contents: list[bytes], channels: int, prepare: Prepare, deadline: float) -> list[Input]:
        inputs: list[Input] = []
        if sum(map(len, contents)) <= SMALL_BYTES:
            self.small.check_place(deadline)
            with contextlib.suppress(DecoderEndedError, TooManyPixelsError, asyncio.TimeoutError):
                await self.small.read(contents, channels, prepare, inputs)
        while len(inputs) < len(contents):
            self.large.check_place(deadline)
            try:
                await self.large.read(contents[len(inputs) :], channels, prepare, inputs)
            except DecoderEndedError:
                inputs.append(Problem(422, "damaged-image", "The image cannot be decoded."))
            except TooManyPixelsError as error:
                message = f"pixels: got {error.args[0]:,}; accepted: at most {self.most_pixels:,} in one request."
                raise Problem(413, "too-many-pixels", message) from None
        return inputs
