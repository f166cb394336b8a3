"""Whatever happens on the way, a file is what was published, or absent; and nothing is fetched twice."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from abnn.data.download import fetch, locked
from abnn.errors import FileFormatError
from tests.data.server import FileServer

CONTENT = np.random.default_rng(0).bytes(700_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


def get(server: FileServer, folder: Path, md5: str | None = MD5, size: int | None = None) -> Path:
    return fetch([server.url("a.bin")], folder / "deep" / "a.bin", md5, size, progress=False, pause=0.0)


@pytest.fixture(autouse=True)
def content(server: FileServer) -> None:
    server.files["a.bin"] = CONTENT


def test_a_file_is_fetched_once(server: FileServer, tmp_path: Path) -> None:
    for _ in range(2):
        assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("a.bin", None)] and [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin"]


def test_a_broken_connection_is_taken_up_again(server: FileServer, tmp_path: Path) -> None:
    server.cut = [100_000, 1, 250_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("a.bin", None), *(("a.bin", f"bytes={n}-") for n in (100_000, 100_001, 350_001))]


def test_a_later_run_goes_on(server: FileServer, tmp_path: Path) -> None:
    server.cut = [50_000, 0, 0, 0]
    with pytest.raises(FileFormatError, match="a.bin could not be downloaded.*ended after 50,000 of 700,001 bytes"):
        get(server, tmp_path)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin.part"]
    server.asked.clear()
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == [("a.bin", "bytes=50000-")]


def test_a_server_without_ranges_sends_everything(server: FileServer, tmp_path: Path) -> None:
    server.ranges, server.cut = False, [300_000]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 2


@pytest.mark.parametrize("there", [CONTENT, CONTENT + b"more", b"of another file", CONTENT[:-1] + b"x"])
def test_what_is_there_already_is_checked(server: FileServer, tmp_path: Path, there: bytes) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin.part").write_bytes(there)
    assert get(server, tmp_path).read_bytes() == CONTENT
    (tmp_path / "deep" / "a.bin").write_bytes(there)
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin"]


def test_wrong_content_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=f"MD5 sum is {MD5} instead of {'0' * 32}"):
        get(server, tmp_path, md5="0" * 32)
    with pytest.raises(FileFormatError, match="700,001 bytes instead of 5"):
        get(server, tmp_path, None, size=5)
    assert len(server.asked) == 2 and list((tmp_path / "deep").iterdir()) == []
    assert get(server, tmp_path, None, len(CONTENT)).read_bytes() == CONTENT


def test_the_next_address_is_tried(server: FileServer, tmp_path: Path) -> None:
    server.files["other/a.bin"] = CONTENT
    urls = [server.url("nowhere"), server.url("other/a.bin")]
    assert fetch(urls, tmp_path / "a.bin", MD5, progress=False, pause=0.0).read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["nowhere", "other/a.bin"]  # a clear answer is not asked for again
    with pytest.raises(FileFormatError, match="nowhere: HTTP Error 404"):
        fetch(urls[:1], tmp_path / "b.bin", progress=False)


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.busy = 3
    assert get(server, tmp_path).read_bytes() == CONTENT and len(server.asked) == 4
    server.busy = 9
    with pytest.raises(FileFormatError, match="503"):
        fetch([server.url("a.bin")], tmp_path / "b.bin", progress=False, pause=0.0)


def test_no_server(tmp_path: Path) -> None:
    closed = FileServer()
    closed.close()
    with pytest.raises(FileFormatError, match="could not be downloaded.*refused"):
        fetch([closed.url("a.bin")], tmp_path / "a.bin", progress=False, pause=0.0)
    assert list(tmp_path.iterdir()) == []


def test_without_a_connection_there_is_no_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every name is asked for once."""
    asked: list[str] = []

    def unknown_host(request: urllib.request.Request, timeout: float) -> None:
        asked.append(request.full_url)
        raise urllib.error.URLError(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"))

    monkeypatch.setattr(urllib.request, "urlopen", unknown_host)
    with pytest.raises(FileFormatError, match="name resolution"):
        fetch(["https://a.invalid/x", "https://b.invalid/x"], tmp_path / "x", progress=False, pause=60.0)
    assert asked == ["https://a.invalid/x", "https://b.invalid/x"]


def test_progress_is_shown_on_standard_error(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch([server.url("a.bin")], tmp_path / "a.bin", MD5)
    shown = capsys.readouterr()
    assert "a.bin" in shown.err and "700.0/700.0 kB" in shown.err and shown.out == ""


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    order: list[str] = []

    def work(name: str) -> None:
        with locked(tmp_path / "folder" / ".lock"):
            order.append(name)
            time.sleep(0.02)
            order.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert order[::2] == order[1::2] and sorted(order[::2]) == ["a", "b", "c"]
