"""python -m research train: one method on one data set, to a saved model and a run record."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any

import typer

from abnn.errors import InputError, explain


def train(
    method: Annotated[str, typer.Option(help="The method: abnn, threshold, oe, woods, ...")] = "abnn",
    variant: Annotated[str, typer.Option(help="reference, authors, or another variant of the method.")] = "reference",
    data: Annotated[str, typer.Option(help="The data: digits, mnist, svhn or cat-dog.")] = "digits",
    data_root: Annotated[Path | None, typer.Option(help="Where data sets by name are kept.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs over all stages of the method.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of initial weights, data order, outliers and draws.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the model and the record.")] = Path("trained"),
    set: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter, as in --set lr=0.01; may be repeated.")
    ] = None,
    precision: Annotated[str, typer.Option(help="32-true or bf16-mixed.")] = "32-true",
    log: Annotated[list[str] | None, typer.Option(help="csv or tensorboard; may be repeated.")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress bars.")] = False,
) -> None:
    """Train a method, evaluate it on all tiers, and save it. A run that was killed goes on when started again."""
    from abnn.baselines import TrainConfig
    from abnn.evaluate.records import read_record, write_record
    from abnn.files import check_writable
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
        name, found, text = pair.partition("=")
        if not found or not name.strip():
            raise InputError(explain("--set", repr(pair), "NAME=VALUE", "For example --set lr=0.01."))
        try:
            settings[name.strip()] = json.loads(text)
        except json.JSONDecodeError:
            settings[name.strip()] = text
    return settings
