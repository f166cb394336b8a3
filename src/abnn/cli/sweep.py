"""``abnn sweep``: fits with several settings side by side, and a table of which did best on held-out images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from abnn.cli._common import Quiet, SkipUnreadable, command


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """What a user asks ``abnn sweep`` for."""

    backbone: Annotated[str, Option(help="A name of torchvision, timm/NAME, paper-resnet, or module:function.")]
    data: Annotated[Path, Option(help="Images in one sub-folder for each class, or train/ and val/ with those.")]
    output: Annotated[Path, Option(help="Folder for the table; a sweep that was stopped goes on from there.")]
    weights: Annotated[Path | None, Option(help="The backbone's weights: .safetensors, .pt, .pth.")] = None
    lr: Annotated[str, Option(help="Learning rates of the attachments, with commas.")] = "3e-4,1e-3,3e-3"
    epochs: Annotated[str, Option(help="Epochs, with commas; 0: the score alone.")] = "0,5,20"
    last: Annotated[str | None, Option(help="Attach to the last so many blocks, with commas; default: as fit.")] = None
    batch_size: Annotated[int, Option(min=2, help="Images in a step.")] = 64
    size: Annotated[int | None, Option(min=1, help="Side of the inputs; default: see abnn fit.")] = None
    channels: Annotated[int | None, Option(help="1 for grey, 3 for colour; default: see abnn fit.")] = None
    normalise: Annotated[str, Option(help="auto, none, imagenet, or MEAN/STD of values in [0, 1].")] = "auto"
    held_out: Annotated[float, Option(help="Share of images to hold out, unless there is val/.")] = 0.2
    outliers: Annotated[Path | None, Option(help="Images that do not belong; default: made-up ones.")] = None
    seed: Annotated[int, Option(min=0, help="Of the split, initial values and outliers.")] = 0
    ray: Annotated[str | None, Option(metavar="ADDRESS", help="A Ray cluster; default: this machine.")] = None
    workers: Annotated[int | None, Option(min=1, help="Trials at a time; default: one for each GPU or core.")] = None
    device: Annotated[str, Option(help='"auto", "cpu" or "cuda".')] = "auto"
    skip_unreadable: SkipUnreadable = False
    quiet: Quiet = False


@command(SweepRequest)
def sweep(request: SweepRequest) -> None:
    """Fit with several settings on Ray Tune and show which did best on held-out images."""
    from abnn.cli.steps.sweeping import run

    run(request)
