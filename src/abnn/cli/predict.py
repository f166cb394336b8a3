"""``abnn predict``: label, probability, score and verdict for every input that is named."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from abnn.errors import InputError, explain

NOTICED, REJECTED = 10, 11
"""Exit statuses where the worst verdict is "notice" or "reject"; 0: all accepted, 2: an error."""


def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="INPUT...", help="Images, folders, patterns, .npz files; - for stdin.")
    ] = None,
    from_file: Annotated[
        str | None, typer.Option("--from-file", help="Read names of inputs from this file, one per line; - for stdin.")
    ] = None,
    format: Annotated[str, typer.Option("--format", "-f", help="table, jsonl or csv.")] = "table",
    draws: Annotated[int | None, typer.Option(min=1, help="Weight draws; default: as calibrated, or 10.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws; default: as calibrated, or 0.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs that are read and predicted together.")] = 64,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", ...')] = "auto",
    ink: Annotated[
        bool, typer.Option("--ink", help="The pictures are digits written on paper; for models of such digits.")
    ] = False,
    skip_unreadable: Annotated[
        bool, typer.Option("--skip-unreadable", help="Go on after inputs that cannot be read; they are named.")
    ] = False,
    exit_zero: Annotated[bool, typer.Option("--exit-zero", help="Exit with 0 whatever the verdicts are.")] = False,
    drift: Annotated[
        Path | None, typer.Option(help="Watch for drift; the state is kept in this file from call to call.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="For a model saved without its recipe: a name, or module:function.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of that backbone, .safetensors; default: those in the model's folder.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary on stderr.")] = False,
) -> None:
    """Predict images and say for each: accept, notice or reject.

    Exit status: 0 all accepted, 10 something noticed, 11 something rejected, 2 an error.
    """
    import abnn.baselines  # noqa: F401 - its saved models, by their format
    from abnn.cli._inputs import read_inputs
    from abnn.cli._rows import make_writer
    from abnn.data import InputForm
    from abnn.data.drawing import InkForm, reads_drawings
    from abnn.files import check_writable
    from abnn.store.saved import class_names_of, load_model

    names = _names(inputs or [], from_file)
    writer = make_writer(format)
    if drift is not None:
        check_writable("--drift", drift)
    loaded = load_model(model, backbone, weights)
    move_to_device(loaded, device)
    class_names = class_names_of(loaded)
    form = InkForm.of(loaded) if ink else InputForm.of(loaded)
    monitor = _monitor(loaded, drift)
    triage = getattr(loaded, "triage", None)
    draws = draws or (triage.draws if triage is not None else 10)
    seed = seed if seed is not None else (triage.seed if triage is not None else 0)

    counts: Counter[str | None] = Counter()
    skipped = 0
    already = monitor is not None and monitor.alarmed
    progress = _Progress(quiet)
    try:
        with progress.bar:
            for batch in read_inputs(names, form, batch_size):
                if batch.names:
                    rows = _predicted(loaded, batch, draws, seed, class_names)
                    writer.write(rows)
                    counts.update(row.verdict for row in rows)
                    if monitor is not None:
                        monitor.update([row.score for row in rows])
                for name, why in batch.unreadable:
                    if not skip_unreadable:
                        fix = "Leave it out, or pass --skip-unreadable to go on without it."
                        accepted = "images, or rows of numbers"
                        raise InputError(explain("INPUT", f"{name}, which cannot be read: {why}", accepted, fix))
                    skipped += 1
                    progress.say(f"abnn: skipped {name}: {why}")
                progress.advance(len(batch.names))
    finally:
        if monitor is not None and drift is not None:
            monitor.save(drift)
    if not counts:
        raise InputError(explain("INPUT", f"{skipped} inputs, none of which can be read", "at least one image"))
    if not quiet:
        _summarise(counts, skipped, triage is not None)
        if counts["reject"] and not ink and reads_drawings(loaded):
            typer.echo("If a rejected picture is a digit written on paper: --ink finds the ink first.", err=True)
    if monitor is not None and monitor.alarmed:
        typer.echo(_drift_text(monitor, already), err=True)
    if not exit_zero and (status := exit_status(counts)):
        raise typer.Exit(status)


def exit_status(counts: Counter[str | None]) -> int:
    """By the worst verdict; a model without thresholds gives none, and 0."""
    return REJECTED if counts["reject"] else NOTICED if counts["notice"] else 0


def move_to_device(model: Any, device: str) -> str:
    """Put a loaded model onto a device by name, "auto": a GPU if there is one, and say where it is."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    module = model if isinstance(model, torch.nn.Module) else model.network
    try:
        module.to(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            explain("--device", repr(device), "a device of this machine", str(error).split("\n")[0])
        ) from None
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def _names(inputs: list[str], from_file: str | None) -> Iterator[str]:
    if not inputs and from_file is None:
        accepted = "images, folders, patterns, .npz files, - for an image on standard input, or --from-file"
        raise InputError(explain("INPUT", "nothing", accepted))
    if inputs.count("-") + (from_file == "-") > 1:
        raise InputError(explain("INPUT", "standard input twice", "- once, as an input or with --from-file"))
    if from_file not in (None, "-") and not os.path.isfile(str(from_file)):
        raise InputError(explain("--from-file", f"{from_file}, which is no file", "a file with one name per line"))

    def lines() -> Iterator[str]:
        yield from inputs
        if from_file is not None:
            with contextlib.nullcontext(sys.stdin.buffer) if from_file == "-" else open(from_file, "rb") as file:
                for line in file:
                    if line := line.rstrip(b"\r\n"):
                        yield os.fsdecode(line)

    return lines()


