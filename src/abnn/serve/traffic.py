"""Is the traffic still like calibration? The monitor of :mod:`abnn.triage.drift`, over the scores of all answers.

Scores are taken on the event loop, in the order of the answers, so nothing needs a lock. With a file the state outlives
the process: it is written at the start, once a second while images come, and at the end, always whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from abnn.errors import InputError, NotFittedError, explain
from abnn.files import write_json
from abnn.triage.drift import resume_monitor

log = logging.getLogger("abnn.serve")
SECONDS = 1.0
"""Between two writes of the file; so much traffic is forgotten when the process is killed."""


class Traffic:
    """Watches the scores of one model's answers; a model that keeps no calibration scores is not watched."""

    def __init__(self, triage: Any, path: Path | None = None) -> None:
        self.path, self._saved, self.monitor = path, -1, None
        try:
            self.monitor = triage.monitor()
        except (AttributeError, NotFittedError) as error:
            if path is not None:
                why = str(error) if isinstance(error, NotFittedError) else "thresholds without calibration scores"
                raise InputError(explain("--drift", why, "a model that keeps its calibration scores")) from None
        if self.monitor is not None and path is not None:
            self.monitor = resume_monitor(self.monitor, path)
            try:
                self._write(self.monitor.to_dict())
            except OSError as error:
                given = f"{path} ({error.strerror})"
                raise InputError(explain("--drift", given, "a file that can be written")) from None

    def update(self, scores: list[float]) -> None:
        if self.monitor is not None and scores:
            already = self.monitor.alarmed
            if self.monitor.update(scores) and not already:
                log.warning("drift: %s", self.state()["message"])

    def state(self) -> dict[str, Any]:
        """Return what is known, for people and programs, in the form of :class:`abnn.serve.schema.Drift`."""
        monitor = self.monitor
        if monitor is None:
            message = "Not watched: the model keeps no calibration scores to compare with."
            return {"watching": False, "alarm": False, "images": 0, "message": message}
        message = f"No sign of drift in {_images(monitor.seen)}."
        if monitor.alarmed:
            message = (
                f"Scores are {monitor.direction} than in calibration, noticed after {_images(monitor.alarmed_at)}. What is "
                "promised about verdicts does not hold for such images."
            )
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
                await asyncio.sleep(SECONDS)
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
        write_json(self.path, state)
        self._saved = state["seen"]


def _images(number: int | None) -> str:
    return "1 image" if number == 1 else f"{number:,} images"
