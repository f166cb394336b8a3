"""From the body of a request to the bytes of its images, all in memory, with limits before anything is kept."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import time
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from abnn.serve.problems import Problem, busy
from abnn.serve.settings import Settings


class BodyLimits:
    """ASGI middleware: a body is refused as soon as it is known to be too long, for this request or for all together.

    Bodies stay streams. ``held_bytes`` counts the bytes of all requests that are not answered yet.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings, self.held_bytes = app, settings, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        settings, deadline, size = self.settings, time.monotonic() + self.settings.timeout, 0
        length, close = Headers(scope=scope).get("content-length", ""), {"Connection": "close"}

        async def receive_limited() -> Message:
            nonlocal size
            too_large = Problem(413, "body-too-large", f"The body is larger than {settings.max_bytes:,} bytes.", close)
            if length.isdigit() and int(length[:20]) > settings.max_bytes:
                raise too_large
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                late = f"The body did not arrive within {settings.timeout:g} seconds."
                raise Problem(408, "slow-body", late, close) from None
            size += len(message.get("body", b""))
            self.held_bytes += len(message.get("body", b""))
            if size > settings.max_bytes:
                raise too_large
            if self.held_bytes > settings.body_memory:
                raise busy("The server holds as many uploads as it can; try again.")
            return message

        try:
            await self.app(scope, receive_limited, send)
        finally:
            self.held_bytes -= size


async def read_images(request: Request, field: str, most: int, limit: int) -> list[bytes]:
    """Return the images of one request: parts named ``field`` of a form, or base64 under ``field`` in a JSON object."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        # not request.body(), which would keep the text beside the images until the answer
        images = _from_json(b"".join([chunk async for chunk in request.stream()]), field, most)
    elif kind == "multipart/form-data":
        images = await _from_form(request, field, most, limit)
    else:
        message = f"Content-Type: got {kind[:60] or 'none'!r}; accepted: multipart/form-data or application/json."
        raise Problem(415, "content-type", message)
    if not images:
        raise Problem(422, "no-image", f"There is no image in the request; it would be named {field!r}.")
    return images


def _from_json(body: bytes, field: str, most: int) -> list[bytes]:
    """Read {"image": "..."} for one, {"images": ["...", ...]} for several.

    Brackets are counted before parsing, so nothing is unpacked that is deeper or has more parts than any valid request.
    """
    one = field == "image"
    accepted = '{"image": "<base64>"}' if one else '{"images": ["<base64>", ...]}'
    try:
        if body.count(b"{") + body.count(b"[") > (1 if one else 2):
            more = "; several images go to /predict/batch" if one else ""
            raise ValueError(f"it holds lists or objects where the base64 of an image file is accepted{more}.")
        content = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "json", f"The body is not the JSON that is accepted, {accepted}: {error}"[:300]) from None
    value: Any = content.get(field) if isinstance(content, dict) and set(content) == {field} else None
    texts = [value] if one else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Problem(422, "json-form", f"The body is not of the form {accepted}.")
    _check_number(len(texts), most)
    try:
        return [base64.b64decode(text, validate=True) for text in texts]
    except (binascii.Error, ValueError):
        raise Problem(422, "base64", "An image is not base64.") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


async def _from_form(request: Request, field: str, most: int, limit: int) -> list[bytes]:
    """Read the files named ``field`` of a multipart form. Nothing is spooled to a temporary file."""
    stream = request.stream()
    parser = MultiPartParser(request.headers, stream, max_files=most + 1, max_fields=8, max_part_size=limit)
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
        _check_number(len(files), most)
        return [await file.read() for file in files]
    finally:
        await form.close()


def _check_number(number: int, most: int) -> None:
    if number > most:
        raise Problem(413, "too-many-images", f"images: got more than {most}; accepted: at most {most} in one request.")
