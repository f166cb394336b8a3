"""``abnn evaluate``: what a saved model says about any number of sets, with records, table and page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from abnn.cli import _common as common

SOURCES = "folder of images, .npz, or name such as mnist/test; NAME=SOURCE renames it; may be repeated"


@dataclass(frozen=True, kw_only=True)
class EvaluateRequest:
    checkpoint: common.ModelFolder
    id: Annotated[list[str] | None, typer.Option("--id", help=f"In-distribution data: {SOURCES}.")] = None
    semi: Annotated[list[str] | None, typer.Option(help="Semi-OOD data: another style, same classes.")] = None
    full: Annotated[list[str] | None, typer.Option(help="Full-OOD data: belongs to no class.")] = None
    output: Annotated[Path, typer.Option(help="Folder for records, page and what is kept.")] = Path("evaluation")
    name: Annotated[str | None, typer.Option(help="What to call the model; default: the folder's name.")] = None
    draws: common.Draws = None
    seed: common.DrawSeed = None
    score: Annotated[str | None, typer.Option(help="The score of tables and page; default: the model's.")] = None
    batch_size: common.BatchSize = 256
    device: common.Device = "auto"
    skip_unreadable: common.SkipUnreadable = False
    data_root: Annotated[Path | None, typer.Option(help="Folder of data sets by name; default: $ABNN_DATA.")] = None
    backbone: common.Backbone = None
    weights: common.Weights = None
    report: common.Report = True
    figures: common.Figures = False
    quiet: common.Quiet = False


@common.command
def evaluate(request: EvaluateRequest) -> None:
    """Score a saved model on sets of data and write records, a table and a page. A stopped run goes on where it was."""
    from abnn.cli.steps.evaluating import run

    run(request)
