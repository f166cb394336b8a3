"""notMNIST comes out as the arrays that were put in, from a server on this machine."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from abnn.errors import FileFormatError
from research.data import notmnist, open_source
from tests.data.server import FileServer
from tests.data.test_published import GREY, LABELS, tar


def png(picture: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(picture).save(content, "png")
    return content.getvalue()


def publish_notmnist(server: FileServer, patch: pytest.MonkeyPatch, **changes: bytes) -> None:
    files = {f"notMNIST_small/{'ABCDEFGHIJ'[LABELS[i]]}/{i:02d}.png": png(GREY[i]) for i in reversed(range(23))}
    files |= {"notMNIST_small/A/broken.png": b"", "notMNIST_small/B/small.png": png(GREY[0, :9]), "notes.txt": b"x"}
    server.files["notMNIST_small.tar.gz"] = tar(files)
    server.files |= changes
    patch.setattr(notmnist, "URLS", (server.url("gone"), server.url("notMNIST_small.tar.gz")))
    patch.setattr(notmnist, "SIZE", len(server.files["notMNIST_small.tar.gz"]))


def test_letters_in_the_order_of_their_paths(
    server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_notmnist(server, monkeypatch)
    by_letter = np.argsort(LABELS, kind="stable")
    for _ in range(2):
        source = open_source("notmnist/test", tmp_path)
        np.testing.assert_array_equal(source.raw(0, 23), GREY[by_letter])  # type: ignore[attr-defined]
        assert source.labels.tolist() == LABELS[by_letter].tolist() and source.class_names == tuple("ABCDEFGHIJ")
    assert server.asked == ["gone", "notMNIST_small.tar.gz"]  # the next address is tried; nothing is fetched twice


def test_notmnist_that_is_none(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_notmnist(server, monkeypatch, **{"notMNIST_small.tar.gz": tar({"notMNIST_small/A/1.png": png(GREY[0])})})
    with pytest.raises(FileFormatError, match="not all letters from A to J"):
        open_source("notmnist/test", tmp_path)
    publish_notmnist(server, monkeypatch)
    cut = server.files["notMNIST_small.tar.gz"][:9000]
    publish_notmnist(server, monkeypatch, **{"notMNIST_small.tar.gz": cut})
    with pytest.raises(FileFormatError, match="is damaged .* and was removed"):
        open_source("notmnist/test", tmp_path)
    publish_notmnist(server, monkeypatch)
    assert len(open_source("notmnist/test", tmp_path)) == 23
    monkeypatch.setattr(notmnist, "SIZE", 5)
    with pytest.raises(FileFormatError, match="bytes instead of 5"):
        open_source("notmnist/test", tmp_path / "other")
