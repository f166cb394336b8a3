"""The summary and the ranks, on made-up records whose order is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from research.paper.rows import ours, posthoc
from research.paper.standing import GROUPS, MEASURES, rank_table, ranks, summary_table
from research.paper.table import Archive
from tests.research.paper.samples import fake_record


def rows_of(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return {row[0]: row[1:] for row in cells}


def test_ranks_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 30):
        values = rng.integers(0, 6, size).astype(float).tolist()
        assert ranks(values) == rankdata(-np.array(values)).tolist()


def test_every_discipline_is_measured() -> None:
    assert {measure.group for measure in MEASURES} == {"", *GROUPS}
    assert len({measure.label for measure in MEASURES}) == len(MEASURES)


def test_the_summary_has_the_best_of_all_others(results: Path) -> None:
    found, rows = Archive(results), rows_of(summary_table(Archive(results)))
    assert list(rows) == [*(measure.label for measure in MEASURES), "seeds (MNIST / SVHN)"]
    assert rows["seeds (MNIST / SVHN)"] == ["2 / 2", "2 / 2", "", "", "2 / 2"]
    plain, authors, other, score, own = rows["MNIST against SVHN: AUROC"]
    assert other == "not run" and score.endswith("(energy)") and score.startswith("**")
    summary = found.over_seeds(ours("mnist"), "detection.SVHN.auroc")
    assert summary is not None and summary.std is not None
    assert own == f"{100 * summary.mean:.2f} ± {100 * summary.std:.2f}"
    means = [float(text.strip("*").split(" ")[0]) for text in (plain, authors, own, score)]
    assert means == sorted(means)
    # All have the same predictions here, so nobody is the best post-hoc score, and all are bold.
    accuracies = rows["MNIST network on SEMEION: accuracy"]
    assert accuracies[3] == "**75.0 ± 0.0** (several)" and accuracies[4] == "**75.0 ± 0.0**"


def test_ranks_over_all_disciplines(results: Path) -> None:
    text = rank_table(Archive(results))
    rows = rows_of(text)
    assert list(rows) == ["energy (post-hoc)", "abnn", "abnn (authors)", "threshold"]
    assert [row[0] for row in rows.values()] == ["**1.0**", "2.0", "3.0", "4.0"]
    assert [row[3] for row in rows.values()] == ["**2.5**"] * 4  # ties share the mean of their places
    for row in rows.values():
        numbers = [float(cell.strip("*")) for cell in row]
        assert abs(numbers[-1] - np.mean(numbers[:-1])) <= 0.1
    assert "4 methods and scores, ranked in 14 of 14 measures" in text
    left = text.partition("not run everywhere: ")[2]
    assert "max-logit (post-hoc)" in left and "woods (authors)" in left  # the first was run on one task alone


def test_ranks_of_what_there_is(tmp_path: Path) -> None:
    assert rank_table(Archive(tmp_path)) == "not run\n"
    for cell in (ours("mnist"), posthoc("mnist")[0]):
        fake_record(tmp_path, cell)
    text = rank_table(Archive(tmp_path))
    assert "2 methods and scores, ranked in 9 of 14 measures" in text  # none on SVHN
    assert set(rows_of(text)) == {"abnn", "energy (post-hoc)"}


def test_nothing_was_run(tmp_path: Path) -> None:
    rows = rows_of(summary_table(Archive(tmp_path)))
    assert all(cell == "not run" for label, row in rows.items() if "seeds" not in label for cell in row)