def _predicted(model: Any, batch: Any, draws: int, seed: int, class_names: list[str] | None) -> list[Any]:
    from abnn.cli._rows import Row

    prediction = model.predict(batch.x, draws=draws, seed=seed)
    triage = getattr(model, "triage", None)
    score, verdicts, probs = prediction.score, [None] * len(batch.names), prediction.probs
    if triage is not None:
        found = triage(prediction)
        score, verdicts, probs = found.score, found.verdict, triage.probabilities(prediction)
    top, labels = probs.max(-1)
    columns = zip(batch.names, labels.tolist(), top.tolist(), score.tolist(), verdicts)
    return [
        Row(name, label, class_names[label] if class_names else None, p, s, verdict)
        for name, label, p, s, verdict in columns
    ]


def _monitor(model: Any, path: Path | None) -> Any:
    from abnn.triage.drift import resume_monitor

    if path is None:
        return None
    triage = getattr(model, "triage", None)
    if triage is None:
        raise InputError(explain("--drift", str(path), "a model with thresholds, for there is nothing to compare with"))
    return resume_monitor(triage.monitor(), path)


def _summarise(counts: Counter[str | None], skipped: int, has_thresholds: bool) -> None:
    total = sum(counts.values())
    words = {"accept": "accepted", "notice": "noticed", "reject": "rejected"}
    parts = [f"{counts[verdict]:,} {word}" for verdict, word in words.items()] if has_thresholds else []
    parts += [f"{skipped:,} skipped"] if skipped else []
    typer.echo(f"{total:,} inputs" + (": " if parts else "") + ", ".join(parts), err=True)
    if not has_thresholds:
        typer.echo("The model was saved without thresholds, so there are no verdicts; see abnn.Triage.", err=True)


def _drift_text(monitor: Any, already: bool) -> str:
    when = "earlier" if already else f"after {monitor.alarmed_at:,} inputs"
    return (
        f"abnn: drift, noticed {when}: scores are {monitor.direction} than in calibration (evidence against chance "
        f"{monitor.p_value:.1e}); the promised shares of verdicts do not hold for such inputs."
    )


class _Progress:
    """A count on standard error, where a person looks at it and it does not run into rows on the same screen."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self.bar = Progress(
            *(TextColumn("{task.completed:,.0f} inputs"), TimeElapsedColumn()),
            console=console,
            disable=quiet or not console.is_terminal or sys.stdout.isatty(),
            transient=True,
        )
        self.task = self.bar.add_task("", total=None)

    def advance(self, count: int) -> None:
        self.bar.advance(self.task, count)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
