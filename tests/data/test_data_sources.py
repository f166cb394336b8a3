"""Sources of data: what comes out is what was put in, in the form that a model takes, and bad files are named."""

from __future__ import annotations

import os
import struct
import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from abnn.data import (
    ArraySource,
    FolderSource,
    InputForm,
    Source,
    data_root,
    load_digits,
    match_labels,
    named,
    open_source,
)
from abnn.data import arrays as arrays_file
from abnn.data.digits import handwritten_digits
from abnn.data.form import grey
from abnn.errors import FileFormatError, InputError
from abnn.evaluate.evaluation import TIERS

RNG = np.random.default_rng(0)
GREY, COLOUR = RNG.integers(0, 256, (23, 9, 7), np.uint8), RNG.integers(0, 256, (23, 9, 7, 3), np.uint8)
GREY8, RGB8 = InputForm((1, 8, 8)), InputForm((3, 8, 8))


def save_images(folder: Path, pictures: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / f"{number:03d}.png")
    return folder


def everything(source: Source, form: InputForm, size: int = 5, first: int = 0) -> torch.Tensor:
    return torch.cat([chunk.x for chunk in source.chunks(form, size, first)])


# --- the form that a model takes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(9, 7), (8, 8), (28, 28), (4, 5)])
def test_conversion_is_that_of_pillow(size: tuple[int, int]) -> None:
    """Within one step of 8 bits, since both round after resizing; without resizing exactly."""
    exact = size == (9, 7)
    for pictures in (GREY, COLOUR):
        for channels, mode in ((1, "L"), (3, "RGB")):
            x = InputForm((channels, *size)).images(pictures)
            images = [Image.fromarray(each).convert(mode) for each in pictures]
            wanted = np.stack([np.asarray(each.resize(size[::-1], Image.Resampling.BILINEAR)) for each in images])
            wanted = wanted[:, None] if channels == 1 else wanted.transpose(0, 3, 1, 2)
            assert x.shape == wanted.shape and x.dtype == torch.float32
            assert np.abs(x.numpy() * 255 - wanted).max() <= (1e-4 if exact else 1 + 1e-4)


def test_normalisation_and_back() -> None:
    form = InputForm((3, 9, 7), torch.float64, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 2.0))
    x = form.images(COLOUR)
    wanted = (COLOUR.astype(np.float64) / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 2.0]
    np.testing.assert_allclose(x.numpy(), wanted.transpose(0, 3, 1, 2), atol=1e-12)
    np.testing.assert_array_equal(form.pictures(x), COLOUR)
    np.testing.assert_array_equal(InputForm((1, 9, 7)).pictures(InputForm((1, 9, 7)).images(GREY)), GREY)
    rows = RNG.normal(size=(4, 2))
    flat = InputForm((2,), torch.float64, mean=(1.0, 2.0), std=(3.0, 4.0))
    np.testing.assert_allclose(flat.features(rows).numpy(), (rows - [1, 2]) / [3, 4])
    assert len(flat.pictures(flat.features(rows))) == 0


def test_floats_stay_floats() -> None:
    x = InputForm((1, 4, 4)).images(np.full((2, 8, 8, 3), 1 / 3, np.float32))
    torch.testing.assert_close(x, torch.full((2, 1, 4, 4), 1 / 3))
    np.testing.assert_allclose(
        grey(np.array([0.2, 0.5, 0.9], np.float32).reshape(1, 3, 1, 1)).ravel(), [0.4559], rtol=1e-6
    )


def model(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, **extra: Any) -> SimpleNamespace:
    return SimpleNamespace(input_shape=shape, input_dtype=dtype, extra=extra)


