"""Every answer that is not a success: a status, a code for programs, a sentence for people.

A decoder process imports this too, so nothing of the web framework is loaded before an answer is sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse


class Problem(Exception):
    """A request that cannot be answered."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    def content(self) -> dict[str, Any]:
        return {"error": {"code": self.code, "message": self.message}}

    def response(self) -> JSONResponse:
        from fastapi.responses import JSONResponse

        return JSONResponse(self.content(), self.status, self.headers)


def busy(message: str, seconds: float = 1) -> Problem:
    """Return 503; after so many seconds it is worth trying again."""
    return Problem(503, "busy", message, {"Retry-After": str(max(1, math.ceil(seconds)))})
