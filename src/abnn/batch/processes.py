"""Workers on this machine: processes that get numbers of shards by a pipe. One that dies is started anew, with the same shard.

driver -> worker  a number in each line; the end of the pipe says that the driver is gone
worker -> driver  {"shard": [...], "error": [...]} for each number, as :class:`abnn.batch.worker.Scorer` returns it

There is no cluster to start, and nothing beside the workers takes processor time from the model.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any

import torch

from abnn.batch.worker import Scorer, Work
from abnn.errors import AbnnError

MOST_DEATHS = 3  # of workers at the same shard
START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import abnn.batch.processes as p; p.main(sys.argv[2])"


def cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_processes(work: Work, shards: Sequence[int], workers: int | None) -> Generator[int, None, None]:
    """Yield numbers of shards as they are done, in any order."""
    gpus = 0 if work.device == "cpu" else torch.cuda.device_count()
    count = max(1, min(len(shards), workers or gpus or cores()))
    threads = max(1, cores() // count) if gpus else 1
    crew = [Process(replace(work, threads=threads), number % gpus if gpus else None) for number in range(count)]
    waiting, busy = list(reversed(shards)), dict[Future[int], Process]()
    with ThreadPoolExecutor(count) as pool:
        try:
            while waiting or busy:
                for process in crew:
                    if waiting and process not in busy.values():
                        busy[pool.submit(process.score, waiting.pop())] = process
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    del busy[future]
                    yield future.result()
        finally:
            for process in crew:
                process.stop()


class Process:
    """One worker, started with its first shard; ``gpu``: which of those that can be seen is its own."""

    def __init__(self, work: Work, gpu: int | None) -> None:
        self.work, self.gpu = work, gpu
        self.process: subprocess.Popen[str] | None = None
        self.stopped, self.lock = False, threading.Lock()

    def score(self, shard: int) -> int:
        """Have one shard scored and return its number. What the worker refuses is raised, as is a shard that kills workers."""
        for _ in range(MOST_DEATHS):
            process, answer = self._running(), ""
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # where it dies before
                print(shard, file=process.stdin, flush=True)
                answer = process.stdout.readline()
            if answer:
                if error := json.loads(answer)["error"][0]:
                    raise AbnnError(f"{error} What is scored stays: start the same command again to go on.")
                return shard
            status = process.wait()
        fix = "Is there enough memory? Start the same command again to go on."
        raise AbnnError(f"Workers died {MOST_DEATHS} times at shard {shard}, the last with exit status {status}. {fix}")

    def stop(self) -> None:
        """Kill the worker. What it has not written yet is absent."""
        with self.lock:
            self.stopped = True
            if self.process is not None:
                self.process.kill()
                self.process.wait()

    def _running(self) -> subprocess.Popen[str]:
        with self.lock:
            if self.stopped:
                raise AbnnError("The job was stopped.")
            if self.process is None or self.process.poll() is not None:
                command = [sys.executable, "-c", START, json.dumps(sys.path), json.dumps(asdict(self.work))]
                pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
                self.process = subprocess.Popen(command, **pipes, env=self.environment(), start_new_session=True)
            return self.process

    def environment(self) -> dict[str, str]:
        """Return the variables of the worker's environment."""
        # MALLOC_ARENA_MAX: else each thread keeps memory of its own.
        own = {"MALLOC_ARENA_MAX": "1", **os.environ, "OMP_NUM_THREADS": str(self.work.threads)}
        if self.gpu is not None:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            own["CUDA_VISIBLE_DEVICES"] = visible.split(",")[self.gpu] if visible else str(self.gpu)
        return own


def main(work: str) -> None:
    """Score shards until the driver is gone. What others print goes to standard error, for standard output is the driver's."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    numbers, scorer = SimpleQueue[int](), Scorer(Work(**json.loads(work)))

    def listen() -> None:
        for line in sys.stdin:
            numbers.put(int(line))
        os._exit(0)  # at once: a part is complete or absent

    threading.Thread(target=listen, daemon=True).start()
    while True:
        try:
            said = scorer({"item": [numbers.get()]})
        except Exception as error:  # noqa: BLE001 - of any kind: it would come again in a new process
            said = {"error": [f"A worker failed with {type(error).__name__}: {error}."]}
        print(json.dumps(said), file=answers, flush=True)
