"""``python -m research train``, ``compare`` and ``reproduce``: run methods, and record what they give."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abnn.errors import InputError, explain, unknown
from abnn.files import check_writable

if TYPE_CHECKING:
    from research.paper import Cell

DataRoot = Annotated[Path | None, typer.Option(help="Where data sets by name are kept.")]
Quiet = Annotated[bool, typer.Option(help="No progress bars.")]


def train(
    method: Annotated[str, typer.Option(help="The method: abnn, threshold, oe, woods, ...")] = "abnn",
    variant: Annotated[str, typer.Option(help="reference, authors, or another variant of the method.")] = "reference",
    data: Annotated[str, typer.Option(help="The data: digits, mnist, svhn or cat-dog.")] = "digits",
    data_root: DataRoot = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs over all stages of the method.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, data order, outliers and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the model and the record.")] = Path("trained"),
    set: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, as in --set lr=0.01; may be repeated.")
    ] = None,
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.")] = "32-true",
    log: Annotated[list[str] | None, typer.Option(help="csv or tensorboard; may be repeated.")] = None,
    quiet: Quiet = False,
) -> None:
    """Train a method, evaluate it on all tiers, and save it. A run that was killed goes on when started again."""
    from abnn.baselines import TrainConfig
    from abnn.evaluate.records import read_record, write_record
    from research.compare import columns_of, run_method
    from research.metrics import summarise
    from research.tables import render
    from research.tasks import load_task

    check_writable("--output", output, folder=True)
    task = load_task(data, seed, root=data_root)
    chosen = task.method(method, variant, **parse_settings(set or []))
    unfinished = output / "unfinished"
    config = TrainConfig(
        precision=precision,
        checkpoint=unfinished / "checkpoint.safetensors",
        log=log or (),
        log_dir=output / "logs",
    )
    evaluation, trained = run_method(task, chosen, epochs, seed, not quiet, config)
    trained.extra["data"] = evaluation.config["data"]
    record = write_record(evaluation, output / "records", f"train-{data}", images=False, summary=summarise)
    model = trained.save(output / "model")
    # Hidden ones are what a kill in the middle of writing left. Anything else is not ours, and stays with its folder.
    for pattern in ("checkpoint*.safetensors", ".checkpoint*.safetensors.*"):
        for file in unfinished.glob(pattern):
            file.unlink()
    with contextlib.suppress(OSError):
        unfinished.rmdir()
    typer.echo(render([read_record(record)], columns_of(task)), nl=False)
    typer.echo(f"Model: {model}\nRecord: {record}")


def parse_settings(pairs: list[str]) -> dict[str, Any]:
    """ "lr=0.01" to {"lr": 0.01}: values are JSON, or else text."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise InputError(explain("--set", repr(pair), "NAME=VALUE", "For example --set lr=0.01."))
        try:
            settings[name.strip()] = json.loads(text)
        except json.JSONDecodeError:
            settings[name.strip()] = text
    return settings


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
    quiet: Quiet = False,
) -> None:
    """Train all methods on the embedded digits, score all three tiers, and print one table. Goes on where it stopped."""
    from abnn.evaluate.records import read_record
    from research.compare import COLUMNS, METHODS, run_compare
    from research.tables import render

    check_writable("--output", output, folder=True)
    scores = None if posthoc is None else [name for name in posthoc if name != "none"]
    options: dict[str, Any] = {"posthoc": scores, "epochs": epochs, "validation": validation}
    paths = run_compare(method or METHODS, range(seeds), output, not quiet, note=typer.echo, **options)
    records = [read_record(path) for path in paths]
    rows = list(dict.fromkeys(record.name for record in records))
    typer.echo(render(records, COLUMNS, rows=rows), nl=False)


def reproduce(
    what: Annotated[list[str], typer.Argument(help="table1 to table7, all (the seven), beyond, or page.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each cell, with seeds from 0 on.")] = 5,
    cell: Annotated[
        list[str] | None, typer.Option(help="For tables: only cells of this name; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Only this data: mnist, svhn or cat-dog.")] = None,
    data_root: DataRoot = None,
    output: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("results"),
    work: Annotated[Path, typer.Option(help="Folder for networks and checkpoints.")] = Path("runs/reproduce"),
    docs: Annotated[Path, typer.Option(help="For page: the folder with reproduction.md and beyond.md.")] = Path("docs"),
    precision: Annotated[str, typer.Option(help="For tables: 32-true or bf16-mixed.")] = "32-true",
    compile: Annotated[bool, typer.Option(help="For tables: compile networks for training; pays on a GPU.")] = False,
    quiet: Quiet = False,
    inputs: Annotated[int, typer.Option(min=0, help="For beyond: test inputs of each set; 0: all.")] = 1000,
    part: Annotated[
        list[str] | None,
        typer.Option(help="For beyond: only severity, far, draws, views or corrupted; may be repeated."),
    ] = None,
) -> None:
    """Train and evaluate every cell of the paper's tables that has no record yet, and print the tables beside the paper's
    numbers. Goes on where it stopped. "beyond" trains nothing: it measures the networks that are in the work folder further.
    "page" renders the pages of the documents from the records."""
    from research.paper import TABLES, Runner
    from research.paper.beyond import PARTS, TASKS, Beyond, Measured, table
    from research.paper.page import write_page

    _check_choice("what", what, [*TABLES, "all", "beyond", "page"])
    names = [name for name in TABLES if name in what or "all" in what]
    if names:
        for argument, folder in (("--output", output), ("--work", work)):
            check_writable(argument, folder, folder=True)
        chosen = _choose_cells([each for name in names for each in TABLES[name].cells], cell, task)
        options: dict[str, Any] = {"precision": precision, "compile": compile, "progress": not quiet}
        runner = Runner(output, work, range(seeds), data_root, note=typer.echo, **options)
        for data in dict.fromkeys(each.task for each in chosen):  # one after another: each is loaded once
            runner.run([each for each in chosen if each.task == data])
    for name in names:
        typer.echo(TABLES[name].markdown(output))
    if "beyond" in what:
        _check_choice("part", part or (), PARTS)
        _check_choice("task", [task] if task else (), TASKS)
        parts = part or list(PARTS)
        Beyond(output, work, range(seeds), data_root, inputs, typer.echo).run([task] if task else TASKS, parts)
        for each in parts:
            typer.echo(f"{each}\n\n{table(Measured(output), each)}")
    if "page" in what:
        changed = write_page(output, docs)
        typer.echo("\n".join(f"{path} updated" for path in changed) or "everything is up to date")


def _choose_cells(cells: Sequence[Cell], names: Sequence[str] | None, task: str | None) -> list[Cell]:
    """Each cell once, of the wanted names and task; a name that no cell has is an error."""

    known = {(each.task, each.name): each for each in cells}
    _check_choice("cell", names or (), list(dict.fromkeys(each.name for each in cells)))
    chosen = [each for each in known.values() if task in (None, each.task) and (not names or each.name in names)]
    if not chosen:
        accepted = ", ".join(sorted({each.task for each in cells if not names or each.name in names}))
        raise InputError(explain("task", repr(task), f"data of the chosen cells: {accepted}"))
    return chosen


def _check_choice(argument: str, values: Sequence[str], accepted: Iterable[str]) -> None:
    for value in values:
        if value not in accepted:
            raise unknown(argument, value, list(accepted))
