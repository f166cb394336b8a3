"""Images of the benchmark, from one folder:

    imagenet-val/CLASS/*.JPEG        one folder for each class, named by its number or by WordNet; sorted, they are the classes
    texture-vs-shape/cue-conflict/SHAPE/*.png      "SHAPE1-TEXTURE2.png"; those of one category in both are left out
    texture-vs-shape/{silhouettes,edges}/SHAPE/*.png
    textures/                        DTD, flat or in sub-folders
    {svhn,mnist}/test.npz            as :mod:`abnn.data` keeps them; downloaded if they are not there

A split takes a random half of the classes as known; the other half is near. Of each known class, 60 % of the images, but no more
than 2,500 / classes, are for fitting (four fifths) and calibrating (one fifth); the rest is for testing. Photographs are cut to the
middle square of 7/8 of the shorter side, or of the share ``crop``; the other images are taken whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from abnn.data import InputForm, open_named
from abnn.data.images import EXTENSIONS, read_image
from abnn.errors import InputError, explain

Change = Callable[[Tensor, torch.Generator], Tensor]
MOST, SHARE, HELD_OUT, CROP = 2500, 0.6, 5, 0.875
CATEGORIES = """
airplane 404, bear 294-297, bicycle 444 671, bird 8 10-16 18-20 22-24 80-83 87-96 98-100 127-133 135-145, boat 472 554 625 814 914,
bottle 440 720 737 898 899 901 907, car 436 511 817, cat 281-286, chair 423 559 765 857, clock 409 530 892,
dog 152-191 193-203 205-226 228-241 243-250 252-257 259 261-263 265-268, elephant 385 386, keyboard 508 878, knife 499, oven 766,
truck 555 569 656 675 717 734 864 867"""
"""The 16 categories of Geirhos et al. 2019 ("ImageNet-trained CNNs are biased towards texture") and their ImageNet classes."""
DRAWINGS = ("cue-conflict", "silhouettes", "edges")


@dataclass(frozen=True)
class ImageSet:
    """Images of one size, uint8 [N, 3, H, W], with labels (-1: no class).

    change  what is done to images in [0, 1] before the network sees them; random numbers belong to an image's place
    groups  where labels are numbers of categories: the classes of each category, by number
    """

    name: str
    tier: str
    images: Tensor
    labels: Tensor
    change: Change | None = None
    groups: tuple[tuple[int, ...], ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """One input in [0, 1] and its label, as a DataLoader takes them."""
        x = self.images[row].float() / 255
        if self.change is not None:
            x = self.change(x[None], torch.Generator().manual_seed(row))[0]
        return x, self.labels[row]

    def rows(self, chosen: np.ndarray) -> ImageSet:
        """The same set with some of its images."""
        return replace(self, images=self.images[chosen], labels=self.labels[chosen])


@dataclass(frozen=True)
class Split:
    """The parts of one split: ``tests`` begins with ordinary images, then semi kinds, near, and far sets."""

    classes: tuple[int, ...]
    fit: ImageSet
    calibrate: ImageSet
    tests: tuple[ImageSet, ...]


class Images:
    """All images of a folder at one size; sets are read when they are first needed.

    classes  how many the network knows: so many folders must be there
    limit    use at most so many images of each set, for rehearsals; None: all
    crop     the share of a photograph's shorter side that is taken from its middle
    """

    def __init__(
        self, root: str | Path, size: int, classes: int = 1000, limit: int | None = None, crop: float = CROP
    ) -> None:
        self.root, self.size, self.limit = Path(root), size, limit
        folders = [each for each in _folder(self.root / "imagenet-val").iterdir() if each.is_dir()]
        self.folders = sorted(folders, key=lambda each: (each.name.zfill(9), each.name))
        if len(self.folders) != classes:
            fault = f"{len(self.folders)} folders in {self.root / 'imagenet-val'}"
            raise InputError(explain("data", fault, f"{classes}, one for each class of the network"))
        self.textures = cache(lambda: read_pictures(files_in(self.root / "textures"), size, crop))
        self.photographs = cache(lambda number: read_pictures(files_in(self.folders[number]), size, crop))

    def split(self, number: int) -> Split:
        """Return split ``number``; equal numbers and files give equal splits."""
        rng = np.random.default_rng(number)
        order = rng.permutation(len(self.folders))
        half = len(order) // 2
        classes, others = sorted(order[:half].tolist()), sorted(order[half:].tolist())
        taken: dict[str, list[tuple[Tensor, int]]] = {"fit": [], "test": []}
        for label, each in enumerate(classes):
            images = self.photographs(each)[torch.from_numpy(rng.permutation(len(self.photographs(each))))]
            count = min(int(SHARE * len(images)), max(1, MOST // half))
            taken["fit"].append((images[:count], label))
            taken["test"].append((images[count:], label))
        fit, test = (_joined(name, "id", parts) for name, parts in taken.items())
        mixed = rng.permutation(len(fit))
        held = len(mixed) // HELD_OUT
        test = self._limited(replace(test, name="ordinary"))
        near = _joined("near", "full", [(self.photographs(each), -1) for each in others])
        tests = (
            test,
            *(replace(test, name=name, tier="semi", change=change) for name, change in CHANGES.items()),
            *filter(None, (self._drawings(name, classes) for name in DRAWINGS)),
            self._limited(near),
            self._limited(_joined("textures", "full", [(self.textures(), -1)])),
            *(self._small(name) for name in ("svhn", "mnist")),
        )
        return Split(tuple(classes), fit.rows(mixed[held:]), fit.rows(mixed[:held]), tests)

    def _drawings(self, name: str, classes: Sequence[int]) -> ImageSet | None:
        """Images of the categories of which the network knows a class; None if there are none."""
        place = {each: label for label, each in enumerate(classes)}
        groups, parts = [], []
        for label, (shape, members) in enumerate(categories(CATEGORIES).items()):
            files = files_in(self.root / "texture-vs-shape" / name / shape)
            texture = {file: file.stem.partition("-")[2].rstrip("0123456789") for file in files}
            groups.append(tuple(place[each] for each in members if each in place))
            if groups[-1]:
                own = [file for file in files if texture[file] != shape]
                parts.append((read_pictures(own, self.size, 1.0), label))
        return self._limited(replace(_joined(name, "semi", parts), groups=tuple(groups))) if parts else None

    def _small(self, name: str, most: int = 1000) -> ImageSet:
        source = open_named(f"{name}/test", self.root)
        rows = np.sort(np.random.default_rng(0).permutation(len(source))[: self.limit or most])
        form = InputForm((3, self.size, self.size), torch.uint8)
        return _joined(name, "full", [(source.take(rows, form).x, -1)])

    def _limited(self, images: ImageSet) -> ImageSet:
        return images.rows(np.random.default_rng(0).permutation(len(images))[: self.limit])


def read_pictures(files: Sequence[Path], size: int, crop: float) -> Tensor:
    """Return pictures as uint8 [N, 3, size, size]: of each the middle square of the share ``crop`` of its shorter side."""
    if not files:
        return torch.zeros(0, 3, size, size, dtype=torch.uint8)
    with ThreadPoolExecutor(4) as pool:
        return torch.stack(list(pool.map(lambda file: _square(file, size, crop), files)))


def categories(text: str) -> dict[str, list[int]]:
    """``"cat 3 5-7, dog 8"`` to {"cat": [3, 5, 6, 7], "dog": [8]}."""
    ends = {name: [part.split("-") for part in parts] for name, *parts in map(str.split, text.split(","))}
    return {name: [n for end in each for n in range(int(end[0]), int(end[-1]) + 1)] for name, each in ends.items()}


def blur(x: Tensor, sigma: float) -> Tensor:
    """A Gaussian blur; images go on as their mirror image."""
    reach = min(int(3 * sigma + 0.5), x.shape[-1] - 1)
    kernel = torch.exp(-torch.arange(-reach, reach + 1).square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(x.shape[1], 1, 1, -1)
    padded = F.pad(x, (reach, reach, reach, reach), mode="reflect")
    return F.conv2d(F.conv2d(padded, kernel, groups=x.shape[1]), kernel.mT, groups=x.shape[1])


def edges_only(x: Tensor, random: torch.Generator) -> Tensor:
    """Sobel's edges of the slightly blurred grey image, black on white; the strongest 2 % are black."""
    grey = F.pad(blur(x.mean(1, keepdim=True), 1.0), (1, 1, 1, 1), mode="replicate")
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
    across, down = F.conv2d(grey, torch.stack([sobel, sobel.T])[:, None]).unbind(1)
    strength = (across.square() + down.square()).sqrt()
    most = torch.quantile(strength.flatten(1), 0.98, dim=1)[:, None, None].clamp_min(1e-6)
    return (1 - strength / most).clamp(0, 1)[:, None].expand_as(x).contiguous()


