"""``abnn sweep``: fits with several settings side by side, and a table of which did best on held-out images."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from abnn.cli._common import command
from abnn.cli.fit import OwnRequest


@dataclass(frozen=True, kw_only=True)
class SweepRequest(OwnRequest):
    output: Annotated[Path, Option(help="Folder for the table; a sweep that was stopped goes on from there.")]
    lr: Annotated[str, Option(help="Learning rates of the attachments, with commas.")] = "3e-4,1e-3,3e-3"
    epochs: Annotated[str, Option(help="Epochs, with commas; 0: the score alone.")] = "0,5,20"
    last: Annotated[str | None, Option(help="Attach to the last so many blocks, with commas; default: as fit.")] = None
    outliers: Annotated[Path | None, Option(help="Images that do not belong; default: made-up ones.")] = None
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="A Ray cluster; default: this machine.")] = None
    workers: Annotated[int | None, Option(min=1, help="Trials at a time; default: one for each GPU or core.")] = None
    device: Annotated[str, Option(help='"auto", "cpu" or "cuda".')] = "auto"


@command
def sweep(request: SweepRequest) -> None:
    """Fit with several settings on Ray Tune and show which did best on held-out images."""
    from abnn.cli.steps.sweeping import run

    run(request)
