"""Images are unpacked in processes of their own, which can be ended at any moment and have a limit of memory.

    small   at most SMALL_BYTES and SMALL_PIXELS in one request: any decoder, all images of the request in one job
    large   all others: image by image, never in the last decoder, and only MOST_LARGE requests may wait for one

So a small request never waits for a large one. What a small request is told by Pillow's look at the headers; a small job
that takes too long, or that ends its decoder, goes the way of the large ones. Waiting and unpacking count towards the
request's deadline: when it has passed, the decoder is ended and another one is started.
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
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import Tensor

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import Settings

SMALL_BYTES, SMALL_PIXELS = 64 * 2**10, 1_000_000
MOST_LARGE = 16
SMALL_SHARE = 0.25  # of the timeout, that a small job may take
BYTES_PER_PIXEL, SPARE_BYTES = 32, 128 * 2**20
"""Memory of a decoder, beyond what it has at its start: for the largest image that is accepted, and for copies."""
Input = Tensor | Problem
Prepare = Callable[[np.ndarray], Input]


class DecoderEndedError(Exception):
    """The process has ended before its reply: killed, out of memory, or crashed by the image."""


class Decoder:
    """One process; see :mod:`abnn.serve.worker`. All but ``end`` blocks, and is called by one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        memory = BYTES_PER_PIXEL * settings.max_pixels + 3 * settings.max_bytes + SPARE_BYTES
        program, path = str(Path(__file__).with_name("worker.py")), json.dumps(sys.path)
        self._command = [sys.executable, "-I", program, path, str(memory)]
        self._max_pixels = settings.max_pixels
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False
        self._lock, self._cancelled = threading.Lock(), False

    def begin(self) -> None:
        """A new job: what ended the last one does not concern it."""
        self._cancelled = False

    def ask(self, contents: Sequence[bytes], channels: int, unpack_up_to: float) -> tuple[int, list[Any] | None]:
        """Return how many pixels the images have and, if these are not too many, an array or a problem for each."""
        job = {"channels": channels, "max_pixels": self._max_pixels, "lengths": [len(each) for each in contents]}
        most = self._max_pixels * len(contents) if math.isinf(unpack_up_to) else int(unpack_up_to)
        source, sink = self._pipes()
        try:
            sink.write(json.dumps({**job, "unpack_up_to": most}).encode() + b"\n")
            sink.writelines(contents)
            sink.flush()
            reply = json.loads(source.readline())
            rows = reply.get("rows")
            return reply["pixels"], None if rows is None else [_outcome(row, source) for row in rows]
        except (OSError, ValueError) as error:
            self.end()
            raise DecoderEndedError from error

    def end(self) -> None:
        """End the job and its process now; whoever waits for its reply gets an error. The next job starts another process.

        A job whose process is about to start is ended as well: it would wait for ever for a reply that nobody reads.
        """
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._ended = True
                self._process.kill()

    def close(self) -> None:
        """Wait until a process that was ended is gone."""
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
            self._process.wait()
            self._process, self._ended = None, False

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        with self._lock:
            if self._cancelled:
                raise DecoderEndedError
            if self._ended:
                self.close()
            if self._process is None:
                self._process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                )
            process = self._process
        assert process.stdout is not None and process.stdin is not None
        return process.stdout, process.stdin


def _outcome(row: dict[str, Any], source: IO[bytes]) -> np.ndarray | Problem:
    if "problem" in row:
        return Problem(*row["problem"])
    array = np.empty(row["shape"], np.uint8)
    if source.readinto(array.data.cast("B")) != array.size:  # type: ignore[attr-defined]
        raise OSError("the reply is too short")
    return array


class Decoders:
    """From the bytes of a request's images to inputs of the model."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._idle: list[Decoder] = []
        self._threads: ThreadPoolExecutor | None = None
        self.large_requests = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start the processes; at the end, let them end."""
        number, loop = self._settings.decoders, asyncio.get_running_loop()
        self._any, self._large = asyncio.Semaphore(number), asyncio.Semaphore(number - 1)
        every = [Decoder(self._settings) for _ in range(number)]
        self._idle = list(every)
        with ThreadPoolExecutor(number, "abnn-decode") as self._threads:
            try:
                starts = (loop.run_in_executor(self._threads, each.ask, [], 1, 0) for each in every)
                await asyncio.gather(*starts)
                yield
            finally:
                for decoder in every:
                    decoder.end()
                for decoder in every:
                    await loop.run_in_executor(self._threads, decoder.close)

    async def read(self, contents: list[bytes], channels: int, prepare: Prepare, deadline: float) -> list[Input]:
        """Return an input or a problem for each image; 503 if there are none before the deadline."""
        try:
            left = max(0.0, deadline - asyncio.get_running_loop().time())
            return await asyncio.wait_for(self._read(contents, channels, prepare), left)
        except asyncio.TimeoutError:
            message = f"The images were not decoded within {self._settings.timeout:g} seconds; try again."
            raise busy(message, 1) from None

    async def _read(self, contents: list[bytes], channels: int, prepare: Prepare) -> list[Input]:
        if sum(map(len, contents)) <= SMALL_BYTES:
            with contextlib.suppress(DecoderEndedError):
                seconds = SMALL_SHARE * self._settings.timeout
                _, inputs = await self._ask(contents, channels, prepare, SMALL_PIXELS, seconds)
                if inputs is not None:
                    return inputs
        if self.large_requests >= MOST_LARGE:
            raise busy("The server has as many large images as it can take; try again.", 1)
        self.large_requests += 1
        try:
            return await self._read_large(contents, channels, prepare)
        finally:
            self.large_requests -= 1

    async def _read_large(self, contents: list[bytes], channels: int, prepare: Prepare) -> list[Input]:
        most, inputs = self._settings.request_pixels, []
        if len(contents) > 1:
            async with self._large:
                pixels, _ = await self._ask(contents, channels, prepare, -1)
            if pixels > most:
                message = f"pixels: got {pixels:,}; accepted: at most {most:,} in all images of one request."
                raise Problem(413, "too-many-pixels", message)
        for content in contents:
            async with self._large:
                try:
                    _, one = await self._ask([content], channels, prepare, math.inf)
                    assert one is not None
                    inputs += one
                except DecoderEndedError:
                    inputs.append(Problem(422, "damaged-image", "The image cannot be decoded."))
        return inputs

    async def _ask(
        self, contents: list[bytes], channels: int, prepare: Prepare, unpack_up_to: float, seconds: float | None = None
    ) -> tuple[int, list[Input] | None]:
        """Give one job to one decoder. Its place is free again when the job's thread has ended, not before."""
        await self._any.acquire()
        decoder = self._idle.pop()
        decoder.begin()

        def work() -> tuple[int, list[Input] | None]:
            pixels, outcomes = decoder.ask(contents, channels, unpack_up_to)
            if outcomes is None:
                return pixels, None
            return pixels, [each if isinstance(each, Problem) else prepare(each) for each in outcomes]

        def give_back(job: asyncio.Future[Any]) -> None:
            self._idle.append(decoder)
            self._any.release()
            if not job.cancelled():
                job.exception()  # asked for, so that nobody warns of it

        job = asyncio.get_running_loop().run_in_executor(self._threads, work)
        job.add_done_callback(give_back)
        try:
            done, _ = await asyncio.wait([job], timeout=seconds)
        except asyncio.CancelledError:
            decoder.end()
            raise
        if not done:
            decoder.end()
        return await asyncio.shield(job)
