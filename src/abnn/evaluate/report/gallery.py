"""Pictures with what each model says about them: the least and the most uncertain ones of each set, and some at random."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.report.drawing import short
from abnn.predict.verdicts import VERDICTS

PER_ROW = 6
LARGEST_SIDE = 192
"""Pixels; twice the size on the page, for sharp screens. Larger pictures are reduced, so that the page stays small."""
PIXELATED_BELOW = 64


def gallery(
    evaluations: Sequence[Evaluation], chosen_by: Evaluation, aligned: bool, class_names: Sequence[str] | None
) -> list[dict[str, Any]]:
    """All sets of one model, with the other models' words under each picture where they saw the same inputs."""
    speakers = list(evaluations) if aligned else [chosen_by]
    return [
        {
            "set": result,
            "rows": {
                title: [_card(speakers, number, result, int(place), class_names) for place in places]
                for title, places in pick(result, chosen_by.score).items()
                if len(places)
            },
        }
        for number, result in enumerate(chosen_by.sets)
    ]


def pick(result: SetResult, score: str, per_row: int = PER_ROW, seed: int = 0) -> dict[str, np.ndarray]:
    """Places in ``shown``: the extremes among the kept pictures, and a random sample of the others; always the same."""
    order = np.argsort(result.scores[score][result.shown], kind="stable")
    count = min(per_row, len(order) // 2) if len(order) > 1 else len(order)
    least, most = order[:count], order[len(order) - count :][::-1] if len(order) > 1 else order[:0]
    rest = np.sort(order[count : len(order) - len(most)])
    sample = np.random.default_rng(seed).permutation(rest)[:per_row]
    return {"Least uncertain": least, "Most uncertain": most, "At random": np.sort(sample)}


def data_uri(image: np.ndarray) -> str:
    """One picture, uint8 [H, W] or [H, W, 3], as a PNG inside the page."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > LARGEST_SIDE:
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _card(
    speakers: Sequence[Evaluation], number: int, result: SetResult, place: int, class_names: Sequence[str] | None
) -> dict[str, Any]:
    index, image, names = int(result.shown[place]), result.images[place], class_names or ()
    label = int(result.labels[index])
    return {
        "index": index,
        "picture": data_uri(image),
        "pixelated": max(image.shape[:2]) < PIXELATED_BELOW,
        "truth": f"shows {_class(label, names)}" if label >= 0 else "belongs to no class",
        "words": [_says(each, each.sets[number], index, names) for each in speakers],
    }


def _says(evaluation: Evaluation, result: SetResult, index: int, class_names: Sequence[str]) -> dict[str, Any]:
    predicted, label = int(result.probs[index].argmax()), result.labels[index]
    return {
        "model": evaluation.name,
        "class": short(_class(predicted, class_names), 24),
        "mark": "" if label < 0 else " \u2713" if predicted == label else " \u2717",
        "sure": f"{100 * float(result.probs[index].max()):.0f}",
        "score": _score(float(result.scores[evaluation.score][index]), evaluation),
        "verdict": VERDICTS[evaluation.levels(result)[index]] if evaluation.thresholds else "",
    }


def _score(value: float, evaluation: Evaluation) -> str:
    """Three decimals where the scores spread enough to differ in them, as entropies do; three digits otherwise."""
    spread = np.ptp(np.concatenate([each.scores[evaluation.score] for each in evaluation.sets]))
    return f"{value:.3f}" if 0.05 <= spread < 1000 else f"{value:.3g}"


def _class(number: int, class_names: Sequence[str]) -> str:
    return str(class_names[number]) if number < len(class_names) else f"class {number}"
