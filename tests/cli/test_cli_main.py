"""What every command has in common: how it starts, and how errors and warnings are shown."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn
from typer.testing import CliRunner

import abnn
from abnn import cli
from abnn.config import DRAWS
from abnn.errors import AbnnWarning
from abnn.triage import Triage
from abnn.triage.calibrate import draws_and_seed


def fails_with(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> int:
    def app() -> None:
        raise error

    monkeypatch.setattr(cli, "app", app)
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert isinstance(stop.value.code, int)
    return stop.value.code


def test_it_is_a_module_too() -> None:
    call = [sys.executable, "-m", "abnn", "--version"]
    assert subprocess.run(call, capture_output=True, check=True).stdout.decode() == f"abnn {abnn.__version__}\n"


def test_files_that_fail_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert fails_with(PermissionError(13, "Permission denied", "/a/b"), monkeypatch) == 2
    assert capsys.readouterr().err == "abnn: cannot read or write /a/b: Permission denied\n"
    assert fails_with(OSError("no address"), monkeypatch) == 2
    assert capsys.readouterr().err == "abnn: cannot read or write: no address\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_device_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-m", "abnn", "--version"]
        result = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 2
    assert result.stderr.decode() == "abnn: cannot read or write: No space left on device\n"


def warns() -> None:
    warnings.warn("look here", AbnnWarning, stacklevel=1)
    warnings.warn("and there", UserWarning, stacklevel=1)


WARNS = """
import warnings
from abnn import cli
from tests.cli.test_cli_main import warns
cli.app = warns
cli.main()
warnings.warn("at last", cli.AbnnWarning)
"""


def test_our_warnings_are_one_line_while_a_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    call, root = [sys.executable, "-c", WARNS], Path(__file__).parents[2]
    shown = subprocess.run(call, cwd=root, capture_output=True, check=True).stderr.decode().splitlines()
    assert shown[0] == "abnn: warning: look here" and "test_cli_main.py" in shown[1] and "and there" in shown[1]
    assert "AbnnWarning: at last" in shown[-1]
    monkeypatch.setattr(cli, "app", warns)
    with pytest.warns(AbnnWarning, match="look here"), pytest.warns(UserWarning, match="and there"):
        cli.main()


@pytest.mark.parametrize("command", ["demo"])
def test_seeds_are_not_negative(command: str) -> None:
    result = CliRunner().invoke(cli.app, [command, "--seed", "-1"])
    assert result.exit_code == 2 and "--seed" in result.output


def test_draws_are_what_was_asked_for_or_calibrated_or_usual() -> None:
    """Zero, mean weights, is a number like others; it once meant that nothing was asked for."""
    calibrated = SimpleNamespace(triage=Triage(0.1, 0.2, 0.05, 0.01, "entropy", 4, 3, 50), usual_draws=0)
    assert draws_and_seed(calibrated, None, None) == (4, 3)
    assert draws_and_seed(calibrated, 0, 0) == (0, 0)
    assert draws_and_seed(SimpleNamespace(triage=None, usual_draws=0), None, None) == (0, 0)
    trained = SimpleNamespace(network=SimpleNamespace(usual_draws=0))
    assert draws_and_seed(trained, None, 5) == (0, 5) and draws_and_seed(trained, 7, None) == (7, 0)
    assert draws_and_seed(SimpleNamespace(network=nn.Identity()), None, None) == (DRAWS, 0)