def test_form_of_a_model() -> None:
    preprocess = {"mean": [0.5], "std": [2]}
    assert InputForm.of(model((1, 8, 8), preprocess=preprocess)) == InputForm((1, 8, 8), mean=(0.5,), std=(2.0,))
    assert InputForm.of(SimpleNamespace(input_shape=(5,), input_dtype=torch.float64)).kind == "features"
    for bad in (model((4, 8, 8)), model((8, 8)), model((7,), torch.int64)):
        with pytest.raises(InputError, match="evaluate_set"):
            InputForm.of(bad)
    strange: list[Any] = [
        {"mean": [0.5]},
        {"mean": [0.5, 0.5], "std": [1, 1]},
        {"mean": [0.5], "std": [0]},
        {"mean": [float("nan")], "std": [1]},
        {"mean": "0", "std": [1]},
        {"mean": [0.5], "std": [1], "size": 3},
        [0.5],
    ]
    for each in strange:
        with pytest.raises(InputError, match="preprocess of the model"):
            InputForm.of(model((1, 8, 8), preprocess=each))


# --- arrays --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("pictures", [GREY, COLOUR])
def test_arrays_come_back_in_any_order(tmp_path: Path, save: Any, pictures: np.ndarray) -> None:
    labels = np.arange(23) % 4
    save(tmp_path / "some.npz", images=pictures, labels=labels.astype(np.uint8), names=["a", "b", "c", "d"])
    source = open_source(str(tmp_path / "some.npz"))
    assert source.name == "some" and len(source) == 23 and source.class_names == ("a", "b", "c", "d")
    np.testing.assert_array_equal(source.labels, labels)
    assert isinstance(source, ArraySource)
    for first, last in ((0, 5), (5, 23), (7, 9), (2, 3), (20, 23)):
        np.testing.assert_array_equal(source.raw(first, last), pictures[first:last])
    assert torch.equal(everything(source, RGB8, size=4, first=3), RGB8.images(pictures[3:]))
    source.close()
    np.testing.assert_array_equal(source.raw(2, 3), pictures[2:3])


def test_features(tmp_path: Path) -> None:
    rows = RNG.normal(size=(12, 3))
    np.savez(tmp_path / "table.npz", features=rows, target=np.arange(12) % 2)
    source = open_source(f"wine={tmp_path / 'table.npz'}")
    source.check(InputForm((3,)))
    assert source.name == "wine" and source.kind == "features" and source.labels.max() == 1
    np.testing.assert_allclose(everything(source, InputForm((3,), torch.float64)).numpy(), rows)
    with pytest.raises(InputError, match="3 features"):
        source.check(InputForm((4,)))
    with pytest.raises(InputError, match="rows of features"):
        source.check(GREY8)


def test_arrays_without_labels_have_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=GREY)
    assert (open_source(str(tmp_path / "a.npz")).labels == -1).all()


BAD_ARRAYS: list[tuple[dict[str, Any], str]] = [
    ({"pictures": GREY}, "archive with pictures"),
    ({"images": GREY / 255}, "Scale to 0..255"),
    ({"images": GREY[0]}, "uint8"),
    ({"images": COLOUR.transpose(0, 3, 1, 2)}, "move channels last"),
    ({"images": GREY[:0]}, "at least one input"),
    ({"images": GREY > 300, "labels": np.zeros(23, int)}, "uint8"),
    ({"images": (GREY > 99).astype(np.uint8)}, "Multiply them by 255"),
    ({"images": np.asfortranarray(GREY)}, "ascontiguousarray"),
    ({"images": GREY, "labels": np.zeros(22, int)}, "one for each input"),
    ({"images": GREY, "labels": np.zeros(23)}, "whole numbers"),
    ({"features": GREY}, "numbers .N, D."),
    ({"images": GREY, "names": "cat"}, r"names of .*got an array of shape \(\); accepted: one row of names"),
    ({"images": GREY, "names": [["cat"], ["dog"]]}, r"names of .*got an array of shape \(2, 1\)"),
]


