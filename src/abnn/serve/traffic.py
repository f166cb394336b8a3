"""What is known of the traffic: counters and gauges for Prometheus, and whether it is still like calibration.

The monitor of :mod:`abnn.triage.drift` takes the scores of all answers on the event loop, in the order of the answers, so
nothing needs a lock. With a file the state outlives the process: it is written at the start, once a second while images
come, and at the end, always whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from abnn.errors import InputError, NotFittedError, explain
from abnn.files import check_writable, seal, write_json
from abnn.serve.schema import Verdict
from abnn.triage.drift import resume_monitor

log = logging.getLogger("abnn.serve")
NOT_PROMISED = "What is promised about verdicts does not hold for such images."
WRITE_EVERY = 1.0  # seconds; so much traffic is forgotten when the process is killed
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUEUE_GAUGES = {
    "waiting": ("abnn_queue_length", "Images that wait for the model."),
    "under_way": ("abnn_requests_under_way", "Requests that were taken and not answered yet."),
    "failures": ("abnn_model_failures", "Batches on which the model failed."),
}
DRIFT_GAUGES = {
    "alarmed": ("abnn_drift_alarm", "1 once drift was noticed."),
    "p_value": ("abnn_drift_p_value", 'Of "nothing drifts", valid however often one looks.'),
    "seen": ("abnn_drift_images", "Images that were looked at for drift."),
    "alarm": ("abnn_drift_false_alarm_rate", "The probability of ever an alarm if nothing drifts is at most this."),
}
"""Names and descriptions, by the attributes of the batcher and of the monitor."""


class Measures:
    """What Prometheus may ask for. Labels take a fixed set of values, so that nobody can make them grow."""

    def __init__(self) -> None:
        self.registry = own = CollectorRegistry()  # so that several applications can live in one process
        self.requests = Counter("abnn_requests", "Requests by route and status.", ["route", "status"], registry=own)
        self.verdicts = Counter("abnn_verdicts", "Images by verdict.", ["verdict"], registry=own)
        self.batch_size = Histogram("abnn_batch_size", "Images in one batch of the model.", registry=own, buckets=SIZES)
        timer: Any = partial(Histogram, registry=own, buckets=SECONDS)
        self.batch_seconds = timer("abnn_batch_seconds", "One batch of the model.")
        self.seconds = timer("abnn_request_seconds", "From a request to its answer.", ["route"])
        for verdict in get_args(Verdict):
            self.verdicts.labels(verdict)

    def count_batch(self, size: int, seconds: float) -> None:
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def follow(self, owner: Any, gauges: dict[str, tuple[str, str]]) -> None:
        """Read gauges off an object's attributes whenever Prometheus asks."""
        for attribute, (name, text) in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(lambda a=attribute: getattr(owner, a))  # type: ignore

    def response(self) -> Response:
        """Return what GET /metrics says."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")


class Traffic:
    """Watches the scores of one model's answers; a model that keeps no calibration scores is not watched."""

    def __init__(self, triage: Any, path: Path | None = None) -> None:
        self.path, self._saved, self.monitor = path, -1, None
        self._writing = threading.Lock()  # a thread goes on writing when whoever waits for it is cancelled
        try:
            self.monitor = triage.monitor()
        except NotFittedError as error:
            if path is not None:
                raise InputError(explain("--drift", error, "a model that keeps its calibration scores")) from None
        if self.monitor is not None and path is not None:
            check_writable("--drift", path)
            self.monitor = resume_monitor(self.monitor, path)
            self._write(self.monitor.to_dict())

    async def reset(self) -> dict[str, Any]:
        """Forget all images and an alarm, in the file as well, and return the new state."""
        if self.monitor is not None:
            self.monitor.reset()
            self._saved = -1
            await self.save()
        return self.state()

    def update(self, scores: list[float]) -> None:
        if self.monitor is not None and scores:
            already = self.monitor.alarmed
            if self.monitor.update(scores) and not already:
                log.warning("drift: %s", self.state()["message"])

    def state(self) -> dict[str, Any]:
        """Return what is known, in the form of :class:`abnn.serve.schema.Drift`."""
        monitor = self.monitor
        if monitor is None:
            message = "Not watched: the model keeps no calibration scores to compare with."
            return {"watching": False, "alarm": False, "images": 0, "message": message}
        number = monitor.alarmed_at if monitor.alarmed else monitor.seen
        count = "1 image" if number == 1 else f"{number:,} images"
        message = f"No sign of drift in {count}."
        if monitor.alarmed:
            message = f"Scores are {monitor.direction} than in calibration, noticed after {count}. {NOT_PROMISED}"
        return {
            "watching": True,
            "alarm": monitor.alarmed,
            "false_alarm_rate": monitor.alarm,
            "images": monitor.seen,
            "alarm_after": monitor.alarmed_at,
            "p_value": monitor.p_value,
            "direction": monitor.direction if monitor.alarmed else None,
            "message": message,
        }

    @contextlib.asynccontextmanager
    async def keeping(self) -> AsyncIterator[None]:
        """Write the file from time to time, and once more when the server stops."""

        async def write() -> None:
            while True:
                await asyncio.sleep(WRITE_EVERY)
                await self.save()

        writing = asyncio.create_task(write())
        try:
            yield
        finally:
            writing.cancel()
            await asyncio.wait([writing])
            await self.save()

    async def save(self) -> None:
        """Write the file if something was added. A full disk must not stop the answers: it is said in the log."""
        if self.path is None or self.monitor is None or self.monitor.seen == self._saved:
            return
        try:
            await asyncio.to_thread(self._write, self.monitor.to_dict())
        except OSError as error:
            log.error("drift: %s cannot be written (%s)", self.path, error)

    def _write(self, state: dict[str, Any]) -> None:
        assert self.path is not None
        with self._writing:
            write_json(self.path, seal(state))
            self._saved = state["seen"]
