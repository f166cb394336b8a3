"""Downloads that go on where they stopped: into ``<file>.part``, checked, then renamed. A file is complete or absent.

torchvision knows where its data sets are published and with which checksums, but starts a broken download from the
beginning; so files are fetched here and only read by torchvision.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from abnn._version import __version__
from abnn.errors import FileFormatError

ATTEMPTS, TIMEOUT, CHUNK = 4, 30.0, 2**18


def fetch(
    urls: Sequence[str],
    file: Path,
    md5: str | None = None,
    size: int | None = None,
    progress: bool = True,
    pause: float = 1.0,
) -> Path:
    """One file from the first of several addresses that has it.

    md5, size  what the file must have; None: not checked
    pause      seconds before the second attempt, twice as many before each further one
    """
    if file.is_file() and _fault(file, md5, size) is None:
        return file
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    faults: list[str] = []
    for url in urls:
        for attempt in range(ATTEMPTS):
            resumed = part.exists()
            try:
                _go_on(url, part, file.name, progress)
            except (OSError, http.client.HTTPException) as error:
                faults.append(f"{url}: {error}")
                if _is_final(error):
                    break
                time.sleep(pause * 2**attempt if attempt + 1 < ATTEMPTS else 0)
                continue
            fault = _fault(part, md5, size)
            if fault is None:
                os.replace(part, file)
                return file
            part.unlink()
            faults.append(f"{url}: {fault}")
            if not resumed:
                break  # else what was there before may be at fault
    raise FileFormatError(f"{file.name} could not be downloaded: {'; '.join(dict.fromkeys(faults))}.")


def _is_final(error: Exception) -> bool:
    """Whether another attempt would end the same: the server refuses, or there is no connection to ask for its name."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR
    return isinstance(getattr(error, "reason", None), socket.gaierror)


def _go_on(url: str, part: Path, title: str, progress: bool) -> None:
    """Fetch what is missing from the partial file; an error if the connection ends before that."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": f"abnn/{__version__}", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if not have or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return  # it is all there
        part.unlink()
        raise ConnectionError("the partial file is longer than the file") from None
    with response:
        if have and not str(response.headers.get("Content-Range")).startswith(f"bytes {have}-"):
            if response.status == http.HTTPStatus.PARTIAL_CONTENT:
                part.unlink()
                raise ConnectionError("another part was sent than the one that was asked for")
            have = 0  # the server sends the whole file
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with open(part, "ab" if have else "wb") as out, _bar(title, have, total, progress) as advance:
            while content := response.read(CHUNK):
                out.write(content)
                advance(len(content))
            out.flush()
            os.fsync(out.fileno())
    if total is not None and part.stat().st_size != total:
        raise ConnectionError(f"the connection ended after {part.stat().st_size:,} of {total:,} bytes")


def _fault(path: Path, md5: str | None, size: int | None) -> str | None:
    """What is wrong with a file, if something is."""
    if size is not None and path.stat().st_size != size:
        return f"{path.stat().st_size:,} bytes instead of {size:,}"
    if md5 is not None:
        digest = hashlib.md5(usedforsecurity=False)
        with open(path, "rb") as file:
            while content := file.read(2**20):
                digest.update(content)
        if digest.hexdigest() != md5:
            return f"its MD5 sum is {digest.hexdigest()} instead of {md5}"
    return None


@contextlib.contextmanager
def _bar(title: str, have: int, total: int | None, shown: bool) -> Iterator[Any]:
    """A progress bar on standard error; gives the function that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(bar_width=24), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True), disable=not shown) as bar:
        task = bar.add_task(title, total=total, completed=have)
        yield lambda count: bar.update(task, advance=count)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, where the system has such locks; the others wait."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
