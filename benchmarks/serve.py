"""Load, soak, fuzz and kill tests of ``abnn serve`` against a server process on this machine.

    python benchmarks/serve.py                   rate and latency for 1, 8 and 64 clients, batched and one by one
    python benchmarks/serve.py --soak 600        ten minutes of more requests than it can take
    python benchmarks/serve.py --fuzz 10000      requests that are wrong in every way
    python benchmarks/serve.py --kill 20         a server under load, killed again and again: are its files whole?
    python benchmarks/serve.py --attack 600      ten times as many clients as places, most of them hostile
    python benchmarks/serve.py --table           put the tables of results/serve into docs/serve.md again

Each writes a JSON record into results/serve. The clients live in this process and share the machine with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from _attack import PLACES, TIMEOUT, attack
from _fuzz import fuzz
from _server import Server, Tally, ask_for, connected, form, request, sample_images, serving
from timing import ROOT, machine

from research.tables import update_between_markers

RESULTS = ROOT / "results" / "serve"
DOCS = ROOT / "docs" / "serve.md"
CLIENTS, KILL_CLIENTS = (1, 8, 64), 32
MODES = {"batched": 32, "one by one": 1}
PACKAGES = ("fastapi", "starlette", "uvicorn", "pillow")


# -- load ---------------------------------------------------------------------------------------------------------------


async def load(port: int, clients: int, seconds: float) -> dict[str, Any]:
    requests = [request("POST", "/predict", *form(image)) for image in sample_images()]
    await asyncio.gather(*(ask_for(port, requests, time.perf_counter() + 1, n, Tally()) for n in range(clients)))
    tally, started = Tally(), time.perf_counter()
    await asyncio.gather(*(ask_for(port, requests, started + seconds, n, tally) for n in range(clients)))
    spent = time.perf_counter() - started
    return {"clients": clients, "answered": len(tally.seconds), **summary(tally, round(spent, 2))}


def summary(tally: Tally, seconds: float) -> dict[str, Any]:
    """What clients met within so many seconds."""
    times = 1000 * np.array(tally.seconds)
    return {
        "seconds": seconds,
        "rate": round(len(times) / seconds, 1),
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


def load_table(records: Path) -> str:
    record = read(records, "load")
    lines = ["| | clients | images a second | median latency | 99th percentile |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        lines.append(
            f"| {row['mode']} | {row['clients']} | {row['rate']:.0f} | {row['p50_ms']:.0f} ms | {row['p99_ms']:.0f} ms |"
        )
    ratios = {int(clients): gain for clients, gain in record["batched_over_one_by_one"].items()}
    gains = ", ".join(f"{gain:.1f} at {clients}" for clients, gain in sorted(ratios.items()))
    machine = record["machine"]
    measured = (
        f"Batched over one by one: {gains} clients. Measured with `python benchmarks/serve.py` on {machine['cores']} cores "
        f"({machine['processor']}), server and clients together, torch {record['versions']['torch']}."
    )
    return "\n".join([*lines, "", measured])


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
    half = [value for _, value in memory[len(memory) // 2 :]]
    return {
        "clients": clients,
        **summary(tally, seconds),
        "accepted_by_server": accepted,
        "answered_to_clients": tally.statuses[200],
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


def trials_table(records: Path) -> str:
    """Soak, fuzz and kill tests, as far as they have records."""
    rows = []
    if (records / "soak.json").exists():
        soaked = read(records, "soak")
        memory = [value for _, value in soaked["memory_mb"]]
        middle, end = memory[len(memory) // 2], memory[-1]
        rows.append(
            f"| {soaked['seconds'] / 60:.0f} minutes at overload: {soaked['clients']} clients, 64 places | "
            f"{soaked['answered_to_clients']:,} answered, {soaked['statuses'].get('503', 0):,} refused with 503, "
            f"{soaked['accepted_by_server'] - soaked['answered_to_clients']} of those accepted lost; memory "
            f"{middle:.0f} MB after half of the time and {end:.0f} MB at the end; alone afterwards "
            f"{soaked['after']['p50_ms']:.0f} ms, before {soaked['before']['p50_ms']:.0f} ms |"
        )
    if (records / "fuzz.json").exists():
        fuzzed = read(records, "fuzz")
        fives = {status: number for status, number in fuzzed["statuses"].items() if status >= "500"}
        rows.append(
            f"| {fuzzed['requests']:,} wrong requests | {fuzzed['statuses'].get('200', 0):,} could be answered, "
            f"{sum(n for s, n in fuzzed['statuses'].items() if '400' <= s < '500'):,} got 4xx, "
            f"{fives.pop('503', 0)} got 503, {sum(fives.values())} another 5xx |"
        )
    if (records / "kill.json").exists():
        killed = read(records, "kill")
        rows.append(
            f"| {killed['rounds']} kills (SIGKILL) under load | {len(killed['broken'])} broken files: the model's folder is "
            "the same byte for byte, the drift state is whole, and the next server starts from both |"
        )
    if (records / "attack-cpu.json").exists():
        rows.append(attack_row(read(records, "attack-cpu")))
    return "\n".join(["| trial | outcome |", "|---|---|", *rows])


def attack_row(record: dict[str, Any]) -> str:
    small, memory, config = record["small"], record["memory_mb"], record["config"]
    return (
        f"| {record['seconds'] / 60:.0f} minutes of attack: {config['clients']} clients, {config['places']} places; small "
        f"requests, decode bombs, slow clients, disconnects | {small['answered']['count']:,} small requests answered "
        f"(99 of 100 within {small['answered']['p99_ms'] / 1000:.1f} s), {small['refused']['count']:,} refused with 503 "
        f"(within {small['refused']['p99_ms'] / 1000:.1f} s); {record['lost']} lost; at most "
        f"{memory['most']['together']:.0f} MB with decoders, limit {memory['limit']:.0f} MB |"
    )


# -- kill --------------------------------------------------------------------------------------------------------------


def kill(model: str, rounds: int) -> dict[str, Any]:
    """Kill a server under load, again and again, and look at every file that it had to do with.

    The only file that a server writes is the state of its drift monitor, with ``--drift``, once a second. After each kill
    (SIGKILL, at a random moment) the model's folder must be as it was, byte by byte, and that state must be whole; the next
    server starts from both.
    """
    from abnn.demo.digits import demo_model
    from abnn.store.saved import fingerprint, load_model
    from abnn.triage.drift import DriftMonitor

    source = Path(model) if model else demo_model()[1]
    rng = np.random.default_rng(0)
    requests = [request("POST", "/predict", *form(image)) for image in sample_images()]
    left_over: set[Any] = set()
    answered, seen, broken = 0, [], []
    with tempfile.TemporaryDirectory() as scratch:
        folder, state = Path(scratch) / "model", Path(scratch) / "drift.json"
        shutil.copytree(source, folder)
        before = fingerprint(folder)
        for number in range(rounds):
            moment = float(rng.uniform(0.5, 2.5))
            with serving(str(folder), "--drift", str(state)) as server:
                tally = asyncio.run(load_and_kill(server, requests, moment))
                assert server.process.wait(30) == -signal.SIGKILL
            answered += tally.statuses[200]
            try:
                if fingerprint(folder) != before:
                    raise ValueError("the model's folder has changed")
                load_model(folder)
                seen.append(DriftMonitor.load(state).seen)
                if seen != sorted(seen):
                    raise ValueError("the drift monitor has forgotten images")
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a file belongs in the record
                broken.append(f"round {number}, after {moment:.2f} s: {error}")
            left_over.update(file.name for file in Path(scratch).iterdir() if file not in (folder, state))
    return {
        "rounds": rounds,
        "clients": KILL_CLIENTS,
        "answered_before_the_kill": answered,
        "images_in_drift_state": seen,
        "broken": broken,
        "unfinished_files_left_beside": len(left_over),
    }


async def load_and_kill(server: Server, requests: list[bytes], moment: float) -> Tally:
    """More clients than the model keeps up with; SIGKILL after ``moment`` seconds."""
    tally = Tally()
    until = time.perf_counter() + moment + 60
    clients = [asyncio.ensure_future(ask_for(server.port, requests, until, n, tally)) for n in range(KILL_CLIENTS)]
    await asyncio.sleep(moment)
    server.process.kill()
    for client in clients:
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
    return tally


# -- records ------------------------------------------------------------------------------------------------------------


def read(records: Path, name: str) -> dict[str, Any]:
    return json.loads((records / f"{name}.json").read_text())


def record(name: str, around: dict[str, Any], content: dict[str, Any], output: Path) -> None:
    from abnn.evaluate.provenance import provenance
    from abnn.files import write_json

    where = provenance()
    where["versions"].update({package: version(package) for package in PACKAGES})
    write_json(output / f"{name}.json", {"machine": around, **where, **content})
    print(output / f"{name}.json")


def render(records: Path, marker: str, make: Callable[[Path], str]) -> None:
    """Print a table; the project's own records also go into the documentation."""
    if marker == "serve load" and not (records / "load.json").exists():
        return
    table = make(records)
    print(table)
    if records == RESULTS:
        update_between_markers(DOCS, marker, table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="", help="folder of a saved model that reads digits; default: the demo's")
    parser.add_argument("--seconds", type=float, default=20, help="of each load measurement")
    parser.add_argument("--soak", type=float, metavar="SECONDS", help="run a soak test instead")
    parser.add_argument("--fuzz", type=int, metavar="REQUESTS", help="run a fuzz test instead")
    parser.add_argument("--kill", type=int, metavar="TIMES", help="kill servers under load instead")
    parser.add_argument("--attack", type=float, metavar="SECONDS", help="attack a server instead")
    parser.add_argument("--table", action="store_true", help="only render the tables")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    around = machine()
    failed = False
    if arguments.soak:
        with serving(arguments.model, "--queue", "64") as server:
            result = asyncio.run(soak(server, clients=192, seconds=arguments.soak))
        record("soak", around, result, arguments.output)
        failed = bool(result["lost"]) or result["accepted_by_server"] != result["answered_to_clients"]
    elif arguments.fuzz:
        with serving(arguments.model) as server:
            result = asyncio.run(fuzz(server, arguments.fuzz))
        record("fuzz", around, result, arguments.output)
        failed = bool(result["failed"]) or not result["answers_afterwards"]
    elif arguments.kill:
        result = kill(arguments.model, arguments.kill)
        record("kill", around, result, arguments.output)
        failed = bool(result["broken"])
    elif arguments.attack:
        with serving(arguments.model, "--queue", str(PLACES), "--timeout", str(TIMEOUT), "--threads", "1") as server:
            result = asyncio.run(attack(server, arguments.attack))
        record("attack-cpu", around, result, arguments.output)
        failed = bool(result["failed"])
    elif not arguments.table:
        record("load", around, run_load(arguments.model, arguments.seconds), arguments.output)
    render(arguments.output, "serve load", load_table)
    render(arguments.output, "serve trials", trials_table)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
