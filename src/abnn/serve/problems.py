"""Every answer that is not a success has the same small JSON form, and says what is accepted."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response

from abnn.serve.jsons import dumps


class Problem(Exception):
    """A request that cannot be answered: status, a code for programs, a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})

    def content(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message}

    def response(self) -> Response:
        return Response(dumps({"error": self.content()}), self.status, self.headers, "application/json")


def busy(message: str, seconds: int) -> Problem:
    return Problem(503, "busy", message, {"Retry-After": str(seconds)})
