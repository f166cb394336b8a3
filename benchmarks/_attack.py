"""Ten times as many clients as a server has places: small requests, decode bombs, slow clients and disconnects.

Everything goes to 127.0.0.1, from a fixed number of clients, each with one connection at a time, for a fixed time.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import random
import re
import struct
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _server import Server, Tally, ask_for, connected, form, request, sample_images
from PIL import Image

PLACES, TIMES, SEED = 32, 10, 0
SHARES = {"small": 0.625, "bomb": 0.125, "slow": 0.125, "disconnect": 0.125}
TIMEOUT = 10.0  # the server's
PATIENCE = 3 * TIMEOUT
"""Seconds after which a client that has sent a whole request calls it lost."""


def encoded(picture: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **options)
    return buffer.getvalue()


def scan_bomb(scans: int = 2000) -> bytes:
    """A progressive JPEG whose last scan comes again and again: few bytes, and each scan visits every block."""
    content = encoded(Image.new("L", (5000, 5000), 90), "JPEG", progressive=True)
    last = content[content.rindex(b"\xff\xc4") : -2]
    return content[:-2] + last * scans + b"\xff\xd9"


def chunk_bomb(size: int = 60_000) -> bytes:
    """A PNG of one pixel with thousands of empty chunks before it."""
    content = encoded(Image.new("L", (1, 1)), "PNG")
    chunk = struct.pack(">I", 0) + b"abCd" + struct.pack(">I", zlib.crc32(b"abCd"))
    return content[:33] + chunk * (size // len(chunk)) + content[33:]


def bombs() -> dict[str, bytes]:
    """Whole requests that cost much more than they weigh."""
    grey = encoded(Image.new("L", (5000, 5000)), "PNG")
    colour = encoded(Image.new("RGB", (5000, 5000)), "PNG")
    noise = np.random.default_rng(SEED).integers(0, 256, (512, 512), np.uint8)
    junk = base64.b64encode(bytes(7_000_000)).decode()
    return {
        "many large images": request("POST", "/predict/batch", *form(*[grey] * PLACES, name="images")),
        "four large images": request("POST", "/predict/batch", *form(*[grey] * 4, name="images")),
        "one large image": request("POST", "/predict", *form(colour)),
        "scans": request("POST", "/predict", *form(scan_bomb())),
        "chunks": request("POST", "/predict", *form(chunk_bomb())),
        "ink": request("POST", "/predict?prepare=ink", *form(encoded(Image.fromarray(noise), "PNG"))),
        "9 MB": request("POST", "/predict", json.dumps({"image": junk}).encode(), "application/json"),
    }


@dataclass
class Attack:
    """What all clients met."""

    port: int
    until: float
    small: list[bytes]
    bombs: dict[str, bytes]
    counts: Counter[str] = field(default_factory=Counter)
    statuses: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"answered": [], "refused": []})
    lost: list[str] = field(default_factory=list)

    async def play(self, kind: str, number: int) -> None:
        rng = random.Random(SEED * 1000 + number)
        while time.perf_counter() < self.until:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await getattr(self, f"be_{kind}")(rng)
            self.counts[f"{kind} connections"] += 1

    async def ask(self, connection: Any, content: bytes, name: str) -> int:
        """Send a request; once it is sent, whatever is not a whole answer counts as lost."""
        try:
            connection.writer.write(content)
            await asyncio.wait_for(connection.writer.drain(), PATIENCE)
        except (OSError, asyncio.TimeoutError):  # refused before it was there: not taken
            self.counts[f"{name}: refused while sending"] += 1
            raise OSError("refused") from None
        try:
            answer = await asyncio.wait_for(connection.ask(b""), PATIENCE)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
            self.lost.append(f"{name}: {type(error).__name__}")
            raise OSError("no answer") from None
        self.statuses.setdefault(name, Counter())[str(answer.status)] += 1
        return answer.status

    async def be_small(self, rng: random.Random) -> None:
        async with connected(self.port) as connection:
            while time.perf_counter() < self.until:
                started = time.perf_counter()
                status = await self.ask(connection, rng.choice(self.small), "small")
                self.seconds["answered" if status == 200 else "refused"].append(time.perf_counter() - started)
                if status != 200:
                    await asyncio.sleep(0.05)

    async def be_bomb(self, rng: random.Random) -> None:
        name = rng.choice(sorted(self.bombs))
        async with connected(self.port) as connection:
            await self.ask(connection, self.bombs[name], name)
        await asyncio.sleep(1)

    async def be_slow(self, rng: random.Random) -> None:
        """Send nothing, half a head, or a body byte by byte, until the server ends it."""
        content = rng.choice(self.small)
        body = content.index(b"\r\n\r\n") + 4
        start = rng.choice((0, 10, body - 2, body, body + 20))
        async with connected(self.port) as connection:
            connection.writer.write(content[:start])
            end = asyncio.ensure_future(connection.reader.read())
            for place in range(start, len(content) - 1 if start > body else start):
                if (await asyncio.wait([end], timeout=0.5))[0]:
                    break
                connection.writer.write(content[place : place + 1])
            if not (await asyncio.wait([end], timeout=PATIENCE))[0]:
                self.counts["slow connections left open"] += 1
            end.cancel()

    async def be_disconnect(self, rng: random.Random) -> None:
        """Go away in the middle of a request, or without waiting for the answer."""
        content = rng.choice([*self.small, *self.bombs.values()])
        async with connected(self.port) as connection:
            connection.writer.write(content[: rng.choice((len(content), rng.randrange(len(content))))])
            await asyncio.sleep(rng.uniform(0, 0.2))
            connection.writer.transport.abort()
        await asyncio.sleep(1)


def decoder_memory(server: Server) -> float:
    """Resident memory of the processes that the server has started, in MB."""
    total = 0.0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{server.process.pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                with contextlib.suppress(OSError):
                    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{child}/status").read_text())
                    total += int(found[1]) / 1024 if found else 0
    return total


async def attack(server: Server, seconds: float) -> dict[str, Any]:
    """Attack for so many seconds, and say what came of it. ``failed`` names every promise that was not kept."""
    small = [request("POST", "/predict", *form(image)) for image in sample_images()]
    capacity = await rate(server.port, small)
    start = {"server": server.memory(), "decoders": decoder_memory(server)}
    limit = documented_limit(start["server"] + start["decoders"])
    most: Counter[str] = Counter()
    loads: list[float] = []
    begun = time.perf_counter()
    all_clients = Attack(server.port, begun + seconds, small, bombs())

    async def watch() -> None:
        while time.perf_counter() < all_clients.until:
            now = {"server": server.memory(), "decoders": decoder_memory(server)}
            now["together"] = now["server"] + now["decoders"]
            for name, value in now.items():
                most[name] = max(most[name], value)  # type: ignore[assignment]
            loads.append(os.getloadavg()[0])
            await asyncio.sleep(0.1)

    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * TIMES * PLACES))]
    await asyncio.gather(watch(), *(all_clients.play(kind, number) for number, kind in enumerate(kinds)))
    spent = time.perf_counter() - begun
    after = await rate(server.port, small)
    times = {name: percentiles(values) for name, values in all_clients.seconds.items()}
    failed = []
    if not all_clients.seconds["answered"]:
        failed.append("no small request was answered")
    if max(each["p99_ms"] for each in times.values()) > 1000 * TIMEOUT:
        failed.append("the 99th percentile of small requests is above the timeout")
    if all_clients.lost:
        failed.append(f"{len(all_clients.lost)} requests without an answer: {Counter(all_clients.lost)}")
    if most["together"] > limit:
        failed.append("more memory than documented")
    if all_clients.counts["slow connections left open"]:
        failed.append("connections that were never closed")
    if any(status == "500" for counts in all_clients.statuses.values() for status in counts):
        failed.append("an answer was 500")
    return {
        "seed": SEED,
        "seconds": round(spent, 1),
        "config": {
            "places": PLACES,
            "threads": 1,
            "timeout_s": TIMEOUT,
            "clients": len(kinds),
            "kinds": dict(Counter(kinds)),
        },
        "capacity_per_second_before": capacity,
        "capacity_per_second_after": after,
        "small": times,
        "small_per_second": round(sum(each["count"] for each in times.values()) / spent, 1),
        "statuses": {name: dict(sorted(counts.items())) for name, counts in sorted(all_clients.statuses.items())},
        "connections": dict(sorted(all_clients.counts.items())),
        "lost": len(all_clients.lost),
        "memory_mb": {
            "start": {name: round(value, 1) for name, value in start.items()},
            "most": {name: round(value, 1) for name, value in most.items()},
            "limit": round(limit, 1),
        },
        "load_average": {"mean": round(float(np.mean(loads)), 2), "most": round(max(loads), 2)},
        "failed": failed,
    }


def documented_limit(start_mb: float) -> float:
    """What docs/serve.md says of a server with default sizes, in MB."""
    from abnn.serve import Settings
    from abnn.serve.decoders import BYTES_PER_PIXEL, SPARE_BYTES

    settings = Settings()
    decoding = BYTES_PER_PIXEL * settings.max_pixels + SPARE_BYTES
    return start_mb + (settings.body_memory + settings.connections * 2**19 + decoding) / 2**20


async def rate(port: int, requests: list[bytes], seconds: float = 5.0) -> float:
    """Small requests that are answered in a second, for 8 clients."""
    tally, until = Tally(), time.perf_counter() + seconds
    await asyncio.gather(*(ask_for(port, requests, until, number, tally) for number in range(8)))
    return round(tally.statuses[200] / seconds, 1)


def percentiles(seconds: list[float]) -> dict[str, Any]:
    times = 1000 * np.array(seconds or [0.0])
    p50, p99 = (round(float(np.percentile(times, percent)), 1) for percent in (50, 99))
    return {"count": len(seconds), "p50_ms": p50, "p99_ms": p99, "most_ms": round(float(times.max()), 1)}
