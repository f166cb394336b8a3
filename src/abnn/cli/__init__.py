"""The command line: one file for each command, each of which parses, calls and prints."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="abnn",
    help="Clip small Bayesian modules onto a trained network and learn when to trust its predictions.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Run a command; expected errors become one line on standard error and exit status 2."""
    import sys

    from abnn.errors import AbnnError

    try:
        app()
    except AbnnError as error:
        print(f"abnn: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("abnn: interrupted", file=sys.stderr)
        raise SystemExit(130) from None
