"""Whatever happens on the way, a file is what was published, or absent; and nothing is fetched twice."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pooch.core
import pytest

from abnn.data.published import fetch
from abnn.errors import FileFormatError
from tests.data.server import FileServer

CONTENT = np.random.default_rng(0).bytes(70_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


def get(server: FileServer, folder: Path, md5: str | None = MD5, size: int | None = None) -> Path:
    return fetch([server.url("a.bin")], folder / "deep" / "a.bin", md5, size)


@pytest.fixture(autouse=True)
def content(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["a.bin"] = CONTENT
    monkeypatch.setattr(pooch.core, "time", SimpleNamespace(sleep=lambda seconds: None))  # between two attempts


def files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_a_file_is_fetched_once(server: FileServer, tmp_path: Path) -> None:
    for _ in range(2):
        assert get(server, tmp_path).read_bytes() == CONTENT
    assert server.asked == ["a.bin"] and files(tmp_path) == ["a.bin"]


def test_a_broken_connection_is_tried_again(server: FileServer, tmp_path: Path) -> None:
    server.cut = [40_000, 0]
    assert get(server, tmp_path).read_bytes() == CONTENT
    assert len(server.asked) == 3 and files(tmp_path) == ["a.bin"]
    server.cut = [40_000] * 3
    with pytest.raises(FileFormatError, match="b.bin could not be downloaded"):
        fetch([server.url("a.bin")], tmp_path / "b.bin")  # without a checksum: the announced length tells
    assert files(tmp_path) == ["a.bin"]


@pytest.mark.parametrize("there", [CONTENT + b"more", b"of another file", CONTENT[:-1] + b"x"])
def test_what_is_there_already_is_checked(server: FileServer, tmp_path: Path, there: bytes) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.bin").write_bytes(there)
    assert get(server, tmp_path).read_bytes() == CONTENT
    (tmp_path / "deep" / "a.bin").write_bytes(there[:100])
    assert get(server, tmp_path, None, len(CONTENT)).read_bytes() == CONTENT
    assert files(tmp_path) == ["a.bin"]


def test_wrong_content_is_not_kept(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=f"MD5 hash of downloaded file .*{'0' * 32}.*{MD5}"):
        get(server, tmp_path, md5="0" * 32)
    with pytest.raises(FileFormatError, match="70,001 bytes instead of 5"):
        get(server, tmp_path, None, size=5)
    assert files(tmp_path) == []


def test_the_next_address_is_tried(server: FileServer, tmp_path: Path) -> None:
    server.files["other/a.bin"] = CONTENT
    urls = [server.url("nowhere"), server.url("other/a.bin")]
    assert fetch(urls, tmp_path / "a.bin", MD5).read_bytes() == CONTENT
    assert list(dict.fromkeys(server.asked)) == ["nowhere", "other/a.bin"]
    with pytest.raises(FileFormatError, match="nowhere: 404"):
        fetch(urls[:1], tmp_path / "b.bin")


def test_a_busy_server_is_asked_again(server: FileServer, tmp_path: Path) -> None:
    server.busy = 2
    assert get(server, tmp_path).read_bytes() == CONTENT and len(server.asked) == 3
    server.busy = 9
    with pytest.raises(FileFormatError, match="503"):
        fetch([server.url("a.bin")], tmp_path / "b.bin")


def test_no_server(tmp_path: Path) -> None:
    closed = FileServer()
    closed.close()
    with pytest.raises(FileFormatError, match="could not be downloaded.*refused"):
        fetch([closed.url("a.bin")], tmp_path / "a.bin")
    assert files(tmp_path) == []


def test_progress_is_shown_on_standard_error(
    server: FileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch([server.url("a.bin")], tmp_path / "a.bin", MD5)
    shown = capsys.readouterr()
    assert "70.0k/70.0k" in shown.err and shown.out == ""


def test_several_that_need_one_set_fetch_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from abnn.data import named, open_source

    entered, first = threading.Barrier(3), threading.Event()
    calls: list[str] = []

    def read(loader: str, split: str, folder: Path) -> dict[str, np.ndarray]:
        calls.append(loader)
        first.wait(10)  # until the others are on their way
        return {"images": np.full((3, 2, 2), 9, np.uint8), "labels": np.arange(3)}

    def work() -> None:
        entered.wait(10)
        lengths.append(len(open_source("mnist/test", tmp_path)))

    monkeypatch.setattr(named, "read_torchvision", read)
    lengths: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    entered.wait(10)
    first.set()
    for each in threads:
        each.join()
    assert lengths == [3, 3] and calls == ["MNIST"]
