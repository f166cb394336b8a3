"""Tables as data: how lines are written, what counts as reproduced, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.summary import flatten
from abnn.metrics import SeedSummary, over_seeds
from research.metrics import summarise
from research.paper import TABLES
from research.paper.cells import Cell
from research.paper.standing import MEASURES
from research.paper.table import ABOVE, BELOW, Archive, Row, Section, Table, deviation, parse
from research.tables import Column
from research.tasks import PLANS
from tests.research.paper.samples import fake_record, fake_sets

GOOD, POOR, ABSENT = (Cell(name, "svhn") for name in ("good", "poor", "absent"))
AUROC = Column("AUROC", "detection.CIFAR-10.auroc")
NEVER = Column("never", "detection.nothing.auroc")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for seed in range(3):
        fake_record(folder, GOOD, seed, apart=2.0)
    fake_record(folder, POOR, 0, apart=0.1)
    return folder


def values(results: Path, cell: Cell) -> list[float]:
    return [100 * record.numbers[AUROC.path] for record in Archive(results).of(cell)]


def lines(table: Table, results: Path) -> list[list[str]]:
    text = table.markdown(results)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows[2:]]


def test_up_to_three_lines_for_each_method(results: Path) -> None:
    mean = over_seeds(values(results, GOOD))
    rows = (
        Row("Good", GOOD, "98.3±1.2 –", f"{mean.mean:.2f}±0.10 1.0", "2 runs"),
        Row("Poor", POOR),
        Row("Absent", ABSENT, "50.0±NA –"),
        Row("Nobody's", paper="1.0 2.0"),
    )
    table = Table("A title.\n\nWhat it\nclaims.", (Section("The part", (AUROC, NEVER), rows, "A remark."),))
    text = table.markdown(results)
    assert text.startswith(
        "### A title\n\nWhat it\nclaims.\n\n**The part**\n\nA remark.\n\n| method | source | AUROC ↑ |"
    )
    assert lines(table, results) == [
        ["Good", "paper", "98.3 ± 1.2", "–"],
        ["", "logs, 2 runs", f"{mean.mean:.2f} ± 0.10", "1.0"],
        ["", "here, 3 seeds", f"**{mean.mean:.1f} ± {mean.std:.1f}**", "–"],
        ["Poor", "here, 1 seed", f"{values(results, POOR)[0]:.1f}", "–"],
        ["Absent", "paper", "50.0 ± NA", "–"],
        ["", "here: not run", "", ""],
        ["Nobody's", "paper", "1.0", "2.0"],
    ]
    assert table.cells == (GOOD, POOR, ABSENT)
    assert table.tally(Archive(results)) == {
        "within": 1,
        "not run": 2,
    }  # "1.0" of a metric that no record has is the second


def test_an_ensemble_is_one_run_of_many(results: Path, tmp_path: Path) -> None:
    cell = Cell("together", "svhn", start=GOOD, ensemble=True)
    fake_record(tmp_path, cell)
    assert lines(Table("t", (Section("s", (AUROC,), (Row("Together", cell),)),)), tmp_path)[0][1] == "here, 1 ensemble"


@pytest.mark.parametrize(
    ("paper", "logs", "mark"),
    [
        ("50.0±1.0", "", ABOVE),
        ("", "99.9±0.1", BELOW),
        ("50.0±1.0", "90.0±1.0", ""),  # the logs count where there are any
        ("90.0±1.0", "–", ""),
        ("90.0±1.0", "80–85", ""),  # a range is no number
        ("85.0±6.0", "", ""),  # within two standard deviations
        ("85.0±2.0", "", ABOVE),
        ("90.9", "", ""),  # within a point
        ("91.5", "", BELOW),
        ("–", "", ""),
    ],
)
def test_what_was_not_reproduced_is_marked(paper: str, logs: str, mark: str) -> None:
    row = Row("a", GOOD, paper, logs, "1 run")
    assert deviation(row, 0, AUROC, SeedSummary(0.9, 0.0, 5)) == mark
    assert deviation(row, 0, Column("count", "x", better="neither"), SeedSummary(0.9, 0.0, 5)) == ""
    assert deviation(row, 0, AUROC, SeedSummary(0.9, 0.5, 5)) == ""  # a wide spread of ours reproduces anything
    if logs.startswith("90"):
        assert deviation(Row("a", GOOD, paper, logs, reference="paper"), 0, AUROC, SeedSummary(0.9, None, 1)) == ABOVE


def test_marks_are_in_the_table_and_counted(results: Path) -> None:
    rows = (Row("Good", GOOD, "1.0±0.1"), Row("Poor", POOR, "99.0±0.1"))
    table = Table("t", (Section("s", (AUROC,), rows),))
    written = lines(table, results)
    assert written[1][2].endswith(f"** {ABOVE}") and written[3][2].endswith(BELOW)
    assert table.tally(Archive(results)) == {ABOVE: 1, BELOW: 1}


def test_numbers_of_others() -> None:
    assert parse("98.3±1.2") == (98.3, 1.2) and parse("42") == (42.0, 0.0) and parse("99.6±NA") == (99.6, 0.0)
    assert parse("–") is None and parse("44–53") is None and parse("94.2z±1.6") is None
    with pytest.raises(InputError, match=r"2 numbers of 'a' \(paper\) in 's'.*1, one for each column"):
        Section("s", (AUROC,), (Row("a", paper="1.0 2.0"),))
    with pytest.raises(InputError, match="reference"):
        Row("a", reference="memory")


def test_seeds_with_different_settings_have_no_mean(tmp_path: Path) -> None:
    cell = Cell("changed", "svhn")
    fake_record(tmp_path, cell, 0)
    fake_record(tmp_path, cell, 1, epochs=3)
    with pytest.raises(InputError, match="changed-seed0.json and .*changed-seed1.json, made with different settings"):
        Archive(tmp_path).of(cell)


def test_records_of_others_are_not_mine(tmp_path: Path) -> None:
    for name in ("abnn", "abnn (authors)", "abnn-seed"):
        fake_record(tmp_path, Cell(name, "svhn"))
    found = Archive(tmp_path)
    for name in ("abnn", "abnn (authors)", "abnn-seed"):
        assert [record.name for record in found.of(Cell(name, "svhn"))] == [name]
    assert found.of(Cell("abnn", "mnist")) == () and found.over_seeds(Cell("abnn", "svhn"), "no.such") is None


def test_every_column_is_a_metric_of_its_task() -> None:
    """With sets as large as the paper's clustering needs."""
    large = {
        "mnist": {"MNIST": 9000, "SVHN": 9000, "CIFAR-10": 9000},
        "cat-dog": {name: 250 for name, _, _ in PLANS["cat-dog"].tests},
    }
    known = {}
    for task in ("mnist", "svhn", "cat-dog"):
        sets = fake_sets(task, 0, sizes=large.get(task))
        known[task] = set(flatten(summarise(Evaluation("m", "score", sets), by_score=False)))
    wanted = {(measure.task, measure.column.path) for measure in MEASURES}
    for table in TABLES.values():
        for section in table.sections:
            wanted |= {(row.cell.task, column.path) for row in section.rows if row.cell for column in section.columns}
    assert [(task, path) for task, path in sorted(wanted) if path not in known[task]] == []


