"""Commands from functions, with options from a file: ``--config run.toml`` gives defaults, and a run leaves such a file beside its result."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from abnn._version import __version__
from abnn.errors import FileFormatError, unknown
from abnn.files import write_text

FILE = "run.toml"
_running: ContextVar[tuple[str, dict[str, Any]]] = ContextVar("running", default=("", {}))
"""The command that runs, and all of its options."""


def _read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the values of a TOML file the defaults of this command; what is given on the command line wins."""
    if path is None or context.resilient_parsing:
        return path
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"--config: {path} is no TOML ({error}); write lines such as: epochs = 5") from None
    names = {str(each.name).replace("_", "-") for each in context.command.params} - {"config", "help"}
    for name in values:
        if name.replace("_", "-") not in names:
            raise unknown(f"--config: {path}", name, names)
    context.default_map = {name.replace("-", "_"): value for name, value in values.items()}
    return path


Config = Annotated[
    Path | None,
    typer.Option(is_eager=True, callback=_read, exists=True, dir_okay=False, help="Options from a TOML file."),
]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a command: an option for each parameter, or for each field of the dataclass of the parameter ``request``, and ``--config``."""
    options = inspect.signature(function, eval_str=True).parameters
    request = options["request"].annotation if "request" in options else None
    if request is not None:
        options = inspect.signature(request).parameters

    def run(config: Path | None = None, **values: Any) -> None:
        token = _running.set((function.__name__, values))
        try:
            function(**values) if request is None else function(request(**values))
        finally:
            _running.reset(token)

    parameter = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config)
    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__signature__ = inspect.Signature([*options.values(), parameter])  # type: ignore[attr-defined]
    return run


def write_options(path: Path) -> None:
    """Write all options that the running command has, defaults as well, as a file for ``--config``."""
    name, values = _running.get()
    if not name:  # called from Python
        return
    lines = [f"# abnn {name}, version {__version__}"]
    for option, each in values.items():
        if each is not None:
            option, value = option.replace("_", "-"), json.dumps(each, default=str, ensure_ascii=False)  # TOML as well
            foreign = any(0xD800 <= ord(letter) < 0xE000 for letter in value)  # bytes of a file's name, no UTF-8
            lines.append(f"# {option} has a name that no text file can hold" if foreign else f"{option} = {value}")
    write_text(path, "\n".join(lines) + "\n")
