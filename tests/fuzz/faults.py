"""A file system that fails or stops at the n-th operation, and processes to try it in."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from abnn import files

MODES = ("fails", "fails once", "stops", "stops half-way")
OPERATIONS = ("open", "replace", "rename", "fsync", "mkdir", "unlink", "remove", "rmdir", "chmod")
STOPPED = 77
PATIENCE = 120  # seconds after which a job counts as hung


class FaultyFiles:
    """Counts what changes the file system, and lets the n-th of these operations fail; n = 0: none."""

    def __init__(self, number: int = 0, mode: str = "fails") -> None:
        self.number, self.mode, self.count = number, mode, 0

    def strikes(self) -> bool:
        self.count += 1
        return self.count == self.number or (self.mode == "fails" and 0 < self.number < self.count)

    def strike(self) -> None:
        if self.mode.startswith("stops"):
            os._exit(STOPPED)
        raise OSError(errno.ENOSPC, "No space left on device")

    def wrap(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            reads = name == "open" and not (arguments[1] if len(arguments) > 1 else 0) & (os.O_WRONLY | os.O_RDWR)
            if not reads and self.strikes():
                self.strike()
            return real(*arguments, **options)

        return operation

    def wrap_open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Of os.fdopen and open(): the file is opened by one operation, unless it is open already, and written by others."""

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            writes = any(sign in mode for sign in "wax+") and file != os.devnull
            if writes and not isinstance(file, int) and self.strikes():
                self.strike()
            content = real(file, mode, *arguments, **options)
            return _FaultyFile(self, content) if writes else content

        return opened

    @contextlib.contextmanager
    def in_place(self) -> Iterator[FaultyFiles]:
        with contextlib.ExitStack() as stack:
            for name in OPERATIONS:
                stack.enter_context(mock.patch.object(os, name, self.wrap(name, getattr(os, name))))
            for module, name in ((os, "fdopen"), (io, "open"), (builtins, "open")):
                stack.enter_context(mock.patch.object(module, name, self.wrap_open(getattr(module, name))))
            stack.enter_context(mock.patch.object(files, "_exchange", self.wrap("exchange", files._exchange)))
            yield self


class _FaultyFile:
    """A file whose writing may end half-way."""

    def __init__(self, faults: FaultyFiles, file: Any) -> None:
        self.faults, self.file = faults, file

    def write(self, content: bytes) -> int:
        if self.faults.strikes():
            if self.faults.mode in ("stops half-way", "fails once"):
                self.file.write(content[: len(content) // 2])
                self.file.flush()
            self.faults.strike()
        return self.file.write(content)

    def __enter__(self) -> Any:
        self.file.__enter__()
        return self

    def __exit__(self, *error: object) -> Any:
        return self.file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def in_child(work: Callable[[], Any]) -> tuple[int, Any]:
    """Run in a forked process; return its exit status and what it returned, as JSON can hold it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            signal.alarm(PATIENCE)
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            warnings.simplefilter("ignore")
            try:
                answer, status = work(), 0
            except BaseException as error:  # noqa: BLE001, the parent is told of it
                where = traceback.format_tb(error.__traceback__)[-1]
                answer = {"error": type(error).__name__, "text": f"{error!s:.300} {where}"}
            with open(writer, "w") as file:
                json.dump(answer, file)
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader) as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None
