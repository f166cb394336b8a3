"""What one case may do: no code, no network, no process, no file written outside, seconds and memory within bounds."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SECONDS = 5.0  # of computing time that one case may take
PATIENCE = 15.0  # seconds by the clock after which a case counts as hung, on a machine with other work
HEADROOM = 1 << 30  # bytes of address space that cases may take beyond what the process has when they begin
FORBIDDEN = (
    "ftplib.",
    "http.client.",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "os.system",
    "pickle.find_class",
    "pty.spawn",
    "smtplib.",
    "socket.",
    "subprocess.",
    "urllib.",
    "webbrowser.",
)
CHANGES = (
    "os.chmod",
    "os.chown",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Violation(BaseException):
    """Something that no file and no request may cause. Not an Exception, so that no handler of the package hides it."""


class TooLong(Violation):
    """A case that took more time than it may."""


class _Watcher:
    """The one audit hook of this process. A hook stays until the process ends, so it has a switch."""

    def __init__(self) -> None:
        self.folder: str | None = None
        self.violations: list[str] = []
        self.installed = False

    def install(self) -> None:
        if not self.installed:
            sys.addaudithook(self.hook)
            self.installed = True

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        fault = self.fault(event, arguments)
        if fault is not None:
            self.violations.append(fault)
            raise Violation(fault)

    def fault(self, event: str, arguments: tuple[Any, ...]) -> str | None:
        if event == "open":
            path, mode, flags = arguments
            writes = any(sign in mode for sign in "wax+") if isinstance(mode, str) else bool((flags or 0) & WRITING)
            return f"opens {path!r} for writing" if writes and not self.may_change(path) else None
        if event == "exec":  # of a module, too; the event "import" does not say from where
            file = getattr(arguments[0], "co_filename", "")
            return f"runs code of {file}" if self.is_code(file) else None
        if event in ("compile", "import"):
            return f"{event} of {arguments[1]}" if self.is_code(arguments[1]) else None
        if event == "ctypes.dlopen":  # scikit-learn asks what is loaded already
            file = str(arguments[0])
            return None if file.startswith((sys.prefix, sys.base_prefix)) else f"loads the library {file}"
        if event.startswith(FORBIDDEN):
            return f"{event}{arguments!r:.200}"
        if event in CHANGES:
            paths = [each for each in arguments[:2] if isinstance(each, str | bytes | os.PathLike)]
            return None if all(map(self.may_change, paths)) else f"{event} of {paths!r:.200}"
        return None

    def is_code(self, file: Any) -> bool:
        """Whether code is from the folder. Code from no file has a name such as <string>, which is below no folder."""
        return isinstance(file, str | bytes) and os.path.isabs(file) and self.is_inside(file)

    def is_inside(self, path: Any) -> bool:
        assert self.folder is not None
        return os.path.realpath(os.fsdecode(path)).startswith(self.folder + os.sep)

    def may_change(self, path: Any) -> bool:
        return isinstance(path, int) or self.is_inside(path) or os.fsdecode(path) == os.devnull


_WATCHER = _Watcher()


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[None]:
    """Raise :class:`Violation` if the block does something that is forbidden, or takes longer than ``SECONDS``.

    folder  the only place where files may be written
    """
    _WATCHER.install()
    _WATCHER.violations.clear()
    handlers = {each: signal.signal(each, _raise_too_long) for each in (signal.SIGPROF, signal.SIGALRM)}
    began = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    _WATCHER.folder = os.path.realpath(folder)
    try:
        yield
    finally:
        _WATCHER.folder = None
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in handlers.items():
            signal.signal(each, handler)
    if _WATCHER.violations:
        raise Violation("; ".join(_WATCHER.violations))
    if time.process_time() - began > SECONDS:
        raise TooLong(f"{time.process_time() - began:.1f} seconds of computing")


def bound_memory(headroom: int = HEADROOM) -> None:
    """Let this process take so many bytes more than it has; beyond, it gets a MemoryError. There is no way back."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + headroom
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def scratch_root() -> str | None:
    """Return a place in memory for the files of cases, where the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def _raise_too_long(number: int, frame: Any) -> None:
    raise TooLong("computing" if number == signal.SIGPROF else "waiting")
