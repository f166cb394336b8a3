"""One thread owns the model and takes waiting images together.

    request ──► admit ──► read, decode ──► queue ──► worker thread: one batch ──► answers, in the order of the request

A batch starts when it is full, when nothing more is on its way, or when the first image has waited for ``wait`` seconds.
A lone request therefore never waits, and under load batches grow by themselves. The queue is bounded: what does not fit
is refused at once, what was taken is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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
class Waiting:
    """One image in the queue."""

    x: Tensor
    deadline: float
    future: asyncio.Future[Outcome]
    loop: asyncio.AbstractEventLoop

    def settle(self, outcome: Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class Batcher:
    """The queue and its worker. ``answer`` turns inputs [B, ...] into B answers; it runs in the worker thread alone."""

    def __init__(
        self,
        answer: Callable[[Tensor], Sequence[dict[str, Any]]],
        settings: Settings,
        watch: Callable[[int, float], None] = lambda size, seconds: None,
    ) -> None:
        self._answer, self._settings, self._watch = answer, settings, watch
        self._queue: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._arriving = 0  # requests that were admitted and have not put their images into the queue yet
        self._seconds_per_image = 0.01  # a moving average, for Retry-After
        self.under_way = 0
        self.failures = 0

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self, warm_up: Tensor) -> None:
        """Start the worker and pass ``warm_up`` through the model; returns when it can answer."""
        self._stopping = False
        done = threading.Event()
        failed: list[Exception] = []

        def work() -> None:
            try:
                self._use_threads(len(warm_up))
                self._answer(warm_up)
            except Exception as error:  # noqa: BLE001 - raised in the thread that waits
                failed.append(error)
                return
            finally:
                done.set()
            self._work()

        self._thread = threading.Thread(target=work, name="abnn-model", daemon=True)
        self._thread.start()
        done.wait()
        if failed:
            self._thread.join()  # it has a moment to live still, in which requests would be taken
            raise failed[0]

    def stop(self) -> None:
        """Take nothing more, answer everything that was taken, end the worker."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    @property
    def ready(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._stopping

    def __len__(self) -> int:
        """Images that wait."""
        return len(self._queue)

    # -- the side of the requests -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def admit(self) -> Iterator[Ticket]:
        """A place for one request, from before its body is read until it is answered; 503 if there is none."""
        if not self.ready:
            raise busy("The server is starting or stopping.", 1)
        if self.under_way >= self._settings.queue:
            raise busy("The server has as many requests as it can take; try again.", self.retry_after())
        self.under_way += 1
        ticket = Ticket(self, time.monotonic() + self._settings.timeout)
        self._arriving += 1
        try:
            yield ticket
        finally:
            ticket.arrived()
            self.under_way -= 1

    def retry_after(self) -> int:
        """Whole seconds until the queue is likely to be empty."""
        return max(1, math.ceil(len(self._queue) * self._seconds_per_image))

    async def submit(self, inputs: Sequence[Tensor], ticket: Ticket) -> list[Outcome]:
        loop = asyncio.get_running_loop()
        waiting = [Waiting(x, ticket.deadline, loop.create_future(), loop) for x in inputs]
        with self._changed:
            if self._stopping:
                raise busy("The server is stopping.", 1)
            if len(self._queue) + len(waiting) > self._settings.queue:
                raise busy("The queue is full; try again.", self.retry_after())
            self._queue.extend(waiting)
            ticket.arrived(notify=False)
            self._changed.notify()
        try:
            every = asyncio.gather(*(each.future for each in waiting))
            return list(await asyncio.wait_for(every, max(0.0, ticket.deadline - time.monotonic())))
        except asyncio.TimeoutError:
            message = f"There was no answer within {self._settings.timeout:g} seconds; try again."
            raise busy(message, self.retry_after()) from None

    # -- the side of the model ----------------------------------------------------------------------------------------

    def _work(self) -> None:
        while batch := self._next_batch():
            started = time.monotonic()
            for each in [each for each in batch if each.future.done() or each.deadline < started]:
                batch.remove(each)  # nobody waits for it any more
            if batch:
                self._deliver(batch, self._outcomes(batch))
                spent = time.monotonic() - started
                self._seconds_per_image += 0.1 * (spent / len(batch) - self._seconds_per_image)
                self._watch(len(batch), spent)

    def _next_batch(self) -> list[Waiting]:
        """The next images to take, or none when the worker should end."""
        most = self._settings.max_batch
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._queue or self._stopping)
                until = time.monotonic() + self._settings.wait
                while self._arriving and not self._stopping and len(self._queue) < most:
                    if (left := until - time.monotonic()) <= 0:
                        break
                    self._changed.wait(left)
                if self._queue or self._stopping:
                    return [self._queue.popleft() for _ in range(min(most, len(self._queue)))]

    def _outcomes(self, batch: list[Waiting]) -> Sequence[Outcome]:
        try:
            self._use_threads(len(batch))
            return self._answer(torch.stack([each.x for each in batch]))
        except Exception:
            self.failures += 1
            log.exception("the model failed on a batch of %d", len(batch))
            return [Problem(500, "model", "The model failed on this input; the server's log says why.")] * len(batch)

    def _use_threads(self, size: int) -> None:
        """A few images are too little work to share: one thread is faster, and leaves the other cores to the requests."""
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads if size >= WORTH_SHARING else 1)

    def _deliver(self, batch: list[Waiting], outcomes: Sequence[Outcome]) -> None:
        """One message to the event loop for the whole batch."""

        def settle(pairs: list[tuple[Waiting, Outcome]]) -> None:
            for each, outcome in pairs:
                each.settle(outcome)

        for loop in {each.loop for each in batch}:
            pairs = [(each, outcome) for each, outcome in zip(batch, outcomes) if each.loop is loop]
            with contextlib.suppress(RuntimeError):  # the loop was closed: its requests are gone
                loop.call_soon_threadsafe(settle, pairs)


class Ticket:
    """The place of one admitted request."""

    def __init__(self, batcher: Batcher, deadline: float) -> None:
        self._batcher, self.deadline, self._counted = batcher, deadline, True

    def arrived(self, notify: bool = True) -> None:
        """The request is no longer on its way: its images are in the queue, or never will be."""
        if self._counted:
            self._counted = False
            self._batcher._arriving -= 1
            if notify:
                with self._batcher._changed:
                    self._batcher._changed.notify()
