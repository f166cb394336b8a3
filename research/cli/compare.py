"""python -m research compare: every method under the same conditions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def compare(
    method: Annotated[
        list[str] | None, typer.Option(help="A method, or METHOD:VARIANT; may be repeated. Default: all.")
    ] = None,
    posthoc: Annotated[
        list[str] | None,
        typer.Option(help="A post-hoc score of the plain network, or 'none'; may be repeated. Default: all."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each, with seeds from 0 on.")] = 5,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs over all stages of a method.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("results"),
    validation: Annotated[bool, typer.Option(help="Evaluate on the sets for choosing settings.")] = False,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train all methods on the embedded digits, score all three tiers, and print one table. Goes on where it stopped."""
    from abnn.evaluate.records import read_record
    from abnn.files import check_writable
    from research.compare import COLUMNS, METHODS, run_compare
    from research.tables import render

    check_writable("--output", output, folder=True)
    scores = None if posthoc is None else [name for name in posthoc if name != "none"]
    paths = run_compare(
        method or METHODS,
        range(seeds),
        output,
        progress=not quiet,
        posthoc=scores,
        epochs=epochs,
        validation=validation,
        note=typer.echo,
    )
    records = [read_record(path) for path in paths]
    rows = list(dict.fromkeys(record.name for record in records))
    typer.echo(render(records, COLUMNS, rows=rows), nl=False)
