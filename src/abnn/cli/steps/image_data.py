"""A user's folder of images as training and held-out data, read once and checked before any training starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from abnn.data import FolderSource, InputForm, read_image
from abnn.data.images import open_image
from abnn.errors import InputError, explain, readable

HELD_OUT_NAMES = ("val", "valid", "validation")
IN_MEMORY = 2**30  # bytes of inputs that are kept in memory; more are read from their files again in every epoch
LOOKED_AT = 64


@dataclass(frozen=True)
class Look:
    """What a sample of the images has in common: (height, width), None if they differ, and whether all are grey."""

    size: tuple[int, int] | None
    grey: bool


@dataclass(frozen=True)
class OwnData:
    """Training and held-out data as data sets of (x, y), the labels of both, and what was left out."""

    class_names: tuple[str, ...]
    train: Dataset
    held_out: Dataset
    train_labels: np.ndarray
    held_out_labels: np.ndarray
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


class Files(Dataset):
    """Images that are read when they are asked for."""

    def __init__(self, paths: list[Path], labels: np.ndarray, form: InputForm) -> None:
        self.paths, self.labels, self.form = paths, labels, form

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        picture = read_image(self.paths[place], self.form.shape[0])
        return self.form.images(picture[None])[0], int(self.labels[place])


def open_folders(root: Path) -> tuple[FolderSource, FolderSource | None]:
    """Return the class folders in ``root``, or in its train/ and val/ if it has both."""
    if not root.is_dir():
        raise InputError(explain("--data", f"{root}, which is no folder", "a folder with a sub-folder for each class"))
    held_out = [name for name in HELD_OUT_NAMES if (root / name).is_dir()]
    if (root / "train").is_dir() and held_out:
        return _classes(root / "train"), _classes(root / held_out[0])
    source = _classes(root)
    if {"train", "test"} <= set(source.class_names or ()) and all(file.count("/") > 1 for file in source.files):
        fix = f"Rename test/ to val/, or pass {root / 'train'}, of which a share is then held out."
        raise InputError(explain("--data", f"{root}, with classes in train/ and test/", "train/ and val/", fix))
    return source, None


def look(source: FolderSource) -> Look:
    """Return sizes and colours of a few images, from their headers; those that cannot be read are left to the reader."""
    sizes, grey = set(), True
    for place in np.unique(np.linspace(0, len(source) - 1, LOOKED_AT).astype(int)):
        try:
            with open_image(source.path / source.files[place]) as image:
                sizes.add((image.height, image.width))
                grey = grey and image.mode in ("1", "L", "LA", "I", "I;16")
        except (OSError, ValueError):
            continue
    return Look(next(iter(sizes)) if len(sizes) == 1 else None, grey)


@dataclass(frozen=True)
class Reading:
    """In which form images are read, whether those that cannot be read are left out, and what counts the others."""

    form: InputForm
    skip_unreadable: bool
    on_read: Callable[[int], None] = lambda count: None


def read_own(source: FolderSource, held_out: FolderSource | None, how: Reading, share: float, seed: int) -> OwnData:
    """Read every image once; split off ``share`` of each class unless there is ``held_out`` data."""
    names, notes, count = source.class_names or (), source.notes, len(source) + len(held_out or ())
    train, labels, skipped = _read(source, source.labels, how, count)
    if held_out is None:
        kept, apart = stratified(labels, names, share, seed)
        train, held, labels, held_labels = _part(train, kept), _part(train, apart), labels[kept], labels[apart]
    else:
        held, held_labels, more = _read(held_out, _match(held_out, names), how, count)
        skipped, notes = (*skipped, *more), (*notes, *held_out.notes)
    if empty := [name for label, name in enumerate(names) if not (labels == label).any()]:
        raise InputError(explain("--data", f"no readable image of {', '.join(empty[:5])}", "images of every class"))
    return OwnData(names, train, held, labels, held_labels, skipped, notes)


def read_outliers(folder: Path, how: Reading) -> tuple[Dataset, tuple[str, ...]]:
    """Return images that do not belong, read once like those that do, and what was left out."""
    if not folder.is_dir():
        raise InputError(explain("--outliers", f"{folder}, which is no folder", "a folder of images"))
    try:
        source = FolderSource(folder)
    except InputError as error:
        raise InputError(f"--outliers{str(error).removeprefix('source')}") from None
    dataset, _, skipped = _read(source, source.labels, how, len(source), argument="--outliers")
    return dataset, skipped


def stratified(labels: np.ndarray, names: tuple[str, ...], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return places of the larger and of the smaller part: ``share`` of each class, at least one of either."""
    rng = np.random.default_rng(seed)
    larger, smaller = [], []
    for label, name in enumerate(names):
        places = rng.permutation(np.flatnonzero(labels == label))
        if len(places) < 2:
            actual = f"{len(places)} readable images of {name!r}"
            raise InputError(explain("--data", actual, "at least 2 of each class", "One of them is held out."))
        count = min(len(places) - 1, max(1, round(share * len(places))))
        smaller.append(places[:count])
        larger.append(places[count:])
    return np.sort(np.concatenate(larger)), np.sort(np.concatenate(smaller))


