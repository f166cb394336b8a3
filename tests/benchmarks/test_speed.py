"""The command at sizes that take seconds: everything runs, results agree, record and tables are made. No time is asserted."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import bars
import memory
import pytest
import speed
import torch
from groups import GROUPS, seeds
from setting import TINY, Run
from speed import tables, update_page

from abnn.errors import InputError

pytestmark = pytest.mark.no_cover  # of compiled passes, whose tracing takes twice as long where lines are counted
CPU = torch.device("cpu")
EXPECTED = {
    "training": {bars.OURS, bars.OURS_BF16, bars.OURS_DEFAULT, bars.DROPOUT, "ensemble of 2"},
    "prediction": {
        bars.OURS,
        bars.OURS_BF16,
        bars.OURS_FRESH,
        bars.OURS_DEFAULT,
        bars.LOOP,
        bars.PLAIN,
        bars.DROPOUT,
        "ensemble of 2",
    },
    "seeds": {bars.ONE_SEED, bars.IN_TURN},
    "resnet50": {bars.OURS_DEFAULT, bars.OURS_DEFAULT_DRAWS, bars.LOOP, bars.PLAIN},
    "memory": {"1 draws", "2 draws"},
}


@pytest.mark.parametrize("name", list(GROUPS))
def test_a_group_runs_agrees_and_is_written(name, tmp_path, capsys, monkeypatch):
    used = {"peak": 3.0, "before": 1.0}
    monkeypatch.setattr(memory, "measure_alone", lambda point: used)  # a process of its own takes seconds to start
    output, page = tmp_path / "cpu.json", tmp_path / "speed.md"
    shutil.copy(speed.PAGE, page)
    assert speed.main(["--tiny", "--only", name, "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    group = record["groups"][name]
    assert record["device"] == "cpu" and group["sizes"]["batch"] == TINY.batch
    assert set(group["peers"]) | set(group["left_out"]) == {"blitz", "bayesian-torch", "torch-uncertainty"}
    assert group["versions"]["torch"] and group["machine"]["threads"] >= 1
    points = [point["rows"] for curve in group["curves"].values() for point in curve] if name == "curves" else []
    every = points or [group["rows"]]
    assert all(each["median"] > 0 and each["values"] for rows in every for each in rows.values())
    assert EXPECTED.get(name, set()) <= set(every[0])
    if name in ("training", "prediction"):
        assert set(group["peers"]) <= set(group["rows"])
    checks = group.get("checks", {})
    assert all(check["agrees"] for check in checks.values())
    seen = [check for check in checks.values() if "spread" in check]
    assert all(check["spread"] > 2 * check["most"] for check in seen), "a mix-up of draws would not show"
    assert len(seen) == {"prediction": 1, "resnet50": 1}.get(name, 0)
    assert all(bar["met"] is None for bar in group["bars"]), "bars say nothing at these sizes"
    printed = capsys.readouterr().out
    update_page(page, record)
    for row in every[0]:
        assert row in printed and row in page.read_text()


def test_memory_is_measured_in_a_process_of_its_own():
    point = memory.Point(draws=2, batch=2, pixels=12, width=8, blocks=2, classes=4)
    measured = memory.measure_alone(point)
    assert measured["peak"] >= measured["before"] > 0


@pytest.mark.parametrize(
    ("name", "rows", "check"),
    [
        ("prediction", {bars.OURS_COMPILED_32, bars.OURS_COMPILED, bars.OURS_DEFAULT_COMPILED}, bars.OURS_COMPILED),
        ("resnet50", {bars.OURS_DEFAULT_COMPILED}, bars.OURS_DEFAULT_COMPILED),
    ],
)
def test_compiled_rows(name, rows, check, monkeypatch):
    """Traced and run without generated code, which takes too long for a test; so does learning a score."""
    monkeypatch.setattr("abnn.train.combine.members.STEPS", 2)
    original = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model=None, **options: original(model, backend="eager", **options))
    group = speed.run_group(name, CPU, replace(TINY, compiled=True, draws=2))
    assert speed.trouble(group) == [] and rows | {bars.PLAIN_COMPILED} <= set(group["rows"])
    assert f"{check}, folded" in group["checks"]
    torch._dynamo.reset()


def test_bars_are_between_rows_that_are_measured():
    known = {value for name, value in vars(bars).items() if name.isupper() and isinstance(value, str)}
    known |= {"blitz", "bayesian-torch", "torch-uncertainty", "10 draws", "100 draws"}
    assert all({bar.above, bar.below} <= known and bar.group in GROUPS for bar in bars.BARS)
    assert len(set(bars.BARS)) == len(bars.BARS)


def test_groups_are_added_to_a_record(tmp_path):
    path = tmp_path / "cpu.json"
    speed.write_group(path, CPU, "a", {"seconds": 1})
    speed.write_group(path, CPU, "b", {"seconds": 2})
    record = speed.write_group(path, CPU, "a", {"seconds": 3})
    assert json.loads(path.read_text()) == record
    assert record["groups"] == {"a": {"seconds": 3}, "b": {"seconds": 2}}
    with pytest.raises(InputError, match="Choose another file"):
        speed.write_group(path, torch.device("cuda"), "a", {})


def test_what_fails_is_named_and_costs_nothing_else(capsys):
    def broken() -> object:
        raise ValueError("no luck")

    run = Run(CPU, TINY)
    rows = run.measure({"good": lambda: lambda: None, "bad": lambda: broken, "worse": broken})
    assert set(rows) == {"good"} and set(run.failed) == {"bad", "worse"}
    assert "no luck" in capsys.readouterr().err
    assert len(speed.trouble({"failed": run.failed, "checks": {"x": {"agrees": False}}})) == 3


def test_a_group_that_fails_is_recorded(monkeypatch, tmp_path, capsys):
    def broken(run: Run) -> dict:
        raise ValueError("no luck")

    monkeypatch.setitem(GROUPS, "seeds", broken)
    assert speed.main(["--tiny", "--only", "seeds", "--output", str(tmp_path / "cpu.json")]) == 1
    group = json.loads((tmp_path / "cpu.json").read_text())["groups"]["seeds"]
    assert "no luck" in group["error"]
    assert tables({"groups": {"seeds": group}}) == {}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_seeds_at_once_are_measured_on_cuda():
    assert "seeds at once" in seeds(Run(torch.device("cuda"), TINY))["rows"]


def test_the_page_has_a_place_for_every_table():
    page = speed.PAGE.read_text()
    for device in ("cpu", "cuda"):
        for name in (*GROUPS, "bars"):
            assert page.count(f"<!-- abnn:table speed {device} {name} -->") == 1


def test_sizes_can_be_changed():
    sizes = speed.choose_sizes(TINY, ["batch=3", "resnet=resnet34", "curve_draws=[1, 5]"])
    assert (sizes.batch, sizes.resnet, sizes.curve_draws) == (3, "resnet34", (1, 5))
    with pytest.raises(InputError, match="batch"):
        speed.choose_sizes(TINY, ["bacth=3"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", list(GROUPS))
def test_a_group_runs_on_the_gpu(name, tmp_path):
    output = tmp_path / "cuda.json"
    assert speed.main(["--tiny", "--device", "cuda", "--only", name, "--output", str(output)]) == 0