CHANGES: dict[str, Change] = {
    "blurred": lambda x, random: blur(x, 3 * x.shape[-1] / 224),
    "noisy": lambda x, random: (x + 0.25 * torch.randn(x.shape, generator=random)).clamp(0, 1),
    "dim": lambda x, random: 0.2 * x,
    "turned": lambda x, random: x.rot90(1, (2, 3)),
    "edges only": edges_only,
}


def _square(file: Path, size: int, crop: float) -> Tensor:
    picture = Image.fromarray(read_image(file, 3))
    side = crop * min(picture.size)
    left, top = ((length - side) / 2 for length in picture.size)
    box = (left, top, left + side, top + side)
    pixels = np.array(picture.resize((size, size), Image.Resampling.BICUBIC, box=box))
    return torch.from_numpy(pixels).movedim(2, 0)


def _joined(name: str, tier: str, parts: Sequence[tuple[Tensor, int]]) -> ImageSet:
    labels = [torch.full((len(images),), label) for images, label in parts]
    return ImageSet(name, tier, torch.cat([images for images, _ in parts]), torch.cat(labels))


def files_in(folder: Path) -> list[Path]:
    """Return all pictures below a folder, sorted."""
    return sorted(each for each in _folder(folder).rglob("*") if each.suffix.lower() in EXTENSIONS)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        fix = "docs/pretrained.md says where the images come from."
        raise InputError(explain("data", f"a folder without {path}", "the folders of research/pretrained/data.py", fix))
    return path
