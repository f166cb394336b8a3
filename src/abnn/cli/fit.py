"""``abnn fit``: a user's backbone and folder of images in, a model that says when to trust it out."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from abnn.cli._common import Quiet, Report, SkipUnreadable, command

ON_AVERAGE = "on average over calibration sets"


@dataclass(frozen=True, kw_only=True)
class OwnRequest:
    """What a user says about a network and images of their own."""

    backbone: Annotated[str, Option(help="A name of torchvision, timm/NAME, paper-resnet, or module:function.")]
    weights: Annotated[Path | None, Option(help="The backbone's weights: .safetensors, .pt, .pth.")] = None
    data: Annotated[Path, Option(help="Images in one sub-folder for each class, or train/ and val/ with those.")]
    size: Annotated[int | None, Option(min=1, help="Side of the inputs; default: see the docs of abnn fit.")] = None
    channels: Annotated[int | None, Option(help="1 for grey, 3 for colour; default: see the docs of abnn fit.")] = None
    normalise: Annotated[str, Option(help="auto, none, imagenet, or MEAN/STD of values in [0, 1].")] = "auto"
    held_out: Annotated[float, Option(help="Share of images to hold out, unless there is val/.")] = 0.2
    batch_size: Annotated[int, Option(min=2, help="Images in a step.")] = 64
    seed: Annotated[int, Option(min=0, help="Of the split, initial values, outliers and draws.")] = 0
    skip_unreadable: SkipUnreadable = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class FitRequest(OwnRequest):
    output: Annotated[Path, Option(help="Folder for the model and the page.")]
    train_backbone: Annotated[bool, Option("--train-backbone", help="Train the backbone first.")] = False
    joint: Annotated[bool, Option("--joint", help="Let the backbone learn along with the attachments.")] = False
    epochs: Annotated[int | None, Option(min=0, help="Of the attachments; default: by the amount of data.")] = None
    backbone_epochs: Annotated[int | None, Option(min=1, help="Of the backbone; default: likewise.")] = None
    lr: Annotated[float | None, Option(help="Learning rate of the attachments; default: the preset's.")] = None
    backbone_lr: Annotated[float, Option(help="Learning rate of the backbone.")] = 1e-3
    noticed: Annotated[float, Option(help=f"At most this share of good inputs is not accepted, {ON_AVERAGE}.")] = 0.05
    rejected: Annotated[float, Option(help=f"At most this share of good inputs is refused, {ON_AVERAGE}.")] = 0.01
    per_class: Annotated[bool, Option("--per-class", help="Keep these promises within each class.")] = False
    outliers: Annotated[Path | None, Option(help="Images that do not belong: place the upper threshold.")] = None
    kind: Annotated[str | None, Option(help="Of the attachments: bounded or chain.")] = None
    last: Annotated[int | None, Option(min=1, help="Attach to the last so many blocks only.")] = None
    draws: Annotated[int | None, Option(min=0, help="Weight draws of a prediction; default: 0, mean weights.")] = None
    views: Annotated[int | None, Option(help="Views of an image for a prediction; default: 1, as it is.")] = None
    device: Annotated[str, Option(help='"auto", "cpu", "cuda" or "mps".')] = "auto"
    checkpoint: Annotated[Path | None, Option(help="A stopped run goes on from this file, written every epoch.")] = None
    accept_loss: Annotated[bool, Option("--accept-loss", help="Save a model that lost accuracy, too.")] = False
    report: Report = True


@command
def fit(request: FitRequest) -> None:
    """Clip attachments onto your own network, fit them on your images, choose thresholds, and save it all.

    Exit status: 0 saved, 1 accuracy was lost and nothing saved (see --accept-loss), 2 an error.
    """
    from abnn.cli.steps import fitting as steps

    steps.check(request)
    job = steps.prepare(request)
    job.announce()
    network = steps.train_backbone(job) if request.train_backbone else job.network
    before = steps.measure(job, network)
    model = steps.fit_attachments(job, network, before)
    alert = steps.judge(job, model, before)
    page = steps.calibrate(job, model, before, alert)
    steps.save(job, model, page)
