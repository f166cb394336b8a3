"""One thread owns the model and takes waiting images together.

    request ──► read ──► admit ──► decode ──► queue ──► the model's thread: one batch ──► answers, in the order of the request

A batch starts when it is full, when nothing more is on its way, or when the first image has waited for ``wait`` seconds.
A lone request therefore never waits, and under load batches grow by themselves. The queue is bounded: what does not fit
is refused at once, what was taken is answered. All but the model itself happens on the event loop, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import Settings

log = logging.getLogger("abnn.serve")
WORTH_SHARING = 4
Outcome = dict[str, Any] | Problem


@dataclass(eq=False)
class Ticket:
    """The place of one admitted request. It is on its way until its images are in the queue, or never will be."""

    deadline: float
    on_its_way: bool = True


@dataclass(eq=False)
class Waiting:
    """One image in the queue."""

    x: Tensor
    deadline: float
    future: asyncio.Future[Outcome]


class Batcher:
    """The queue in front of the model. ``answer`` turns inputs [B, ...] into B answers; it runs in one thread alone."""

    def __init__(
        self,
        answer: Callable[[Tensor], Sequence[dict[str, Any]]],
        settings: Settings,
        on_batch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._answer, self._settings, self._on_batch = answer, settings, on_batch
        self._queue: deque[Waiting] = deque()
        self._changed = asyncio.Event()
        self._arriving = 0  # requests that were admitted and have not put their images into the queue yet
        self._seconds_per_image = 0.01  # a moving average, for Retry-After
        self.ready = False
        self.under_way = 0
        self.failures = 0

    @property
    def waiting(self) -> int:
        """Images in the queue."""
        return len(self._queue)

    @contextlib.asynccontextmanager
    async def running(self, warm_up: Tensor) -> AsyncIterator[None]:
        """Pass ``warm_up`` through the model, then take requests; at the end, answer everything that was taken."""
        if self.ready:
            raise RuntimeError("This application is running already; make another one with create_app().")
        loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        with ThreadPoolExecutor(1, "abnn-model") as thread:
            await loop.run_in_executor(thread, self._compute, list(warm_up))
            worker = asyncio.create_task(self._work(thread))
            self.ready = True
            try:
                yield
            finally:
                self.ready = False
                self._changed.set()
                await worker

    # -- the side of the requests -------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float:
        """That of a request which begins now, on the clock of the event loop."""
        return asyncio.get_running_loop().time() + self._settings.timeout

    def check_place(self) -> None:
        """Refuse with 503 if no request could be admitted now."""
        if not self.ready:
            raise busy("The server is starting or stopping.", 1)
        if self.under_way >= self._settings.queue:
            raise busy("The server has as many requests as it can take; try again.", self.retry_after())

    @contextlib.contextmanager
    def admit(self, deadline: float | None = None) -> Iterator[Ticket]:
        """Give one request its place, from when its body has come until it is answered; 503 if there is none."""
        self.check_place()
        ticket = Ticket(self.deadline if deadline is None else deadline)
        self.under_way += 1
        self._arriving += 1
        try:
            yield ticket
        finally:
            self._arrive(ticket)
            self.under_way -= 1

    def retry_after(self) -> int:
        """Return whole seconds until the queue is likely to be empty."""
        return max(1, math.ceil(len(self._queue) * self._seconds_per_image))

    async def submit(self, inputs: Sequence[Tensor], ticket: Ticket) -> list[Outcome]:
        """Return the answers to all images of a request, or 503: all are taken, or none."""
        if not self.ready:
            raise busy("The server is stopping.", 1)
        if len(self._queue) + len(inputs) > self._settings.queue:
            raise busy("The queue is full; try again.", self.retry_after())
        loop = asyncio.get_running_loop()
        waiting = [Waiting(x, ticket.deadline, loop.create_future()) for x in inputs]
        self._queue.extend(waiting)
        self._arrive(ticket)
        try:
            every = asyncio.gather(*(each.future for each in waiting))
            return list(await asyncio.wait_for(every, max(0.0, ticket.deadline - loop.time())))
        except asyncio.TimeoutError:
            message = f"There was no answer within {self._settings.timeout:g} seconds; try again."
            raise busy(message, self.retry_after()) from None

    def _arrive(self, ticket: Ticket) -> None:
        self._arriving -= ticket.on_its_way
        ticket.on_its_way = False
        self._changed.set()

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
            self._changed.clear()
            await self._changed.wait()
        until = loop.time() + self._settings.wait
        while self._arriving and self.ready and len(self._queue) < most and (left := until - loop.time()) > 0:
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left)
        return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _compute(self, inputs: list[Tensor]) -> Sequence[dict[str, Any]]:
        """Let the model answer, in its own thread.

        A few images are too little work to share: one thread is faster, and leaves the other cores to the requests.
        """
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads if len(inputs) >= WORTH_SHARING else 1)
        return self._answer(torch.stack(inputs))
