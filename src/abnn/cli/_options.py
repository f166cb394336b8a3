"""Commands from settings: a dataclass says what a user may ask for, and each of its fields is an option of the command."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

Request = TypeVar("Request")

ModelFolder = Annotated[Path, typer.Argument(help="Folder of a saved model.")]
Draws = Annotated[int | None, typer.Option(min=1, help="Weight draws; default: as calibrated, or 10.")]
DrawSeed = Annotated[int | None, typer.Option(min=0, help="Seed of the draws; default: as calibrated, or 0.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs that are read and predicted together.")]
Device = Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", ...')]
Backbone = Annotated[str | None, typer.Option(help="For a model saved without it: a name, or module:function.")]
Weights = Annotated[
    Path | None, typer.Option(help="Weights of that backbone, .safetensors; default: those in the model's folder.")
]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help="Leave out inputs that cannot be read.")]
Report = Annotated[bool, typer.Option(help="Write the HTML page.")]
Figures = Annotated[bool, typer.Option("--figures", help="Also write every figure as PNG and SVG.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


def command(request: type[Request]) -> Callable[[Callable[[Request], None]], Callable[..., None]]:
    """Make a function of one settings object a command with an option for each field of that dataclass."""

    def decorate(function: Callable[[Request], None]) -> Callable[..., None]:
        def run(**values: Any) -> None:
            function(request(**values))

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__signature__ = inspect.signature(request, eval_str=True).replace(return_annotation=None)  # type: ignore
        return run

    return decorate
