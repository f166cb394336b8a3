"""Some classes of a source, by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from abnn.data import InputForm, Source, open_source
from abnn.errors import InputError

RNG = np.random.default_rng(0)
FORM = InputForm((3, 4, 4))
BYTES = InputForm((3, 4, 4), torch.uint8)


def everything(source: Source, form: InputForm = FORM, size: int = 300) -> torch.Tensor:
    return torch.cat([chunk.x for chunk in source.chunks(form, size)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar(tmp_path_factory.mktemp("data"))


def write_cifar(folder: Path) -> Path:
    """Put random pictures where the data sets by name are kept."""
    for name, splits, classes in (("cifar10", ("train", "test"), 10), ("cifar100", ("test",), 5)):
        (folder / name).mkdir()
        for split in splits:
            pictures = RNG.integers(0, 256, (6100, 4, 4, 3), np.uint8)
            names = {"names": ["apple", "tiger", "aquarium_fish", "wolf", "bee"]} if classes == 5 else {}
            np.savez(folder / name / f"{split}.npz", images=pictures, labels=RNG.integers(0, classes, 6100), **names)
    return folder


def original(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(root / f"{name}.npz") as arrays:
        return arrays["images"], arrays["labels"]


@pytest.mark.parametrize("size", [7, 300, 10_000])
def test_classes_by_name_in_the_order_given(root: Path, size: int) -> None:
    images, labels = original(root, "cifar10/test")
    source = open_source("pets=cifar10/test[Dog, cat]", root)
    wanted = np.isin(labels, [3, 5])
    assert source.name == "pets" and source.class_names == ("dog", "cat")
    assert source.labels.tolist() == (labels[wanted] == 3).astype(int).tolist()
    assert torch.equal(everything(source, size=size), FORM.images(images[wanted]))
    rows = np.concatenate([chunk.rows for chunk in source.chunks(FORM, size)])
    assert rows.tolist() == list(range(len(source)))
    assert torch.equal(everything(source, BYTES), BYTES.images(images[wanted]))
    source.check(FORM)
    with pytest.raises(InputError, match="pictures"):
        source.check(InputForm((3,)))


def test_classes_of_a_folder(tmp_path: Path) -> None:
    pictures = RNG.integers(0, 256, (9, 4, 4, 3), np.uint8)
    for number, name in enumerate(("ape", "bee", "cat") * 3):
        (tmp_path / "zoo" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pictures[number]).save(tmp_path / "zoo" / name / f"{number}.png")
    (tmp_path / "zoo" / "cat" / "5.png").write_bytes(b"broken")
    source = open_source(f"{tmp_path}/zoo[cat, ape]")
    assert source.labels.tolist() == [1, 1, 1, 0, 0, 0]
    (chunk,) = source.chunks(FORM, 100)
    assert torch.equal(chunk.x, FORM.images(pictures[[0, 3, 6, 2, 8]])) and chunk.rows.tolist() == [0, 1, 2, 3, 5]
    assert len(chunk.unreadable) == 1 and chunk.unreadable[0].startswith("cat/5.png")
    (tmp_path / "odd[cat]").mkdir()
    Image.fromarray(pictures[0]).save(tmp_path / "odd[cat]" / "0.png")
    assert len(open_source(str(tmp_path / "odd[cat]"))) == 1  # a folder that is really called so


def test_what_cannot_be_chosen(root: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.arange(3))
    np.savez(tmp_path / "few.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.arange(3), names=["a", "b"])
    np.savez(tmp_path / "none.npz", images=np.zeros((3, 4, 4), np.uint8), labels=np.zeros(3, int), names=["a", "b"])
    for text, message in (
        ("cifar10/test[cat,dogg]", "classes of 'cifar10/test': got 'dogg'; accepted: airplane.*Did you mean 'dog'"),
        ("cifar10/test[cat,Cat]", "every class once"),
        ("cifar10/test[]", "classes of 'cifar10/test': got ''"),
        (f"{tmp_path}/plain.npz[cat]", "classes have no names"),
        (f"{tmp_path}/few.npz[a]", "a name for each label"),
        (f"{tmp_path}/none.npz[b]", "of which it has no input"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(text, root)


def test_rows_far_apart_are_not_read_as_one_span(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rare class of a large file must not fill the memory."""
    from abnn.data import arrays

    source = open_source("cifar10/test", root)
    rows = np.array([3, 5, 1023, 1024, 6099])
    spans: list[int] = []
    read = arrays.ArraySource.raw
    monkeypatch.setattr(arrays.ArraySource, "raw", lambda self, a, b: spans.append(b - a) or read(self, a, b))
    chunk = source.take(rows, FORM)
    assert (
        torch.equal(chunk.x, FORM.images(original(root, "cifar10/test")[0][rows]))
        and chunk.rows.tolist() == rows.tolist()
    )
    assert spans == [1021, 1, 1]
