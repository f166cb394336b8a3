"""From the body of a request to the bytes of its images, all in memory, with limits before anything is kept."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from abnn.serve.jsons import loads
from abnn.serve.problems import Problem, busy
from abnn.serve.settings import Settings


class Bodies:
    """Reads bodies, and knows how many bytes of them are held at the moment."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.held = 0

    async def images(self, request: Request, field: str, most: int) -> list[bytes]:
        """The images of one request: parts named ``field`` of a form, or base64 under ``field`` in a JSON object."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in ("multipart/form-data", "application/json"):
            message = f"Content-Type: got {kind[:60] or 'none'!r}; accepted: multipart/form-data or application/json."
            raise Problem(415, "content-type", message)
        body = await self._read(request)
        try:
            if kind == "application/json":
                return from_json(body, field, most)
            return await from_form(request.headers, body, field, most, self.settings.max_bytes)
        finally:
            self.held -= len(body)

    async def _read(self, request: Request) -> bytes:
        """The whole body, refused as soon as it is known to be too long, for this request or for all together."""
        limit, memory = self.settings.max_bytes, self.settings.body_memory
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced[:20]) > limit:
            raise self._too_large()
        parts: list[bytes] = []
        size = 0

        async def gather() -> None:
            nonlocal size
            async for part in request.stream():
                size += len(part)
                self.held += len(part)
                if size > limit:
                    raise self._too_large()
                if self.held > memory:
                    raise busy("The server holds as many uploads as it can; try again.", 1)
                parts.append(part)

        try:
            await asyncio.wait_for(gather(), self.settings.timeout)
        except BaseException as error:
            self.held -= size
            if isinstance(error, asyncio.TimeoutError):
                message = f"The body did not arrive within {self.settings.timeout:g} seconds."
                raise Problem(408, "slow-body", message, {"Connection": "close"}) from None
            if isinstance(error, ClientDisconnect):
                raise Problem(400, "disconnected", "The client went away before its request was complete.") from None
            raise
        return b"".join(parts)

    def _too_large(self) -> Problem:
        message = f"The body is larger than {self.settings.max_bytes:,} bytes."
        return Problem(413, "body-too-large", message, {"Connection": "close"})


def from_json(body: bytes, field: str, most: int) -> list[bytes]:
    """{"image": "..."} for one, {"images": ["...", ...]} for several."""
    one = field == "image"
    accepted = '{"image": "<base64>"}' if one else '{"images": ["<base64>", ...]}'
    try:
        content = loads(body, nesting=1 if one else 2)
    except ValueError as error:
        raise Problem(400, "json", f"The body is not the JSON that is accepted, {accepted}: {error}"[:300]) from None
    given: Any = content.get(field) if isinstance(content, dict) and set(content) == {field} else None
    texts = [given] if one else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Problem(422, "json-form", f"The body is not of the form {accepted}.")
    _check_number(len(texts), most)
    return [_from_base64(text, place) for place, text in enumerate(texts)]


async def from_form(headers: Headers, body: bytes, field: str, most: int, limit: int) -> list[bytes]:
    """The files named ``field`` of a multipart form. Nothing is spooled to a temporary file."""

    async def stream() -> AsyncIterator[bytes]:
        yield body
        yield b""

    parser = MultiPartParser(headers, stream(), max_files=most + 1, max_fields=8, max_part_size=limit)  # type: ignore[arg-type]
    parser.spool_max_size = limit + 1
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        reason = getattr(error, "message", "") or "it cannot be read"
        if "Too many files" in reason:
            _check_number(most + 1, most)
        raise Problem(400, "form", f"The body is not a valid multipart form: {reason}."[:300]) from None
    try:
        files = [value for name, value in form.multi_items() if name == field and isinstance(value, UploadFile)]
        _check_number(len(files), most, f"A form has no file named {field!r}.")
        return [await file.read() for file in files]
    finally:
        await form.close()


def _check_number(number: int, most: int, none: str = "There is no image in the request.") -> None:
    if number == 0:
        raise Problem(422, "no-image", none)
    if number > most:
        raise Problem(413, "too-many-images", f"images: got more than {most}; accepted: at most {most} in one request.")


def _from_base64(text: str, place: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise Problem(422, "base64", f"Image {place} is not base64.") from None
