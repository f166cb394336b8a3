"""SEMEION comes out as the arrays that were put in, from a server on this machine."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from abnn.data import InputForm
from abnn.errors import FileFormatError, InputError
from abnn.networks.vision import torchvision
from research.data import open_source
from tests.data.server import FileServer
from tests.data.test_published import GREY, LABELS, md5


def publish_semeion(server: FileServer, patch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    np.savetxt(content, np.hstack([(GREY[:, :16, :16] > 99).reshape(23, 256), np.eye(10)[LABELS]]), "%.4f")
    server.files["semeion.data"] = content.getvalue()
    patch.setattr(torchvision().datasets.SEMEION, "url", server.url("semeion.data"))
    patch.setattr(torchvision().datasets.SEMEION, "md5_checksum", md5(content.getvalue()))


def test_black_and_white(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_semeion(server, monkeypatch)
    form = InputForm((1, 16, 16))
    for again in (False, True):
        server.asked.clear()
        source = open_source("semeion/test", tmp_path)
        assert (source.read(0, 23, form).x == form.images((GREY[:, :16, :16] > 99) * np.uint8(255))).all()
        assert source.labels.tolist() == LABELS.tolist() and source.class_names == tuple("0123456789")
        assert (server.asked == []) is again  # nothing is fetched twice
    with pytest.raises(InputError, match="accepted: semeion/test"):
        open_source("semeion/train", tmp_path)
    server.files["semeion.data"] = b"something else"
    with pytest.raises(FileFormatError, match="semeion/test could not be downloaded"):
        open_source("semeion/test", tmp_path / "other")
