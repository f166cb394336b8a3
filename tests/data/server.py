"""A web server on this machine that can be told to misbehave."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FileServer:
    """files: path to content; busy: how often to answer that it is; cut: bytes after which each of the next connections
    ends; asked: the path of every request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.busy = 0
        self.cut: list[int] = []
        self.asked: list[str] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.005,), daemon=True).start()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}/{path}"

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = to.path.lstrip("/")
        self.asked.append(path)
        if self.busy:
            self.busy -= 1
            to.send_error(503)
        elif path not in self.files:
            to.send_error(404)
        else:
            content = self.files[path]
            to.send_response(200)
            to.send_header("Content-Length", str(len(content)))
            to.end_headers()
            to.wfile.write(content[: self.cut.pop(0)] if self.cut else content)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
