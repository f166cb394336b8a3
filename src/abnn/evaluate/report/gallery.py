"""Pictures with what each model says about them: the least and the most uncertain ones of each set, and some at random."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from abnn.decisions import VERDICTS
from abnn.evaluate.evaluation import Evaluation, SetResult

PER_ROW = 6
LARGEST_SIDE = 192
"""Pixels; twice the size on the page, for sharp screens. Larger pictures are reduced, so that the page stays small."""


def gallery(evaluations: Sequence[Evaluation], chosen_by: Evaluation, aligned: bool) -> list[dict[str, Any]]:
    """Return all sets of one model, with the other models' words under each picture where they saw the same inputs."""
    speakers = list(evaluations) if aligned else [chosen_by]
    return [
        {
            "set": result,
            "rows": {
                title: [_card(speakers, number, result, int(place)) for place in places]
                for title, places in pick(result, chosen_by.score).items()
                if len(places)
            },
        }
        for number, result in enumerate(chosen_by.sets)
    ]


def pick(result: SetResult, score: str, per_row: int = PER_ROW, seed: int = 0) -> dict[str, np.ndarray]:
    """Return places in ``shown``: extremes among the kept pictures, and a sample of the others, always the same."""
    order = np.argsort(result.scores[score][result.shown], kind="stable")
    count = min(per_row, len(order) // 2) if len(order) > 1 else len(order)
    least, most = order[:count], order[len(order) - count :][::-1] if len(order) > 1 else order[:0]
    rest = np.sort(order[count : len(order) - len(most)])
    sample = np.random.default_rng(seed).permutation(rest)[:per_row]
    return {"Least uncertain": least, "Most uncertain": most, "At random": np.sort(sample)}


def data_uri(image: np.ndarray) -> str:
    """Return one picture, uint8 [H, W] or [H, W, 3], as a PNG inside the page."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > LARGEST_SIDE:
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _card(speakers: Sequence[Evaluation], number: int, result: SetResult, place: int) -> dict[str, Any]:
    """Return one picture, its true class, and what each model says: the template puts it into words."""
    index, words = int(result.shown[place]), []
    for each in speakers:
        own = each.sets[number]
        scores = np.concatenate([other.scores[each.score] for other in each.sets])
        # Three decimals where the scores spread enough to differ in them, as entropies do; three digits otherwise.
        form = ".3f" if 0.05 <= np.ptp(scores) < 1000 else ".3g"
        verdict = VERDICTS[each.levels(own)[index]] if each.thresholds else ""
        said = {"model": each.name, "class": int(own.predicted[index]), "sure": float(own.probs[index].max())}
        words.append({**said, "score": f"{float(own.scores[each.score][index]):{form}}", "verdict": verdict})
    image = result.images[place]
    card = {"index": index, "label": int(result.labels[index]), "pixelated": max(image.shape[:2]) < 64}
    return {**card, "picture": data_uri(image), "words": words}
