import subprocess
from pathlib import Path

import pytest
import torch

from abnn.evaluate.provenance import code_state, provenance


def test_the_commit_is_that_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    package = tmp_path / "src"
    package.mkdir()
    (package / "_version.py").write_text("1")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init")
    assert code_state(package) == {}, "a repository that does not track the package says nothing about it"
    git("add", ".")
    git("commit", "-m", "first")
    assert code_state(package) == {"commit": git("rev-parse", "HEAD"), "dirty": False}
    (tmp_path / "results.json").write_text("{}")
    assert code_state(package)["dirty"] is False, "results beside the package are no change of code"
    (package / "new.py").write_text("2")
    assert code_state(package)["dirty"] is True
    monkeypatch.setenv("PATH", "")
    assert code_state(package) == {}


def test_the_package_of_a_checkout_is_found():
    """The files of this package are tracked where its tests run from a checkout."""
    root = Path(__file__).parents[2]
    if (root / ".git").exists():
        assert len(provenance()["code"]["commit"]) == 40


def test_the_number_of_threads_is_recorded():
    assert provenance()["threads"] == torch.get_num_threads()