@pytest.mark.parametrize(("content", "message"), BAD_ARRAYS, ids=[each[1] for each in BAD_ARRAYS])
def test_bad_arrays(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    np.savez(tmp_path / "bad.npz", **content)
    with pytest.raises(InputError, match=message):
        open_source(str(tmp_path / "bad.npz"))


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    with pytest.raises(InputError, match="does not exist"):
        open_source(str(path))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(FileFormatError, match="bad.npz cannot be read"):
        open_source(str(path))
    np.savez(path, images=np.array([{}, {}], object))
    with pytest.raises(InputError, match="uint8"):
        open_source(str(path))
    np.savez(path, images=GREY, labels=np.array([None] * 23, object))
    with pytest.raises(FileFormatError, match="cannot be read"):
        open_source(str(path))
    np.savez(path, images=np.repeat(GREY, 10, 0))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255  # one byte within the pixels
    path.write_bytes(content)
    source = open_source(str(path))
    with pytest.raises(FileFormatError, match="cannot be read .*CRC"):
        everything(source, GREY8)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", _cut_short())
    with pytest.raises(FileFormatError, match="ends within row"):
        open_source(str(path))


def _array(header: str) -> bytes:
    """An array in numpy's format with any text as its header, and too few values."""
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header) + 1) + header.encode() + b"\n" + bytes(64)


@pytest.mark.parametrize("name", ["images", "labels"])
@pytest.mark.parametrize(
    "header",
    [
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': (1, {2**64})}}",
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({2**64}, 8, 8)}}",
        "{[]: 1}",
        "{'descr': (",
        "  x\n y",
        "(" * 5000,
    ],
)
def test_headers_of_any_kind_are_named(tmp_path: Path, name: str, header: str) -> None:
    np.savez(tmp_path / "good.npz", images=GREY)
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "bad.npz", "w") as bad:
        if name != "images":
            bad.writestr("images.npy", good.read("images.npy"))
        bad.writestr(f"{name}.npy", _array(header))
    with pytest.raises((FileFormatError, InputError), match="bad.npz"):
        open_source(str(tmp_path / "bad.npz"))


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_is_found_however_arrays_are_packed(tmp_path: Path, kind: int) -> None:
    np.savez(tmp_path / "a.npz", images=GREY)
    with zipfile.ZipFile(tmp_path / "a.npz") as plain, zipfile.ZipFile(tmp_path / "bad.npz", "w", kind) as packed:
        packed.writestr("images.npy", plain.read("images.npy"))
    content = bytearray((tmp_path / "bad.npz").read_bytes())
    for place in range(60, 600, 60):
        (tmp_path / "bad.npz").write_bytes(content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :])
        with pytest.raises(FileFormatError, match="bad.npz cannot be read"):
            everything(open_source(str(tmp_path / "bad.npz")), GREY8)


def test_names_are_text_however_they_were_saved(tmp_path: Path) -> None:
    for names in (["cat", "höhle"], np.char.encode(["cat", "höhle"], "utf-8")):
        np.savez(tmp_path / "a.npz", images=GREY, labels=np.arange(23) % 2, names=names)
        assert open_source(str(tmp_path / "a.npz")).class_names == ("cat", "höhle")


def _cut_short() -> bytes:
    import io

    content = io.BytesIO()
    np.save(content, GREY)
    return content.getvalue()[:-20]


