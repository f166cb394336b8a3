"""A web server on this machine that knows ranges, and can be told to misbehave."""

from __future__ import annotations

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer:
    """files: path to content; ranges: whether parts can be asked for; busy: how often to answer that it is; cut: bytes
    after which each of the next connections ends; asked: (path, range) of every request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.busy = 0
        self.cut: list[int] = []
        self.asked: list[tuple[str, str | None]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/{path}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path, wanted = to.path.lstrip("/"), to.headers.get("Range")
        self.asked.append((path, wanted))
        if self.busy:
            self.busy -= 1
            to.send_error(503)
            return
        content = self.files.get(path)
        if content is None:
            to.send_error(404)
            return
        start = 0
        if wanted and self.ranges:
            match = re.fullmatch(r"bytes=(\d+)-", wanted)
            assert match
            start = int(match[1])
            if start >= len(content):
                to.send_response(416)
                to.send_header("Content-Range", f"bytes */{len(content)}")
                to.send_header("Content-Length", "0")
                to.end_headers()
                return
            to.send_response(206)
            to.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            to.send_response(200)
        to.send_header("Content-Length", str(len(content) - start))
        to.end_headers()
        to.wfile.write(content[start:][: self.cut.pop(0)] if self.cut else content[start:])

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
