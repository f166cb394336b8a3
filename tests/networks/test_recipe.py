"""A saved folder names an architecture and plain sizes: it fetches nothing, runs nothing, and takes no more than its weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import abnn
from abnn.baselines import load_trained, train_method
from abnn.errors import FileFormatError
from abnn.networks.by_name import build_backbone
from abnn.networks.recipe import MOST_NUMBERS, is_shape, make_recipe, rebuild
from abnn.store.saved import load_model
from tests.conftest import alter, generator

TOUCHED: list[str] = []
WATCHING = False
EVENTS = ("socket.", "urllib.", "http.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "ftplib.")


def _watch(event: str, arguments: Any) -> None:
    if not WATCHING:
        return
    written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if event.startswith(EVENTS) or written:
        TOUCHED.append(f"{event} {arguments!r:.100}")


sys.addaudithook(_watch)  # stays for the life of the process, so it only looks while it is asked to


@pytest.fixture
def touched() -> Iterator[list[str]]:
    """What was opened for writing, started or connected to inside the test."""
    global WATCHING
    TOUCHED.clear()
    WATCHING = True
    yield TOUCHED
    WATCHING = False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    network = build_backbone("paper-resnet", 3, 1, width=8, blocks=2, stem="small", kaiming=False).eval()
    model = abnn.attach(network, torch.randn(4, 1, 8, 8, generator=generator())[:1])
    return model.save(tmp_path_factory.mktemp("recipe") / "model", backbone=True)


def altered(folder: Path, target: Path, **fields: Any) -> Path:
    """A copy of a saved model with other fields in its description."""
    target.mkdir()
    for file in folder.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return alter(target, **fields)


TIMM = {"name": "timm/resnet10t", "classes": 3, "in_channels": 1}
VISION = {"name": "resnet18", "classes": 3, "in_channels": 1}
PAPER = {"name": "paper-resnet", "classes": 3, "in_channels": 1}
HOSTILE: list[dict[str, Any]] = [
    {**TIMM, "pretrained": True},
    {**TIMM, "pretrained_cfg": {"url": "http://127.0.0.1:9/x.py", "hf_hub_id": None}, "pretrained": True},
    {**TIMM, "pretrained_cfg": {"file": "/etc/passwd"}},
    {**TIMM, "pretrained_cfg_overlay": {"url": "http://127.0.0.1:9/sitecustomize.py"}},
    {**TIMM, "checkpoint_path": "/tmp/x.pth"},
    {**TIMM, "cache_dir": "."},
    {**TIMM, "hf_hub_id": "someone/something"},
    {**TIMM, "name": "timm/hf-hub:someone/something"},
    {**TIMM, "name": "timm/local-dir:/tmp"},
    {**TIMM, "scriptable": True},
    {**TIMM, "img_size": 10**9},
    {**TIMM, "drop_rate": "__import__('os')"},
    {**VISION, "weights": "DEFAULT"},
    {**VISION, "weights": "IMAGENET1K_V1"},
    {**VISION, "weights_backbone": "DEFAULT"},
    {**VISION, "name": "fasterrcnn_resnet50_fpn"},
    {**VISION, "progress": True},
    {**PAPER, "blocks": 200_000},
    {**PAPER, "blocks": 256, "width": 16_384},
    {**PAPER, "classes": 10**12},
    {**PAPER, "in_channels": -1},
    {**PAPER, "width": 8.5},
    {**PAPER, "stem": "../../x"},
    {"name": ["paper-resnet"], "classes": 3, "in_channels": 1},
    {"name": "paper-resnet"},
    {"classes": 3, "in_channels": 1},
]


@pytest.mark.parametrize("recipe", HOSTILE, ids=lambda recipe: json.dumps(recipe)[:60])
def test_a_recipe_that_fetches_or_grows_is_refused_untouched(
    recipe: dict[str, Any], folder: Path, tmp_path: Path, touched: list[str]
) -> None:
    changed = altered(folder, tmp_path / "model", backbone=recipe)
    touched.clear()  # making the copy wrote files
    with pytest.raises(FileFormatError, match="backbone|the saved backbone cannot be rebuilt"):
        load_model(changed)
    with pytest.raises(FileFormatError):
        load_model(changed, weights=changed / "backbone.safetensors")
    assert not touched


@pytest.mark.parametrize(
    "fields",
    [
        {"input_shape": [1, 30_000, 30_000]},
        {"input_shape": [2**40]},
        {"input_shape": [1] * 50},
        {"classes": 2**40},
        {"draws": 10**9},
        {"spec": {"kind": "conv", "width": 10**9, "share": None, "prior": {"kind": "Gaussian"}, "init": None}},
    ],
    ids=str,
)
def test_numbers_are_within_bounds(fields: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=next(iter(fields))):
        load_model(altered(folder, tmp_path / "model", **fields))


def test_a_trained_method_is_held_to_the_same(tmp_path: Path, touched: list[str]) -> None:
    x = torch.randn(8, 1, 8, 8, generator=generator())
    loader = [(x, torch.arange(8) % 3)]
    recipe = {**PAPER, "width": 8, "blocks": 1, "stem": "small"}
    saved = train_method("threshold", recipe, loader, epochs=1, progress=False).save(tmp_path / "method")
    assert load_trained(saved).classes == 3
    cases = [{"backbone": each} for each in HOSTILE[:5]]
    method = json.loads((saved / "method.json").read_text())["method"]
    cases.append({"method": {**method, "name": "deep-ensemble", "members": 10**7}})
    for number, fields in enumerate(cases):
        changed = altered(saved, tmp_path / str(number), **fields)
        touched.clear()
        with pytest.raises(FileFormatError):
            load_model(changed)
        assert not touched


def test_sizes_are_kept_and_other_options_make_no_recipe() -> None:
    assert make_recipe("vit_b_16", 3, 3, {"image_size": 32, "weights": None}) == {
        "name": "vit_b_16",
        "classes": 3,
        "in_channels": 3,
        "image_size": 32,
    }
    assert make_recipe("timm/resnet10t", 3, 1, {"act_layer": "gelu"}) is None


def test_a_recipe_of_a_known_network_is_built(tmp_path: Path) -> None:
    network = build_backbone("timm/resnet10t", 5, in_channels=1)
    again = rebuild(tmp_path, network.abnn_recipe, network.state_dict())
    assert {n: v.shape for n, v in again.state_dict().items()} == {n: v.shape for n, v in network.state_dict().items()}


def test_shapes() -> None:
    assert is_shape([3, 1024, 1024]) and is_shape([]) and is_shape([MOST_NUMBERS])
    assert not any(map(is_shape, ([3, 0], [True], "3", [MOST_NUMBERS, 2], [1.5], [-1], None)))