def test_fingerprint_changes_with_the_content(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    prints = set()
    for change in range(3):
        np.savez(path, images=GREY ^ np.uint8(change))
        os.utime(path, ns=(0, 0))
        prints.add(open_source(str(path)).fingerprint)
    assert len(prints) == 3 and open_source(str(path)).fingerprint in prints


# --- folders -------------------------------------------------------------------------------------------------------------


def test_folder_and_array_give_the_same_inputs(tmp_path: Path) -> None:
    for pictures, form in ((GREY, GREY8), (COLOUR, GREY8), (GREY, RGB8), (COLOUR, RGB8)):
        folder = save_images(tmp_path / f"{pictures.ndim}{form.shape[0]}", pictures)
        np.savez(tmp_path / "same.npz", images=pictures)
        source = open_source(str(folder))
        assert isinstance(source, FolderSource) and (source.labels == -1).all() and source.class_names is None
        assert torch.equal(everything(source, form), everything(open_source(str(tmp_path / "same.npz")), form))


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    for name, count in (("dog", 2), ("cat", 3), ("Ape", 1)):
        save_images(tmp_path / "zoo" / name, GREY[:count])
    save_images(tmp_path / "zoo" / "dog" / "deeper", GREY[:1])
    save_images(tmp_path / "zoo" / ".hidden", GREY[:1])
    (tmp_path / "zoo" / "README.md").write_text("animals")
    source = FolderSource(tmp_path / "zoo")
    assert source.name == "zoo" and source.class_names == ("Ape", "cat", "dog")
    assert source.labels.tolist() == [0, 1, 1, 1, 2, 2, 2] and source.notes == (
        "1 files that are no images were left out",
    )
    save_images(tmp_path / "zoo", GREY[:1])
    with pytest.raises(InputError, match="1 images directly in"):
        FolderSource(tmp_path / "zoo")
    for wrong in ("missing", "zoo/README.md"):
        with pytest.raises(InputError, match="which is no folder"):
            FolderSource(tmp_path / wrong)


def test_links_to_folders_are_classes_as_well(tmp_path: Path) -> None:
    """Choices of classes are often made of links; a class that is left out unsaid would move the numbers of the others."""
    for name in ("ape", "cat", "dog"):
        save_images(tmp_path / "all" / name, GREY[:2])
    save_images(tmp_path / "some" / "eel", GREY[:1])
    (tmp_path / "some" / "cat").symlink_to(tmp_path / "all" / "cat")
    source = FolderSource(tmp_path / "some")
    assert source.class_names == ("cat", "eel") and source.labels.tolist() == [0, 0, 1]
    assert torch.equal(everything(source, GREY8), GREY8.images(GREY[[0, 1, 0]]))


def test_unreadable_images_are_named_and_the_others_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_images(tmp_path / "mixed", GREY[:6])
    whole = (folder / "001.png").read_bytes()
    (folder / "001.png").write_bytes(whole[: len(whole) // 2])
    (folder / "002.png").write_text("not an image at all")
    (folder / "003.png").write_bytes(b"")
    damaged = bytearray(whole)
    damaged[whole.index(b"IDAT") + 10] ^= 1  # pixels that still decode or not: the checksum tells
    (folder / "004.png").write_bytes(damaged)
    (folder / "006.png").symlink_to(folder / "nowhere.png")
    Image.fromarray(GREY[6].astype(np.float32)).save(folder / "007.tif")
    Image.fromarray(np.zeros((300, 300), np.uint8)).save(folder / "008.png")
    (folder / "005.png").rename(folder / "005.jpg")  # a wrong extension, but an image
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        (chunk,) = FolderSource(folder).chunks(GREY8, 100)
    assert chunk.rows.tolist() == [0, 5] and chunk.last == 9
    assert torch.equal(chunk.x, GREY8.images(GREY[[0, 5]]))
    reasons = dict(each.split(": ", 1) for each in chunk.unreadable)
    assert sorted(reasons) == ["001.png", "002.png", "003.png", "004.png", "006.png", "007.tif", "008.png"]
    assert reasons["002.png"] == "no image of a known format" and "300 x 300 pixels" in reasons["008.png"]
    assert "no such file" in reasons["006.png"] and "floating-point" in reasons["007.tif"]


def test_images_of_16_bits_upright_and_animated(tmp_path: Path) -> None:
    wide = RNG.integers(0, 65536, (9, 7)).astype(np.uint16)
    Image.fromarray(wide).save(tmp_path / "0.png")
    turned = Image.fromarray(GREY[0])
    exif = turned.getexif()
    exif[0x0112] = 6  # the camera was turned by 90 degrees
    turned.save(tmp_path / "1.png", exif=exif)
    frames = [Image.fromarray(each) for each in GREY[:2]]
    frames[0].save(tmp_path / "2.gif", save_all=True, append_images=frames[1:])
    form = InputForm((1, 9, 9))
    x = everything(FolderSource(tmp_path), form)
    assert torch.equal(x[:1], form.images(np.round(wide / 257).astype(np.uint8)[None]))
    assert torch.equal(x[1:2], form.images(np.rot90(GREY[0], -1)[None]))
    assert torch.equal(x[2:], form.images(GREY[:1]))


def test_folder_fingerprint_and_empty_folders(tmp_path: Path) -> None:
    folder = save_images(tmp_path / "a", GREY[:3])
    first = FolderSource(folder).fingerprint
    assert FolderSource(folder).fingerprint == first
    os.utime(folder / "001.png", ns=(1, 1))
    second = FolderSource(folder).fingerprint
    (folder / "001.png").unlink()
    assert len({first, second, FolderSource(folder).fingerprint}) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="a folder without images"):
        open_source(str(tmp_path / "empty"))


def test_a_chunk_in_which_nothing_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    (chunk,) = FolderSource(tmp_path).chunks(RGB8, 4)
    assert chunk.x.shape == (0, 3, 8, 8) and len(chunk.unreadable) == 1


# --- labels --------------------------------------------------------------------------------------------------------------


class Labels(Source):
    kind, fingerprint, name = "images", "", "some"

    def __init__(self, labels: list[int], names: tuple[str, ...] | None = None) -> None:
        self.labels, self.class_names = np.array(labels), names

    def take(self, rows: np.ndarray, form: InputForm) -> Any:
        raise AssertionError


def test_labels_are_matched_by_name() -> None:
    source = Labels([0, 1, 2, 1, -1], ("Dog", "grey_wolf", "cat"))
    names = ["cat", "dog", "Grey wolf"]
    assert match_labels(source, "id", 3, names) == (pytest.approx([1, 2, 0, 2, -1]), None)
    labels, note = match_labels(source, "semi", 2, ["cat", "dog"])
    assert labels.tolist() == [1, -1, 0, -1, -1] and note is not None and "grey_wolf" in note
    with pytest.raises(InputError, match="classes grey_wolf"):
        match_labels(source, "id", 2, ["cat", "dog"])
    assert match_labels(source, "full", 3, names)[0].tolist() == [-1] * 5


def test_letters_of_both_cases_are_classes_of_their_own() -> None:
    """Equal names come first; else a name counts where just one is alike. Equal lists are in the same order."""
    letters = Labels([0, 1, 2, 3], ("A", "B", "a", "b"))
    for model, wanted in ((("A", "B", "a", "b"), [0, 1, 2, 3]), (("a", "b", "A", "B"), [2, 3, 0, 1])):
        assert match_labels(letters, "id", 4, model)[0].tolist() == wanted
    assert match_labels(Labels([0, 1], ("CAT", "a_b")), "id", 2, ("A b", "cat"))[0].tolist() == [1, 0]
    with pytest.raises(InputError, match="classes CAT; accepted: classes of the model: Cat, cat"):
        match_labels(Labels([0], ("CAT",)), "id", 2, ("Cat", "cat"))
    birds = ("crane", "wren", "crane")  # as ImageNet has them: a bird and a machine
    assert match_labels(Labels([0, 1, 2], birds), "id", 3, birds)[0].tolist() == [0, 1, 2]


def test_labels_without_names_are_numbers() -> None:
    for tier in TIERS[:2]:
        assert match_labels(Labels([0, 2, -1]), tier, 3, ["a", "b", "c"])[0].tolist() == [0, 2, -1]
        assert match_labels(Labels([0, 2], ("x", "y", "z")), tier, 3, None)[0].tolist() == [0, 2]
        with pytest.raises(InputError, match="a label of 3"):
            match_labels(Labels([0, 3]), tier, 3, None)
        with pytest.raises(InputError, match="a label of -2"):
            match_labels(Labels([0, -2]), tier, 3, None)
        with pytest.raises(InputError, match="a name for each label"):
            match_labels(Labels([0, 1], ("x",)), tier, 3, None)
        assert match_labels(Labels([-1, -1]), tier, 3, None)[0].tolist() == [-1, -1]
    with pytest.raises(InputError, match="class_names"):
        match_labels(Labels([0, 1], ("x", "y")), "id", 3, None)
    labels, note = match_labels(Labels([0, 1], ("x", "y")), "semi", 3, None)
    assert labels.tolist() == [-1, -1] and note is not None and "scored without labels" in note


# --- names ---------------------------------------------------------------------------------------------------------------


def test_embedded_digits() -> None:
    data = load_digits()
    source = open_source("digits/test")
    assert torch.equal(everything(source, GREY8, 100), data.test.x)
    assert source.labels.tolist() == data.test.y.tolist() and source.name == "digits/test"
    assert source.class_names == tuple("0123456789")
    assert torch.equal(everything(open_source("photos=digits/full"), GREY8, 999), data.full.x)
    third = open_source("digits/test/3")
    assert torch.equal(everything(third, GREY8, 999), handwritten_digits(3)["test"].x)
    assert len({each.fingerprint for each in (source, third, open_source("digits/semi"))}) == 3
    for bad in ("digits", "digits/best", "digits/test/x", "digits/test/1/2"):
        with pytest.raises(InputError, match="source"):
            open_source(bad)


def test_data_root_is_read_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "fashion_mnist", "mine"):
        (tmp_path / name).mkdir()
        np.savez(tmp_path / name / "test.npz", images=GREY, labels=np.arange(23) % 10)
    monkeypatch.setattr(named, "_download", lambda *_: pytest.fail("nothing is to be downloaded"))
    assert open_source("mnist/test", tmp_path).class_names == tuple("0123456789")
    assert open_source("fashion-mnist/test", tmp_path).class_names == named.FASHION
    assert open_source("mine/test", tmp_path).class_names is None
    monkeypatch.setenv("ABNN_DATA", str(tmp_path))
    assert len(open_source("mnist/test")) == 23 and data_root() == tmp_path
    monkeypatch.delenv("ABNN_DATA")
    assert data_root().parts[-2:] == (".cache", "abnn")


def test_what_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "one.png").write_bytes(b"")
    for text, message in (
        ("minst/test", "no known data set.*Did you mean 'mnist/test'"),
        ("pictures", "no folder, no file"),
        (str(tmp_path / "one.png"), "Put single images into a folder"),
        (str(tmp_path / "nothing"), "does not exist"),
        ("./nothing", "does not exist"),
        ("", "got nothing"),
        ("name=", "got nothing"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(text, tmp_path)


@pytest.mark.skipif("ABNN_DATA" not in os.environ, reason="needs real data in $ABNN_DATA")
def test_real_data_in_the_papers_form() -> None:
    for name, count in (("mnist/test", 10_000), ("svhn/test", 26_032)):
        if not (data_root() / f"{name}.npz").is_file():
            continue
        source = open_source(name)
        x = source.read(0, 256, InputForm((1, 28, 28))).x
        assert len(source) == count and x.shape == (256, 1, 28, 28) and 0.05 < x.mean() < 0.6 and x.max() > 0.9


def test_streams_do_not_load_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a chunk asks the file for that chunk's bytes and no more."""
    np.savez(tmp_path / "a.npz", images=np.repeat(GREY, 50, 0))
    source = open_source(str(tmp_path / "a.npz"))
    asked: list[int] = []
    read = arrays_file._Rows.read

    def counted(self: Any, first: int, last: int) -> np.ndarray:
        asked.append((last - first) * self.row_bytes)
        return read(self, first, last)

    monkeypatch.setattr(arrays_file._Rows, "read", counted)
    everything(source, GREY8, size=100)
    assert max(asked) == 100 * 9 * 7 and sum(asked) == len(source) * 9 * 7


def test_crop_takes_the_undistorted_middle() -> None:
    pixels = np.arange(8 * 16, dtype=np.uint8).reshape(1, 8, 16)
    whole = InputForm((1, 4, 4), crop=1.0).images(pixels)
    assert torch.equal(whole, InputForm((1, 4, 4)).images(pixels[:, :, 4:12]))
    half = InputForm((1, 4, 4), crop=0.5).images(pixels)
    assert torch.equal(half, torch.from_numpy(pixels[:, None, 2:6, 6:10]).float() / 255)
    model = SimpleNamespace(input_shape=(1, 4, 4), input_dtype=torch.float32)
    model.extra = {"preprocess": {"mean": [0.0], "std": [1.0], "crop": 0.5}}
    assert InputForm.of(model).crop == 0.5
    model.extra["preprocess"]["crop"] = 1.5
    with pytest.raises(InputError, match="at most 1"):
        InputForm.of(model)
