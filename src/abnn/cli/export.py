"""abnn export: a saved model as one artefact that runs without torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from abnn.cli import _common as common
from abnn.errors import InputError, explain


@dataclass(frozen=True, kw_only=True)
class ExportRequest:
    model: common.ModelFolder
    output: Annotated[Path, Argument(help="Folder to write.", show_default=False)]
    format: Annotated[str, Option("--format", "-f", help="onnx: without torch; torch: for torch.export.load.")] = "onnx"
    backbone: common.Backbone = None
    weights: common.Weights = None
    quiet: Annotated[bool, Option("--quiet", "-q", help="Say nothing where all is well.")] = False


@common.command
def export(request: ExportRequest) -> None:
    """Write a saved model as one artefact: predictions, score and verdicts by onnxruntime, without torch.

    `abnn predict` and `abnn serve` take the folder like any other.
    """
    model, _ = common.open_model(request.model, request.backbone, request.weights, "cpu")
    if not hasattr(model, "check_attached"):
        actual = f"{request.model}, a {type(model).__name__}"
        raise InputError(explain("model", actual, "a saved model with attachments, as abnn fit writes it"))
    with common.waiting("exporting, and comparing with the model", request.quiet):
        folder = model.export(request.output, request.format)
    if request.quiet:
        return
    size = sum(file.stat().st_size for file in folder.iterdir())
    thresholds = "with thresholds" if model.triage is not None else "without thresholds: it gives no verdicts"
    common.say(f"{folder}: {size / 2**20:.1f} MiB, {thresholds}; equal to the model on what both were compared on.")
