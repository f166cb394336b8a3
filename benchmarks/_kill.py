"""Kill a server under load, again and again, and look at every file that it had to do with.

The only file that a server writes is the state of its drift monitor, with ``--drift``, once a second. After each kill
(SIGKILL, at a random moment) the model's folder must be as it was, byte by byte, and that state must be whole; the next
server starts from both.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _server import Server, Tally, ask_for, form, request, sample_images, serving

CLIENTS = 32


def kill(model: str, rounds: int) -> dict[str, Any]:
    from abnn.cli.serve import demo_model
    from abnn.store.saved import fingerprint, load_model
    from abnn.triage.drift import DriftMonitor

    source = Path(model) if model else demo_model()[1]
    rng = np.random.default_rng(0)
    requests = [request("POST", "/predict", *form(image)) for image in sample_images()]
    answered, seen, broken, left_over = 0, [], [], set()
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
        "clients": CLIENTS,
        "answered_before_the_kill": answered,
        "images_in_drift_state": seen,
        "broken": broken,
        "unfinished_files_left_beside": len(left_over),
    }


async def load_and_kill(server: Server, requests: list[bytes], moment: float) -> Tally:
    """More clients than the model keeps up with; SIGKILL after ``moment`` seconds."""
    tally = Tally()
    until = time.perf_counter() + moment + 60
    clients = [asyncio.ensure_future(ask_for(server.port, requests, until, n, tally)) for n in range(CLIENTS)]
    await asyncio.sleep(moment)
    server.process.kill()
    for client in clients:
        client.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await client
    return tally
