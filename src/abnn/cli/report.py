"""``abnn report``: the HTML page again, from run records alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from abnn.cli._common import Figures, command, say, waiting
from abnn.errors import InputError, explain

if TYPE_CHECKING:  # the commands that do not need torch should not wait for it
    from abnn.evaluate.records import Record


@command
def report(
    records: Annotated[list[Path], typer.Argument(help="Run records, or folders with records; the last one leads.")],
    output: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    figures: Figures = False,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing.")] = False,
) -> None:
    """Write the page of an evaluation, or a comparison of several, from their records. Needs neither model nor data."""
    from abnn.files import check_writable

    check_writable("--output", output)
    with waiting("writing the page", quiet):
        page = page_from_records(collect(records), output, title, figures)
    if not quiet:
        say(f"Page: {page}")


def collect(paths: Sequence[Path]) -> list[Record]:
    """Return the records that were named, and those of folders that were named, each once."""
    from abnn.evaluate.records import find_records, read_record

    by_path: dict[Path, Record] = {}
    for path in paths:
        records = find_records(path) if path.is_dir() else [read_record(path)]
        if not records:
            raise InputError(explain("records", f"{path}, a folder without records", "records, or folders with some"))
        by_path |= {each.path.resolve(): each for each in records}
    return list(by_path.values())


def page_from_records(records: Sequence[Record], output: Path, title: str | None = None, figures: bool = False) -> Path:
    """Write the page about one record, or comparing several. The same records give the same bytes."""
    from abnn.evaluate.report import write_report

    evaluations = [record.evaluation() for record in records]
    names = [each.name for each in evaluations]
    if len(set(names)) < len(names):  # one method, several seeds
        evaluations = [replace(each, name=f"{each.name}, seed {each.seed}") for each in evaluations]
    if title is None:
        title = f"Evaluation of {names[0]}" if len(names) == 1 else f"Comparison: {records[0].experiment}"
    classes = [each.config.get("class_names") for each in records]  # shown where all records agree on them
    class_names = classes[0] if classes[0] and all(each == classes[0] for each in classes) else None
    return write_report(evaluations, output, title, class_names=class_names, figures=figures)
