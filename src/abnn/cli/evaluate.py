"""``abnn evaluate``: what a saved model says about any number of sets, with records, table and page."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from abnn.cli.predict import move_to_device
from abnn.errors import InputError, explain, unknown

if TYPE_CHECKING:  # the commands that do not need torch should not wait for it
    from rich.table import Table

    from abnn.data import InputForm
    from abnn.evaluate.evaluation import Evaluation, SetResult
    from abnn.evaluate.records import Record
    from abnn.evaluate.resume import Settings, TieredSource

SOURCES = "folder of images, .npz, or name such as mnist/test; NAME=SOURCE renames it; may be repeated"


def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a saved model.")],
    id: Annotated[list[str] | None, typer.Option("--id", help=f"In-distribution data: {SOURCES}.")] = None,
    semi: Annotated[
        list[str] | None, typer.Option("--semi", help="Semi-OOD data: another style, same classes.")
    ] = None,
    full: Annotated[list[str] | None, typer.Option("--full", help="Full-OOD data: belongs to no class.")] = None,
    output: Annotated[Path, typer.Option(help="Folder for records, page and what is kept to go on.")] = Path(
        "evaluation"
    ),
    name: Annotated[str | None, typer.Option(help="What to call the model; default: the folder's name.")] = None,
    draws: Annotated[int | None, typer.Option(min=1, help="Weight draws; default: as calibrated, or 10.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the draws; default: as calibrated, or 0.")] = None,
    score: Annotated[str | None, typer.Option(help="The score of tables and page; default: the model's.")] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs that are read and predicted together.")] = 256,
    device: Annotated[str, typer.Option(help='"auto", "cpu", "cuda", "cuda:1", ...')] = "auto",
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave out damaged images.")] = False,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of <dataset>/<split>.npz, and for downloads; default: $ABNN_DATA.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="For a model saved without it: a name, or module:function.")
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="Weights of that backbone, .safetensors.")] = None,
    report: Annotated[bool, typer.Option(help="Write the HTML page.")] = True,
    figures: Annotated[bool, typer.Option("--figures", help="Also write its figures as PNG and SVG.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bars.")] = False,
) -> None:
    """Score a saved model on sets of data and write records, a table and a page. A stopped run goes on where it was."""
    from rich.console import Console

    import abnn.baselines  # noqa: F401 - its saved models, by their format
    from abnn.cli.report import page_from_records
    from abnn.data import InputForm
    from abnn.evaluate.records import read_record, write_record
    from abnn.evaluate.resume import Settings, evaluate_source
    from abnn.files import check_writable
    from abnn.store.saved import fingerprint, load_model
    from abnn.train.watch import progress_bar

    started = time.perf_counter()
    check_writable("--output", output, folder=True)
    model = load_model(checkpoint, backbone, weights)
    place = move_to_device(model, device)
    form = InputForm.of(model)
    triage = getattr(model, "triage", None)
    draws = draws or (triage.draws if triage is not None else 10)
    seed = seed if seed is not None else (triage.seed if triage is not None else 0)
    chosen = _choose_score(model, form, score, draws)
    sets = _open({"id": id, "semi": semi, "full": full}, data_root, model, form)
    temperature = triage.temperature if triage is not None else 1.0
    settings = Settings(fingerprint(checkpoint, backbone), form, chosen, draws, seed, temperature=temperature)

    results = []
    with progress_bar(disable=quiet) as bar:
        for each, _ in sets:
            task = bar.add_task(each.name, total=len(each.source), status="")
            results.append(
                evaluate_source(
                    *(model, each, settings, output / "sets", batch_size, skip_unreadable),
                    on_batch=lambda count, task=task: bar.advance(task, count),  # type: ignore[misc]
                    stated=None if triage is None else triage.probabilities,
                )
            )
            if results[-1].skipped:
                bar.update(task, status=f"{len(results[-1].skipped)} skipped")

    named = name or checkpoint.resolve().name
    evaluation = _evaluation(named, model, settings, results, sets, time.perf_counter() - started)
    record = read_record(write_record(evaluation, output / "records", "evaluate", place))
    console = Console()
    console.print(_table(record))
    for each, notes in sets:
        for note in notes:
            console.print(f"{each.name}: {note}", markup=False, highlight=False)
    console.print(f"Record: {record.path}", markup=False, highlight=False)
    page = output / "report.html"
    if report:
        page_from_records([record], page, figures=figures)
        console.print(f"Page: {page}", markup=False, highlight=False)
    else:
        page.unlink(missing_ok=True)  # that of an earlier run


def _choose_score(model: Any, form: InputForm, score: str | None, draws: int) -> str:
    """The score to use, found out with one input, so that a model that cannot predict or score fails before any work."""
    import torch

    from abnn.evaluate.collect import all_scores

    example = torch.zeros(1, *form.shape, dtype=form.dtype)
    prediction = model.predict(example, draws=draws)
    if (triage := getattr(model, "triage", None)) is not None:
        triage.check_numbers(prediction)
    if score is None:
        return prediction.default
    if score not in (known := all_scores(prediction)):
        raise unknown("--score", score, known)
    return model.predict(example, draws=draws, score=score).default


Opened = list[tuple["TieredSource", list[str]]]
"""Sets, each with what a reader should know about it."""


def _open(sources: dict[str, list[str] | None], root: Path | None, model: Any, form: InputForm) -> Opened:
    """All sets, checked against the model before any of them is scored."""
    from abnn.data import match_labels, open_source
    from abnn.evaluate.resume import TieredSource
    from abnn.store.saved import class_names_of

    class_names = class_names_of(model)
    opened: Opened = []
    for tier, texts in sources.items():
        for text in texts or ():
            source = open_source(text, root)
            source.check(form)
            labels, note = match_labels(source, tier, model.classes, class_names)
            opened.append((TieredSource(source, tier, labels), [*source.notes, *([note] if note else [])]))
    names = [each.name for each, _ in opened]
    twice = sorted({each for each in names if names.count(each) > 1})
    if twice:
        fix = f"Rename one of them with NAME=SOURCE, as in --semi 'other {twice[0]}=SOURCE'."
        raise InputError(explain("sets", f"several called {twice[0]!r}", "a different name for each", fix))
    if not opened:
        raise InputError(explain("sets", "none", "at least one of --id, --semi and --full", f"Each: {SOURCES}."))
    return opened


def _evaluation(
    name: str, model: Any, settings: Settings, results: list[SetResult], sets: Opened, seconds: float
) -> Evaluation:
    from abnn.evaluate.evaluation import Evaluation
    from abnn.store.saved import class_names_of

    triage: Any = getattr(model, "triage", None)
    config: dict[str, Any] = {
        "model": settings.model,
        "draws": settings.draws,
        "sets": {each.name: {"source": each.source.fingerprint, "notes": notes} for each, notes in sets},
    }
    if names := class_names_of(model):
        config["class_names"] = list(names)
    if settings.form.mean is not None and settings.form.std is not None:
        config["preprocess"] = {"mean": list(settings.form.mean), "std": list(settings.form.std)}
    judged = triage is not None and triage.score == settings.score
    return Evaluation(
        name,
        settings.score,
        tuple(results),
        (triage.notice, triage.reject) if judged else None,
        settings.seed,
        config,
        {"evaluation": seconds},
        triage.by_class if judged else (),
    )


def _table(record: Record) -> Table:
    """What a reader wants to know first, from the record; columns without a number are left out."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{record.name}, score {record.score}, in %"), title_justify="left")
    paths = {
        "accuracy": "accuracy.{}",
        "AUROC": "detection.{}.auroc",
        **{verdict: f"verdicts.{{}}.{verdict}" for verdict in ("accept", "notice", "reject")},
    }
    columns: dict[str, list[str]] = {
        "set": [escape(each.name) for each in record.sets],
        "tier": [each.tier for each in record.sets],
        "inputs": [f"{each.inputs:,}" for each in record.sets],
    }
    if any(each.skipped for each in record.sets):
        columns["skipped"] = [f"{len(each.skipped):,}" for each in record.sets]
    for head, path in paths.items():
        numbers = [record.numbers.get(path.format(each.name)) for each in record.sets]
        if any(number is not None for number in numbers):
            columns[head] = ["" if number is None else f"{100 * number:.1f}" for number in numbers]
    for head in columns:
        table.add_column(head, justify="left" if head in ("set", "tier") else "right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
