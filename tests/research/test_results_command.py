import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from abnn.errors import AbnnError, InputError
from abnn.evaluate.records import find_records, write_record
from research.cli.results import results_app
from research.tables import preset, render, render_paired
from tests.evaluate.test_summary import sample_evaluation


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for name, offset in (("plain network", 0), ("attached [network]", 100)):
        for seed in (0, 1):
            evaluation = sample_evaluation(seed + offset, name, size=20)
            write_record(type(evaluation)(**{**vars(evaluation), "seed": seed}), folder, "digits")
    write_record(sample_evaluation(5, "plain network", size=20), folder, "other")
    return folder


@pytest.fixture
def results(written: Path, tmp_path: Path) -> Path:
    return shutil.copytree(written, tmp_path / "results")


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(results_app, [str(each) for each in arguments])
    if isinstance(result.exception, AbnnError):
        raise result.exception
    return result


def listed(results: Path, *arguments: object) -> list[str]:
    result = run("list", "--paths", "-r", results, *arguments)
    assert result.exit_code == 0
    return [Path(line).relative_to(results).as_posix() for line in result.stdout.splitlines()]


def test_list_shows_all_records(written: Path):
    result = run("list", "-r", written)
    assert result.exit_code == 0 and "5 records" in result.stdout
    assert result.stdout.count("attached [network]") == 2 and "printed digits" in result.stdout


def test_list_filters(written: Path):
    attached = [f"digits/attached-network-seed{seed}.json" for seed in (0, 1)]
    plain = [f"digits/plain-network-seed{seed}.json" for seed in (0, 1)]
    other = "other/plain-network-seed5.json"
    assert listed(written) == [*attached, *plain, other]
    assert listed(written, "--experiment", "digits") == [*attached, *plain]
    assert listed(written, "--name", "plain network") == [*plain, other]
    assert listed(written, "--seed", 0, "--seed", 5) == [attached[0], plain[0], other]
    assert listed(written, "--experiment", "nothing") == []


def test_list_errors(written: Path):
    with pytest.raises(InputError, match="no folder"):
        run("list", "-r", written / "nowhere")


def test_table_prints_what_render_gives(written: Path):
    records = find_records(written, experiment="digits")
    result = run("table", "digits", "-r", written, "--columns", "detection,tiers")
    assert result.stdout == render(records, [*preset("detection", records), *preset("tiers", records)])
    assert run("table", "digits", "-r", written).stdout == render(records, preset("overview", records))
    against = run("table", "digits", "-r", written, "--against", "plain network").stdout
    assert against == render_paired(records, preset("overview", records), "plain network")
    rows = run("table", "digits", "-r", written, "--row", "plain network", "--row", "attached [network]").stdout
    assert rows.index("plain network") < rows.index("attached [network]")


def test_table_into_a_document(written: Path, tmp_path: Path):
    document = tmp_path / "README.md"
    document.write_text("a\n<!-- abnn:table digits -->\n<!-- /abnn:table -->\nb\n")
    arguments = ("table", "digits", "-r", written, "--into", document, "--marker", "digits")
    assert "updated" in run(*arguments).stderr
    records = find_records(written, experiment="digits")
    text = document.read_text()
    assert render(records, preset("overview", records)) in text and text.endswith("\nb\n")
    result = run(*arguments)
    assert "up to date" in result.stderr and result.stdout == "" and document.read_text() == text


def test_table_errors(written: Path, tmp_path: Path):
    table = ("table", "digits", "-r", written)
    for arguments, message in [
        (("--into", tmp_path / "x.md"), "both or neither"),
        (("--marker", "x"), "both or neither"),
        (("--into", tmp_path / "x.md", "--marker", "x"), "does not exist"),
        (("--against", "plain network", "--row", "plain network"), "one of the two"),
        (("--columns", "tiers.ordered"), "Did you mean"),
        (("--into", tmp_path, "--marker", "x"), "--into: got .*, which is a folder"),
    ]:
        with pytest.raises(InputError, match=message):
            run(*table, *arguments)
    with pytest.raises(InputError, match="'nothing'.*results list"):
        run("table", "nothing", "-r", written)


def test_recompute_agrees(results: Path):
    one = run("recompute", results / "other" / "plain-network-seed5.json")
    assert one.exit_code == 0 and "1 of 1 records agree" in one.stdout
    (results / "notes.json").write_text("[]")
    assert "5 of 5 records agree" in run("recompute", results).stdout


def test_recompute_finds_changed_numbers_and_damaged_files(results: Path):
    path = results / "digits" / "plain-network-seed0.json"
    content = json.loads(path.read_text())
    content["metrics"]["accuracy"]["digits"] += 0.01
    path.write_text(json.dumps(content))
    (results / "digits" / "attached-network-seed0.json").write_text("{")
    next((results / "other").glob("*.npz")).write_bytes(b"other bytes")
    result = run("recompute", results)
    assert result.exit_code == 1 and "2 of 5 records agree" in result.stdout
    assert "accuracy.digits: recorded" in result.stdout
    assert "attached-network-seed0.json is not valid JSON" in result.stdout and "another sha256" in result.stdout
    assert run("recompute", path, "--tolerance", 0.1).exit_code == 0


def test_records_without_arrays(results: Path):
    """They are listed and tabulated, and passed over when numbers are computed again."""
    before = run("table", "other", "-r", results, "--columns", "tiers").stdout
    path = write_record(sample_evaluation(5, "plain network", size=20), results, "other", arrays=False)
    assert run("table", "other", "-r", results, "--columns", "tiers").stdout == before
    assert len(listed(results)) == 5
    everything = run("recompute", results)
    assert everything.exit_code == 0 and "4 of 4 records agree, 1 have no arrays" in everything.stdout
    alone = run("recompute", path)
    assert alone.exit_code == 0 and f"{path}: passed over" in alone.stdout.replace("\n", "")


def test_recompute_of_nothing_is_no_success(tmp_path: Path):
    assert run("recompute", tmp_path).exit_code == 1
    assert "does not exist" in run("recompute", tmp_path / "none.json").stdout
