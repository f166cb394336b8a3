"""``abnn report``: pages from records alone, the same bytes every time."""

from __future__ import annotations

import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from abnn.cli.report import page_from_records, report
from abnn.errors import FileFormatError, InputError
from abnn.evaluate.records import find_records, write_record
from abnn.evaluate.report import measure, page
from tests.evaluate.test_summary import sample_evaluation

app = typer.Typer()
app.command()(report)
COMPARISON = """
import sys
from pathlib import Path
from typer.testing import CliRunner
import typer
from abnn.cli.report import report
from research.cli.results import results_app

from abnn.evaluate.report import measure, page

results, output = sys.argv[1:]
measure.MOST_RESAMPLES = measure.FEWEST_RESAMPLES = 10
draw = page._drawings
page._drawings = lambda models: {name: each[:1] for name, each in draw(models).items()}
app = typer.Typer()
app.command()(report)
calls = {"page": (app, [results, "--output", f"{output}/page.html", "--figures"])}
calls["table"] = results_app, ["table", "shapes", "-r", results]
calls["paired"] = results_app, ["table", "shapes", "-r", results, "--against", "plain network"]
for name, (each, arguments) in calls.items():
    result = CliRunner().invoke(each, arguments)
    assert result.exit_code == 0, (arguments, result.exception)
    if each is results_app:
        Path(f"{output}/{name}.md").write_text(result.output)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for name, offset in (("plain network", 0), ("attached network", 1)):
        config = {"class_names": ["ash", "elm", "fir", "oak"]}
        evaluation = sample_evaluation(offset, name, size=8, config=config)
        write_record(replace(evaluation, seed=0, sets=evaluation.sets[::2]), folder, "shapes")
    return folder


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.no_cover
def test_all_tables_and_the_page_of_a_comparison_regenerate_byte_for_byte(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process and a fresh one, with different hash seeds."""
    script = tmp_path / "comparison.py"
    script.write_text(COMPARISON)
    for name in ("here", "fresh"):
        (tmp_path / name).mkdir()
    subprocess.run(
        [sys.executable, str(script), str(results), str(tmp_path / "fresh")],
        check=True,
        env={"PYTHONHASHSEED": "4711", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", "PYTHONPATH": ":".join(sys.path)},
    )
    monkeypatch.setattr("sys.argv", [str(script), str(results), str(tmp_path / "here")])
    for module, name in ((page, "_drawings"), (measure, "MOST_RESAMPLES"), (measure, "FEWEST_RESAMPLES")):
        monkeypatch.setattr(module, name, getattr(module, name))  # as it was, afterwards
    runpy.run_path(str(script))
    here, fresh = files(tmp_path / "here"), files(tmp_path / "fresh")
    assert here == fresh
    assert {"table.md", "paired.md", "page.html"} <= here.keys() and any(name.endswith(".png") for name in here)
    assert b"plain network" in here["page.html"] and b"plain network" in here["table.md"]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], list[str] | None]]:
    """Title, models and class names of the pages that would have been drawn."""
    asked: list[tuple[str, list[str], list[str] | None]] = []

    def write(evaluations: Any, path: Path, title: str, class_names: list[str] | None, figures: bool) -> Path:
        asked.append((title, [each.name for each in evaluations], class_names))
        return path

    monkeypatch.setattr("abnn.evaluate.report.write_report", write)
    return asked


def test_titles_and_class_names(results: Path, tmp_path: Path, pages: list[Any]) -> None:
    page, classes = tmp_path / "page.html", ["ash", "elm", "fir", "oak"]
    assert str(page) in run(results, "--output", page)
    one, other = find_records(results)
    run(one.path, "--output", page)
    run(other.path, one.path, results, "--output", page, "--title", "A <title>")
    assert pages == [
        ("Comparison: shapes", ["attached network", "plain network"], classes),
        ("Evaluation of attached network", ["attached network"], classes),
        ("A <title>", ["plain network", "attached network"], classes),  # each once, in the order of their first mention
    ]


def test_seeds_of_one_model_are_told_apart(tmp_path: Path, pages: list[Any]) -> None:
    for seed in (0, 1):
        write_record(sample_evaluation(seed, size=8), tmp_path, "shapes")
    page_from_records(find_records(tmp_path), tmp_path / "page.html")
    assert pages == [("Comparison: shapes", ["plain network, seed 0", "plain network, seed 1"], None)]


def test_what_is_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="does not exist"):
        run(tmp_path / "absent.json")
    with pytest.raises(InputError, match="a folder without records"):
        run(tmp_path)
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(FileFormatError, match="is not a run record"):
        run(tmp_path / "other.json")


def test_pages_that_cannot_be_written(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "abnn.evaluate.report.write_report", lambda *arguments, **options: pytest.fail("it was drawn first")
    )
    with pytest.raises(InputError, match="--output: got .*, which is a folder"):
        run(results, "--output", tmp_path)
