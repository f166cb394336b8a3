"""The one place that imports torchvision and timm.

A torchvision built for CUDA beside a torch built for the CPU cannot register its compiled operators, and its import
then fails with "operator torchvision::nms does not exist". Nothing in abnn uses these operators, so declaring them is
enough. Where torchvision imports by itself, nothing is declared.
"""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from abnn.errors import MissingExtraError

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_declared: list[torch.library.Library] = []


def torchvision() -> ModuleType:
    """torchvision, importable even where its compiled operators do not match torch."""
    try:
        import torchvision as module
    except ImportError:
        raise MissingExtraError("torchvision", "vision") from None
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        library.define(f"nms{_NMS}")
        library.define(f"qnms{_NMS}")
        _declared.append(library)  # the declaration lives as long as the object
        import torchvision as module
    return module


def timm() -> ModuleType:
    """timm, after torchvision, which it imports."""
    torchvision()
    try:
        import timm as module
    except ImportError:
        raise MissingExtraError("timm", "vision") from None
    return module
