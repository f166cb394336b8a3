"""Around every request: who may ask, headers for browsers, and how long it took. Plain ASGI, so bodies stay streams."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import Settings
from abnn.serve.traffic import Measures

log = logging.getLogger("abnn.serve")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
OPEN = frozenset({"/", "/docs", "/health", "/ready", "/openapi.json"})
REFUSED = "abnn.refused"  # in the scope of a request, for its connection
PAGE = "/page/"
"""Without a token: the page's own files and what an orchestrator asks. They say nothing about the model."""


class Guard:
    """ASGI middleware: refuses, adds headers, counts, and answers 500 where something failed inside."""

    def __init__(self, app: ASGIApp, settings: Settings, measures: Measures) -> None:
        self.app, self.settings, self.measures = app, settings, measures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 0
        if scope["method"] == "HEAD":  # what GET would answer; the server leaves the body out
            scope = {**scope, "method": "GET"}

        async def send_guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                scope[REFUSED] = status == 503
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            problem = refusal(scope, self.settings)
            answer = self.app if problem is None else problem.response()
            await answer(scope, receive, send_guarded)
        except asyncio.CancelledError:  # the server stops and cannot wait any longer
            if not status:
                await busy("The server is stopping.").response()(scope, receive, send_guarded)
        except Exception:
            log.exception("a request failed")
            if not status:
                problem = Problem(500, "internal", "The server failed on this request; its log says why.")
                await problem.response()(scope, receive, send_guarded)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.measures.count_request(route, status, time.perf_counter() - started)


def refusal(scope: Scope, settings: Settings) -> Problem | None:
    """Return why this request may not be answered, if so.

    The Host is checked where the server is bound to this machine only, so that no name on the web can be made to point
    here. A browser says with Origin which page asks; pages of other sites may not.
    """
    headers = Headers(scope=scope)
    host, origin = headers.get("host", "").lower(), headers.get("origin")
    name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
    if settings.hosts is not None and name not in settings.hosts:
        return Problem(421, "host", f"Host: this server answers to {', '.join(settings.hosts)} only.")
    if origin is not None and origin.lower().partition("://")[2] != host:
        return Problem(403, "origin", "Pages of other sites may not use this server.")
    public = scope["path"] in OPEN or scope["path"].startswith(PAGE)
    kind, _, token = headers.get("authorization", "").partition(" ")
    if settings.token is None or public:
        return None
    # Compared in a time that does not depend on where the first difference is.
    if kind.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), settings.token.encode()):
        return None
    message = "A token is needed: send the header 'Authorization: Bearer TOKEN'."
    return Problem(401, "token", message, {"WWW-Authenticate": "Bearer"})


async def _answer(request: Request, error: Any) -> JSONResponse:
    problem = error
    if isinstance(error, HTTPException):
        code = {404: "not-found", 405: "method"}.get(error.status_code, "http")
        problem = Problem(error.status_code, code, str(error.detail), error.headers)
    elif isinstance(error, RequestValidationError):  # which query parameters, and why; what was sent is not repeated
        message = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
        problem = Problem(422, "parameter", message[:300])
    elif isinstance(error, ClientDisconnect):
        problem = Problem(400, "disconnected", "The client went away during its request.")
    return problem.response()


HANDLERS: Any = dict.fromkeys((Problem, HTTPException, RequestValidationError, ClientDisconnect), _answer)
"""How FastAPI answers each kind of exception."""
