"""The torchvision import, where it works by itself, where its operators are missing, and where it is absent."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

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


def run(folder: Path, package: str | None, code: str) -> str:
    """Run code in a fresh process in which ``torchvision`` is the given source (None: a module that is not there)."""
    made = folder / "torchvision"
    made.mkdir()
    content = 'raise ImportError("No module named torchvision")' if package is None else textwrap.dedent(package)
    (made / "__init__.py").write_text(content)
    script = f"import sys; sys.path.insert(0, {str(folder)!r})\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_both_packages_import_here() -> None:
    assert torchvision().__name__ == "torchvision" and hasattr(torchvision().models, "resnet18")
    assert timm().__name__ == "timm"
    assert torchvision() is torchvision()


def test_missing_operators_are_declared_once(tmp_path: Path) -> None:
    code = """
        import abnn.networks.vision as vision
        first, second = vision.torchvision(), vision.torchvision()
        print(first.models, first is second, len(vision._declared))
    """
    assert run(tmp_path, NEEDS_OPERATORS, code) == "made True 1"


def test_nothing_is_declared_where_torchvision_imports_by_itself(tmp_path: Path) -> None:
    code = """
        import torch, abnn.networks.vision as vision
        print(vision.torchvision().models, len(vision._declared), hasattr(torch.ops.torchvision, "nms"))
    """
    assert run(tmp_path, "models = 'own'", code) == "own 0 False"


def test_other_errors_are_not_hidden(tmp_path: Path) -> None:
    code = """
        import abnn.networks.vision as vision
        try:
            vision.torchvision()
        except RuntimeError as error:
            print(error, len(vision._declared))
    """
    assert run(tmp_path, "raise RuntimeError('something else')", code) == "something else 0"


def test_a_missing_package_names_the_extra(tmp_path: Path) -> None:
    code = """
        import abnn.networks.vision as vision
        for function in (vision.torchvision, vision.timm):
            try:
                function()
            except vision.MissingExtraError as error:
                print(error)
    """
    message = "torchvision is not installed; install it with: pip install 'abnn[vision]'"
    assert run(tmp_path, None, code) == f"{message}\n{message}"


@pytest.mark.parametrize(
    "failure", ["ImportError('undefined symbol')", "OSError('undefined symbol')", "RuntimeError('no')"]
)
def test_a_torchvision_made_for_another_torch_says_so(tmp_path: Path, failure: str) -> None:
    described = tmp_path / "torchvision-0.1.2.dist-info"
    described.mkdir()
    text = (
        "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1.2\nRequires-Dist: numpy\nRequires-Dist: torch==1.2.3\n"
    )
    (described / "METADATA").write_text(text)
    code = """
        import abnn.networks.vision as vision
        try:
            vision.torchvision()
        except vision.MismatchError as error:
            print(error)
    """
    said = run(tmp_path, f"raise {failure}", code)
    assert said.startswith("torchvision 0.1.2 is made for torch 1.2.3, but torch ")
    assert "pip install --upgrade torch torchvision" in said


def test_missing_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"timm is not installed.*abnn\[vision\]"):
        timm()
