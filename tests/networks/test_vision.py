"""The torchvision import, where it works by itself, where its operators are missing, and where it is absent."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from abnn.errors import MissingExtraError
from abnn.networks.vision import timm, torchvision

NEEDS_OPERATORS = """
import torch
if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
torch.ops.torchvision.nms, torch.ops.torchvision.qnms
models = "made"
"""
ABSENT = 'raise ImportError("No module named torchvision")'
OTHER = """Metadata-Version: 2.1
Name: torchvision
Version: 0.1.2
Requires-Dist: numpy
Requires-Dist: torch==1.2.3
"""
TWICE = """
first, second = vision.torchvision(), vision.torchvision()
print(first.models, first is second, len(vision._declared))
"""
OWN = """
print(vision.torchvision().models, len(vision._declared), hasattr(torch.ops.torchvision, "nms"))
"""
ERRORS = """
for function in (vision.torchvision, vision.timm):
    try:
        function()
    except Exception as error:
        print(type(error).__name__, len(vision._declared), error)
"""
FAILURES = ("ImportError('undefined symbol')", "OSError('undefined symbol')", "RuntimeError('no')")
CASES = {  # what torchvision is, and what is done with it
    "operators": (NEEDS_OPERATORS, TWICE),
    "own": ("models = 'own'", OWN),
    "else": ("raise RuntimeError('something else')", ERRORS),
    "absent": (ABSENT, ERRORS),
    **{failure: (f"raise {failure}", ERRORS) for failure in FAILURES},
}
FORKS = """
import contextlib, json, os, sys, torch
import abnn.networks.vision as vision
for folder, code in json.load(sys.stdin):
    child = os.fork()
    if child == 0:
        sys.path.insert(0, folder)
        with open(folder + "/said.txt", "w") as file, contextlib.redirect_stdout(file):
            exec(code)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, folder
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each case prints, in a fork of a process that has not seen torchvision."""
    folders = {name: tmp_path_factory.mktemp("case") for name in CASES}
    for name, folder in folders.items():
        (folder / "torchvision").mkdir()
        (folder / "torchvision" / "__init__.py").write_text(CASES[name][0])
        if name in FAILURES:
            (folder / "torchvision-0.1.2.dist-info").mkdir()
            (folder / "torchvision-0.1.2.dist-info" / "METADATA").write_text(OTHER)
    work = json.dumps([(str(folder), CASES[name][1]) for name, folder in folders.items()])
    command = [sys.executable, "-c", FORKS]
    done = subprocess.run(command, input=work, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {name: (folder / "said.txt").read_text().strip() for name, folder in folders.items()}


def test_both_packages_import_here() -> None:
    assert torchvision().__name__ == "torchvision" and hasattr(torchvision().models, "resnet18")
    assert timm().__name__ == "timm"
    assert torchvision() is torchvision()


def test_missing_operators_are_declared_once(said: dict[str, str]) -> None:
    assert said["operators"] == "made True 1"


def test_nothing_is_declared_where_torchvision_imports_by_itself(said: dict[str, str]) -> None:
    assert said["own"] == "own 0 False"


def test_other_errors_are_not_hidden(said: dict[str, str]) -> None:
    assert said["else"].splitlines()[0] == "RuntimeError 0 something else"


def test_a_missing_package_names_the_extra(said: dict[str, str]) -> None:
    message = "MissingExtraError 0 torchvision is not installed; install it with: pip install 'abnn[vision]'"
    assert said["absent"] == f"{message}\n{message}"


@pytest.mark.parametrize("failure", FAILURES)
def test_a_torchvision_made_for_another_torch_says_so(said: dict[str, str], failure: str) -> None:
    line = said[failure].splitlines()[0]
    assert line.startswith("MismatchError 0 torchvision 0.1.2 is made for torch 1.2.3, but torch ")
    assert "pip install --upgrade torch torchvision" in said[failure]


def test_missing_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"timm is not installed.*abnn\[vision\]"):
        timm()
