"""One thread owns the model and takes waiting images together.

    request ──► read ──► admit ──► decode ──► queue ──► the model's thread: one batch ──► answers, in the order of the request

A batch starts when it is full, when nothing more is on its way, or when the first image has waited for ``wait`` seconds.
A lone request therefore never waits, and under load batches grow by themselves. The queue is bounded: what does not fit, or
would be late, is refused at once; what was taken is answered. All but the model itself happens on the event loop, so nothing
needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import PATIENCE, Settings

log = logging.getLogger("abnn.serve")
WORTH_SHARING = 4
Outcome = dict[str, Any] | Problem


class Waiting(NamedTuple):
    """One image in the queue."""

    x: Any
    deadline: float
    future: asyncio.Future[Outcome]


class Batcher:
    """The queue in front of the model. ``answer`` turns inputs [B, ...] into B answers; it runs in one thread alone."""

    def __init__(
        self,
        answer: Callable[[Any], Sequence[dict[str, Any]]],
        settings: Settings,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._answer, self._settings, self._on_batch = answer, settings, on_batch
        self._queue: deque[Waiting] = deque()
        self._news = asyncio.Event()
        self._submitted = 0  # requests under way whose images are in the queue; the others are on their way to it
        self._seconds_per_image = 0.01  # a moving average
        self.ready = False
        self.under_way = 0
        self.failures = 0

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def running(self, warm_up: Any) -> AsyncIterator[None]:
        """Pass ``warm_up`` through the model, then take requests; at the end, answer everything that was taken."""
        if self.ready:
            raise RuntimeError("This application is running already; make another one with create_app().")
        loop, self._news = asyncio.get_running_loop(), asyncio.Event()
        with ThreadPoolExecutor(1, "abnn-model") as thread:
            await loop.run_in_executor(thread, self._compute, list(warm_up))
            worker = asyncio.create_task(self._work(thread))
            self.ready = True
            try:
                yield
            finally:
                self.ready = False
                self._news.set()
                await worker

    # -- the side of the requests -------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Refuse with 503 if no request could be admitted now."""
        if not self.ready:
            raise busy("The server is starting or stopping.")
        wait, settings = self._expected_wait, self._settings
        if self.under_way >= settings.queue or wait > PATIENCE * settings.timeout:
            raise busy("The server has as many requests as it can take; try again.", wait)

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Give one request its place, from when its body has come until it is answered; 503 if there is none."""
        self.check_place()
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1
            self._news.set()

    async def submit(self, inputs: Sequence[Any], deadline: float) -> list[Outcome]:
        """Return the answers to all images of a request, or 503: all are taken, or none."""
        loop = asyncio.get_running_loop()
        if not self.ready:
            raise busy("The server is stopping.")
        if len(self._queue) + len(inputs) > self._settings.queue:
            raise busy("The queue is full; try again.", self._expected_wait)
        waiting = [Waiting(x, deadline, loop.create_future()) for x in inputs]
        self._queue.extend(waiting)
        self._submitted += 1
        self._news.set()
        try:
            every = asyncio.gather(*(each.future for each in waiting))
            return list(await asyncio.wait_for(every, max(0.0, deadline - loop.time())))
        except asyncio.TimeoutError:
            message = f"There was no answer within {self._settings.timeout:g} seconds; try again."
            raise busy(message, self._expected_wait) from None
        finally:
            self._submitted -= 1

    @property
    def _expected_wait(self) -> float:
        """Seconds until the queue is likely to be empty."""
        return len(self._queue) * self._seconds_per_image

    # -- the side of the model ----------------------------------------------------------------------------------------

    async def _work(self, thread: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        while batch := await self._next_batch():
            started = loop.time()
            batch = [each for each in batch if not each.future.done() and each.deadline >= started]
            if not batch:
                continue  # nobody waits any more
            outcomes: Sequence[Outcome]
            try:
                outcomes = await loop.run_in_executor(thread, self._compute, [each.x for each in batch])
            except Exception:
                self.failures += 1
                log.exception("the model failed on a batch of %d", len(batch))
                problem = Problem(500, "model", "The model failed on this input; the server's log says why.")
                outcomes = [problem] * len(batch)
            for each, outcome in zip(batch, outcomes):
                if not each.future.done():
                    each.future.set_result(outcome)
            seconds = loop.time() - started
            self._seconds_per_image += 0.1 * (seconds / len(batch) - self._seconds_per_image)
            self._on_batch(len(batch), seconds)

    async def _next_batch(self) -> list[Waiting]:
        """Return the next images to take, or none when the worker should end."""
        loop, most = asyncio.get_running_loop(), self._settings.max_batch
        while self.ready and not self._queue:
            self._news.clear()
            await self._news.wait()
        until = loop.time() + self._settings.wait
        while self.ready and self.under_way > self._submitted and len(self._queue) < most and loop.time() < until:
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), until - loop.time())
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _compute(self, inputs: list[Any]) -> Sequence[dict[str, Any]]:
        """Let the model answer, in its own thread.

        A few images are too little work to share: one thread is faster, and leaves the other cores to the requests.
        """
        if isinstance(inputs[0], np.ndarray):  # of an exported model, whose threads are chosen when it is opened
            return self._answer(np.stack(inputs))
        import torch

        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads if len(inputs) >= WORTH_SHARING else 1)
        return self._answer(torch.stack(inputs))
