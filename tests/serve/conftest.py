"""A small digit reader behind the application, and images of all kinds."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.data.digits import load_digits
from abnn.serve import Settings, create_app
from tests.conftest import made_once

DIGITS = [str(digit) for digit in range(10)]


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fitted for a moment only: its answers are poor, but of every kind, and the same in every process."""

    def make(folder: Path) -> None:
        data = load_digits()
        torch.manual_seed(0)
        network = abnn.build_backbone("paper-resnet", 10, 1, width=8, blocks=2, stem="small", kaiming=False).eval()
        model = abnn.attach(network, data.train.x[:1])
        some = TensorDataset(data.train.x[:512], data.train.y[:512])
        abnn.fit(model, DataLoader(some, batch_size=128), epochs=1, progress=False)
        triage = abnn.Triage.calibrate(model, DataLoader(TensorDataset(*data.val), batch_size=256))
        model.save(folder, backbone=True, triage=triage, extra={"class_names": DIGITS})

    return made_once(tmp_path_factory, "served", make)


@pytest.fixture(scope="session")
def model(model_path: Path) -> Any:
    return abnn.load(model_path)


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings(max_bytes=200_000, max_pixels=1_000_000, max_images=8, queue=32, timeout=20)


@pytest.fixture(scope="module")
def client(model: Any, settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(model, settings, "digits")) as client:
        yield client


def pixels(width: int = 20, height: int = 16, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


PNG = encoded(pixels())


def upload(client: TestClient, content: bytes, **parameters: Any) -> Any:
    return client.post("/predict", files={"image": ("x", content)}, params=parameters)
