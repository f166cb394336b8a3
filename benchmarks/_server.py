"""A server process on this machine, and a client that costs little."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = [sys.executable, "-c", "import typer; from abnn.cli.serve import serve; typer.run(serve)"]


@dataclass
class Server:
    process: subprocess.Popen[str]
    port: int

    def memory(self) -> float:
        """Resident memory in MB, where the system tells."""
        with contextlib.suppress(OSError):
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.process.pid}/status").read_text())
            return int(found[1]) / 1024 if found else float("nan")
        return float("nan")


@contextlib.contextmanager
def serving(model: str, *options: str) -> Iterator[Server]:
    what = [model] if model else ["--demo"]
    command = [*COMMAND, *what, "--port", "0", "--quiet", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/", line):
                server = Server(process, int(found[1]))
                asyncio.run(until_ready(server.port))
                yield server
                return
        raise SystemExit("the server did not start")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)


async def until_ready(port: int) -> None:
    for _ in range(600):
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with connected(port) as connection:
                if (await connection.ask(request("GET", "/ready"))).status == 200:
                    return
        await asyncio.sleep(0.1)
    raise SystemExit("the server is not ready after a minute")


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


@dataclass
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, content: bytes) -> Answer:
        self.writer.write(content)
        await self.writer.drain()
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        return Answer(int(head.split(b" ", 2)[1]), body)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def request(method: str, path: str, body: bytes = b"", kind: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    return (head + (f"Content-Type: {kind}\r\n" if kind else "") + "\r\n").encode("latin-1", "replace") + body


def form(*contents: bytes, name: str = "image") -> tuple[bytes, str]:
    part = f'--cut\r\nContent-Disposition: form-data; name="{name}"; filename="x"\r\n\r\n'.encode()
    return b"".join(
        part + content + b"\r\n" for content in contents
    ) + b"--cut--\r\n", "multipart/form-data; boundary=cut"


def sample_images() -> list[bytes]:
    from abnn.serve.samples import digit_samples

    return [base64.b64decode(sample["content"]) for sample in digit_samples()]


@dataclass
class Tally:
    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)
    lost: int = 0


async def ask_for(port: int, requests: list[bytes], until: float, offset: int, tally: Tally) -> None:
    """One client: the next request as soon as the last one is answered; a refused one after a twentieth of a second."""
    place = offset
    while time.perf_counter() < until:
        try:
            async with connected(port) as connection:
                while time.perf_counter() < until:
                    started = time.perf_counter()
                    answer = await connection.ask(requests[place % len(requests)])
                    tally.statuses[answer.status] += 1
                    place += 1
                    if answer.status == 200:
                        tally.seconds.append(time.perf_counter() - started)
                    else:
                        await asyncio.sleep(0.05)
        except (OSError, asyncio.IncompleteReadError):
            tally.lost += 1
