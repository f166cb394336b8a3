"""Run an application with uvicorn, with bounds on what lies outside of it: connections, their time, and log lines."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from abnn.serve.guard import REFUSED
from abnn.serve.settings import Settings

GRACE = 5  # seconds beyond the timeout: for an answer to be read, and for the server to stop
OWN_FILES = 48  # descriptors that a server needs for itself
ACCEPTED_AT_ONCE = 128  # connections that asyncio takes in one turn, before any of them can be refused
BACKLOG = 2048
READ_AT_ONCE = 16 * 2**10  # bytes of one connection in one turn of asyncio, so that uploads do not hold up others
SWITCH_SECONDS = 1e-4  # after which Python lets another thread run: the model's waits for the event loop at every step
REFUSED_SECONDS = 0.5  # after 503, until the next request of that connection is read
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    b'{"error": {"code": "busy", "message": "The server has as many connections as it can take; try again."}}'
)


class Connection(H11Protocol):
    """One connection: refused if there are too many, closed if it is idle or half-sent for too long.

    uvicorn itself ends a connection only where a whole request came before and nothing after it.
    """

    def __init__(self, *, most: int, timeout: float, **of_uvicorn: Any) -> None:
        super().__init__(**of_uvicorn)
        self._most, self._timeout = most, timeout
        self._timer: asyncio.TimerHandle | None = None
        self._checked_cycle: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        transport.max_size = READ_AT_ONCE
        if len(self.connections) > self._most:
            transport.write(FULL)
            transport.close()
        else:
            self._check_after(self._timeout)

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()
        if self.scope.get(REFUSED) and not self.transport.is_closing():  # whoever asks again at once costs most
            self.transport.pause_reading()
            self.loop.call_later(REFUSED_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self.flow.read_paused:  # or uvicorn resumes, when its buffer of the next body has been read
            self.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _check_after(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        """Close what has waited for the timeout without a whole head, or does not read its answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle is self._checked_cycle:
                self.transport.abort()
            else:
                self._checked_cycle = self.cycle
                self._check_after(self._timeout + GRACE)
        elif (left := self._idle_since + self._timeout - self.loop.time()) > 0:
            self._check_after(left)
        else:
            self.transport.close()


class FewLines(logging.Filter):
    """Lets ``most`` records of each logger and level through in ``seconds``; the next one says how many were left out."""

    def __init__(self, most: int = 20, seconds: float = 10.0) -> None:
        super().__init__()
        self.most, self.seconds = most, seconds
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        key, now = (record.name, record.levelno), time.monotonic()
        since, count = self._counts.get(key, (now, 0))
        if now - since >= self.seconds:
            if count > self.most:
                record.msg = f"{record.getMessage()} ({count - self.most} similar lines were left out)"
                record.args = None
            since, count = now, 0
        self._counts[key] = since, count + 1
        return count < self.most


def connection_limit(settings: Settings) -> tuple[int, int]:
    """Return how many connections may be open, and how many are accepted in one turn, below the limit of open files."""
    try:
        import resource

        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except ImportError:  # no such limit on this system
        return settings.connections, ACCEPTED_AT_ONCE
    at_once = max(1, min(ACCEPTED_AT_ONCE, (files - OWN_FILES) // 4)) if files > 0 else ACCEPTED_AT_ONCE
    most = files - OWN_FILES - at_once if files > 0 else settings.connections
    return max(1, min(settings.connections, most)), at_once


class Server(uvicorn.Server):
    """Lets many connections wait in the system's queue, though asyncio takes few of them in one turn."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(BACKLOG)


def run(application: Any, settings: Settings, listener: socket.socket, quiet: bool) -> None:
    """Serve on a bound socket until a signal comes; then answer what was taken, and return."""
    sys.setswitchinterval(SWITCH_SECONDS)
    most, at_once = connection_limit(settings)
    config = uvicorn.Config(
        application,
        http=partial(Connection, most=most, timeout=settings.timeout),  # type: ignore[arg-type]
        loop="asyncio",  # what Connection knows; uvloop, where it is installed, has other transports
        ws="none",
        log_level="warning" if quiet else "info",
        access_log=not quiet,
        server_header=False,
        timeout_graceful_shutdown=int(settings.timeout) + GRACE,
        backlog=at_once,
    )
    for name in ("asyncio", "uvicorn.error", "abnn.serve"):
        logging.getLogger(name).addFilter(FewLines())
    Server(config).run(sockets=[listener])
