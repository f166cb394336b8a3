"""The program of one decoder process: images come in on standard input, their pixels go out on standard output.

It is started as a file; its arguments are Python's search path and the bytes that it may use. Hostile images are unpacked here and nowhere else:
the server can end this process at any moment, and its memory is limited. One job is a line of JSON and the bytes of its
images; so is the reply. Torch and the web framework are not loaded, so a new process is there in a moment.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import types
import warnings
from pathlib import Path
from typing import IO, Any


def import_without_packages() -> Any:
    """Return :mod:`abnn.serve.images`; what the packages around it would import is left out."""
    folder = Path(__file__).resolve().parents[1]
    for name in ("data", "serve"):
        package = types.ModuleType(f"abnn.{name}")
        package.__path__ = [str(folder / name)]
        sys.modules[package.__name__] = package
    from abnn.serve import images

    return images


def limit_memory(more: int) -> None:
    """Allow ``more`` bytes than now, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more,) * 2)


def answer(images: Any, job: dict[str, Any], contents: list[bytes]) -> tuple[dict[str, Any], list[Any]]:
    """Return the pixels of all images, or only their number if that is more than ``unpack_up_to``."""
    outcomes: list[Any] = []
    total = 0
    for content in contents:
        try:
            total += images.count_pixels(content, job["max_pixels"])
        except images.Problem as problem:
            outcomes.append(problem)
        else:
            outcomes.append(content)
    if total > job["unpack_up_to"]:
        return {"pixels": total}, []
    rows, arrays = [], []
    for outcome in outcomes:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            array = images.decode(outcome, job["channels"], job["max_pixels"])
        except images.Problem as problem:
            rows.append({"problem": [problem.status, problem.code, problem.message]})
        else:
            rows.append({"shape": array.shape})
            arrays.append(array)
    return {"pixels": total, "rows": rows}, arrays


def main(source: IO[bytes], sink: IO[bytes], memory: int) -> None:
    """Answer jobs until the server closes the pipe. Signals for the whole group of processes are the server's."""
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")
    images = import_without_packages()
    limit_memory(memory)
    while line := source.readline():
        job = json.loads(line)
        reply, arrays = answer(images, job, [source.read(length) for length in job["lengths"]])
        sink.write(json.dumps(reply).encode() + b"\n")
        for array in arrays:
            sink.write(array.data.cast("B"))
        sink.flush()


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]))
