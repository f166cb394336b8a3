"""``abnn report``: the HTML page again, from run records alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abnn.errors import InputError, explain

if TYPE_CHECKING:
    from abnn.evaluate.records import Record


def report(
    records: Annotated[list[Path], typer.Argument(help="Run records, or folders with records; the last one leads.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Annotated[bool, typer.Option("--figures", help="Also write every figure as PNG and SVG.")] = False,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write the page of an evaluation, or a comparison of several, from their records. Needs neither model nor data."""
    from abnn.files import check_writable

    check_writable("--output", output)
    page = page_from_records(collect(records), output, title, figures)
    typer.echo(f"Page: {page}")


def collect(paths: Sequence[Path]) -> list[Record]:
    """The records that were named, and those of folders that were named, each once."""
    from abnn.evaluate.records import find_records, read_record

    found: dict[Path, Record] = {}
    for path in paths:
        several = find_records(path) if path.is_dir() else [read_record(path)]
        if not several:
            raise InputError(explain("records", f"{path}, a folder without records", "records, or folders with some"))
        found |= {each.path.resolve(): each for each in several}
    return list(found.values())


def page_from_records(records: Sequence[Record], output: Path, title: str | None = None, figures: bool = False) -> Path:
    """The page about one record, or comparing several. The same records give the same bytes."""
    from abnn.evaluate.report import write_report

    evaluations = [record.evaluation() for record in records]
    names = [each.name for each in evaluations]
    if len(set(names)) < len(names):  # one method, several seeds
        for place, each in enumerate(evaluations):
            evaluations[place] = type(each)(**{**vars(each), "name": f"{each.name}, seed {each.seed}"})
    if title is None:
        title = f"Evaluation of {names[0]}" if len(names) == 1 else f"Comparison: {records[0].experiment}"
    return write_report(evaluations, output, title, class_names=_class_names(records), figures=figures)


def _class_names(records: Sequence[Record]) -> list[str] | None:
    """The names of the classes, where all records agree on them."""
    first = records[0].config.get("class_names")
    return first if first and all(each.config.get("class_names") == first for each in records) else None
