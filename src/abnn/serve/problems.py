"""Every answer that is not a success has the same small JSON form, and says what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from abnn.serve.problem import Problem, busy

__all__ = ["HANDLERS", "Problem", "busy"]


def _http_problem(error: HTTPException) -> Problem:
    """Return unknown paths and methods in the common form."""
    code = {404: "not-found", 405: "method"}.get(error.status_code, "http")
    return Problem(error.status_code, code, str(error.detail), error.headers)


def _parameter_problem(error: RequestValidationError) -> Problem:
    """Return which query parameters are not accepted, and why; what was given is not repeated."""
    message = "; ".join(f"{each['loc'][-1]}: {each['msg']}" for each in error.errors())
    return Problem(422, "parameter", message[:300])


def _handler(problem: Callable[[Any], Problem]) -> Any:
    async def handle(request: Request, error: Exception) -> JSONResponse:
        return problem(error).response()

    return handle


HANDLERS: dict[int | type[Exception], Any] = {
    Problem: _handler(lambda problem: problem),
    HTTPException: _handler(_http_problem),
    RequestValidationError: _handler(_parameter_problem),
    ClientDisconnect: _handler(lambda _: Problem(400, "disconnected", "The client went away during its request.")),
}
"""How FastAPI answers each kind of exception."""
