"""The command: which model, which address, and what it warns of."""

from __future__ import annotations

import importlib
import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import abnn
from abnn.demo import digits as demo
from abnn.errors import FileFormatError, InputError
from tests.conftest import alter

command = importlib.import_module("abnn.cli.serve")  # the attribute of abnn.cli is the command itself

app = typer.Typer()
app.command()(command.serve)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Applications that would have been run."""
    import uvicorn

    seen: list[Any] = []

    def run(self: Any, sockets: list[socket.socket]) -> None:
        seen.append(SimpleNamespace(app=self.config.app, config=self.config, address=sockets[0].getsockname()))

    monkeypatch.setattr(uvicorn.Server, "run", run)
    return seen


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, [*arguments, "--port", "0"])


def middleware(application: Any) -> Any:
    return application.user_middleware[0].kwargs["settings"]


def test_binds_to_this_machine_and_checks_the_host(model_path: Path, started: list[Any]) -> None:
    result = invoke(str(model_path), "--max-batch", "4", "--wait", "2", "--token", "secret")
    assert result.exit_code == 0 and "http://127.0.0.1:" in result.output and "secret" not in result.output
    assert started[0].address[0] == "127.0.0.1"
    settings = middleware(started[0].app)
    assert settings.max_batch == 4 and settings.wait == 0.002 and settings.token == "secret"
    assert "localhost" in settings.hosts and settings.threads >= 1


def test_warns_where_others_can_reach_it_without_a_token(model_path: Path, started: list[Any]) -> None:
    assert "warning" in invoke(str(model_path), "--host", "0.0.0.0").output
    assert middleware(started[0].app).hosts is None
    assert "warning" not in invoke(str(model_path), "--host", "0.0.0.0", "--token", "x").output


def test_the_token_may_come_from_the_environment(
    model_path: Path, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABNN_SERVE_TOKEN", "from outside")
    invoke(str(model_path))
    assert middleware(started[0].app).token == "from outside"


def test_the_device_and_the_file_of_the_drift_monitor(model_path: Path, tmp_path: Path, started: list[Any]) -> None:
    drift = tmp_path / "drift.json"
    result = invoke(str(model_path), "--device", "cpu", "--drift", str(drift))
    assert result.exit_code == 0 and "computed on cpu" in result.output
    assert middleware(started[0].app).drift == drift and drift.exists()
    assert "a device of this machine" in str(invoke(str(model_path), "--device", "nowhere").exception)


def test_errors_say_what_to_do(model_path: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got neither a folder nor --demo"):
        raise invoke().exception
    with pytest.raises(InputError, match="Did you mean 'photos'"):
        raise invoke("--demo", "photo").exception
    assert isinstance(invoke(str(tmp_path / "nothing")).exception, FileFormatError | InputError)
    assert "host" in str(invoke(str(model_path), "--host", "no.such.host.invalid").exception)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="--port 0"):
            command.listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    "host, local",
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("example.org", False),
        ("::", False),
    ],
)
def test_is_local(host: str, local: bool) -> None:
    assert command.is_local(host) is local


def test_demo_model_is_found_kept_or_trained(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    trained: list[int] = []

    def run_demo(progress: bool = True) -> Any:
        trained.append(1)
        model = abnn.load(model_path)
        return SimpleNamespace(model=model, triage=model.triage)

    monkeypatch.setattr(demo, "run_demo", run_demo)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept = demo.demo_model(quiet=True)[1]
    assert trained == [1] and kept.parent == tmp_path / "cache" / "abnn"
    assert demo.demo_model(quiet=True)[1] == kept and trained == [1]
    (kept / "abnn.json").write_text('{"format": "abnn-model", "version": 1}')  # of an older form, or damaged
    assert demo.demo_model(quiet=True)[1] == kept and trained == [1, 1]
    assert demo.demo_model(quiet=True)[0].triage is not None and trained == [1, 1]
    description = json.loads((kept / "abnn.json").read_text())
    assert description["triage"]["score"] == "combined"
    alter(kept, version=3)  # thresholds of an older score
    assert demo.demo_model(quiet=True)[1] == kept and trained == [1, 1, 1]
    abnn.load(model_path).save(
        "demo/model", backbone=True, triage=abnn.load(model_path).triage, extra={"class_names": ["x"] * 10}
    )
    assert demo.demo_model()[1] == demo.FOLDER and trained == [1, 1, 1]
    assert "Digit reader" in invoke("--demo").output
    alter(demo.FOLDER, version=4)
    assert demo.demo_model()[1] == kept and trained == [1, 1, 1]


def test_the_cache_is_in_the_home_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert demo.cache_folder() == tmp_path / ".cache" / "abnn"


def test_the_extra_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import importlib.util

    import abnn.serve

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "uvicorn" else find(name, *rest)
    )
    with pytest.raises(abnn.errors.MissingExtraError, match=r"uvicorn is not installed.*abnn\[serve\]"):
        importlib.reload(abnn.serve)
    monkeypatch.undo()
    importlib.reload(abnn.serve)


def test_the_command_names_the_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, "abnn.serve", raising=False)
    assert isinstance(invoke("--demo").exception, abnn.errors.MissingExtraError)
