import subprocess
from pathlib import Path

import pytest

from abnn.evaluate import provenance


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "src"
    package.mkdir()
    (package / "_version.py").write_text("1")
    monkeypatch.setattr(provenance, "__file__", str(package / "provenance.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init")
    assert provenance._code() == {}, "a repository that does not track the package says nothing about it"
    git("add", ".")
    git("commit", "-m", "first")
    assert provenance._code() == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "results.json").write_text("{}")
    assert provenance._code()["dirty"] is False, "results beside the package are no change of code"
    (package / "new.py").write_text("2")
    assert provenance._code()["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert provenance._code() == {}
