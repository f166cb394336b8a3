"""``abnn predict``: label, probability, score and verdict for every input that is named."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from abnn.cli import _common as common

INPUTS = "Images, folders, patterns, .npz files; - for stdin."


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    model: common.ModelFolder
    inputs: Annotated[list[str] | None, Argument(metavar="INPUT...", help=INPUTS)] = None
    from_file: Annotated[str | None, Option(help="Names of inputs, one per line; - for stdin.")] = None
    format: Annotated[str, Option("--format", "-f", help="table, jsonl or csv.")] = "table"
    output: Annotated[Path | None, Option("--output", "-o", help="A file for the rows: .parquet, .csv, .jsonl.")] = None
    draws: common.Draws = None
    seed: common.DrawSeed = None
    batch_size: common.BatchSize = 64
    device: common.Device = "auto"
    ink: Annotated[bool, Option("--ink", help="The pictures are digits on paper; for models of such digits.")] = False
    skip_unreadable: common.SkipUnreadable = False
    exit_zero: Annotated[bool, Option("--exit-zero", help="Exit with 0 whatever the verdicts are.")] = False
    drift: Annotated[Path | None, Option(help="Watch for drift; this file keeps the state from call to call.")] = None
    backbone: common.Backbone = None
    weights: common.Weights = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress and no summary on stderr.")] = False


@common.command
def predict(request: PredictRequest) -> None:
    """Predict images and say for each: accept, notice or reject.

    Exit status: 0 all accepted, 10 something noticed, 11 something rejected, 2 an error.
    """
    from abnn.cli.steps.predicting import run

    if (status := run(request)) and not request.exit_zero:
        raise typer.Exit(status)
