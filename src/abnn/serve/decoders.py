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
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import PATIENCE, Settings

SMALL_BYTES, SMALL_PIXELS, SMALL_SECONDS = 64 * 2**10, 1_000_000, 0.5
MOST_LARGE = 16  # requests that wait for the decoder of large images, and at most a quarter of all
BYTES_PER_PIXEL, SPARE_BYTES = 32, 128 * 2**20
"""Memory of a decoder, beyond what it has at its start: for the largest image that is accepted, and for copies."""
Input = Any  # a tensor or an array, as the model takes it, or a Problem
Prepare = Callable[[np.ndarray], Input]


class DecoderEndedError(Exception):
    """The process has ended before its reply: out of memory, or crashed by the image."""


class TooManyPixelsError(Exception):
    """The images of one request have more pixels than this decoder may unpack; the number is the argument."""


class Job(NamedTuple):
    """The images of one request. ``inputs`` grows while they are read; the deadline is on the clock of the event loop."""

    contents: list[bytes]
    channels: int
    prepare: Prepare
    deadline: float
    inputs: list[Input]


class Decoder:
    """One process, see :mod:`abnn.serve.worker`, and one thread that gives it the waiting jobs, one after another.

    seconds  of one job, after which its process ends itself; 0: only the deadline counts
    """

    def __init__(self, settings: Settings, most_waiting: int, most_pixels: int, seconds: float = 0.0) -> None:
        memory = BYTES_PER_PIXEL * settings.max_pixels + 3 * settings.max_bytes + SPARE_BYTES
        program, path = str(Path(__file__).with_name("worker.py")), json.dumps(sys.path)
        self.command = [sys.executable, "-I", program, path, str(memory)]
        self.process: subprocess.Popen[bytes] | None = None
        self.waiting = 0
        self.limits = {"max_pixels": settings.max_pixels, "most_pixels": most_pixels, "seconds": seconds}
        self._most_waiting, self._mean_seconds = most_waiting, 0.0  # of one job, a moving average
        self._lock = threading.Lock()
        self._current: Job | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the process; at the end, end it."""
        with ThreadPoolExecutor(1, "abnn-decode") as self._thread:
            try:
                await self.read(Job([], 1, lambda array: array, math.inf, []))
                self._mean_seconds = 0.0  # a start says nothing about images
                yield
            finally:
                self._close()

    async def read(self, job: Job) -> None:
        """Append the inputs of all images to the job's; one of the two errors above may come in between.

        503 at once if too many others wait, or if they are likely to take a good part of the job's time.
        """
        loop, wait = asyncio.get_running_loop(), self.waiting * self._mean_seconds
        if self.waiting >= self._most_waiting or wait > PATIENCE * (job.deadline - loop.time()):
            raise busy("The server has as many images to decode as it can take; try again.", wait)
        self.waiting += 1
        try:
            await loop.run_in_executor(self._thread, self._work, job)
        except asyncio.CancelledError:  # its time is over; if it has not begun yet, it never will
            with self._lock:
                if self._current is job:
                    self._current, process = None, self.process
                    if process is not None:
                        process.kill()  # the thread closes it, when it gets no reply
            raise
        finally:
            self.waiting -= 1

    # -- in the thread ------------------------------------------------------------------------------------------------

    def _work(self, job: Job) -> None:
        started, self._current = time.monotonic(), job
        try:
            self._ask(self._start(job), job)
        except TooManyPixelsError:
            raise
        except (OSError, ValueError) as error:
            self._close()
            raise DecoderEndedError from error
        except BaseException:
            self._close()  # the next job must not get the rest of this one's reply
            raise
        finally:
            self._current = None
            self._mean_seconds += 0.2 * (time.monotonic() - started - self._mean_seconds)

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        """Return the process, a new one if the last one has ended."""
        with self._lock:
            if self._current is not job:
                raise DecoderEndedError  # its time came before its process; nobody would read the reply
            if self.process is not None and self.process.poll() is not None:
                self._close()
            if self.process is None:
                few_threads = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
                self.process = subprocess.Popen(self.command, env=few_threads, **pipes)  # type: ignore[call-overload]
            return self.process

    def _close(self) -> None:
        """End the process, and wait until it is gone."""
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            process.wait()

    def _ask(self, process: subprocess.Popen[bytes], job: Job) -> None:
        source, sink = process.stdout, process.stdin
        assert source is not None and sink is not None
        description = {**self.limits, "channels": job.channels, "lengths": [len(each) for each in job.contents]}
        sink.writelines([json.dumps(description).encode() + b"\n", *job.contents])
        sink.flush()
        if (pixels := json.loads(source.readline())) > self.limits["most_pixels"]:
            raise TooManyPixelsError(pixels)
        for _ in job.contents:
            row = json.loads(source.readline())
            if isinstance(row[-1], str):
                job.inputs.append(Problem(*row))
                continue
            array = np.empty(row, np.uint8)
            if source.readinto(array.data.cast("B")) != array.size:  # type: ignore[attr-defined]
                raise OSError("the reply is too short")
            job.inputs.append(job.prepare(array))


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
            return await asyncio.wait_for(self._read(Job(contents, channels, prepare, deadline, [])), left)
        except asyncio.TimeoutError:
            raise busy(f"The images were not decoded within {self._timeout:g} seconds; try again.") from None

    async def _read(self, job: Job) -> list[Input]:
        if sum(map(len, job.contents)) <= SMALL_BYTES:
            with contextlib.suppress(DecoderEndedError, TooManyPixelsError):
                await self.small.read(job)
        while left := len(job.contents) - len(job.inputs):
            try:
                await self.large.read(job._replace(contents=job.contents[-left:]))
            except DecoderEndedError:
                job.inputs.append(Problem(422, "damaged-image", "The image cannot be decoded."))
            except TooManyPixelsError as error:
                message = f"pixels: got {error.args[0]:,}; accepted: at most {self.most_pixels:,} in one request."
                raise Problem(413, "too-many-pixels", message) from None
        return job.inputs
