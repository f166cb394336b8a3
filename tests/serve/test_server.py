"""What lies outside of the application: connections, their time, open files, log lines, and the end of a server."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import numpy as np
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol

from abnn.serve.guard import REFUSED
from abnn.serve.server import Connection, FewLines, connection_limit
from abnn.serve.settings import Settings
from tests.serve.conftest import encoded
from tests.serve.test_process import Server, children, post, serving

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
HALF = (b"", b"GET /hea", HEAD)


async def connect(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    return await asyncio.open_connection(host, int(port))


@pytest.fixture(scope="module")
def server(model_path: Path) -> Iterator[Server]:
    with serving(model_path, "--timeout", "2") as server:
        yield server


def test_idle_and_half_sent_connections_are_closed(server: Server) -> None:
    async def play() -> None:
        connections = [await connect(server) for _ in range(4) for _ in HALF]
        for (_, writer), content in zip(connections, HALF * 4):
            writer.write(content)
        ends = [(await reader.read()).partition(b" ")[2][:3] for reader, _ in connections]  # to the end, so it comes
        assert ends == [b"", b"", b"408"] * 4
        for _, writer in connections:
            writer.close()

    asyncio.run(play())


def test_what_was_admitted_is_answered_when_the_server_stops(server: Server) -> None:
    """Last user of this server. Even if the decoders hang: others take over, or the timeout comes; but nobody gets a plain 500."""

    async def play(server: Server) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            for child in children(server.process.pid):
                os.kill(child, signal.SIGSTOP)
            waiting = [asyncio.ensure_future(post(client)) for _ in range(4)]
            while "abnn_requests_under_way 4.0" not in (await client.get("/metrics")).text:
                pass
            server.process.send_signal(signal.SIGTERM)
            return await asyncio.gather(*waiting)

    answers = asyncio.run(play(server))
    codes = {(each.status_code, each.json().get("error", {}).get("code")) for each in answers}
    assert codes <= {(200, None), (503, "busy")}
    assert server.process.wait(30) in (0, -signal.SIGTERM)


def test_large_images_do_not_make_a_small_one_wait(model_path: Path) -> None:
    """Three requests of 1.5 MB with 64 large images each are refused unpacked; a small one among large ones is answered."""
    bomb = encoded(np.zeros((5000, 5000), np.uint8))
    images = [("images", ("x", bomb))] * 64

    async def play(server: Server) -> tuple[list[httpx.Response], httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
            large = [asyncio.ensure_future(client.post("/predict/batch", files=images)) for _ in range(3)]
            large += [asyncio.ensure_future(post(client, bomb)) for _ in range(8)]
            while "abnn_requests_under_way 0.0" in (await client.get("/metrics")).text:
                pass
            small = await post(client)
            return await asyncio.gather(*large), small

    with serving(model_path, "--timeout", "300") as server:  # generous: nobody measures time
        large, small = asyncio.run(play(server))
    assert small.status_code == 200
    assert [each.json()["error"]["code"] for each in large[:3]] == ["too-many-pixels"] * 3
    assert {each.status_code for each in large[3:]} <= {200, 503}


def test_more_connections_than_open_files_are_refused_and_few_lines_are_written(model_path: Path) -> None:
    """At the limit of open files asyncio alone wrote thousands of lines a second, also with --quiet."""

    async def play(server: Server) -> bytes:
        connections = await asyncio.gather(*(connect(server) for _ in range(3 * limit)))
        texts = [asyncio.ensure_future(reader.read()) for reader, _ in connections]
        refused, others = await asyncio.wait(texts, return_when=asyncio.FIRST_COMPLETED)
        for _, writer in connections:
            writer.close()
        await asyncio.gather(*others, return_exceptions=True)
        async with httpx.AsyncClient(base_url=server.url) as client:
            while (await client.get("/ready")).status_code != 200:
                pass
        return refused.pop().result()

    limit = 150
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        with serving(model_path) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            head, _, body = asyncio.run(play(server)).partition(b"\r\n\r\n")
            server.process.kill()
            assert server.process.stdout is not None
            assert len(server.process.stdout.read()) < 10_000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert b" 503 " in head and json.loads(body)["error"]["code"] == "busy"


def test_the_limit_of_connections_lies_below_that_of_open_files(monkeypatch: Any) -> None:
    for files, most in ((20_000, 512), (1024, 512), (100, 39), (10, 1), (resource.RLIM_INFINITY, 512)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        connections, at_once = connection_limit(Settings())
        assert connections == most and 1 <= at_once <= 128


@pytest.mark.parametrize("refused", [True, False])
def test_a_refused_connection_is_read_again_after_a_while(refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(H11Protocol, "on_response_complete", lambda self: None)
    connection: Any = Connection.__new__(Connection)
    connection.loop, connection.transport = MagicMock(), MagicMock()
    connection.transport.is_closing.return_value = False
    connection.scope = {REFUSED: refused}
    connection.on_response_complete()
    assert connection.transport.pause_reading.called is refused
    assert connection.loop.call_later.called is refused
    connection.flow = MagicMock(read_paused=True)
    connection._resume()
    assert not connection.transport.resume_reading.called
    connection.flow.read_paused = False
    connection._resume()
    assert connection.transport.resume_reading.called


def test_log_lines_are_bounded_and_say_what_was_left_out(monkeypatch: Any) -> None:
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    lines = FewLines(most=2, seconds=10)

    def line(name: str = "asyncio") -> str | None:
        record = logging.LogRecord(name, logging.ERROR, "", 0, "no %s", ("files",), None)
        return record.getMessage() if lines.filter(record) else None

    assert [line() for _ in range(4)] == ["no files", "no files", None, None]
    assert line("uvicorn.error") == "no files"
    now[0] = 10.0
    assert [line() for _ in range(2)] == ["no files (2 similar lines were left out)", "no files"]
