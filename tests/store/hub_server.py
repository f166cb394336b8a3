"""A small server on this machine that speaks the Hugging Face Hub's protocol: repositories, commits, large files, downloads."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGE = ".safetensors"


class HubServer:
    """files: what each repository holds; objects: large files by sha256; asked: method and path of every request.

    token: what requests that write must carry. ``damage`` changes a file on its way to whoever asks for it.
    """

    def __init__(self, token: str) -> None:
        self.token, self.files, self.objects = token, dict[str, dict[str, bytes]](), dict[str, bytes]()
        self.asked: list[tuple[str, str]] = []
        self.bodies: list[bytes] = []
        self.damage: Callable[[str, bytes], bytes] = lambda _, content: content
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                owner.answer(self)

            do_GET = do_HEAD = do_POST = do_PUT = handle_any

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.005,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def commit_of(self, repository: str) -> str:
        digest = hashlib.sha1(repository.encode())
        for name, content in sorted(self.files[repository].items()):
            digest.update(name.encode() + hashlib.sha1(content).digest())
        return digest.hexdigest()

    def answer(self, to: BaseHTTPRequestHandler) -> None:
        path = to.path.partition("?")[0]
        body = to.rfile.read(int(to.headers.get("Content-Length") or 0))
        self.asked.append((to.command, path))
        self.bodies.append(body)
        writes = to.command in ("POST", "PUT") and not path.startswith("/upload/")
        if writes and to.headers.get("Authorization") != f"Bearer {self.token}":
            return self.reply(to, {"error": "Invalid credentials"}, 401)
        for pattern, act in (
            (r"/api/repos/create", self.create),
            (r"/api/validate-yaml", lambda *_: {"errors": [], "warnings": []}),
            (r"/api/models/(\w+/\w+)/preupload/main", self.preupload),
            (r"/(\w+/\w+)\.git/info/lfs/objects/batch", self.batch),
            (r"/upload/(\w+)", self.upload),
            (r"/api/models/(\w+/\w+)/commit/main", self.commit),
            (r"/api/models/(\w+/\w+)(?:/revision/[\w.]+)?", self.info),
            (r"/api/models/(\w+/\w+)/tree/\w+", self.tree),
        ):
            if match := re.fullmatch(pattern, path):
                try:
                    return self.reply(to, act(body, *match.groups()))
                except KeyError:
                    return self.reply(to, {"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        if match := re.fullmatch(r"/(\w+/\w+)/resolve/[\w.]+/(.+)", path):
            return self.resolve(to, *match.groups())
        return self.reply(to, {"error": "Not found"}, 404)

    def create(self, body: bytes) -> Any:
        asked = json.loads(body)
        repository = f"{asked.get('organization') or 'user'}/{asked['name']}"
        self.files.setdefault(repository, {})
        return {"url": f"{self.url}/{repository}", "id": repository, "name": repository}

    def preupload(self, body: bytes, _: str) -> Any:
        names = [file["path"] for file in json.loads(body)["files"]]
        modes = {name: "lfs" if name.endswith(LARGE) else "regular" for name in names}
        return {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]}

    def batch(self, body: bytes, _: str) -> Any:
        def link(each: dict[str, Any]) -> dict[str, Any]:
            known = each["oid"] in self.objects
            actions = {} if known else {"actions": {"upload": {"href": f"{self.url}/upload/{each['oid']}"}}}
            return {**each, **actions}

        return {"transfer": "basic", "objects": [link(each) for each in json.loads(body)["objects"]]}

    def upload(self, body: bytes, oid: str) -> Any:
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        return {}

    def commit(self, body: bytes, repository: str) -> Any:
        files = self.files[repository]
        for each in map(json.loads, body.splitlines()):
            value = each["value"]
            if each["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif each["key"] == "lfsFile":
                files[value["path"]] = self.objects[value["oid"]]
            elif each["key"] == "deletedFile":
                del files[value["path"]]
        commit = self.commit_of(repository)
        url = f"{self.url}/{repository}/commit/{commit}"
        return {"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""}

    def info(self, _: bytes, repository: str) -> Any:
        siblings = [{"rfilename": name} for name in self.files[repository]]
        return {
            "_id": "1",
            "id": repository,
            "modelId": repository,
            "sha": self.commit_of(repository),
            "siblings": siblings,
        }

    def tree(self, _: bytes, repository: str) -> Any:
        return [
            {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            | (
                {"lfs": {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 1}}
                if name.endswith(LARGE)
                else {}
            )
            for name, content in self.files[repository].items()
        ]

    def resolve(self, to: BaseHTTPRequestHandler, repository: str, name: str) -> None:
        content = self.files.get(repository, {}).get(name)
        if content is None:
            return self.reply(to, {"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        tag = (hashlib.sha256 if name.endswith(LARGE) else hashlib.sha1)(content).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": self.commit_of(repository)}
        return self.reply(to, self.damage(name, content), 200, headers)

    def reply(
        self, to: BaseHTTPRequestHandler, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        to.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            to.send_header(name, value)
        to.end_headers()
        if to.command != "HEAD":
            to.wfile.write(data)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
