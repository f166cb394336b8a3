"""A real server process under load: batches, overload, a polite end and a rude one."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

import abnn
from abnn.triage.drift import DriftMonitor
from tests.serve.conftest import PNG, encoded, pixels

COMMAND = [sys.executable, "-c", "import typer; from abnn.cli.serve import serve; typer.run(serve)"]


@dataclass
class Server:
    process: subprocess.Popen[str]
    url: str


@contextlib.contextmanager
def serving(path: Path, *options: str) -> Iterator[Server]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*COMMAND, str(path), "--port", "0", "--quiet", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if found := re.search(r"http://\S+:\d+/", line):
                server = Server(process, found[0].rstrip("/"))
                asyncio.run(until_ready(server.url))
                yield server
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()


async def until_ready(url: str) -> None:
    async with httpx.AsyncClient() as client:
        for _ in range(200):
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{url}/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError("the server did not get ready")


def children(process: int) -> list[int]:
    threads = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with serving(model_path, "--queue", "12", "--max-batch", "8", "--timeout", "30") as server:
        yield server


async def post(client: httpx.AsyncClient, content: bytes = PNG) -> httpx.Response:
    return await client.post("/predict", files={"image": ("x", content)})


def many(url: str, number: int, images: list[bytes] | None = None) -> list[Any]:
    async def play() -> list[Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
            contents = images or [PNG] * number
            return await asyncio.gather(*(post(client, content) for content in contents), return_exceptions=True)

    return asyncio.run(play())


def test_concurrent_requests_are_batched_and_answered_as_alone(server: Server) -> None:
    images = [encoded(pixels(seed=seed)) for seed in range(10)]
    alone = [many(server.url, 1, [image])[0].json() for image in images]
    for _ in range(3):
        for one, answer in zip(alone, many(server.url, 10, images)):
            assert answer.status_code == 200
            assert answer.json()["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)
    metrics = httpx.get(f"{server.url}/metrics").text
    batches, size = (float(re.search(rf"abnn_batch_size_{name} (\S+)", metrics)[1]) for name in ("count", "sum"))  # type: ignore[index]
    assert size == 40 and batches < 36


def test_overload_is_answered_with_503_and_passes(server: Server) -> None:
    answers = many(server.url, 150)
    statuses = Counter(answer.status_code for answer in answers)
    assert set(statuses) == {200, 503} and sum(statuses.values()) == 150
    refused = [answer for answer in answers if answer.status_code == 503]
    assert all(
        int(answer.headers["retry-after"]) >= 1 and answer.json()["error"]["code"] == "busy" for answer in refused
    )
    assert many(server.url, 1)[0].status_code == 200
    metrics = httpx.get(f"{server.url}/metrics").text
    assert "abnn_requests_under_way 0.0" in metrics and "abnn_queue_length 0.0" in metrics


def test_slow_bodies_take_no_place(model_path: Path, server: Server) -> None:
    """As many clients as there are places send half a request; others are answered all the same."""

    async def play() -> None:
        host, port = server.url.removeprefix("http://").split(":")
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
        connections = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
        for _, writer in connections:
            writer.write(head)
            await writer.drain()
        async with httpx.AsyncClient(base_url=server.url) as client:
            answers = [await post(client) for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200] * 5
        for _, writer in connections:
            writer.close()

    asyncio.run(play())


def test_signals_for_all_processes_do_not_end_a_decoder(server: Server) -> None:
    for child in children(server.process.pid):
        os.kill(child, signal.SIGTERM)
        os.kill(child, signal.SIGINT)
    before = children(server.process.pid)
    assert httpx.post(f"{server.url}/predict", files={"image": ("x", PNG)}).status_code == 200
    assert children(server.process.pid) == before


def test_sigterm_during_load_answers_what_was_accepted(server: Server) -> None:
    """Last user of this server: every request that has come in gets its answer, and the process ends with success."""

    async def play() -> list[Any]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
            await asyncio.gather(*(client.get("/health") for _ in range(12)))  # open the connections first
            slow = encoded(np.zeros((3000, 3000), np.uint8))  # small to send, long to unpack
            waiting = [asyncio.ensure_future(post(client, slow)) for _ in range(3)]  # a quarter of all places
            under_way = 0.0
            while under_way + sum(each.done() for each in waiting) < 3:
                text = (await client.get("/metrics")).text
                under_way = float(re.search(r"\nabnn_requests_under_way (\S+)", text)[1])  # type: ignore[index]
            assert under_way > 0
            server.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*waiting, return_exceptions=True)

    statuses = [each.status_code if isinstance(each, httpx.Response) else each for each in asyncio.run(play())]
    assert statuses == [200] * 3
    assert server.process.wait(30) in (0, -signal.SIGTERM)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


def test_killing_it_during_load_leaves_whole_files(model_path: Path, tmp_path: Path) -> None:
    """The model's folder is not touched, and of the state that it writes there is always a whole one."""
    drift = tmp_path / "drift.json"

    def state() -> dict[str, str]:
        files = sorted(file for file in model_path.parent.rglob("*") if file.is_file())
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    before = state()
    with serving(model_path, "--drift", str(drift)) as server:

        async def play() -> None:
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
                while DriftMonitor.load(drift).seen == 0:  # until it was written with something in it
                    await asyncio.gather(*(post(client) for _ in range(8)))
                waiting = [asyncio.ensure_future(post(client)) for _ in range(20)]
                while not any(each.done() for each in waiting):  # in the middle of them
                    await asyncio.sleep(0)
                server.process.kill()
                await asyncio.gather(*waiting, return_exceptions=True)

        asyncio.run(play())
        assert server.process.wait(10) == -signal.SIGKILL
    assert state() == before
    assert DriftMonitor.load(drift).seen > 0 and abnn.load(model_path).triage is not None
