"""What the commands share: options, those from a file, lines on a terminal, and models on their devices.

``--config run.toml`` gives defaults, and a run leaves such a file beside its result.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any

import typer

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain, import_extra, readable, unknown
from abnn.files import write_text

RUN_FILE = "run.toml"
_running: ContextVar[tuple[str, dict[str, Any]]] = ContextVar("running", default=("", {}))
"""The command that runs, and all of its options."""
ModelFolder = Annotated[Path, typer.Argument(help="Folder of a saved model, or the one with model/ in it.")]
Draws = Annotated[int | None, typer.Option(min=0, help="Weight draws; 0: mean weights. Default: as calibrated.")]
DrawSeed = Annotated[int | None, typer.Option(min=0, help="Seed of the draws; default: as calibrated, or 0.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Inputs that are read and predicted together.")]
Device = Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", ...')]
Backbone = Annotated[str | None, typer.Option(help="For a model saved without it: a name, or module:function.")]
Weights = Annotated[Path | None, typer.Option(help="Weights of that backbone; default: those in the model's folder.")]
SkipUnreadable = Annotated[bool, typer.Option("--skip-unreadable", help="Leave out inputs that cannot be read.")]
Report = Annotated[bool, typer.Option(help="Write the HTML page.")]
Figures = Annotated[bool, typer.Option("--figures", help="Also write every figure as PNG and SVG.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


def _read_options(context: typer.Context, path: Path | None) -> Path | None:
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
    typer.Option(is_eager=True, callback=_read_options, exists=True, dir_okay=False, help="Options from a TOML file."),
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
            option, value = option.replace("_", "-"), json.dumps(each, default=str, ensure_ascii=False)
            value = value.replace("\x7f", "\\u007f")  # then it is TOML as well
            foreign = any(0xD800 <= ord(letter) < 0xE000 for letter in value)  # bytes of a file's name, no UTF-8
            lines.append(f"# {option} has a name that no text file can hold" if foreign else f"{option} = {value}")
    write_text(path, "\n".join(lines) + "\n")


def visible(text: str) -> str:
    r"""Return ``text`` in one line; what is no printable character (control, direction, stray bytes) as in ``\x1b``."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def say(text: str, warning: bool = False) -> None:
    """Print one line; a warning in yellow, on standard error."""
    typer.secho(visible(text), err=warning, fg="yellow" if warning else None)


def waiting(text: str, quiet: bool = False) -> AbstractContextManager[Any]:
    """Return a context in which a terminal shows a text, and that work goes on: for what has no steps to count."""
    from rich.console import Console

    return nullcontext() if quiet else Console(stderr=True).status(f"{text} ...")


def open_model(
    path: Path, backbone: str | None, weights: Path | None, device: str, threads: int | None = None
) -> tuple[Any, str]:
    """Return the model of a folder, on a device, and the name of that device.

    threads  of an exported model; others use torch's
    """
    from abnn.export.artefact import Exported, is_exported

    if is_exported(path):
        for name, value in (("--backbone", backbone), ("--weights", weights)):
            if value is not None:
                raise InputError(explain(name, value, "nothing: an exported model holds its network", "Leave it out."))
        if device not in ("auto", "cpu"):
            raise InputError(explain("--device", repr(device), '"auto" or "cpu": an exported model runs there'))
        return Exported(path, threads), "cpu, by onnxruntime"
    import_extra("torch", "torch")  # exported models run without it
    import abnn.baselines  # noqa: F401 - its saved models, by their format
    from abnn.store.saved import load_model

    model = load_model(find_model(path), backbone, weights)
    return model, move_to_device(model, device)


def find_model(path: Path) -> Path:
    """Return the folder of a model: ``path``, or the folder "model" in it, as ``abnn fit`` and ``abnn demo`` leave it."""
    inner = path / "model"
    return inner if not (path / "abnn.json").exists() and (inner / "abnn.json").exists() else path


def name_of(folder: Path) -> str:
    """Return what to call a saved model: its folder, or the one above where that is just called "model"."""
    folder = folder.resolve()
    return readable((folder.parent if folder.name == "model" else folder).name)


def size_beside_network(folder: Path) -> str:
    """Return how much a saved model takes without the backbone's weights, and what that is."""
    size = sum(file.stat().st_size for file in folder.iterdir() if file.name != "backbone.safetensors")
    return f"{size / 1024:,.0f} kB beside the network: attachments, closed form, score and thresholds"


def move_to_device(model: Any, device: str) -> str:
    """Put a loaded model onto a device by name, or "auto", and return what it is called."""
    import torch

    device = usual_device() if device == "auto" else device
    try:
        (model if isinstance(model, torch.nn.Module) else model.network).to(device)
    except (RuntimeError, AssertionError) as error:
        fix = str(error).split("\n")[0]
        raise InputError(explain("--device", repr(device), "a device of this machine", fix)) from None
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def usual_device() -> str:
    """Return what ``--device auto`` means on this machine."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
