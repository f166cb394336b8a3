"""Saved folders of every kind: what is changed or mixed up after saving is refused, by the name of the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import abnn
from abnn.baselines import load_trained
from abnn.baselines.posthoc.model import PostHocModel
from abnn.errors import FileFormatError, InputError
from abnn.predict import Plain
from abnn.store.folder import read_folder, write_folder
from abnn.store.schema import PostHocScores
from tests.baselines.samples import quick
from tests.conftest import randomise_attachments
from tests.train.test_fit import backbone, data

X = data()[0]
Saved = tuple[Path, Callable[[Path], Any]]


@pytest.fixture(scope="module", params=["model", "method", "scores"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """A folder of each kind, and what loads it."""
    path, network = tmp_path_factory.mktemp("saved") / "folder", backbone()
    if request.param == "model":
        return abnn.attach(network, X[:1]).save(path, backbone=True), lambda each: abnn.load(each, network)
    if request.param == "method":
        return quick("threshold", 1).save(path), load_trained
    plain = Plain(network, X[:1])
    scores = PostHocModel(plain, ("energy", "knn")).fit([data()])
    return scores.save(path), lambda each: PostHocModel.load(each, plain)


def test_every_flipped_bit_is_refused(saved: Saved, tmp_path: Path) -> None:
    """In tensors and in the description; a flip that leaves the description's values alone, in white space, may pass."""
    folder, load = saved
    load(folder)
    rng = random.Random(0)
    for file in sorted(folder.iterdir()):
        content = file.read_bytes()
        for _ in range(30):
            place, bit = rng.randrange(len(content)), rng.randrange(8)
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            file.write_bytes(bytes(damaged))
            if file.suffix == ".json" and _same_json(content, bytes(damaged)):
                continue
            with pytest.raises(FileFormatError, match=file.name if file.suffix == ".safetensors" else None):
                load(folder)
        file.write_bytes(content)
    load(folder)


def _same_json(left: bytes, right: bytes) -> bool:
    try:
        return json.loads(left) == json.loads(right)
    except ValueError:
        return False


def test_attachments_of_another_fit_are_refused(tmp_path: Path) -> None:
    network = backbone()
    model = abnn.attach(network, X[:1])
    one, two = (randomise_attachments(model).save(tmp_path / name, backbone=True) for name in ("one", "two"))
    (one / "attachments.safetensors").write_bytes((two / "attachments.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="attachments.safetensors is not the file that was saved with abnn.json"):
        abnn.load(one, network)
    alone = model.save(tmp_path / "alone")
    (alone / "backbone.safetensors").write_bytes((two / "backbone.safetensors").read_bytes())
    with pytest.raises(FileFormatError, match="backbone.safetensors is not the file that was saved"):
        abnn.load(alone, network)


def test_other_thresholds_are_refused(tmp_path: Path) -> None:
    network, triage = backbone(), abnn.Triage(0.1, 0.2, 0.05, 0.01, "entropy", 10, 0, 50)
    path = abnn.attach(network, X[:1]).save(tmp_path / "model", triage=triage)
    text = (path / "abnn.json").read_text()
    (path / "abnn.json").write_text(text.replace('"notice": 0.1', '"notice": 0.15'))
    with pytest.raises(FileFormatError, match="abnn.json was changed since it was saved"):
        abnn.load(path, network)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"scores": [], "score": "energy", "of": "model", "at": None, "fingerprint": "0" * 64}
    parts = {"scores.safetensors": {"energy/x": torch.ones(2)}}
    with pytest.raises(FileFormatError, match="scores is .*It could not be loaded again"):
        write_folder(tmp_path / "folder", PostHocScores, fields, parts)
    assert not (tmp_path / "folder").exists()
    fields["scores"] = [{"name": "energy", "settings": {}}]
    path = write_folder(tmp_path / "folder", PostHocScores, fields, parts)
    assert read_folder(path, PostHocScores).files.keys() == {"scores.safetensors"}
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="is not a saved set of post-hoc scores"):
        write_folder(tmp_path / "mine", PostHocScores, fields, parts)
