"""Commands of the research code: ``python -m research COMMAND``."""

from __future__ import annotations

import typer

from abnn.cli import run
from research.cli.experiments import compare, reproduce, train
from research.cli.results import results_app

HELP = "The paper's tables and beyond: train methods, compare them, and render what was recorded."
app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (train, compare, reproduce):
    app.command()(command)
app.add_typer(results_app, name="results")


def main() -> None:
    run(app)
