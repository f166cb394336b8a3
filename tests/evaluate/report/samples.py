"""Evaluations to report on: real pictures of digits, made-up scores and probabilities."""

from __future__ import annotations

import numpy as np

from abnn.evaluate.evaluation import Evaluation, SetResult

SETS = (("handwritten", "id", (0.4, 8)), ("printed", "semi", (2, 4)), ("photographs", "full", (6, 2)))


def make_set(
    name: str, tier: str, shape: tuple[float, float], seed: int = 0, size: int = 120, classes: int = 10, **more: object
) -> SetResult:
    """Scores from a beta distribution; the more uncertain an input, the more often its prediction is wrong."""
    rng = np.random.default_rng([seed, *tier.encode()])
    score = rng.beta(*shape, size)
    labels = np.random.default_rng(7).integers(0, classes, size) if tier != "full" else np.full(size, -1)
    predicted = np.where((labels >= 0) & (rng.random(size) > 0.6 * score), labels, rng.integers(0, classes, size))
    probs = np.repeat((0.9 * score / (classes - 1))[:, None], classes, axis=1)
    probs[np.arange(size), predicted] = 1 - 0.9 * score
    given = {
        "shown": np.arange(20),
        "images": np.random.default_rng(8).integers(0, 256, (20, 8, 8), dtype=np.uint8),
        "data_hash": "ab" * 32,
        **more,
    }
    return SetResult(name, tier, probs.astype(np.float32), labels, {"entropy": score.astype(np.float32)}, **given)  # type: ignore[arg-type]


def make_evaluation(
    name: str = "attached network",
    seed: int = 1,
    tiers: tuple[str, ...] = ("id", "semi", "full"),
    thresholds: tuple[float, float] | None = (0.15, 0.6),
    size: int = 120,
    classes: int = 10,
) -> Evaluation:
    sets = tuple(make_set(n, t, shape, seed, size, classes) for n, t, shape in SETS if t in tiers)
    return Evaluation(name, "entropy", sets, thresholds, seed=seed, config={"draws": 10}, seconds={"fit": 1.5})


def make_pair() -> list[Evaluation]:
    return [make_evaluation("plain network", seed=0), make_evaluation("attached network", seed=1)]
