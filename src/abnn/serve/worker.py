"""The program of one decoder process: images come in on standard input, their pixels go out on standard output.

It is started as a file; its arguments are Python's search path and the bytes that it may use. Hostile images are unpacked
here and nowhere else: the server can end this process at any moment, and its memory is limited. Torch and the web framework
are not loaded, so a new process is there in a moment. All numbers are lines of JSON:

    in    one object for each request, then the bytes of its images
    out   the pixels of all images, as their headers have them; if these are not too many, for each image its problem, or
          its shape followed by its pixels
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


def answer(images: Any, job: dict[str, Any], contents: list[bytes], sink: IO[bytes]) -> None:
    """Write the reply, image by image, so that only one is unpacked at a time."""

    def write_line(value: Any) -> None:
        sink.write(json.dumps(value).encode() + b"\n")

    pixels = 0
    for content in contents:
        with contextlib.suppress(images.Problem):  # which is found again below
            pixels += images.count_pixels(content, job["max_pixels"])
    write_line(pixels)
    for content in contents if pixels <= job["most_pixels"] else ():
        try:
            array = images.decode(content, job["channels"], job["max_pixels"])
        except images.Problem as problem:
            write_line([problem.status, problem.code, problem.message])
        else:
            write_line(array.shape)
            sink.write(array.data.cast("B"))
    sink.flush()


def main(source: IO[bytes], sink: IO[bytes], memory: int) -> None:
    """Answer jobs until the server closes the pipe. Signals for the whole group of processes are the server's."""
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    warnings.simplefilter("ignore")
    images = import_without_packages()
    limit_memory(memory)
    while line := source.readline():
        job = json.loads(line)
        contents = [source.read(length) for length in job["lengths"]]
        if hasattr(signal, "setitimer"):  # SIGALRM ends the process, whatever its decoder is at
            signal.setitimer(signal.ITIMER_REAL, job["seconds"])
        answer(images, job, contents, sink)
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


if __name__ == "__main__":
    sys.path[:] = json.loads(sys.argv[1])
    main(sys.stdin.buffer, sys.stdout.buffer, int(sys.argv[2]))