def test_the_tables_of_the_paper() -> None:
    assert list(TABLES) == [f"table{number}" for number in range(1, 8)]
    for number, table in enumerate(TABLES.values(), 1):
        assert table.title.startswith(f"Table {number}: ") and len(table.about) > 200
        names = [(cell.task, cell.name) for cell in table.cells]
        assert len(names) == len(set(names))
    same = {(cell.task, cell.name): cell for table in TABLES.values() for cell in table.cells}
    for table in TABLES.values():
        assert all(same[cell.task, cell.name] == cell for cell in table.cells)  # shared cells are trained once


def test_matrices_of_the_paper_add_up() -> None:
    """Each row of a matrix counts the kept inputs of one tier, and the trace is the printed accuracy, but for SDE-Net."""
    for name, kept in (("table1", 9000), ("table2", 100)):
        scores, matrices = TABLES[name].sections[:2]
        place = [column.header for column in scores.columns].index("paper's clustering")
        for row in matrices.rows:
            accuracies = dict(
                zip(("paper", "logs"), next((each.paper, each.logs) for each in scores.rows if each.label == row.label))
            )
            for source, text in (("paper", row.paper), ("logs", row.logs)):
                counts = [int(each) for each in text.split()]
                if not counts:
                    continue
                sums = [sum(counts[first : first + 3]) for first in (0, 3, 6)]
                trace = 100 * sum(counts[::4]) / (3 * kept)
                printed = float(accuracies[source].split()[place])
                wrong = (name, row.label, source) == ("table2", "SDE-Net", "paper")
                assert sums == [kept] * 3 and wrong != (trace == pytest.approx(printed, abs=0.06)), row


def test_published_numbers_are_percentages() -> None:
    for table in TABLES.values():
        for section in table.sections:
            shares = [place for place, column in enumerate(section.columns) if column.scale == 100]
            for row in section.rows:
                for _, numbers in row.published:
                    known = [parse(numbers[place]) for place in shares]
                    assert all(0 <= each[0] <= 100 and each[1] < 25 for each in known if each is not None)
