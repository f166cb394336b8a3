"""Changed requests to the application in this process, as ASGI has them, so that nothing repairs them on the way."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import abnn
from abnn.serve import Settings, create_app
from tests.fuzz import mutate
from tests.fuzz.cases import Failure, attempt
from tests.fuzz.subjects import pictures

Headers = list[tuple[bytes, bytes]]
BOUNDARY = b"xxabnnxx"
PATHS = ("/predict", "/predict", "/predict", "/predict/batch", "/predict/batch", "/model", "/drift", "/", "/metrics")
ODD_PATHS = (
    "/predict/",
    "/../etc/passwd",
    "/page/../app.py",
    "/page/%2e%2e/x",
    "/\0",
    "//",
    "/predict/batch/x",
    "*",
    "",
)
ODD_HEADERS: Headers = [
    (b"origin", b"null"),
    (b"origin", b"http://evil.example"),
    (b"host", b""),
    (b"host", b"[::1"),
    (b"host", b"a" * 5000),
    (b"content-length", b"99999999999999999999999"),
    (b"content-length", b"-1"),
    (b"content-length", "²".encode()),
    (b"transfer-encoding", b"chunked, chunked"),
    (b"authorization", b"Bearer \xff\xfe"),
    (b"expect", b"100-continue"),
    (b"range", b"bytes=0-0,-1"),
    (b"accept", b"\0"),
    (b"cookie", b"=;" * 3000),
]
QUERIES = (
    b"",
    b"",
    b"",
    b"prepare=image",
    b"prepare=ink",
    b"prepare=x",
    b"show_input=1",
    b"show_input=%ff",
    b"%ff=&&=",
    b"a=" * 500,
)
TYPES = (
    b"multipart/form-data",
    b"multipart/form-data; boundary=",
    b"application/json; charset=\xff",
    b"text/plain",
    b"",
    b"/",
    b"multipart/form-data; boundary=" + b"a" * 3000,
)


class Client:
    """An application that has started, and one request at a time to it."""

    def __init__(self, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.app, self.loop = app, loop

    def ask(self, method: str, path: str, query: bytes, headers: Headers, chunks: list[bytes]) -> tuple[int, bytes]:
        """Return status and body of the answer; whatever the application raises is raised."""
        return self.loop.run_until_complete(asyncio.wait_for(self._ask(method, path, query, headers, chunks), 30))

    async def _ask(
        self, method: str, path: str, query: bytes, headers: Headers, chunks: list[bytes]
    ) -> tuple[int, bytes]:
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(errors="surrogateescape"),
            "query_string": query,
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 80),
        }
        waiting = list(chunks)
        status, body = 0, b""

        async def receive() -> dict[str, Any]:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")

        await self.app(scope, receive, send)
        return status, body


@contextlib.contextmanager
def running(model_folder: Path) -> Iterator[Client]:
    """Yield a client of an application around the model of a folder."""
    settings = Settings(max_bytes=100_000, max_pixels=1_000_000, max_images=4, queue=8, timeout=20, wait=0)
    app = create_app(abnn.load(model_folder), settings)
    loop = asyncio.new_event_loop()
    life = app.router.lifespan_context(app)
    loop.run_until_complete(life.__aenter__())
    try:
        yield Client(app, loop)
    finally:
        loop.run_until_complete(life.__aexit__(None, None, None))
        loop.close()


def make_request(rng: random.Random) -> tuple[str, str, bytes, Headers, list[bytes]]:
    """Return a request that is good but for a few changes."""
    path = rng.choice(PATHS)
    several = path.endswith("batch")
    content = [rng.choice(pictures())[1] for _ in range(rng.choice((1, 2)) if several else 1)]
    if rng.random() < 0.3:
        content[0] = mutate.mutate_bytes(rng, content[0])
    field = "images" if several else "image"
    if rng.random() < 0.5:
        texts = [base64.b64encode(each).decode() for each in content]
        body = json.dumps({field: texts if several else texts[0]}).encode()
        kind = b"application/json"
        if rng.random() < 0.5:
            body = mutate.mutate_json_text(rng, body)
    else:
        kind, body = b"multipart/form-data; boundary=" + BOUNDARY, _form(rng, field, content)
    if rng.random() < 0.5:
        body = mutate.mutate_bytes(rng, body)
    headers = [(b"host", b"localhost"), (b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if rng.random() < 0.15:
        headers[1] = (b"content-type", rng.choice((*TYPES, mutate.mutate_bytes(rng, kind))))
    if rng.random() < 0.15:
        headers.append(rng.choice(ODD_HEADERS))
    if rng.random() < 0.05:
        name, value = rng.choice(headers)
        headers.append((name, mutate.mutate_bytes(rng, value)))
    method = "POST" if path.startswith("/predict") else "GET"
    if rng.random() < 0.05:
        method, path = rng.choice(("PUT", "HEAD", "OPTIONS", "get", "X" * 100, "POST")), rng.choice((*ODD_PATHS, path))
    cuts = sorted(rng.randrange(len(body) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
    chunks = [body[first:last] for first, last in zip([0, *cuts], [*cuts, len(body)])]
    if rng.random() < 0.03:
        chunks = chunks[:-1]  # the client goes away
    return method, path, rng.choice(QUERIES), headers, chunks


def _form(rng: random.Random, field: str, contents: list[bytes]) -> bytes:
    parts = []
    for content in contents:
        name = field if rng.random() < 0.9 else rng.choice(("", "x", 'a"; filename="b', "\r\n", "é", field * 500))
        file = rng.choice(('; filename="x.png"', '; filename="../../x"', "", "; filename*=utf-8''%ff", '; filename=""'))
        more = rng.choice(
            (
                b"",
                b"",
                b"Content-Type: image/png\r\n",
                b"Content-Transfer-Encoding: base64\r\n",
                b"X: " + b"y" * 9000 + b"\r\n",
            )
        )
        head = f'Content-Disposition: form-data; name="{name}"{file}\r\n'.encode() + more
        parts.append(b"--" + BOUNDARY + b"\r\n" + head + b"\r\n" + content + b"\r\n")
    parts *= rng.choice((1, 1, 1, 1, 3, 40))
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def run_request(rng: random.Random, client: Client, folder: Path) -> str:
    """Send one changed request; return "answered" or "refused", or raise a Failure."""
    request = make_request(rng)
    method, path, query, headers, chunks = request
    what = f"{method} {path}?{query!r:.60} {headers[1:]!r:.300}, {sum(map(len, chunks))} bytes"
    _, answer = attempt(lambda: client.ask(*request), folder, what)
    status, body = answer if answer is not None else (0, b"")
    if method == "HEAD" and 200 <= status < 500:
        return "refused" if status >= 400 else "answered"
    if status in (200, 307):  # 307: to the same path without its last slash
        return "answered"
    if not 400 <= status < 500:
        raise Failure(f"{what}: status {status}, {body!r:.200}")
    try:
        error = json.loads(body)["error"]
        assert set(error) == {"code", "message"} and all(isinstance(each, str) and each for each in error.values())
    except (ValueError, KeyError, TypeError, AssertionError):
        raise Failure(f"{what}: status {status} with another body than documented, {body!r:.200}") from None
    return "refused"
