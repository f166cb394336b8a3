"""The steps of ``abnn evaluate``. All checks come before anything is scored."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from abnn.cli._common import RUN_FILE, find_model, name_of, open_model, say, visible, waiting, write_options
from abnn.cli.evaluate import SOURCES, EvaluateRequest
from abnn.cli.report import page_from_records
from abnn.data import InputForm, match_labels, open_source
from abnn.errors import InputError, explain, readable, unknown
from abnn.evaluate.collect import all_scores
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import Record, read_record, write_record
from abnn.evaluate.resume import Settings, TieredSource, evaluate_source
from abnn.export.artefact import is_exported
from abnn.files import check_writable
from abnn.scores import SCORES, without_statistics
from abnn.store.names import class_names_of
from abnn.store.saved import fingerprint
from abnn.train.watch import progress_bar
from abnn.triage.calibrate import draws_and_seed

Sets = list[tuple[TieredSource, list[str]]]  # each with what a reader should know about it


def run(request: EvaluateRequest) -> None:
    """Score all sets, and write records, table and page."""
    started, output = time.perf_counter(), request.output
    check_writable("--output", output, folder=True)
    if is_exported(request.checkpoint):
        actual, fix = f"{request.checkpoint}, which was exported", "Evaluate the model that it was exported from."
        raise InputError(explain("checkpoint", actual, "a folder that model.save() wrote", fix))
    model, place = open_model(request.checkpoint, request.backbone, request.weights, request.device)
    form, triage = InputForm.of(model), getattr(model, "triage", None)
    draws, seed = draws_and_seed(model, request.draws, request.seed)
    score = _choose_score(model, form, request.score, draws)
    sets = _open({"id": request.id, "semi": request.semi, "full": request.full}, request.data_root, model, form)
    temperature = 1.0 if triage is None else triage.temperature
    digest = fingerprint(find_model(request.checkpoint), request.backbone)
    settings = Settings(digest, form, score, draws, seed, temperature=temperature)
    results = _score_all(request, model, sets, settings)
    sources = {each.name: {"source": each.source.fingerprint, "notes": notes} for each, notes in sets}
    config: dict[str, Any] = {"model": digest, "draws": draws, "sets": sources}
    if names := class_names_of(model):
        config["class_names"] = list(names)
    if form.mean is not None and form.std is not None:
        config["preprocess"] = {"mean": list(form.mean), "std": list(form.std)}
    name, times = request.name or name_of(request.checkpoint), {"evaluation": time.perf_counter() - started}
    own = triage if triage is not None and triage.score == score else None  # thresholds of this very score
    thresholds, by_class = ((own.notice, own.reject), own.by_class) if own is not None else (None, ())
    evaluation = Evaluation(name, score, tuple(results), thresholds, seed, config, times, by_class)
    record = read_record(write_record(evaluation, output / "records", "evaluate", place))
    Console().print(_table(record))
    for each, notes in sets:
        for note in notes:
            say(f"{each.name}: {note}")
    say(f"Record: {record.path}")
    write_options(output / RUN_FILE)
    page = output / "report.html"
    if request.report:
        with waiting("writing the page", request.quiet):
            page_from_records([record], page, figures=request.figures)
        say(f"Page: {page}")
    else:
        page.unlink(missing_ok=True)  # that of an earlier run


def _choose_score(model: Any, form: InputForm, score: str | None, draws: int) -> str:
    """The score to use, found out with one input, so that a model that cannot predict or score fails before any work."""
    example = torch.zeros(1, *form.shape, dtype=form.dtype)
    prediction = model.predict(example, draws=draws)
    if (triage := getattr(model, "triage", None)) is not None:
        triage.check_numbers(prediction)
    if score is None:
        return prediction.default
    if score not in (names := all_scores(prediction)):
        learnt = score in SCORES and SCORES[score].statistics
        raise without_statistics(score) if learnt else unknown("--score", score, names)
    return model.predict(example, draws=draws, score=score).default


def _open(sources: dict[str, list[str] | None], root: Path | None, model: Any, form: InputForm) -> Sets:
    """All sets, checked against the model before any of them is scored."""
    class_names, sets = class_names_of(model), []
    for tier, texts in sources.items():
        for text in texts or ():
            source = open_source(text, root)
            source.name = readable(source.name)
            source.check(form)
            labels, note = match_labels(source, tier, model.classes, class_names)
            sets.append((TieredSource(source, tier, labels), [*source.notes, *([note] if note else [])]))
    names = [each.name for each, _ in sets]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        fix = f"Rename one of them with NAME=SOURCE, as in --semi 'other {twice[0]}=SOURCE'."
        raise InputError(explain("sets", f"several called {twice[0]!r}", "a different name for each", fix))
    if not sets:
        raise InputError(explain("sets", "none", "at least one of --id, --semi and --full", f"Each: {SOURCES}."))
    return sets


def _score_all(request: EvaluateRequest, model: Any, sets: Sets, settings: Settings) -> list[SetResult]:
    triage, results = getattr(model, "triage", None), []
    with progress_bar(disable=request.quiet) as bar:
        for each, _ in sets:
            task = bar.add_task(visible(each.name), total=len(each.source), status="")
            result = evaluate_source(
                *(model, each, settings, request.output / "sets", request.batch_size, request.skip_unreadable),
                on_batch=partial(bar.advance, task),
                stated=None if triage is None else triage.probabilities,
            )
            if result.skipped:
                bar.update(task, status=f"{len(result.skipped)} skipped")
            results.append(result)
    return results


def _table(record: Record) -> Table:
    """Return what a reader wants to know first; columns without a number are left out."""
    sets, verdicts = record.sets, ("accept", "notice", "reject")
    columns: dict[str, list[str]] = {
        "set": [escape(visible(each.name)) for each in sets],
        "tier": [each.tier for each in sets],
        "inputs": [f"{each.inputs:,}" for each in sets],
        "skipped": [f"{len(each.skipped):,}" if any(other.skipped for other in sets) else "" for each in sets],
    }
    paths = {"accuracy": "accuracy.{}", "AUROC": "detection.{}.auroc"}
    for head, path in {**paths, **{verdict: f"verdicts.{{}}.{verdict}" for verdict in verdicts}}.items():
        numbers = [record.numbers.get(path.format(each.name)) for each in sets]
        columns[head] = ["" if number is None else f"{100 * number:.1f}" for number in numbers]
    table = Table(title=escape(visible(f"{record.name}, score {record.score}, in %")), title_justify="left")
    columns = {head: cells for head, cells in columns.items() if any(cells)}
    for head in columns:
        table.add_column(head, justify="left" if head in ("set", "tier") else "right", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        table.add_row(*row)
    return table