def _part(images: Files | TensorDataset, places: np.ndarray) -> Files | TensorDataset:
    if isinstance(images, TensorDataset):
        return TensorDataset(*images[torch.from_numpy(places)])
    return Files([images.paths[place] for place in places], images.labels[places], images.form)


def _read(
    source: FolderSource, labels: np.ndarray, how: Reading, count: int, argument: str = "--data"
) -> tuple[Files | TensorDataset, np.ndarray, tuple[str, ...]]:
    """Return the images of a source, in memory if ``count`` of them fit, with their labels, and what was left out."""
    in_memory = count * int(np.prod(how.form.shape)) * 4 <= IN_MEMORY
    rows, parts, done, skipped = [], [], 0, list[str]()
    for chunk in source.chunks(how.form, 256):
        if chunk.unreadable and not how.skip_unreadable:
            listed = "; ".join(chunk.unreadable[:3])
            fix = "Repair or remove them, or pass --skip-unreadable to leave them out."
            raise InputError(explain(argument, f"images that cannot be read: {listed}", "readable images", fix))
        skipped += chunk.unreadable
        rows.append(chunk.rows)
        parts += [chunk.x] if in_memory else []
        how.on_read(chunk.last - done)
        done = chunk.last
    places = np.concatenate(rows)
    if not len(places):
        raise InputError(explain(argument, f"{source.path}, in which no image can be read", "readable images"))
    labels, paths = labels[places], [source.path / source.files[place] for place in places]
    images = TensorDataset(torch.cat(parts), torch.from_numpy(labels)) if in_memory else Files(paths, labels, how.form)
    return images, labels, tuple(skipped)


def _classes(path: Path) -> FolderSource:
    source = FolderSource(path)
    names = source.class_names
    if names is None or len(names) < 2:
        folders = "no sub-folders" if names is None else f"one sub-folder, {names[0]}"
        accepted = "one sub-folder for each of two or more classes, or train/ and val/ with those inside"
        raise InputError(explain("--data", f"{path}, with {folders}", accepted))
    if foreign := [name for name in names if readable(name) != name]:
        actual = f"a class folder {foreign[0]!r} in {path}"
        raise InputError(explain("--data", actual, "names in UTF-8, which a saved model can hold", "Rename it."))
    return source


def _match(held_out: FolderSource, names: tuple[str, ...]) -> np.ndarray:
    """Return the labels of held-out images, numbered as the classes to fit are."""
    own = held_out.class_names or ()
    if strange := [name for name in own if name not in names]:
        accepted = f"the classes of train/: {', '.join(names[:10])}"
        raise InputError(explain("--data", f"{held_out.path} with the classes {', '.join(strange[:5])}", accepted))
    return np.array([names.index(name) for name in own])[held_out.labels]
