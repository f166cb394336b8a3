"""Pictures with what each model says about them: the least and the most uncertain ones of each set, and some at random."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.report.markup import details, note, short, text
from abnn.evaluate.report.texts import VERDICTS

PER_ROW = 6
LARGEST_SIDE = 192
"""Pixels; twice the size on the page, for sharp screens. Larger pictures are reduced, so that the page stays small."""
PIXELATED_BELOW = 64


@dataclass(frozen=True)
class Picks:
    """Places in ``shown`` of one set."""

    least: np.ndarray
    most: np.ndarray
    random: np.ndarray


def pick(result: SetResult, score: str, per_row: int = PER_ROW, seed: int = 0) -> Picks:
    """The extremes among the kept pictures, and a random sample of the others; the same for the same input."""
    order = np.argsort(result.scores[score][result.shown], kind="stable")
    count = min(per_row, len(order) // 2) if len(order) > 1 else len(order)
    least, most = order[:count], order[len(order) - count :][::-1] if len(order) > 1 else order[:0]
    rest = np.sort(order[count : len(order) - len(most)])
    sample = np.random.default_rng(seed).permutation(rest)[:per_row]
    return Picks(least, most, np.sort(sample))


def data_uri(image: np.ndarray) -> str:
    """One picture, uint8 [H, W] or [H, W, 3], as a PNG inside the page."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    if max(picture.size) > LARGEST_SIDE:
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def gallery(
    evaluations: Sequence[Evaluation], chosen_by: Evaluation, aligned: bool, class_names: Sequence[str] | None
) -> str:
    """All sets of one model, with the other models' words under each picture where they saw the same inputs."""
    speakers = list(evaluations) if aligned else [chosen_by]
    parts = []
    for number, result in enumerate(chosen_by.sets):
        heading = f"<h3>{text(result.name)} <span class='tier {result.tier}'>{result.tier}</span></h3>"
        if len(result.shown) == 0:
            parts.append(heading + note("No pictures were kept of this set."))
            continue
        picks = pick(result, chosen_by.score)
        rows = (
            ("Least uncertain", picks.least),
            ("Most uncertain", picks.most),
            ("At random", picks.random),
        )
        kept = "" if len(result.shown) == len(result) else f" {len(result.shown)} of {len(result)} pictures were kept."
        parts.append(heading + (note(text(kept.strip())) if kept else ""))
        for title, places in rows:
            if len(places):
                cards = "\n".join(_card(speakers, number, result, int(place), class_names) for place in places)
                parts.append(f'<h4>{title}</h4>\n<div class="cards">\n{cards}\n</div>')
    return "\n".join(parts)


def galleries(evaluations: Sequence[Evaluation], aligned: bool, class_names: Sequence[str] | None) -> str:
    """The last model's choice of pictures in the open, those of the others folded."""
    *others, last = evaluations
    opened = gallery(evaluations, last, aligned, class_names)
    if not others:
        return opened
    folded = [
        details(f"The same, chosen by the scores of {each.name}", gallery(evaluations, each, aligned, class_names))
        for each in others
    ]
    return "\n".join([f"<p>Chosen by the scores of <strong>{text(last.name)}</strong>.</p>", opened, *folded])


def _card(
    speakers: Sequence[Evaluation], number: int, result: SetResult, place: int, class_names: Sequence[str] | None
) -> str:
    index, image = int(result.shown[place]), result.images[place]
    label = int(result.labels[index])
    truth = f"shows {_class(label, class_names)}" if label >= 0 else "belongs to no class"
    kind = ' class="pixels"' if max(image.shape[:2]) < PIXELATED_BELOW else ""
    alt = text(f"input {index} of {result.name}, {truth}")
    said = "\n".join(_says(each, each.sets[number], index, class_names, len(speakers) > 1) for each in speakers)
    return (
        f'<figure class="card"><img{kind} src="{data_uri(image)}" alt="{alt}" width="96" height="96">'
        f'<figcaption><p class="truth">{text(truth)}</p>\n{said}</figcaption></figure>'
    )


def _says(evaluation: Evaluation, result: SetResult, index: int, class_names: Sequence[str] | None, named: bool) -> str:
    score = float(result.scores[evaluation.score][index])
    predicted, sure, label = int(result.probs[index].argmax()), float(result.probs[index].max()), result.labels[index]
    mark = "" if label < 0 else " \u2713" if predicted == label else " \u2717"
    verdict = ""
    if evaluation.thresholds is not None:
        word = VERDICTS[int(evaluation.levels(result)[index])]
        verdict = f' <span class="verdict {word}">{word}</span>'
    who = f"<strong>{text(short(evaluation.name, 26))}</strong><br>" if named else ""
    says = f"says {text(short(_class(predicted, class_names), 24))}{mark} ({100 * sure:.0f}\u202f%)"
    return f'<p class="says">{who}{says}<br>score {_score(score, evaluation)}{verdict}</p>'


def _score(value: float, evaluation: Evaluation) -> str:
    """Three decimals where the scores spread enough to differ in them, as entropies do; three digits otherwise."""
    ends = [(each.scores[evaluation.score].min(), each.scores[evaluation.score].max()) for each in evaluation.sets]
    spread = max(high for _, high in ends) - min(low for low, _ in ends)
    return f"{value:.3f}" if 0.05 <= spread < 1000 else f"{value:.3g}"


def _class(number: int, class_names: Sequence[str] | None) -> str:
    return str(class_names[number]) if class_names is not None and number < len(class_names) else f"class {number}"
