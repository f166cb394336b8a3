"""Score a model on sets of data of any size: one pass, and no more memory than one batch and the scores take."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn.errors import InputError, explain
from abnn.evaluate.evaluation import SetResult
from abnn.predict import Prediction
from abnn.scores import ONE_DRAW_SCORES, SAMPLE_SCORES, SCORES

Batch = tuple[Tensor, Tensor]
Picture = Callable[[Tensor], np.ndarray]
Stated = Callable[[Prediction], Tensor]
Rows = dict[str, np.ndarray]
"""What is kept of some consecutive inputs, one row for each: "probs", "labels", every score as "score NAME", and "digests",
16 bytes that tell an input and its label from all others."""


def evaluate_set(
    model: Any,
    batches: Iterable[Batch],
    name: str,
    tier: str,
    draws: int | None = None,
    seed: int = 0,
    shown: int = 8,
    picture: Picture | None = None,
    stated: Stated | None = None,
) -> SetResult:
    """Return what a model says about every input of ``batches``: pairs of inputs and labels (-1: no class).

    model     anything with ``predict(x, draws=..., seed=...)``: attached, plain, or of another method
    draws     of each prediction; None: as many as the model makes when it is not told
    shown     keep pictures of so many of the most and the least uncertain inputs, and of as many at random
    picture   turns a batch into uint8 pictures [B, H, W] or [B, H, W, 3]; None: see :func:`as_pictures`
    stated    the probabilities to keep; None: those of the model, averaged over its draws
    """
    parts, pool = [], Pool(shown, seed)
    for x, y in batches:
        prediction = model.predict(x, seed=seed, **({} if draws is None else {"draws": draws}))
        parts.append(rows_of(prediction, x, y, stated))
        pool.add(prediction.score.cpu().numpy(), x, picture or as_pictures)
    return as_result(parts, pool, name, tier)


def rows_of(prediction: Prediction, x: Tensor, y: Tensor, stated: Stated | None = None) -> Rows:
    """Return what is kept of one batch."""
    labels = y.cpu().numpy().astype(np.int64)
    probs = (prediction.probs if stated is None else stated(prediction)).cpu().numpy().astype(np.float32)
    scores = {f"score {name}": values for name, values in all_scores(prediction).items()}
    rows = np.ascontiguousarray(x.detach().cpu().numpy())
    digests = [
        hashlib.blake2b(row.tobytes(), digest_size=16, salt=int(label).to_bytes(8, "little", signed=True)).digest()
        for row, label in zip(rows, labels)
    ]
    digest_rows = np.frombuffer(b"".join(digests), np.uint8).reshape(len(rows), 16)
    return {"probs": probs, "labels": labels, **scores, "digests": digest_rows}


def join(parts: Sequence[Rows]) -> Rows:
    """Return consecutive rows as one."""
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def as_result(parts: Sequence[Rows], pool: Pool, name: str, tier: str, skipped: tuple[str, ...] = ()) -> SetResult:
    """Return all rows of a set as its result. Its hash is that of inputs and labels, however they were batched."""
    if not parts:
        fix = f"{len(skipped)} inputs could not be read." if skipped else ""
        raise InputError(explain(f"set {name!r}", "no inputs", "at least one batch", fix))
    rows = join(parts)
    scores = {key.removeprefix("score "): values for key, values in rows.items() if key.startswith("score ")}
    data_hash = hashlib.sha256(rows["digests"].tobytes()).hexdigest()
    pictures = pool.numbers, pool.images
    return SetResult(name, tier, rows["probs"], rows["labels"], scores, *pictures, skipped, data_hash)


def all_scores(prediction: Prediction) -> dict[str, np.ndarray]:
    """Return every score that a prediction can give, by name."""
    names = list(SAMPLE_SCORES if len(prediction.samples) > 1 else ONE_DRAW_SCORES)
    if prediction.combined is not None:
        lacks = () if "energy" in (prediction.parts or {}) else ("energy", "failures")  # of a task without classes
        names += [score.name for score in SCORES.values() if score.statistics and score.name not in lacks]
    names += list(prediction.own)
    return {name: prediction.score_by(name).cpu().numpy().astype(np.float32) for name in names}


def as_pictures(x: Tensor) -> np.ndarray:
    """Return inputs as grey or colour pictures; other shapes give none.

    Each channel is stretched over the range of the batch, unless all values are in [0, 1].
    """
    if x.ndim != 4 or x.shape[1] not in (1, 3):
        return np.zeros((0, 1, 1), np.uint8)
    low = x.amin(dim=(0, 2, 3), keepdim=True)
    span = (x.amax(dim=(0, 2, 3), keepdim=True) - low).clamp_min(1e-12)
    if x.min() >= 0 and x.max() <= 1:
        low, span = torch.zeros_like(low), torch.ones_like(span)
    pictures = ((x - low) / span * 255).round().byte().cpu()
    return (pictures[:, 0] if x.shape[1] == 1 else pictures.movedim(1, -1)).numpy()


@dataclass
class Pool:
    """The pictures of the most and least uncertain inputs so far, and of a random choice.

    The choice among all inputs is the same however they were batched: each has a random number that belongs to the seed
    and its place alone.
    """

    size: int
    seed: int
    count: int = 0
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    scores: np.ndarray = field(default_factory=lambda: np.zeros(0))
    images: np.ndarray = field(default_factory=lambda: np.zeros((0, 1, 1), np.uint8))

    def add(self, scores: np.ndarray, x: Tensor, picture: Picture) -> None:
        """Look at the next inputs."""
        numbers = np.arange(self.count, self.count + len(scores))
        self.count += len(scores)
        images = picture(x) if self.size else np.zeros((0, 1, 1), np.uint8)
        if len(images) != len(scores):
            return
        if self.images.shape[1:] != images.shape[1:]:  # the first ones, or pictures of another size
            self.numbers, self.scores, self.images = numbers[:0], np.zeros(0), images[:0]
        numbers, images = np.concatenate([self.numbers, numbers]), np.concatenate([self.images, images])
        scores = np.concatenate([self.scores, scores])
        order = np.argsort(scores, kind="stable")
        at_random = np.argsort(self._keys(numbers), kind="stable")[: self.size]
        keep = np.array(sorted({*order[: self.size], *order[-self.size :], *at_random}))
        self.numbers, self.scores, self.images = numbers[keep], scores[keep], images[keep]

    def _keys(self, numbers: np.ndarray) -> np.ndarray:
        """Return a random number for each place, by SplitMix64 (Steele et al., OOPSLA 2014) of seed and place."""
        state = np.random.SeedSequence(self.seed).generate_state(1, np.uint64)
        z = state + (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))
