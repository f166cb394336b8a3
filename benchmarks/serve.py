"""Load, soak and fuzz tests of ``abnn serve`` against a server process on this machine.

    python benchmarks/serve.py                   rate and latency for 1, 8 and 64 clients, batched and one by one
    python benchmarks/serve.py --soak 600        ten minutes of more requests than it can take
    python benchmarks/serve.py --fuzz 10000      requests that are wrong in every way
    python benchmarks/serve.py --table           put the table of results/serve/load.json into docs/serve.md again

Each writes a JSON record into results/serve. The clients live in this process and share the machine with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "serve"
DOCS = ROOT / "docs" / "serve.md"
COMMAND = [sys.executable, "-c", "import typer; from abnn.cli.serve import serve; typer.run(serve)"]
CLIENTS = (1, 8, 64)
MODES = {"batched": 32, "one by one": 1}
PACKAGES = ("torch", "fastapi", "starlette", "uvicorn", "pillow", "numpy")


# -- the server --------------------------------------------------------------------------------------------------------


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


# -- a client that costs little ----------------------------------------------------------------------------------------


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

    return [base64.b64decode(sample["png"]) for sample in digit_samples()]


# -- load --------------------------------------------------------------------------------------------------------------


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


async def load(port: int, clients: int, seconds: float) -> dict[str, Any]:
    requests = [request("POST", "/predict", *form(image)) for image in sample_images()]
    await asyncio.gather(*(ask_for(port, requests, time.perf_counter() + 1, n, Tally()) for n in range(clients)))
    tally, started = Tally(), time.perf_counter()
    await asyncio.gather(*(ask_for(port, requests, started + seconds, n, tally) for n in range(clients)))
    spent = time.perf_counter() - started
    times = 1000 * np.array(tally.seconds)
    return {
        "clients": clients,
        "seconds": round(spent, 2),
        "answered": len(times),
        "rate": round(len(times) / spent, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 2),
        "p99_ms": round(float(np.percentile(times, 99)), 2),
        "statuses": {str(status): number for status, number in sorted(tally.statuses.items())},
        "lost": tally.lost,
    }


def run_load(model: str, seconds: float) -> dict[str, Any]:
    rows = []
    for mode, max_batch in MODES.items():
        with serving(model, "--max-batch", str(max_batch)) as server:
            for clients in CLIENTS:
                row = {"mode": mode, "max_batch": max_batch, **asyncio.run(load(server.port, clients, seconds))}
                print(json.dumps(row))
                rows.append(row)
    rates = {(row["mode"], row["clients"]): row["rate"] for row in rows}
    gain = {str(clients): round(rates["batched", clients] / rates["one by one", clients], 2) for clients in CLIENTS}
    return {"rows": rows, "batched_over_one_by_one": gain}


def load_table(record: dict[str, Any]) -> str:
    lines = ["| | clients | images a second | median latency | 99th percentile |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        lines.append(
            f"| {row['mode']} | {row['clients']} | {row['rate']:.0f} | {row['p50_ms']:.0f} ms | {row['p99_ms']:.0f} ms |"
        )
    gains = ", ".join(
        f"{gain:.1f} at {clients}" for clients, gain in sorted(record["batched_over_one_by_one"].items(), key=_number)
    )
    machine = record["machine"]
    measured = (
        f"Batched over one by one: {gains} clients. Measured with `python benchmarks/serve.py` on {machine['cores']} cores "
        f"({machine['processor']}), server and clients together, torch {record['versions']['torch']}."
    )
    return "\n".join([*lines, "", measured])


def _number(item: tuple[str, float]) -> int:
    return int(item[0])


# -- soak --------------------------------------------------------------------------------------------------------------


async def soak(server: Server, clients: int, seconds: float) -> dict[str, Any]:
    requests = [request("POST", "/predict", *form(image)) for image in sample_images()]
    before = await load(server.port, 1, 3)
    counted = await answered(server.port)
    tally, started = Tally(), time.perf_counter()
    memory: list[list[float]] = []

    async def watch() -> None:
        while time.perf_counter() < started + seconds:
            memory.append([round(time.perf_counter() - started, 1), round(server.memory(), 1)])
            await asyncio.sleep(min(5.0, seconds / 20))

    await asyncio.gather(
        watch(), *(ask_for(server.port, requests, started + seconds, n, tally) for n in range(clients))
    )
    accepted = await answered(server.port) - counted
    after = await load(server.port, 1, 3)
    times = 1000 * np.array(tally.seconds)
    half = [value for _, value in memory[len(memory) // 2 :]]
    return {
        "clients": clients,
        "seconds": seconds,
        "statuses": {str(status): number for status, number in sorted(tally.statuses.items())},
        "accepted_by_server": accepted,
        "answered_to_clients": tally.statuses[200],
        "lost": tally.lost,
        "rate": round(len(times) / seconds, 1),
        "p50_ms": round(float(np.percentile(times, 50)), 2),
        "p99_ms": round(float(np.percentile(times, 99)), 2),
        "memory_mb": memory,
        "memory_growth_second_half_mb": round(half[-1] - half[0], 1),
        "before": before,
        "after": after,
    }


async def answered(port: int) -> int:
    """How many predictions the server says that it has answered."""
    async with connected(port) as connection:
        text = (await connection.ask(request("GET", "/metrics"))).body.decode()
    found = re.search(r'abnn_requests_total\{route="/predict",status="200"\} ([\d.e+]+)', text)
    return int(float(found[1])) if found else 0


# -- fuzz --------------------------------------------------------------------------------------------------------------


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


# -- records -----------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    names = (
        re.findall(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text()) if os.path.exists("/proc/cpuinfo") else []
    )
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def record(name: str, around: dict[str, Any], content: dict[str, Any], output: Path) -> None:
    from abnn.files import write_json

    versions = {"python": platform.python_version(), **{each: version(each) for each in ("abnn", *PACKAGES)}}
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_json(output / f"{name}.json", {"machine": around, "versions": versions, "when": when, **content})
    print(output / f"{name}.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder of a saved model that reads digits; default: the demo's")
    parser.add_argument("--seconds", type=float, default=20, help="of each load measurement")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="run a soak test instead")
    parser.add_argument("--fuzz", type=int, metavar="REQUESTS", help="run a fuzz test instead")
    parser.add_argument("--table", action="store_true", help="only render the table")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    around = machine()
    if arguments.soak:
        with serving(arguments.model, "--queue", "64") as server:
            result = asyncio.run(soak(server, clients=192, seconds=arguments.soak))
        print(json.dumps({name: value for name, value in result.items() if name != "memory_mb"}, indent=2))
        record("soak", around, result, arguments.output)
    elif arguments.fuzz:
        with serving(arguments.model) as server:
            result = asyncio.run(fuzz(server, arguments.fuzz))
        print(json.dumps(result, indent=2))
        record("fuzz", around, result, arguments.output)
        sys.exit(1 if result["failed"] or not result["answers_afterwards"] else 0)
    else:
        if not arguments.table:
            record("load", around, run_load(arguments.model, arguments.seconds), arguments.output)
        table = load_table(json.loads((arguments.output / "load.json").read_text()))
        print(table)
        if arguments.output == RESULTS:
            from abnn.tables import update_between_markers

            update_between_markers(DOCS, "serve load", table)


if __name__ == "__main__":
    main()
