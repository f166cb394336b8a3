"""Seven small data sets with outliers of their own, from what scikit-learn holds and what is drawn here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor

from abnn.data.digits import load_digits

HELD_OUT = 0.25  # for testing, and as much for calibrating


Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Job:
    """Inputs and labels of one job, and sets of outliers by name."""

    classes: int
    train: tuple[Tensor, Tensor]
    calibrate: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    outliers: dict[str, Tensor]


def split(x: Tensor, y: Tensor, seed: int) -> tuple[Pair, Pair, Pair]:
    """Return parts for training, calibrating and testing."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    held = int(HELD_OUT * len(x))
    train, calibrate, test = order[2 * held :], order[:held], order[held : 2 * held]
    return (x[train], y[train]), (x[calibrate], y[calibrate]), (x[test], y[test])


def digits(seed: int, size: int = 8, channels: int = 1) -> Job:
    """Handwritten digits, against printed ones, photographs and noise."""
    data = load_digits(seed)

    def form(x: Tensor) -> Tensor:
        if size != x.shape[-1]:
            x = F.interpolate(x, size=(size, size), mode="bilinear", align_corners=False)
        return x.expand(-1, channels, -1, -1).contiguous()

    noise = torch.rand(data.full.x.shape, generator=torch.Generator().manual_seed(seed))
    outliers = {"photographs": form(data.full.x), "patterns": form(data.val_full.x), "noise": form(noise)}
    train, calibrate, test = ((form(part.x), part.y) for part in (data.train, data.val, data.test))
    return Job(10, train, calibrate, test, outliers)


def shapes(seed: int, size: int = 32) -> Job:
    """Bright discs, squares and triangles on dark grounds, against crosses, rings and stripes."""
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size)), -1)

    def draw(kind: str) -> np.ndarray:
        centre, radius, turn = rng.uniform(-0.2, 0.2, 2), rng.uniform(0.5, 0.75), rng.uniform(-0.3, 0.3)
        x, y = ((grid - centre) @ [[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]]).transpose(2, 0, 1)
        reach = np.hypot(x, y)
        inside = {
            "disc": reach < radius,
            "square": np.maximum(abs(x), abs(y)) < 0.85 * radius,
            "triangle": (y > -0.5 * radius) & (y < radius - 1.7 * abs(x)),
            "cross": (np.minimum(abs(x), abs(y)) < 0.25 * radius) & (np.maximum(abs(x), abs(y)) < radius),
            "ring": (reach < radius) & (reach > 0.6 * radius),
            "stripes": np.sin(12 * x / radius) > 0,
        }[kind]
        ink, ground = rng.uniform(0.6, 1, 3), rng.uniform(0, 0.3, 3)
        picture = np.where(inside[..., None], ink, ground) + 0.05 * rng.standard_normal((size, size, 3))
        return picture.clip(0, 1).astype(np.float32).transpose(2, 0, 1)

    names = ("disc", "square", "triangle")
    y = torch.arange(1800) % 3
    x = torch.from_numpy(np.stack([draw(names[label]) for label in y.tolist()]))
    outliers = {
        kind: torch.from_numpy(np.stack([draw(kind) for _ in range(200)])) for kind in ("cross", "ring", "stripes")
    }
    return Job(3, *split(x, y, seed), outliers)


def table(load: Callable[..., tuple[np.ndarray, np.ndarray]]) -> Callable[[int], Job]:
    """A table of scikit-learn, standardised; against rows moved by 4 and 12 standard deviations, and shuffled columns."""

    def job(seed: int) -> Job:
        values, labels = load(return_X_y=True)
        x, y = torch.tensor(values, dtype=torch.float32), torch.tensor(labels)
        train, calibrate, test = split(x, y, seed)
        std, mean = torch.std_mean(train[0], 0)
        train, calibrate, test = (((a - mean) / std.clamp_min(1e-6), b) for a, b in (train, calibrate, test))
        random = torch.Generator().manual_seed(seed)
        mixed = torch.stack([column[torch.randperm(len(column), generator=random)] for column in test[0].T], 1)
        outliers = {"moved by 4": test[0] + 4, "moved by 12": test[0] - 12, "tripled": 3 * mixed}
        return Job(int(y.max()) + 1, train, calibrate, test, outliers)

    return job


def signals(seed: int) -> Job:
    """Four forms of waves with noise, against noise alone, steps and a wave of another form."""
    random = np.random.default_rng(seed)
    t = np.linspace(0, 1, 128)

    def wave(kind: int) -> np.ndarray:
        phase = random.uniform(2, 6) * t + random.uniform()
        forms = [
            np.sin(2 * np.pi * phase), np.sign(np.sin(2 * np.pi * phase)), 2 * (phase % 1) - 1,
            np.abs(2 * (phase % 1) - 1) * 2 - 1, np.sin(2 * np.pi * phase * (1 + t)) * t, np.cumsum(random.standard_normal(128)) / 8,
        ]  # fmt: skip
        return random.uniform(0.7, 1.3) * forms[kind] + 0.2 * random.standard_normal(128)

    def many(kinds: Tensor) -> Tensor:
        return torch.tensor(np.stack([wave(kind) for kind in kinds.tolist()]), dtype=torch.float32)[:, None]

    y = torch.arange(800) % 4
    noise = torch.tensor(random.standard_normal((200, 1, 128)), dtype=torch.float32)
    outliers = {"noise": noise, "chirps": many(torch.full((200,), 4)), "walks": many(torch.full((200,), 5))}
    return Job(4, *split(many(y), y, seed), outliers)


def words(seed: int) -> Job:
    """Sequences of 24 of 200 words, of five topics with words of their own, against unknown topics, repetitions and chance."""
    random = np.random.default_rng(seed)
    favourites = random.permutation(200)[:180].reshape(6, 30)

    def text(topic: int) -> np.ndarray:
        own = random.random(24) < 0.5
        return np.where(own, random.choice(favourites[topic], 24), random.integers(0, 200, 24))

    y = torch.arange(1000) % 5
    x = torch.tensor(np.stack([text(topic) for topic in y.tolist()]))
    outliers = {
        "another topic": torch.tensor(np.stack([text(5) for _ in range(200)])),
        "one word": torch.tensor(random.integers(0, 200, (200, 1))).expand(-1, 24).contiguous(),
        "rare words": torch.tensor(random.choice(np.setdiff1d(np.arange(200), favourites[:5]), (200, 24))),
    }
    return Job(5, *split(x, y, seed), outliers)


JOBS: dict[str, Callable[[int], Job]] = {
    "digits": digits,
    "digits at 32 pixels": lambda seed: digits(seed, 32, 3),
    "shapes": shapes,
    "cancer": table(datasets.load_breast_cancer),
    "wine": table(datasets.load_wine),
    "signals": signals,
    "words": words,
}
