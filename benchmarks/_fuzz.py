"""Requests that are wrong in every way: valid HTTP around damaged images, forms and JSON."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from _server import Server, connected, form, request


def seeds() -> list[bytes]:
    """Small valid images of every type that is accepted."""
    from PIL import Image

    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (12, 10, 3)).astype(np.uint8))
    contents = []
    for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        for mode in ("RGB", "L", "P") if kind != "JPEG" else ("RGB", "L", "CMYK"):
            if kind == "WEBP" and mode == "P":
                continue
            buffer = io.BytesIO()
            picture.convert(mode).save(buffer, kind)
            contents.append(buffer.getvalue())
    return contents


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """Some bytes changed, or a part cut, doubled or moved."""
    array = np.frombuffer(content, np.uint8).copy()
    for _ in range(rng.integers(1, 4)):
        if len(array) < 4:
            break
        first, last = np.sort(rng.integers(0, len(array), 2))
        match rng.integers(0, 5):
            case 0:
                places = rng.integers(0, len(array), rng.integers(1, 9))
                array[places] = rng.integers(0, 256, len(places))
            case 1:
                array = array[:last]
            case 2:
                array = np.concatenate([array[:last], array[first:]])
            case 3:
                array = np.concatenate([array[:first], array[last:]])
            case _:
                array[first : first + 4] = rng.choice([0, 127, 128, 255])
    return array.tobytes()


def fuzzed(number: int, images: list[bytes], rng: np.random.Generator) -> bytes:
    """The request with this number: valid HTTP around something that is wrong."""
    image = images[rng.integers(len(images))]
    path = ("/predict", "/predict/batch")[number % 2]
    name = ("image", "images")[number % 2]
    query = rng.choice(["", "?prepare=ink", "?prepare=image&show_input=true", "?show_input=maybe", "?prepare=%00"])
    coded = base64.b64encode(mutated(image, rng)).decode()
    good_json = json.dumps({"image": coded} if name == "image" else {"images": [coded, coded]}).encode()
    makers: list[Callable[[], tuple[bytes, str]]] = [
        lambda: form(mutated(image, rng), name=name),
        lambda: form(image, name=name),
        lambda: form(rng.bytes(int(rng.integers(0, 300))), name=name),
        lambda: (mutated(form(image, name=name)[0], rng), "multipart/form-data; boundary=cut"),
        lambda: (good_json, "application/json"),
        lambda: (mutated(good_json, rng), "application/json"),
        lambda: (
            rng.bytes(int(rng.integers(0, 300))),
            str(rng.choice(["application/json", "multipart/form-data", "image/png"])),
        ),
        lambda: (b"[" * int(rng.integers(1, 5000)), "application/json"),
    ]
    match number % 20:
        case 18:
            strange = "".join(chr(letter) for letter in rng.integers(33, 127, 12)).replace("#", "/")
            return request(str(rng.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])), "/" + strange)
        case 19:
            place = str(
                rng.choice(["/page/../../etc/passwd", "/page/%2e%2e%2fapp.py", "/model", "/metrics", "/health"])
            )
            return request(str(rng.choice(["GET", "POST", "PUT", "TRACE"])), place)
        case _:
            return request("POST", path + str(query), *makers[rng.integers(len(makers))]())


async def fuzz(server: Server, count: int, clients: int = 8) -> dict[str, Any]:
    images, rng = seeds(), np.random.default_rng(0)
    statuses: Counter[int] = Counter()
    failures: list[str] = []
    numbers = iter(range(count))
    memory = [server.memory()]

    async def client() -> None:
        for number in numbers:
            content = fuzzed(number, images, rng)
            async with connected(server.port) as connection:
                try:
                    answer = await asyncio.wait_for(connection.ask(content), 30)
                except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                    failures.append(f"{type(error).__name__}: {content[:120]!r}")
                    continue
            statuses[answer.status] += 1
            if answer.status >= 500 and answer.status != 503:
                failures.append(f"{answer.status}: {content[:120]!r}")

    await asyncio.gather(*(client() for _ in range(clients)))
    async with connected(server.port) as connection:
        alive = (await connection.ask(request("POST", "/predict", *form(images[0])))).status == 200
    memory.append(server.memory())
    return {
        "requests": count,
        "statuses": {str(status): number for status, number in sorted(statuses.items())},
        "failures": failures[:20],
        "failed": len(failures),
        "answers_afterwards": alive,
        "memory_mb": [round(value, 1) for value in memory],
    }
