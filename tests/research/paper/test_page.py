"""The page: whole at every stage, the same bytes when repeated, and nothing outside its markers touched."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from abnn.errors import AbnnError, InputError
from abnn.evaluate.report.drawing import style
from research.cli import app
from research.paper import TABLES, cells
from research.paper.figures import alpha, tiers, write_figures
from research.paper.page import agreement, write_page
from research.paper.rows import ours
from research.paper.standing import summary_table
from research.paper.table import Archive


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def outside(text: str) -> str:
    return re.sub(r"(<!-- abnn:table .+? -->).*?(<!-- /abnn:table -->)", r"\1\2", text, flags=re.DOTALL)


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if isinstance(result.exception, AbnnError):
        raise result.exception
    return result


def test_the_page_is_written_once(results: Path, docs: Path) -> None:
    page = docs / "reproduction.md"
    before = page.read_text()
    write_page(results, docs)
    text = page.read_text()
    assert outside(text) == outside(before)
    for table in TABLES.values():
        assert table.markdown(results).strip() in text
    assert summary_table(Archive(results)).strip() in text and agreement(Archive(results)).strip() in text
    written = everything_in(docs)
    assert write_page(results, docs) == [] and everything_in(docs) == written


def test_a_page_of_nothing_and_back(results: Path, docs: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    write_page(empty, docs)
    text = (docs / "reproduction.md").read_text()
    assert text.count("Figure: not run.") == 3 and set(everything_in(docs)) == {"reproduction.md"}
    assert "here, " not in "".join(line for line in text.splitlines() if line.startswith("|"))
    assert write_page(results, docs) == [docs / "reproduction.md"]


def test_every_figure_of_the_page_is_there(results: Path, docs: Path) -> None:
    write_page(results, docs)
    links = re.findall(r"!\[(.+?)\]\((.+?)\)", (docs / "reproduction.md").read_text())
    assert [link for _, link in links] == ["figures/tiers-mnist.svg", "figures/alpha.svg"]  # no record on cats and dogs
    for alt, link in links:
        assert len(alt) > 50 and "]" not in alt
        assert ET.parse(docs / link).getroot().tag.endswith("svg") and (docs / link).stat().st_size < 200_000


def test_figures_show_means_over_seeds(results: Path) -> None:
    found = Archive(results)
    with style():
        drawing, curve = tiers(found, "mnist"), alpha(found)
        assert drawing is not None and curve is not None and tiers(found, "cat-dog") is None
    panels = {axes.get_title(loc="left"): axes for axes in drawing.figure.axes}
    assert len(panels) == 8 and [text.get_text() for text in panels["WOODS"].texts] == ["not run"]
    drawn = panels["abnn, our default"].lines
    sets = ("MNIST", "SEMEION", "SVHN", "CIFAR-10")
    for line, name in zip(drawn, sets, strict=True):
        runs = [
            [record.numbers[f"quantiles.{name}.{place}"] for place in range(21)] for record in found.of(ours("mnist"))
        ]
        np.testing.assert_allclose(line.get_ydata(), np.mean(runs, 0))
    assert [text.get_text() for text in drawing.figure.legends[0].get_texts()] == list(sets)
    assert len({(line.get_color(), str(line.get_linestyle())) for line in drawn}) == 4
    paper, logs, here = curve.figure.axes[0].lines
    assert paper.get_ydata().tolist() == [98.8, 98.0, 98.4, 98.3, 98.4] and len(logs.get_ydata()) == 5
    assert here.get_xdata().tolist() == [0.5, 1.0]  # the two that were run


def test_figures_have_the_same_bytes(results: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_figures(Archive(results), tmp_path / name)
    assert everything_in(tmp_path / "a") == everything_in(tmp_path / "b") and len(everything_in(tmp_path / "a")) == 2


def test_agreement_counts_all_values(results: Path, tmp_path: Path) -> None:
    rows = [line.split("|")[1:-1] for line in agreement(Archive(results)).splitlines()[2:]]
    assert [row[0].strip() for row in rows] == [table.title for table in TABLES.values()]
    for row in rows:
        every, *kinds = (int(cell) for cell in row[1:])
        assert every == sum(kinds) > 0
    nothing = [line.split("|")[1:-1] for line in agreement(Archive(tmp_path)).splitlines()[2:]]
    assert all(int(row[1]) == int(row[5]) for row in nothing)


def test_the_command_renders_the_page(results: Path, docs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cells.Runner, "run", lambda *arguments: pytest.fail("page trains nothing"))
    result = run("reproduce", "page", "--output", results, "--docs", docs)
    assert result.exit_code == 0 and f"{docs / 'reproduction.md'} updated" in result.output.replace("\n", "")
    assert summary_table(Archive(results)).strip() in (docs / "reproduction.md").read_text()
    again = run("reproduce", "page", "--output", results, "--docs", docs)
    assert "everything is up to date" in again.output
    with pytest.raises(InputError, match="without reproduction.md"):
        run("reproduce", "page", "--output", results, "--docs", docs / "none")


def test_the_command_runs_the_chosen_cells(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[tuple[str, str]]] = []
    settings: list[cells.Runner] = []

    def remember(runner: cells.Runner, chosen: list[cells.Cell]) -> list[Path]:
        settings.append(runner)
        ran.append([(cell.task, cell.name) for cell in chosen])
        return []

    monkeypatch.setattr(cells.Runner, "run", remember)
    result = run("reproduce", "table3", "--output", results, "--seeds", 3, "--quiet")
    assert ran == [[(cell.task, cell.name) for cell in TABLES["table3"].cells]] and list(settings[0].seeds) == [0, 1, 2]
    assert TABLES["table3"].markdown(results).strip() in result.output
    ran.clear()
    run("reproduce", "all", "--output", results)
    assert [{task for task, _ in part} for part in ran] == [{"mnist"}, {"cat-dog"}, {"svhn"}]
    assert {each for part in ran for each in part} == {(c.task, c.name) for t in TABLES.values() for c in t.cells}
    ran.clear()
    run("reproduce", "table4", "table5", "--output", results, "--cell", "threshold", "--task", "svhn")
    assert ran == [[("svhn", "threshold")]]


def test_wrong_words(results: Path) -> None:
    for arguments, message in [
        (("table8",), "what: got 'table8'"),
        (("table3", "--cell", "abn"), "cell: got 'abn'.*Did you mean 'abnn'"),
        (("table3", "--task", "svhn"), "task: got 'svhn'.*mnist"),
    ]:
        with pytest.raises(InputError, match=message):
            run("reproduce", *arguments, "--output", results)
