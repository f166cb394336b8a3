"""Where a result comes from: when it was written, versions, platform, and the commit of the code."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from abnn._version import __version__

PACKAGES = ("torch", "numpy", "scikit-learn", "lightning-fabric", "torchmetrics", "safetensors", "torchvision", "timm")


def provenance() -> dict[str, Any]:
    """Where a result comes from: when it was written, versions, platform and code."""
    return {
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": _versions(),
        "platform": f"{platform.system()} {platform.machine()}",
        "code": _code(),
    }


def _versions() -> dict[str, str]:
    versions = {"abnn": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def _code() -> dict[str, Any]:
    """Commit and state of the package's own files, if they are tracked by git; a repository around an install is not it."""
    here = Path(__file__).resolve().parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=environment).stdout

    try:
        git("ls-files", "--error-unmatch", "_version.py")
        return {
            "commit": git("rev-parse", "HEAD").strip(),
            "dirty": bool(git("status", "--porcelain", "--", ".").strip()),
        }
    except (OSError, subprocess.SubprocessError):
        return {}
