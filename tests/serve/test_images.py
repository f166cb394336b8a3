"""Bytes that anybody may have sent: same pixels as from a file, or a clear refusal; nothing in between."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from abnn.data import read_image
from abnn.serve.images import decode
from abnn.serve.problems import Problem
from tests.serve.conftest import encoded, pixels

pytestmark = pytest.mark.filterwarnings("ignore")  # Pillow warns of what it then refuses
MOST = 1_000_000
REFUSALS = {413, 415, 422}


def with_orientation(array: np.ndarray) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(array, "JPEG", exif=exif)


def animation() -> bytes:
    frames = [Image.fromarray(pixels(9, 7, 1, seed)) for seed in range(3)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


FILES = {
    "png": encoded(pixels()),
    "png-grey": encoded(pixels(channels=1)),
    "png-alpha": encoded(pixels(channels=4)),
    "png-16": encoded(pixels(channels=1).astype(np.uint16) * 257 + 3),
    "png-palette": encoded(np.array(Image.fromarray(pixels()).quantize(16))),
    "jpeg": encoded(pixels(), "JPEG"),
    "jpeg-turned": with_orientation(pixels()),
    "webp": encoded(pixels(), "WEBP"),
    "bmp": encoded(pixels(), "BMP"),
    "gif": animation(),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_are_those_of_the_file(name: str, channels: int, tmp_path: Path) -> None:
    path = tmp_path / f"image.{name.split('-')[0]}"
    path.write_bytes(FILES[name])
    assert np.array_equal(decode(FILES[name], channels, MOST), read_image(path, channels))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0",
        b"II*\x00" + b"\x00" * 40,
        b"RIFF\x00\x00\x00\x00WAVE",
        b"P6 1 1 255 abc",
    ],
)
def test_other_types_are_refused_by_content(content: bytes) -> None:
    with pytest.raises(Problem) as refused:
        decode(content, 1, MOST)
    assert refused.value.status == 415 and "PNG, JPEG" in refused.value.message


@pytest.mark.parametrize("name", FILES)
def test_cut_files_are_refused(name: str) -> None:
    """At every length: either a refusal, or (formats whose pixels end before the file does) the whole picture."""
    whole = decode(FILES[name], 1, MOST)
    for length in range(0, len(FILES[name]), 7):
        try:
            cut = decode(FILES[name][:length], 1, MOST)
        except Problem as problem:
            assert problem.status in REFUSALS
        else:
            assert cut.shape == whole.shape


def test_a_wrong_checksum_is_noticed() -> None:
    content = bytearray(FILES["png"])
    content[-20] ^= 1
    with pytest.raises(Problem) as refused:
        decode(bytes(content), 1, MOST)
    assert refused.value.code == "damaged-image"


def bomb(width: int, height: int) -> bytes:
    """A few kilobytes of PNG that unpack to width x height grey pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    squeezed = zlib.compressobj(9)
    rows = b"".join(squeezed.compress(bytes(width + 1)) for _ in range(min(height, 2000))) + squeezed.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("width, height", [(20_000, 2000), (2**31 - 1, 1), (60_000, 60_000), (1, 150_000)])
def test_too_many_pixels_are_refused_before_they_are_unpacked(width: int, height: int) -> None:
    content = bomb(min(width, 20_000), height)
    content = content[:16] + struct.pack(">I", width) + content[20:29]  # the header as it should be, checksum as well
    content += struct.pack(">I", zlib.crc32(content[12:29])) + bomb(min(width, 20_000), height)[33:]
    tracemalloc.start()
    try:
        with pytest.raises(Problem) as refused:
            decode(content, 1, MOST)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    assert refused.value.status == 413


def test_the_limit_is_exact() -> None:
    assert decode(encoded(pixels(20, 10)), 1, 200).shape == (10, 20)
    with pytest.raises(Problem):
        decode(encoded(pixels(20, 10)), 1, 199)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(FILES)),
    places=st.lists(st.integers(0, 10_000), min_size=1, max_size=12),
    values=st.binary(min_size=12, max_size=12),
    channels=st.sampled_from([1, 3]),
)
def test_mutated_images_are_decoded_or_refused(name: str, places: list[int], values: bytes, channels: int) -> None:
    content = bytearray(FILES[name])
    for place, value in zip(places, values):
        content[place % len(content)] = value
    check_total(bytes(content), channels)


@settings(max_examples=150, deadline=None)
@given(
    start=st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"RIFF\x10\x00\x00\x00WEBP", b"GIF89a", b"BM"]),
    rest=st.binary(max_size=400),
)
def test_random_bytes_after_a_signature_are_refused(start: bytes, rest: bytes) -> None:
    check_total(start + rest, 1)


def test_thousands_of_random_mutations() -> None:
    """Plain loops: many more files than hypothesis finds time for."""
    rng = np.random.default_rng(0)
    sources = list(FILES.values())
    for number in range(2000):
        content = np.frombuffer(sources[number % len(sources)], np.uint8).copy()
        places = rng.integers(0, len(content), rng.integers(1, 9))
        content[places] = rng.integers(0, 256, len(places))
        cut = rng.integers(1, len(content) + 1) if number % 3 == 0 else len(content)
        check_total(content[:cut].tobytes(), 1 if number % 2 else 3)


def check_total(content: bytes, channels: int) -> None:
    try:
        array = decode(content, channels, MOST)
    except Problem as problem:
        assert problem.status in REFUSALS and problem.message
    else:
        assert array.dtype == np.uint8 and array.ndim == (2 if channels == 1 else 3)
        assert 0 < array.shape[0] * array.shape[1] <= MOST
