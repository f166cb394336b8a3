"""``abnn report``: pages from records alone, the same bytes every time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from abnn.cli.report import page_from_records, report
from abnn.errors import FileFormatError, InputError
from abnn.evaluate.records import find_records, write_record
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

results, output = sys.argv[1:]
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
        write_record(replace(sample_evaluation(offset, name, size=20, config=config), seed=0), folder, "shapes")
    return folder


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_all_tables_and_the_page_of_a_comparison_regenerate_byte_for_byte(results: Path, tmp_path: Path) -> None:
    """Two fresh processes, different hash seeds."""
    made = []
    for number in ("1", "2"):
        (tmp_path / number).mkdir()
        subprocess.run(
            [sys.executable, "-c", COMPARISON, str(results), str(tmp_path / number)],
            check=True,
            env={"PYTHONHASHSEED": number, "PATH": "", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        )
        made.append(files(tmp_path / number))
    assert made[0] == made[1]
    assert {"table.md", "paired.md", "page.html"} <= made[0].keys() and any(name.endswith(".png") for name in made[0])
    assert b"plain network" in made[0]["page.html"] and b"plain network" in made[0]["table.md"]


def test_titles_and_class_names(results: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert str(page) in run(results, "--output", page)
    text = page.read_text()
    assert "<h1>Comparison: shapes</h1>" in text and "elm" in text
    one, other = find_records(results)
    run(one.path, "--output", page)
    assert "<h1>Evaluation of attached network</h1>" in page.read_text()
    run(other.path, one.path, results, "--output", page, "--title", "A <title>")
    assert "<h1>A &lt;title&gt;</h1>" in page.read_text()
    order = [page.read_text().index(f"Configuration of {each.name}") for each in (other, one)]
    assert order == sorted(order)  # each record once, in the order in which they were mentioned first


def test_seeds_of_one_model_are_told_apart(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_record(sample_evaluation(seed, size=20), tmp_path, "shapes")
    page = page_from_records(find_records(tmp_path), tmp_path / "page.html").read_text()
    assert "plain network, seed 0" in page and "plain network, seed 1" in page


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
