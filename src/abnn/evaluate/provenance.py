"""Where a result comes from: when it was written, versions, platform, threads, and the commit of the code."""

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

PACKAGES = ("torch", "numpy", "scikit-learn", "lightning-fabric", "safetensors", "torchvision", "timm")


def provenance() -> dict[str, Any]:
    """Return when and where a result was computed, as JSON can hold it. The number of threads decides how sums are rounded."""
    import torch

    versions = {"abnn": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return {
        "written": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "threads": torch.get_num_threads(),
        "code": code_state(Path(__file__).resolve().parents[1]),
    }


def code_state(package: Path) -> dict[str, Any]:
    """Return commit and state of a package's own files; {} where git does not track them, as around an install."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(package), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, env=environment).stdout

    try:
        git("ls-files", "--error-unmatch", "_version.py")
        commit, changes = git("rev-parse", "HEAD").strip(), git("status", "--porcelain", "--", ".").strip()
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": bool(changes)}
