"""abnn demo: the embedded example, from nothing to a page in a browser."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abnn.cli._common import Figures, Quiet, command, say, size_beside_network, waiting
from abnn.errors import InputError, explain, unknown

if TYPE_CHECKING:
    from rich.table import Table

    from abnn.evaluate.records import Record

KINDS = ("digits", "photos", "regression")
INTRO = (
    "A small network was trained to read handwritten digits. Then attachments were clipped onto it and fitted on the same "
    "digits plus made-up outliers, with the network frozen. Both were then shown three kinds of images: handwritten digits "
    "that they had not seen (id), printed digits (semi: another style, still readable) and patches of photographs (full: "
    "nothing to read). A good reader of digits is sure about the first, warns about the second and refuses the third."
)


@command
def demo(
    what: Annotated[
        str, typer.Argument(help="digits; regression: numbers with bands; photos: a network of 1,000 classes.")
    ] = "digits",
    output: Annotated[Path, typer.Option(help="Folder for the page, the saved model and the records.")] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs, with seeds from the first on.")] = 1,
    figures: Figures = False,
    quiet: Quiet = False,
) -> None:
    """Train a small network, attach, fit, and show how uncertainty grows with distance. Needs no download."""
    from rich.console import Console

    from abnn.demo.digits import run_demo
    from abnn.evaluate.records import find_records, write_record
    from abnn.evaluate.report import write_report
    from abnn.files import check_writable

    if what not in KINDS:
        raise unknown("what", what, KINDS)
    if what == "photos" and (seed, seeds, figures) != (0, 1, False):
        raise InputError(explain("--seed, --seeds, --figures", "given", "none with photos, where nothing is trained"))
    check_writable("--output", output, folder=True)
    if what == "photos":
        _photos(output, quiet)
        return
    if what == "regression":
        _regression(output, range(seed, seed + seeds), quiet)
        return
    names = [str(digit) for digit in range(10)]
    for number in range(seed, seed + seeds):
        if seeds > 1:
            say(f"seed {number}")
        result = run_demo(number, progress=not quiet)
        evaluations = [result.plain, result.attached]
        for evaluation in evaluations:
            write_record(evaluation, output / "records", "demo", images=False)
        if number == seed:
            title = "When to trust a digit reader"
            with waiting("writing the page", quiet):
                page = write_report(evaluations, output / "report.html", title, INTRO, names, figures=figures)
            extra = {"class_names": names, "split": f"digits/test/{number}"}
            model = result.model.save(output / "model", backbone=True, triage=result.triage, extra=extra)
    records = find_records(output / "records", experiment="demo", seed=list(range(seed, seed + seeds)))
    Console().print(_table(records))
    say(f"Page: {page}")
    say(f"Model: {model} ({size_beside_network(model)})")


def _photos(output: Path, quiet: bool) -> None:
    """Print what the network of photographs says about a few pictures, and write the page that shows them."""
    from abnn.cli.steps.predicting import Row, write_table
    from abnn.demo.photos import look, photo_model, write_page

    with waiting("looking at pictures", quiet):
        sights = look(photo_model())
    if not quiet:
        rows = [
            Row(each.picture.title, each.label, each.name, each.probability, each.score, each.verdict)
            for each in sights
        ]
        write_table(sys.stdout, rows, first=True)
    say(f"Page: {write_page(sights, output / 'photos.html')}")
    say("Show it pictures of your own: abnn serve --demo photos")


def _regression(output: Path, seeds: Sequence[int], quiet: bool) -> None:
    """The example of a regression: a line for each seed; figure and model of the first."""
    from abnn.demo.regression import run_demo, write_demo

    for seed in reversed(seeds):
        result = run_demo(seed, progress=not quiet)
        figure, model = write_demo(result, output, seed)
        say(f"seed {seed}: " + ", ".join(f"{name} {value:.3g}" for name, value in result.numbers.items()))
    say(f"Figure: {figure}")
    say(f"Model: {model}")


def _table(records: Sequence[Record]) -> Table:
    """Mean over the seeds, in percent, with the standard deviation where there are several."""
    from rich.table import Table

    from abnn.demo.digits import COLUMNS
    from abnn.metrics import over_seeds

    table = Table("name", "seeds", *COLUMNS)
    for name in ("plain network", "attached network"):
        own = [record.numbers for record in records if record.name == name]
        means = [over_seeds([numbers[path] for numbers in own]) for path in COLUMNS.values()]
        cells = [f"{100 * m.mean:.1f}" + ("" if m.std is None else f" ± {100 * m.std:.1f}") for m in means]
        table.add_row(name, str(len(own)), *cells)
    return table
