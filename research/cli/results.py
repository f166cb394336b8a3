"""``python -m research results``: list and recompute run records, and render tables from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.records import Record, find_records, read_record
from abnn.files import check_writable
from research.records import disagreements, looks_like_record
from research.tables import PRESETS, columns_from, render, render_paired, update_between_markers

results_app = typer.Typer(name="results", help="List, tabulate and recompute run records.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--results", "-r", help="Folder with the records.")]
Names = Annotated[list[str] | None, typer.Option("--name", help="Only this model; may be repeated.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be repeated.")]
RESULTS = Path("results")


@results_app.command("list")
def list_records(
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    name: Names = None,
    seed: Seeds = None,
    paths: Annotated[bool, typer.Option("--paths", help="Print the paths only, one per line.")] = False,
    results: Folder = RESULTS,
) -> None:
    """List the records of a folder."""
    records = _select(results, experiment, name, seed)
    if paths:
        for record in records:
            typer.echo(str(record.path))
        return
    table = Table()
    for head in ("experiment", "name", "seed", "score", "sets", "written (UTC)"):
        table.add_column(head, overflow="fold")
    for record in records:
        sets = ", ".join(each.name for each in record.sets)
        texts = (record.experiment, record.name, str(record.seed), record.score, sets, record.written[:16])
        table.add_row(*map(escape, texts))
    # Without a terminal rich assumes 80 columns and breaks words that a reader of a log or a pipe wants whole.
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print(f"{len(records)} records")


@results_app.command()
def table(
    experiment: Annotated[str, typer.Argument(help="The experiment whose records make the table.")],
    columns: Annotated[
        str, typer.Option(help=f"Presets ({', '.join(PRESETS)}), metric paths or HEADER=PATH, separated by commas.")
    ] = "overview",
    row: Annotated[list[str] | None, typer.Option("--row", help="Only these rows, in this order; repeated.")] = None,
    against: Annotated[str | None, typer.Option(help="Differences to this row, with the paired test.")] = None,
    into: Annotated[Path | None, typer.Option(help="Put the table between the markers of this document.")] = None,
    marker: Annotated[str | None, typer.Option(help="Which markers: <!-- abnn:table MARKER -->.")] = None,
    name: Names = None,
    seed: Seeds = None,
    results: Folder = RESULTS,
) -> None:
    """Render a table: mean ± sample standard deviation over seeds, the best of each column bold."""
    if (into is None) != (marker is None):
        fix = "Pass --into FILE --marker NAME, or neither."
        raise InputError(explain("--into and --marker", "only one of them", "both or neither", fix))
    if against is not None and row:
        raise InputError(explain("--row", "rows with --against", "one of the two", "Choose rows with --name instead."))
    if into is not None:
        check_writable("--into", into)
    records = _select(results, experiment, name, seed)
    if not records:
        fix = f"`python -m research results list -r {results}` shows what is there."
        raise InputError(explain("experiment", repr(experiment), f"one with records in {results}", fix))
    chosen = columns_from(columns, records)
    if against is None:
        text = render(records, chosen, row)
    else:
        text = render_paired(records, chosen, against)
    if into is not None and marker is not None:
        changed = update_between_markers(into, marker, text)
        typer.echo(f"{into}: table {marker} {'updated' if changed else 'is up to date'}", err=True)
    else:
        typer.echo(text, nl=False)


@results_app.command()
def recompute(
    records: Annotated[list[Path], typer.Argument(help="Records, or folders with records.")],
    tolerance: Annotated[float, typer.Option(help="How far a number may move, relative to max(1, number).")] = 1e-9,
) -> None:
    """Compute every number again from the saved arrays; exit status 1 if any does not agree. Records without arrays are
    passed over."""
    checked = failed = bare = 0
    for path in (path for place in records for path in _expanded(place)):
        checked += 1
        try:
            one = read_record(path)
            if not one.arrays_file:
                checked, bare = checked - 1, bare + 1
                typer.echo(f"{path}: passed over, it holds numbers alone")
                continue
            wrong = disagreements(one, tolerance)
        except FileFormatError as error:
            failed += 1
            typer.echo(f"cannot be read: {error}")
            continue
        failed += bool(wrong)
        typer.echo(f"{path}: {len(one.numbers) - len(wrong)} of {len(one.numbers)} numbers agree")
        for where, (stored, again) in wrong.items():
            typer.echo(f"  {where}: recorded {stored!r}, recomputed {'nothing' if again is None else repr(again)}")
    typer.echo(f"{checked - failed} of {checked} records agree" + (f", {bare} have no arrays" if bare else ""))
    if failed or not (checked or bare):
        raise typer.Exit(1)


def _expanded(place: Path) -> list[Path]:
    """The records below a folder, damaged ones too, so that one of them does not hide the others."""
    return [path for path in sorted(place.rglob("*.json")) if looks_like_record(path)] if place.is_dir() else [place]


def _select(results: Path, experiment: str | None, names: list[str] | None, seeds: list[int] | None) -> list[Record]:
    return find_records(results, experiment, names or None, seeds or None)
