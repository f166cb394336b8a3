"""Only documented formats are decoded, whatever a file is called and whatever else Pillow could open."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image, features

import abnn
from abnn.data import FolderSource, InputForm, read_image
from abnn.data.images import EXTENSIONS, FORMATS, check_pixels, open_image

PICTURE = np.random.default_rng(0).integers(0, 256, (8, 10, 3), np.uint8)
NAMES = {"PNG": "png", "JPEG": "jpg", "BMP": "bmp", "GIF": "gif", "WEBP": "webp", "TIFF": "tif", "PPM": "ppm"}


def encoded(kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    Image.fromarray(PICTURE).save(content, kind, **options)
    return content.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_documented_format_is_read_under_any_name(kind: str, tmp_path: Path) -> None:
    assert f".{NAMES[kind]}" in EXTENSIONS
    for name in (NAMES[kind], "png"):
        path = tmp_path / f"a.{name}"
        path.write_bytes(encoded(kind))
        with Image.open(path) as image:
            np.testing.assert_array_equal(read_image(path, 3), np.array(image.convert("RGB")))
        np.testing.assert_array_equal(read_image(path.read_bytes(), 3), read_image(path, 3))


@pytest.mark.skipif(not features.check("jpg"), reason="needs JPEG")
def test_pictures_of_telephones_are_jpeg() -> None:
    """Two pictures in one JPEG file; the first one counts."""
    content = encoded("MPO", save_all=True, append_images=[Image.fromarray(PICTURE[::-1])])
    np.testing.assert_array_equal(read_image(content, 3), read_image(encoded("JPEG"), 3))


def test_postscript_named_png_does_not_start_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    (tmp_path / "x.png").write_bytes(encoded("EPS"))
    with pytest.raises(OSError, match="cannot identify"):
        read_image(tmp_path / "x.png", 1)
    with pytest.raises(OSError, match="cannot identify"):
        open_image(tmp_path / "x.png")
    (chunk,) = FolderSource(tmp_path).chunks(InputForm((1, 8, 8)), 4)
    assert len(chunk.x) == 0 and chunk.unreadable == ("x.png: no image of a known format",)


@pytest.mark.parametrize("kind", ["ICO", "PCX", "TGA", "SGI", "DDS", "PDF", "IM", "MSP"])
def test_other_formats_are_refused(kind: str) -> None:
    content = io.BytesIO()
    Image.fromarray(PICTURE).convert("1" if kind == "MSP" else "RGB").save(content, kind)
    with pytest.raises(OSError, match="cannot identify"):
        read_image(content.getvalue(), 1)


def test_pillow_opens_files_in_one_place_only() -> None:
    package = Path(abnn.__file__).parent
    callers = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if opens(path.read_text())}
    assert callers == {"data/images.py"}


def opens(code: str) -> bool:
    return re.search(r"\bImage\.open\(", code) is not None


def test_sizes_are_checked_before_unpacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 80)
    assert read_image(encoded("PNG"), 1).shape == (8, 10)
    with pytest.raises(ValueError, match="9 x 9 pixels are more than the 80"):
        check_pixels(9, 9)

    def refuse(width: int, height: int) -> None:
        raise KeyError(width, height)

    with pytest.raises(KeyError, match="10, 8"):
        read_image(encoded("PNG"), 1, check=refuse)
