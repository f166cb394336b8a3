"""Published files come out as the arrays that were put in, through torchvision's own readers and a server on this machine."""

from __future__ import annotations

import gzip
import hashlib
import io
import pickle
import struct
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from abnn.data import ArraySource, named, open_source
from abnn.errors import FileFormatError, InputError, MissingExtraError
from abnn.networks.vision import torchvision
from tests.data.server import FileServer

RNG = np.random.default_rng(0)
GREY, COLOUR = RNG.integers(0, 256, (23, 28, 28), np.uint8), RNG.integers(0, 256, (23, 32, 32, 3), np.uint8)
LABELS = np.arange(23) % 10


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def tar(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, value in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(value)
            archive.addfile(info, io.BytesIO(value))
    return content.getvalue()


def idx(values: np.ndarray) -> bytes:
    """The file format of MNIST."""
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape) + values.astype(np.uint8).tobytes()


def publish_mnist(server: FileServer, patch: pytest.MonkeyPatch, loader: str) -> None:
    kind = getattr(torchvision().datasets, loader)
    resources = []
    for (name, _), values in zip(kind.resources, (GREY, LABELS, GREY[::-1], LABELS[::-1])):
        server.files[f"{loader}/{name}"] = gzip.compress(idx(values))
        resources.append((name, md5(server.files[f"{loader}/{name}"])))
    patch.setattr(kind, "resources", resources)
    patch.setattr(kind, "mirrors", [server.url("gone/"), server.url(f"{loader}/")])


def publish_cifar(server: FileServer, patch: pytest.MonkeyPatch, loader: str, key: str) -> None:
    kind = getattr(torchvision().datasets, loader)
    rows = COLOUR.transpose(0, 3, 1, 2).reshape(23, -1)
    batches = {
        name: pickle.dumps({"data": rows[order], key: LABELS[order].tolist()})
        for name, order in ((kind.train_list[0][0], slice(None)), (kind.test_list[0][0], slice(None, None, -1)))
    }
    batches[kind.meta["filename"]] = pickle.dumps({kind.meta["key"]: [f"kind {number}" for number in range(10)]})
    content = tar({f"{kind.base_folder}/{name}": value for name, value in batches.items()})
    server.files[kind.filename] = content
    patch.setattr(kind, "url", server.url(kind.filename))
    patch.setattr(kind, "tgz_md5", md5(content))
    for part in ("train_list", "test_list"):
        patch.setattr(kind, part, [[name, md5(batches[name])] for name, _ in getattr(kind, part)[:1]])
    patch.setattr(kind, "meta", {**kind.meta, "md5": md5(batches[kind.meta["filename"]])})


def publish_svhn(server: FileServer, patch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    parts = {}
    for split in ("train", "test"):
        content = io.BytesIO()
        savemat(content, {"X": COLOUR.transpose(1, 2, 3, 0), "y": np.where(LABELS == 0, 10, LABELS)[:, None]})
        server.files[f"{split}.mat"] = content.getvalue()
        parts[split] = [server.url(f"{split}.mat"), f"{split}.mat", md5(content.getvalue())]
    patch.setattr(torchvision().datasets.SVHN, "split_list", parts)


def test_every_set_by_name(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for loader in ("MNIST", "FashionMNIST"):
        publish_mnist(server, monkeypatch, loader)
    publish_cifar(server, monkeypatch, "CIFAR10", "labels")
    publish_cifar(server, monkeypatch, "CIFAR100", "fine_labels")
    publish_svhn(server, monkeypatch)
    expected: dict[str, tuple[np.ndarray, np.ndarray]] = {
        "mnist/train": (GREY, LABELS),
        "mnist/test": (GREY[::-1], LABELS[::-1]),
        "fashion-mnist/test": (GREY[::-1], LABELS[::-1]),
        "cifar10/train": (COLOUR, LABELS),
        "cifar100/test": (COLOUR[::-1], LABELS[::-1]),
        "svhn/train": (COLOUR, LABELS),
        "svhn/test": (COLOUR, LABELS),
    }
    names = {"cifar100": tuple(f"kind {number}" for number in range(10)), "fashion-mnist": named.FASHION}
    for again in (False, True):
        for name, (pictures, labels) in expected.items():
            source = open_source(name, tmp_path)
            assert isinstance(source, ArraySource)
            np.testing.assert_array_equal(source.raw(0, 23), pictures, err_msg=name)
            assert source.labels.tolist() == labels.tolist()
            dataset = name.split("/")[0]
            assert source.class_names == names.get(dataset, named.PUBLISHED[dataset][1])
        if not again:
            server.asked.clear()
    assert server.asked == []  # nothing is fetched twice
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left - {f"{name}.npz" for name in expected} <= {f".{each}.lock" for each in named.PUBLISHED}


def test_a_damaged_download_is_no_data(server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_svhn(server, monkeypatch)
    server.files["test.mat"] = server.files["test.mat"][:-1] + b"?"
    with pytest.raises(FileFormatError, match="svhn/test could not be downloaded .*corrupted.*try again.*--data-root"):
        open_source("svhn/test", tmp_path)
    assert not (tmp_path / "svhn").exists()
    publish_svhn(server, monkeypatch)
    assert len(open_source("svhn/test", tmp_path)) == 23


def test_what_cannot_be_downloaded_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("svhn/validation", "mnist/validation"):
        with pytest.raises(InputError, match=f"accepted: .*{text.split('/')[0]}/test"):
            open_source(text, tmp_path)

    def missing() -> Any:
        raise MissingExtraError("torchvision", "vision")

    monkeypatch.setattr(named, "torchvision", missing)
    with pytest.raises(MissingExtraError, match="abnn.vision"):
        open_source("mnist/test", tmp_path)


def test_several_that_need_one_set_fetch_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, first = threading.Barrier(3), threading.Event()
    calls: list[str] = []

    def read(dataset: str, split: str, folder: Path) -> dict[str, np.ndarray]:
        calls.append(dataset)
        first.wait(10)  # until the others are on their way
        return {"images": np.full((3, 2, 2), 9, np.uint8), "labels": np.arange(3)}

    def work() -> None:
        entered.wait(10)
        lengths.append(len(open_source("mnist/test", tmp_path)))

    monkeypatch.setattr(named, "read_published", read)
    lengths: list[int] = []
    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    entered.wait(10)
    first.set()
    for each in threads:
        each.join()
    assert lengths == [3, 3] and calls == ["mnist"]
