"""Decoders: what is hostile in an image ends a process and not the server, and nobody waits longer than the timeout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from abnn.serve import Settings
from abnn.serve.app import Service
from abnn.serve.decoders import MOST_LARGE, SMALL_PIXELS, Decoder, Job
from abnn.serve.guard import Guard
from abnn.serve.traffic import Measures
from tests.serve.conftest import PNG, encoded, pixels
from tests.serve.test_app import limits_of

LARGE = encoded(np.zeros((1, SMALL_PIXELS + 1), np.uint8)[:, :50_000].repeat(21, 0))
Post = Callable[..., Awaitable[httpx.Response]]


def play(model: Any, settings: Settings, scene: Callable[[Service, Post], Awaitable[Any]]) -> Any:
    """Run a scene against an application in this process; ``post`` sends images and returns the answer."""
    service = Service(model, settings, "digits")

    async def whole() -> Any:
        transport = httpx.ASGITransport(service.app)
        browser = httpx.AsyncClient(transport=transport, base_url="http://testserver")
        async with service.app.router.lifespan_context(service.app), browser as client:

            async def post(*contents: bytes) -> httpx.Response:
                if len(contents) == 1:
                    return await client.post("/predict", files={"image": ("x", contents[0])})
                return await client.post("/predict/batch", files=[("images", ("x", each)) for each in contents])

            return await scene(service, post)

    return asyncio.run(whole())


def process_ids(service: Service) -> list[int]:
    return [each.process.pid for each in (service.decoders.small, service.decoders.large) if each.process is not None]


def error_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_the_timeout_holds_while_decoding_and_the_next_request_is_answered(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        decoders = (service.decoders.small, service.decoders.large)
        commands = [decoder.command for decoder in decoders]
        for decoder in decoders:
            decoder._close()
            decoder.command = [sys.executable, "-c", "while True: pass"]
        asked = [asyncio.ensure_future(post(*images)) for images in ((PNG,), (LARGE,), (PNG, LARGE))]
        while sum(decoder.waiting for decoder in decoders) < len(asked):
            await asyncio.sleep(0)
        move_clock(61)
        assert [error_code(await each) for each in asked] == [(503, "busy")] * 3
        for decoder, command in zip(decoders, commands):
            decoder.command = command
        assert [(await post(each)).status_code for each in (PNG, LARGE)] == [200, 200]

    play(model, Settings(timeout=60, max_images=8), scene)


def move_clock(seconds: float) -> None:
    """Let the clock of the event loop, by which requests end, go on at once."""
    loop = asyncio.get_running_loop()
    true = loop.time
    loop.time = lambda: true() + seconds  # type: ignore[method-assign]


def is_alive(process: int) -> bool:
    """Return whether a process still runs: the third field of its state is Z for one that has ended and waits for its parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_decoder_that_dies_is_replaced_and_loads_little(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        before = process_ids(service)
        for process in before:
            os.kill(process, signal.SIGKILL)
        while any(
            is_alive(process) for process in before
        ):  # one that dies with an image in hand is blamed on the image
            await asyncio.sleep(0)
        assert [(await post(each)).status_code for each in (PNG, LARGE, PNG)] == [200, 200, 200]
        assert not set(process_ids(service)) & set(before)
        for process in process_ids(service):
            assert "torch" not in Path(f"/proc/{process}/maps").read_text()

    play(model, Settings(timeout=60), scene)


def test_an_image_that_ends_its_decoder_is_damaged(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, bad = Decoder._ask, encoded(pixels(seed=99))

    def crash(self: Decoder, process: Any, job: Job) -> None:
        good = job.contents[: job.contents.index(bad)] if bad in job.contents else job.contents
        ask(self, process, job._replace(contents=good))
        if bad in job.contents:
            raise OSError

    async def scene(service: Service, post: Post) -> None:
        assert error_code(await post(bad)) == (422, "damaged-image")
        results = (await post(PNG, bad, PNG)).json()["results"]
        assert [each.get("error", {}).get("code") for each in results] == [None, "damaged-image", None]

    monkeypatch.setattr(Decoder, "_ask", crash)
    play(model, Settings(timeout=60), scene)


def test_a_small_image_that_takes_long_goes_the_way_of_large_ones(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        small = service.decoders.small
        small.limits["seconds"] = 1e-6
        assert (await post(PNG)).status_code == 200
        assert small.process is None  # it has ended itself
        small.limits["seconds"] = 60
        assert (await post(PNG)).status_code == 200 and small.process is not None

    play(model, Settings(timeout=60), scene)


def test_large_images_leave_a_decoder_to_small_ones(model: Any) -> None:
    """The decoder of large images hangs; a small image is answered all the same, and places are bounded."""

    async def scene(service: Service, post: Post) -> None:
        large = service.decoders.large
        os.kill(process_ids(service)[1], signal.SIGSTOP)
        hanging = [asyncio.ensure_future(post(LARGE)) for _ in range(MOST_LARGE)]
        while large.waiting < MOST_LARGE:
            await asyncio.sleep(0)
        assert error_code(await post(LARGE)) == (503, "busy")
        assert (await post(PNG)).status_code == 200 and not any(each.done() for each in hanging)
        os.kill(process_ids(service)[1], signal.SIGCONT)
        assert [each.status_code for each in await asyncio.gather(*hanging)] == [200] * MOST_LARGE

    play(model, Settings(timeout=600), scene)


def test_what_would_be_decoded_late_is_refused_at_once(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        large = service.decoders.large
        os.kill(process_ids(service)[1], signal.SIGSTOP)
        hanging = asyncio.ensure_future(post(LARGE))
        while large.waiting < 1:
            await asyncio.sleep(0)
        large._mean_seconds = 200.0
        answer = await post(LARGE)
        assert error_code(answer) == (503, "busy") and answer.headers["retry-after"] == "200"
        os.kill(process_ids(service)[1], signal.SIGCONT)
        assert (await hanging).status_code == 200
        assert (await post(LARGE)).status_code == 200  # nobody waits any more

    play(model, Settings(timeout=600), scene)


def test_pixels_of_one_request_are_bounded_before_anything_is_unpacked(model: Any) -> None:
    settings = Settings(max_pixels=SMALL_PIXELS)
    wide = encoded(np.zeros((1000, 1000), np.uint8))

    async def scene(service: Service, post: Post) -> None:
        assert (await post(*[wide] * 4)).status_code == 200
        assert error_code(await post(*[wide] * 5)) == (413, "too-many-pixels")
        assert error_code(await post(LARGE)) == (413, "too-many-pixels")
        results = (await post(PNG, LARGE)).json()["results"]
        assert [each.get("error", {}).get("code") for each in results] == [None, "too-many-pixels"]

    play(model, settings, scene)


def test_uploads_that_wait_for_a_decoder_are_counted(model: Any) -> None:
    size = 100_000
    upload = LARGE + bytes(size - len(LARGE))  # what follows an image's end is ignored

    async def scene(service: Service, post: Post) -> None:
        assert (await post(upload)).status_code == 200
        for process in process_ids(service):
            os.kill(process, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(post(upload)) for _ in range(2)]
        while limits_of(service).held_bytes < 2 * size:
            await asyncio.sleep(0)
        assert error_code(await post(upload)) == (503, "busy")
        assert limits_of(service).held_bytes < 3 * size
        for process in process_ids(service):
            os.kill(process, signal.SIGCONT)
        assert [each.status_code for each in await asyncio.gather(*waiting)] == [200, 200]
        assert limits_of(service).held_bytes == 0

    play(model, Settings(timeout=60, body_memory=int(2.5 * size)), scene)


def test_what_is_cancelled_when_the_server_stops_gets_an_answer() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    async def whole() -> None:
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": []}
        task = asyncio.ensure_future(Guard(app, Settings(), Measures())(scope, None, send))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(whole())
    assert sent[0]["status"] == 503 and b'"busy"' in sent[1]["body"]
