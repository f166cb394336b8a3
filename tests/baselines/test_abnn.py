from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from abnn.attached import Attached
from abnn.baselines import load_trained, make_method
from abnn.config import PRESETS
from abnn.errors import FileFormatError, InputError
from tests.baselines.samples import digits, quick
from tests.conftest import alter


def test_the_default_freezes_what_plain_training_gives() -> None:
    model = quick("abnn", 4)
    plain = quick("threshold", 3)
    assert isinstance(model.network, Attached)
    for name, value in plain.network.state_dict().items():
        assert torch.equal(value, model.network.backbone.state_dict()[name]), name
    assert [history.rows[-1]["epoch"] for history in model.history.values()] == [3, 1]
    assert model.network.is_judge


def test_predictions_are_those_of_the_attached_model() -> None:
    model = quick("abnn")
    assert isinstance(model.network, Attached)
    x = digits().x[:4]
    mine, its = model.predict(x, draws=3, seed=2), model.network.predict(x, draws=3, seed=2)
    assert torch.equal(mine.samples, its.samples) and torch.equal(mine.score, its.score_by("combined"))
    for score in ("distance", "energy", "mutual-information"):
        assert torch.equal(model.predict(x, draws=3, seed=2, score=score).score, its.score_by(score))


def test_statistics_of_features_without_attachments_are_refused(tmp_path: Path) -> None:
    path = alter(quick("abnn").save(tmp_path / "model"), version=1)
    with pytest.raises(FileFormatError, match="written in format 1.*formats from 2 to 4. Fit the model again"):
        load_trained(path)


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_joint_presets_train_everything_at_once(variant: str) -> None:
    method = make_method("abnn", variant)
    model = quick(method, 2)
    assert isinstance(model.network, Attached)
    chosen = PRESETS[variant]
    assert model.network.preset == variant and model.network.spec.kind == "chain"
    assert list(model.history) == ["attachments"]
    assert {"backbone", "id", "outliers"} <= set(model.history["attachments"].last)
    assert model.score == chosen.score == "max-probability"
    assert not model.network.is_judge


def test_the_default_can_train_the_backbone_beside_the_attachments() -> None:
    plain = quick("threshold", 2)
    method = make_method("abnn", pretrain=0.0, freeze=False, lr=1e-3)
    model = quick(method, 2, backbone=plain.network)
    assert isinstance(model.network, Attached)
    assert {"id", "outliers"} <= set(model.history["attachments"].last)
    assert "backbone" not in model.history["attachments"].last  # no step of its own
    before, after = plain.network.state_dict(), model.network.backbone.state_dict()
    assert any(not torch.equal(value, after[name]) for name, value in before.items())
    assert model.network.is_judge and model.score == "combined"  # of the network as it is in the end
    assert make_method(**method.to_config()) == method


def test_what_the_preset_says_about_freezing_is_not_said_again() -> None:
    assert "freeze" not in make_method("abnn").to_config()  # records from before it could be chosen stay what they are
    assert make_method("abnn", "authors", freeze=True).frozen and not make_method("abnn", "authors").frozen


@pytest.mark.parametrize(
    "options,words",
    [
        ({"freeze": "yes"}, "freeze: got 'yes'; accepted: True, False or None"),
        ({"freeze": 1}, "freeze"),
        ({"variant": "authors", "freeze": True, "objective": {"outliers_update": "all"}}, "Set freeze=False"),
        ({"attachment_schedule": "nope"}, "attachment_schedule"),
        ({"objective": {"draws": 3}}, "draws: got 3"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_method("abnn", **options)


def test_the_default_variant_has_two_names() -> None:
    reference, default = make_method("abnn").to_config(), make_method("abnn", "default").to_config()
    assert {**reference, "variant": "default"} == default


def test_outliers_may_be_left_out() -> None:
    model = quick("abnn", outliers=None)
    assert "outliers" not in model.history["attachments"].last
