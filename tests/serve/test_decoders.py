"""Decoders: what is hostile in an image ends a process and not the server, and nobody waits longer than the timeout."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import numpy as np
import pytest

from abnn.serve import Settings
from abnn.serve.app import Service
from abnn.serve.decoders import MOST_LARGE, SMALL_PIXELS, Decoder, DecoderEndedError
from abnn.serve.guard import Guard
from abnn.serve.measures import Measures
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


def processes(service: Service) -> list[int]:
    return [decoder._process.pid for decoder in service.decoders._idle if decoder._process is not None]


def stop_all(service: Service) -> None:
    """As if every decoder worked on an image that takes for ever."""
    for process in processes(service):
        os.kill(process, signal.SIGSTOP)


def error_code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_the_timeout_holds_while_decoding_and_the_next_request_is_answered(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        decoders = service.decoders._idle
        commands = [decoder._command for decoder in decoders]
        for decoder in decoders:
            decoder.end()
            decoder._command = [sys.executable, "-c", "while True: pass"]
        answers = await asyncio.gather(post(PNG), post(LARGE), post(PNG, LARGE))
        assert [error_code(each) for each in answers] == [(503, "busy")] * 3
        while len(service.decoders._idle) < 2:
            await asyncio.sleep(0)
        for decoder, command in zip(decoders, commands):
            decoder._command = command
        service.batcher._settings = service.decoders._settings = Settings(timeout=60)
        assert [(await post(each)).status_code for each in (PNG, LARGE)] == [200, 200]

    play(model, Settings(timeout=0.5, max_images=8), scene)


def test_a_decoder_that_dies_is_replaced(model: Any) -> None:
    async def scene(service: Service, post: Post) -> None:
        for process in processes(service):
            os.kill(process, signal.SIGKILL)
        assert [(await post(each)).status_code for each in (PNG, LARGE, PNG)] == [200, 200, 200]

    play(model, Settings(timeout=60), scene)


def test_an_image_that_ends_its_decoder_is_damaged(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ask, bad = Decoder.ask, encoded(pixels(seed=99))

    def crash(self: Decoder, contents: Any, channels: int, unpack_up_to: float) -> Any:
        if bad in contents and unpack_up_to > 0:
            raise DecoderEndedError
        return ask(self, contents, channels, unpack_up_to)

    async def scene(service: Service, post: Post) -> None:
        assert error_code(await post(bad)) == (422, "damaged-image")
        results = (await post(PNG, bad, PNG)).json()["results"]
        assert [each.get("error", {}).get("code") for each in results] == [None, "damaged-image", None]

    monkeypatch.setattr(Decoder, "ask", crash)
    play(model, Settings(timeout=60), scene)


def test_large_images_leave_a_decoder_to_small_ones(model: Any) -> None:
    """The only decoder of large images hangs; a small image is answered all the same, and places are bounded."""

    async def scene(service: Service, post: Post) -> None:
        before = set(processes(service))
        hanging = asyncio.ensure_future(post(LARGE))
        while service.decoders.large_requests == 0 or len(service.decoders._idle) > 1:
            await asyncio.sleep(0)
        (used,) = before - set(processes(service))
        os.kill(used, signal.SIGSTOP)
        waiting = [asyncio.ensure_future(post(LARGE)) for _ in range(MOST_LARGE)]
        refused = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert [error_code(each.result()) for each in refused[0]] == [(503, "busy")]
        assert (await post(PNG)).status_code == 200 and not hanging.done()
        os.kill(used, signal.SIGCONT)
        answers = await asyncio.gather(hanging, *refused[1])
        assert [each.status_code for each in answers] == [200] * MOST_LARGE

    play(model, Settings(timeout=60), scene)


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
        stop_all(service)
        waiting = [asyncio.ensure_future(post(upload)) for _ in range(2)]
        while limits_of(service).held_bytes < 2 * size:
            await asyncio.sleep(0)
        assert error_code(await post(upload)) == (503, "busy")
        assert limits_of(service).held_bytes < 3 * size
        for process in processes(service) + [each._process.pid for each in busy_decoders(service)]:
            os.kill(process, signal.SIGCONT)
        assert [each.status_code for each in await asyncio.gather(*waiting)] == [200, 200]
        assert limits_of(service).held_bytes == 0

    def busy_decoders(service: Service) -> list[Any]:
        return [each for each in every if each not in service.decoders._idle]

    every: list[Any] = []
    make = Decoder.__init__

    def remember(self: Decoder, settings: Settings) -> None:
        make(self, settings)
        every.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "__init__", remember)
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
