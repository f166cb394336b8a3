"""Tables, figures and the command, from made-up records."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from abnn.errors import AbnnError, InputError
from research.cli import app
from research.paper.beyond import PARTS, TASKS, Beyond, Measured, table, write_beyond
from research.paper.beyond.comparisons import COMPARISONS, Comparison
from research.paper.beyond.page import balance
from tests.research.paper.beyond.samples import fake_record

DOCS = Path(__file__).parents[4] / "docs"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for task, seed in (("mnist", 0), ("mnist", 1), ("svhn", 0)):
        fake_record(folder, task, seed)
    return folder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    for name in ("beyond.md", "reproduction.md"):
        shutil.copy(DOCS / name, tmp_path / "docs")
    return tmp_path / "docs"


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, AbnnError):
        raise result.exception
    return result


def test_means_over_seeds(results: Path) -> None:
    measured = Measured(results)
    entries = [json.loads((results / "beyond" / f"mnist-seed{seed}.json").read_text())["parts"] for seed in (0, 1)]
    lists = [entry["severity"]["results"]["abnn"]["leaves"]["auroc"] for entry in entries]
    np.testing.assert_allclose(measured.mean("mnist", "severity", "abnn", "leaves", "auroc"), np.mean(lists, 0))
    shares = [entry["far"]["results"]["threshold"]["unchanged"]["above"] for entry in entries]
    assert measured.mean("mnist", "far", "threshold", "unchanged", "above") == pytest.approx(np.mean(shares))
    assert len(measured.of("mnist", "far")) == 2 and measured.inputs("svhn", "far") == 12


def test_undefined_numbers_are_left_out_of_means(tmp_path: Path) -> None:
    for seed in (0, 1):
        path = fake_record(tmp_path, "mnist", seed, ("draws",))
        content = json.loads(path.read_text())
        content["parts"]["draws"]["results"]["abnn"]["errors_auroc"] = [None, None if seed else 0.8, *[0.5 + seed] * 5]
        path.write_text(json.dumps(content))
    found = Measured(tmp_path).mean("mnist", "draws", "abnn", "errors_auroc")
    assert found == [None, 0.8, *[1.0] * 5]
    first, second = [line for line in table(Measured(tmp_path), "draws").splitlines() if line.startswith("| ")][2:4]
    assert first.split("|")[5].strip() == "–" and second.split("|")[5].strip() == "80.0"


def test_runs_with_other_settings_have_no_mean(tmp_path: Path) -> None:
    fake_record(tmp_path, "mnist", 0, ("far",), size=12)
    fake_record(tmp_path, "mnist", 1, ("far",), size=8)
    with pytest.raises(InputError, match="'far' of 'mnist'.*different settings"):
        table(Measured(tmp_path), "far")


def test_who_is_better() -> None:
    def compare(*both: float | None, **options: Any) -> Comparison:
        return Comparison("far", "a", "b", both, **options)

    assert compare(0.5, 0.6).winner == "ours" and compare(0.5, 0.6).cell == "50.0 → **60.0**"
    assert compare(0.5, 0.6, better="lower").cell == "**50.0** → 60.0"
    assert compare(0.5, 0.5001).winner == "equal" and compare(0.5, 0.5001, digits=2).winner == "ours"
    assert compare(None, 0.5).winner == "" and compare(None, 0.5).cell == "– → 50.0"


def test_every_loss_is_told(results: Path) -> None:
    measured = Measured(results)
    found = [each for task in TASKS for compare in COMPARISONS.values() for each in compare(measured, task)]
    lines = balance(measured).splitlines()
    counts = [[int(cell) for cell in line.split("|")[3:6]] for line in lines[2 : 2 + len(TASKS) * len(PARTS)]]
    assert np.sum(counts) == sum(each.winner != "" for each in found)
    losses = [each for each in found if each.winner == "plain"]
    assert losses and sum(count[2] for count in counts) == len(losses)
    start = next(number for number, line in enumerate(lines) if "plain network is better" in line)
    assert len(lines) - start - 4 == len(losses)
    for each in losses:
        assert any(f"| {each.row} | {each.column} | {each.texts[0]} | {each.texts[1]} |" in line for line in lines)


def test_the_page(results: Path, docs: Path, tmp_path: Path) -> None:
    page = docs / "beyond.md"
    assert write_beyond(results, docs) == [page]
    text = page.read_text()
    for part in PARTS:
        assert table(Measured(results), part).strip() in text
    assert "2 seeds, 12 inputs" in text and "not run" not in text
    links = re.findall(r"!\[(.+?)\]\((.+?)\)", text)
    names = ["beyond-severity-mnist", "beyond-severity-svhn", "beyond-draws-mnist", "beyond-corrupted-mnist"]
    assert [link for _, link in links] == [f"figures/{name}.svg" for name in names]
    for alt, link in links:
        assert len(alt) > 50 and "]" not in alt
        assert ET.parse(docs / link).getroot().tag.endswith("svg") and (docs / link).stat().st_size < 200_000
    written = {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()}
    assert write_beyond(results, docs) == []
    assert {path: path.read_bytes() for path in docs.rglob("*") if path.is_file()} == written
    empty = tmp_path / "empty"
    assert write_beyond(empty, docs) == [page] and "not run" in page.read_text() and "![" not in page.read_text()


def test_what_is_usual_is_that_of_the_record(tmp_path: Path) -> None:
    """Records of the earlier default, with ten draws and five views, do not say so; they are rendered as they were."""
    fake_record(tmp_path, "mnist", 0, ("draws", "views"))
    measured = Measured(tmp_path)
    assert "| ours, mean weights |" in table(measured, "draws") and "| ours, 1 draw |" in table(measured, "draws")
    for part, now, earlier in (
        ("draws", "mean weights", "10 draws"),
        ("views", "both with 1 view", "both with 5 views"),
    ):
        assert {each.row for each in COMPARISONS[part](measured, "mnist")} == {f"test inputs, {now}"}
        entry = measured.of("mnist", part)[0]
        entry["config"].pop("usual_views", None)
        if part == "draws":
            entry["results"]["abnn"]["draws"][0] = 3
        assert {each.row for each in COMPARISONS[part](measured, "mnist")} == {f"test inputs, {earlier}"}


def test_the_command_renders_both_pages(results: Path, docs: Path) -> None:
    output = run("reproduce", "page", "--output", results, "--docs", docs).output.replace("\n", "")
    assert (
        f"{docs / 'beyond.md'} updated" in output
        and table(Measured(results), "far") in (docs / "beyond.md").read_text()
    )


def test_the_command_measures(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Beyond, list[str], list[str]]] = []
    monkeypatch.setattr(Beyond, "run", lambda self, tasks, parts: asked.append((self, list(tasks), list(parts))))
    output = run("reproduce", "beyond", "--seeds", 3, "--output", results, "--inputs", 7, "--data-root", "x").output
    beyond, tasks, parts = asked.pop()
    assert (list(beyond.seeds), beyond.inputs, beyond.root) == ([0, 1, 2], 7, Path("x"))
    assert (tasks, parts) == (list(TASKS), list(PARTS)) and table(Measured(results), "corrupted").strip() in output
    run("reproduce", "beyond", "--output", results, "--task", "svhn", "--part", "far", "--part", "draws")
    assert asked.pop()[1:] == (["svhn"], ["far", "draws"])
    for arguments, message in [
        (("--part", "fa"), "part: got 'fa'.*'far'"),
        (("--task", "cat-dog"), "task: got 'cat-dog'"),
    ]:
        with pytest.raises(InputError, match=message):
            run("reproduce", "beyond", "--output", results, *arguments)
