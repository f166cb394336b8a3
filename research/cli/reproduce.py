"""python -m research reproduce: the experiments of the paper on real data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from research.paper import Cell


def reproduce(
    what: Annotated[
        list[str], typer.Argument(help="table1 to table7, all (the seven), joint, readable, beyond, or page.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each cell, with seeds from 0 on.")] = 5,
    cell: Annotated[
        list[str] | None, typer.Option(help="For tables: only cells of this name; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only this data: mnist, svhn, cat-dog or digits.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="Where data sets by name are kept.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for networks and checkpoints.")] = Path("runs/reproduce"),
    docs: Annotated[Path, typer.Option(help="For page: the folder with reproduction.md and beyond.md.")] = Path("docs"),
    precision: Annotated[str, typer.Option(help="For tables: 32-true or bf16-mixed.")] = "32-true",
    compile: Annotated[bool, typer.Option(help="For tables: compile networks for training; pays on a GPU.")] = False,
    quiet: Annotated[bool, typer.Option(help="For tables: no progress bars.")] = False,
    inputs: Annotated[int, typer.Option(min=0, help="For beyond: test inputs of each set; 0: all.")] = 1000,
    part: Annotated[
        list[str] | None,
        typer.Option(help="For beyond: only severity, far, draws, views or corrupted; may be repeated."),
    ] = None,
) -> None:
    """Train and evaluate every cell of the paper's tables that has no record yet, and print the tables beside the paper's
    numbers. Goes on where it stopped. "joint" does the same for training with and without freezing, "readable" for
    targets by what can still be read. "beyond" trains nothing: it measures the networks that are in the work folder
    further. "page" renders the pages of the documents from the records."""
    from abnn.errors import unknown
    from abnn.files import check_writable
    from research.paper import MORE, TABLES, Runner
    from research.paper.page import write_page

    tables = {**TABLES, **MORE}
    for name in what:
        if name not in (*tables, "all", "beyond", "page"):
            raise unknown("what", name, [*tables, "all", "beyond", "page"])
    names = [name for name in tables if name in what or (name in TABLES and "all" in what)]
    if names:
        for argument, folder in (("--output", output), ("--work", work)):
            check_writable(argument, folder, folder=True)
        chosen = _chosen([each for name in names for each in tables[name].cells], cell, task)
        runner = Runner(
            output,
            work,
            range(seeds),
            data_root,
            precision,
            compile,
            progress=not quiet,
            note=typer.echo,
        )
        for data in dict.fromkeys(each.task for each in chosen):  # one after another: each is loaded once
            runner.run([each for each in chosen if each.task == data])
    for name in names:
        typer.echo(tables[name].markdown(output))
    if "beyond" in what:
        _beyond(output, work, range(seeds), data_root, inputs, task, part)
    if "page" in what:
        changed = write_page(output, docs)
        typer.echo("\n".join(f"{path} updated" for path in changed) or "everything is up to date")


def _beyond(
    output: Path,
    work: Path,
    seeds: Sequence[int],
    root: Path | None,
    inputs: int,
    task: str | None,
    parts: Sequence[str] | None,
) -> None:
    """Measure what has no entry yet, and print the tables."""
    from abnn.errors import unknown
    from research.paper.beyond import PARTS, TASKS, Beyond, Measured, table

    for given, argument, known in [*((part, "part", PARTS) for part in parts or ()), (task or TASKS[0], "task", TASKS)]:
        if given not in known:
            raise unknown(argument, given, list(known))
    chosen = list(parts or PARTS)
    Beyond(output, work, seeds, root, inputs, typer.echo).run([task] if task else TASKS, chosen)
    for part in chosen:
        typer.echo(f"{part}\n\n{table(Measured(output), part)}")


def _chosen(cells: Sequence[Cell], names: Sequence[str] | None, task: str | None) -> list[Cell]:
    """Each cell once, of the wanted names and task; a name that no cell has is an error."""
    from abnn.errors import InputError, explain, unknown

    known = {(each.task, each.name): each for each in cells}
    for name in names or ():
        if name not in {each.name for each in cells}:
            raise unknown("cell", name, dict.fromkeys(each.name for each in cells))
    chosen = [each for each in known.values() if task in (None, each.task) and (not names or each.name in names)]
    if not chosen:
        accepted = ", ".join(sorted({each.task for each in cells if not names or each.name in names}))
        raise InputError(explain("task", repr(task), f"data of the chosen cells: {accepted}"))
    return chosen
