"""The one place that imports torchvision and timm.

A torchvision built for CUDA beside a torch built for the CPU cannot register its compiled operators, and its import
then fails with "operator torchvision::nms does not exist". Nothing in abnn uses these operators, so declaring them is
enough. Where torchvision imports by itself, nothing is declared.
"""

from __future__ import annotations

import sys
from importlib import metadata
from types import ModuleType

import torch

from abnn.errors import MismatchError, MissingExtraError, import_extra

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []


def torchvision() -> ModuleType:
    """Return torchvision, even where its operators do not match torch; an error says why it cannot be imported."""
    try:
        import torchvision as module
    except (ImportError, OSError, RuntimeError) as error:
        if isinstance(error, ImportError | OSError) or "torchvision::nms" not in str(error):
            _check_versions()
            if isinstance(error, ImportError):
                raise MissingExtraError("torchvision", "vision") from None
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define(f"nms{_NMS}")
        library.define(f"qnms{_NMS}")
        _declared.append(library)  # the declaration lives as long as the object
        import torchvision as module
    return module


def _check_versions() -> None:
    """Raise an error if the installed torchvision was made for another version of torch."""
    try:
        own, needs = metadata.version("torchvision"), metadata.requires("torchvision") or []
    except metadata.PackageNotFoundError:
        return
    wanted = next((need.removeprefix("torch==") for need in needs if need.startswith("torch==")), "")
    actual = torch.__version__
    if wanted and wanted.partition("+")[0] != actual.partition("+")[0]:
        raise MismatchError(f"torchvision {own} is made for torch {wanted}, but torch {actual} is installed")


def timm() -> ModuleType:
    """Return timm, after torchvision, which it imports."""
    torchvision()
    return import_extra("timm", "vision")
