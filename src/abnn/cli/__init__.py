"""The command line: one file for each command, each of which parses, calls and prints."""

from __future__ import annotations

import contextlib
import sys
import warnings
from typing import Any

import typer

from abnn._version import __version__
from abnn.cli._common import visible
from abnn.cli.demo import demo
from abnn.cli.doctor import doctor
from abnn.cli.evaluate import evaluate
from abnn.cli.export import export
from abnn.cli.fit import fit
from abnn.cli.predict import predict
from abnn.cli.report import report
from abnn.cli.score import score
from abnn.cli.serve import serve
from abnn.cli.sweep import sweep
from abnn.errors import AbnnError, AbnnWarning

HELP = "Clip small Bayesian modules onto a trained network and learn when to trust its predictions."
app = typer.Typer(name="abnn", help=HELP, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
for command in (demo, fit, predict, score, serve, export, evaluate, report, sweep, doctor):
    app.command()(command)


def _print_version(version: bool) -> None:
    if version:
        typer.echo(f"abnn {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None: ...


def main() -> None:
    run(app)


def run(commands: typer.Typer) -> None:
    """Run a command; expected errors become one line on standard error and exit status 2."""
    try:
        if sys.stdout is None:  # its number would go to the next file that is opened, and output into that file
            raise AbnnError("standard output is closed; send it to a file, or to /dev/null.")
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # names may hold what its encoding does not
        warnings.formatwarning = _format_warning
        commands()
    except AbnnError as error:
        _fail(str(error), 2)
    except OSError as error:
        where = f" {error.filename}" if error.filename is not None else ""
        _fail(f"cannot read or write{where}: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    finally:
        warnings.formatwarning = _usual_format


def _fail(text: str, status: int) -> None:
    typer.echo(f"abnn: {visible(text)}", err=True)
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:  # it takes nothing more, and would fail once again when Python ends
        with contextlib.suppress(OSError):
            sys.stdout.close()
    sys.exit(status)


def _format_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> str:
    """Our warnings without the source line that gave them; those of others as always."""
    if issubclass(category, AbnnWarning):
        return f"abnn: warning: {visible(str(message))}\n"
    return _usual_format(message, category, *place, **more)


_usual_format = warnings.formatwarning
