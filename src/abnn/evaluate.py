"""Score a model on sets of data of any size: one pass, bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from abnn.attached import Attached
from abnn.errors import InputError, explain
from abnn.evaluation import SetResult
from abnn.predict import Plain, Prediction
from abnn.scores import SAMPLE_SCORES

Batch = tuple[Tensor, Tensor]


def evaluate_set(
    model: Attached | Plain,
    batches: Iterable[Batch],
    name: str,
    tier: str,
    draws: int = 10,
    seed: int = 0,
    shown: int = 8,
    picture: Callable[[Tensor], np.ndarray] | None = None,
    on_batch: Callable[[int], None] | None = None,
) -> SetResult:
    """Predict every input of ``batches``, pairs of inputs and labels (-1: no class), and keep all its scores.

    shown     keep pictures of so many of the most and the least uncertain inputs, and of as many at random
    picture   turns a batch into uint8 pictures [B, H, W] or [B, H, W, 3]; None: see :func:`as_pictures`
    on_batch  called with the number of inputs after each batch
    """
    digest = hashlib.sha256()
    probs, labels, kept = [], [], []
    scores: dict[str, list[np.ndarray]] = {}
    pool = _Pool(shown, seed)
    for x, y in batches:
        digest.update(x.detach().cpu().contiguous().numpy().tobytes())
        digest.update(y.detach().cpu().contiguous().numpy().tobytes())
        prediction = model.predict(x, draws=draws, seed=seed)
        probs.append(prediction.probs.cpu().numpy().astype(np.float32))
        labels.append(y.cpu().numpy().astype(np.int64))
        for score, values in all_scores(prediction).items():
            scores.setdefault(score, []).append(values)
        if shown:
            pool.add(prediction.score.cpu().numpy(), x, picture or as_pictures)
        kept.append(len(x))
        if on_batch is not None:
            on_batch(len(x))
    if not kept:
        raise InputError(explain(f"set {name!r}", "no inputs", "at least one batch"))
    numbers, images = pool.finish()
    return SetResult(
        name=name,
        tier=tier,
        probs=np.concatenate(probs),
        labels=np.concatenate(labels),
        scores={score: np.concatenate(parts) for score, parts in scores.items()},
        shown=numbers,
        images=images,
        data_hash=digest.hexdigest(),
    )


def all_scores(prediction: Prediction) -> dict[str, np.ndarray]:
    """Every score that a prediction can give."""
    names = list(SAMPLE_SCORES) if len(prediction.samples) > 1 else ["max-probability", "entropy"]
    if prediction.distance is not None:
        names += ["distance", "gated"]
    names += list(prediction.own)
    return {name: prediction.score_by(name).cpu().numpy().astype(np.float32) for name in names}


def as_pictures(x: Tensor) -> np.ndarray:
    """Inputs as grey or colour pictures, each channel stretched over the range of the batch; other shapes give none."""
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return np.zeros((0, 1, 1), np.uint8)
    low = x.amin(dim=(0, 2, 3), keepdim=True)
    span = (x.amax(dim=(0, 2, 3), keepdim=True) - low).clamp_min(1e-12)
    if x.min() >= 0 and x.max() <= 1:
        low, span = torch.zeros_like(low), torch.ones_like(span)
    pictures = ((x - low) / span * 255).round().byte().cpu()
    return (pictures[:, 0] if x.shape[1] == 1 else pictures.movedim(1, -1)).numpy()


class _Pool:
    """The pictures of the most and least uncertain inputs so far, and of a random choice."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.rng = np.random.default_rng(seed)
        self.count = 0
        self.numbers = np.zeros(0, np.int64)
        self.scores = np.zeros(0)
        self.keys = np.zeros(0)
        self.images: np.ndarray | None = None

    def add(self, scores: np.ndarray, x: Tensor, picture: Callable[[Tensor], np.ndarray]) -> None:
        images = picture(x)
        numbers = np.arange(self.count, self.count + len(scores))
        self.count += len(scores)
        keys = self.rng.random(len(scores))
        if len(images) != len(scores):
            return
        if self.images is None or self.images.shape[1:] != images.shape[1:]:
            self.images = np.zeros((0, *images.shape[1:]), np.uint8)
            self.numbers, self.scores, self.keys = np.zeros(0, np.int64), np.zeros(0), np.zeros(0)
        scores, keys = np.concatenate([self.scores, scores]), np.concatenate([self.keys, keys])
        numbers, images = np.concatenate([self.numbers, numbers]), np.concatenate([self.images, images])
        order = np.argsort(scores, kind="stable")
        chosen = {*order[: self.size], *order[-self.size :], *np.argsort(keys, kind="stable")[: self.size]}
        keep = np.array(sorted(chosen))
        self.numbers, self.scores, self.keys, self.images = numbers[keep], scores[keep], keys[keep], images[keep]

    def finish(self) -> tuple[np.ndarray, np.ndarray]:
        if self.images is None:
            return np.zeros(0, np.int64), np.zeros((0, 1, 1), np.uint8)
        return self.numbers, self.images
