"""The command line: one file for each command, each of which parses, calls and prints."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import typer

from abnn._version import __version__
from abnn.cli.demo import demo
from abnn.cli.evaluate import evaluate
from abnn.cli.fit import fit
from abnn.cli.predict import predict
from abnn.cli.report import report
from abnn.cli.serve import serve
from abnn.errors import AbnnError, AbnnWarning

app = typer.Typer(
    name="abnn",
    help="Clip small Bayesian modules onto a trained network and learn when to trust its predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for command in (demo, fit, predict, serve, evaluate, report):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"abnn {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Clip small Bayesian modules onto a trained network and learn when to trust its predictions."""


def main() -> None:
    run(app)


def run(commands: typer.Typer) -> None:
    """Run a command; expected errors become one line on standard error and exit status 2."""
    try:
        with _warnings_in_a_line():
            commands()
    except AbnnError as error:
        typer.echo(f"abnn: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" {error.filename}" if error.filename is not None else ""
        typer.echo(f"abnn: cannot read or write{where}: {reason}", err=True)
        _close_if_full()
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("abnn: interrupted", err=True)
        sys.exit(130)


@contextlib.contextmanager
def _warnings_in_a_line() -> Iterator[None]:
    """Our warnings without the source line that gave them; those of others as always."""
    usual = warnings.formatwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
        if issubclass(category, AbnnWarning):
            return f"abnn: warning: {message}\n"
        return usual(message, category, *place, **more)

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _close_if_full() -> None:
    """Standard output that takes nothing more would fail once again when Python ends."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):
            sys.stdout.close()
