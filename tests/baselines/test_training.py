"""Training of any method: resume, backbones of any kind, batch normalisation, precision, logs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from abnn.baselines import Method, TrainConfig, make_method, train_method
from abnn.baselines.p_sgld import Samples
from abnn.errors import InputError
from abnn.outliers import Noise
from tests.baselines.samples import TINY, digits, quick, state
from tests.conftest import SmallBatchNormNet, mlp


class Killed(Exception):
    pass


class Loader:
    """Three batches in a fixed order; dies when it has given ``most`` in all."""

    def __init__(self, most: int | None = None) -> None:
        self.left = most
        x, y = digits()
        self.batches = [(x[i : i + 32], y[i : i + 32]) for i in range(0, 96, 32)]

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in self.batches:
            if self.left is not None:
                if self.left == 0:
                    raise Killed
                self.left -= 1
            yield batch


METHODS: list[Method] = [
    make_method("woods"),
    make_method("woods", "authors"),
    make_method("p-sgld", samples=4, burn_in=0.2),
    make_method("sde-net", lr=0.01),
    make_method("abnn"),
    make_method("deep-ensemble", members=2),
    make_method("vboe"),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: f"{method.name}-{method.variant}")
def test_a_killed_run_ends_as_one_that_was_not(method: Method, tmp_path: Path) -> None:
    """Killed twice, after nine batches from wherever it was, and the two that tell which data these are."""
    options: dict[str, Any] = {"seed": 3, "progress": False}
    whole = train_method(method, TINY, Loader(), 4, **options, config=TrainConfig(accelerator="cpu"))
    config = TrainConfig(accelerator="cpu", checkpoint=tmp_path / "run.safetensors", checkpoint_every=1)
    for _ in range(2):
        with pytest.raises(Killed):
            train_method(method, TINY, Loader(2 + 9), 4, **options, config=config)
        assert any(tmp_path.iterdir())
    resumed = train_method(method, TINY, Loader(), 4, **options, config=config)
    assert state(whole).keys() == state(resumed).keys()
    for name, value in state(whole).items():
        assert torch.equal(value, state(resumed)[name]), name
    for stage, history in whole.history.items():
        again = resumed.history[stage].rows
        for left, right in zip(history.rows, again, strict=True):
            assert {**left, "seconds": 0} == {**right, "seconds": 0}


def test_state_beyond_parameters_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    """The kept samples of a chain are found again, not collected anew."""
    method = make_method("p-sgld", samples=4, burn_in=0.2)
    config = TrainConfig(accelerator="cpu", checkpoint=tmp_path / "c.safetensors")
    options: dict[str, Any] = {"progress": False, "config": config}
    first = train_method(method, TINY, Loader(), 6, **options)
    again = train_method(method, TINY, Loader(), 6, **options)  # nothing is left to do
    assert isinstance(first.network, Samples) and isinstance(again.network, Samples)
    assert int(again.network.count) == 4 and torch.equal(first.network.kept, again.network.kept)


def test_another_run_does_not_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    quick("threshold", 1, checkpoint=path)
    for other in (make_method("threshold", lr=0.2), make_method("oe")):
        with pytest.raises(InputError, match="written by a run with other settings"):
            quick(other, 1, checkpoint=path)


def test_a_checkpoint_belongs_to_its_real_outliers(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    quick("oe", 1, checkpoint=path, outliers=torch.zeros(10, 1, 8, 8))
    with pytest.raises(InputError, match="written by a run with other settings"):
        quick("oe", 1, checkpoint=path, outliers=torch.ones(10, 1, 8, 8))
    quick("oe", 1, checkpoint=path, outliers=torch.zeros(10, 1, 8, 8))


def test_stages_have_checkpoints_of_their_own(tmp_path: Path) -> None:
    quick("woods", 2, checkpoint=tmp_path / "c.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c-pretrain.safetensors", "c-wild.safetensors"]


def test_a_given_network_is_copied_and_not_changed() -> None:
    network = SmallBatchNormNet(10)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = quick("threshold", 1, backbone=network)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not torch.equal(model.network.head.weight, network.head.weight)  # type: ignore[arg-type,union-attr]


def test_backbones_by_name_by_recipe_and_by_function() -> None:
    by_recipe = quick("threshold", 1)
    by_function = quick("threshold", 1, backbone=lambda: _tiny())
    assert all(torch.equal(value, state(by_function)[name]) for name, value in state(by_recipe).items())
    assert by_function.recipe == by_recipe.recipe == {**TINY, "kaiming": True}
    bayesian = quick("bbp", 1)
    assert bayesian.recipe == {**TINY, "kaiming": False}


def _tiny() -> nn.Module:
    from abnn.networks.by_name import build_backbone

    return build_backbone(**TINY, kaiming=True)


@pytest.mark.parametrize("name", ["threshold", "oe", "woods", "vboe", "mc-dropout", "abnn"])
def test_normalisation_statistics_never_see_outliers(name: str) -> None:
    """Statistics count one batch for each step in which the network itself learns from ID data."""
    model = quick(name, 2, backbone=SmallBatchNormNet(10))
    counts = [v.item() for key, v in model.network.state_dict().items() if key.endswith("num_batches_tracked")]
    learning = 3 if name == "abnn" else 6  # attachments learn beside a frozen network
    assert counts and set(counts) == {learning}


def test_flat_inputs() -> None:
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    batches = [(x[:30], (x[:30, 0] > 0).long()), (x[30:], (x[30:, 0] > 0).long())]
    for name in ("threshold", "oe", "woods", "vboe", "p-sgld", "abnn", "bbp"):
        model = train_method(name, lambda: mlp(6, 2), batches, 2, progress=False, config=TrainConfig(accelerator="cpu"))
        assert model.predict(x[:3], draws=2).probs.shape == (3, 2)


def test_own_outliers_and_value_range() -> None:
    real = torch.zeros(10, 1, 8, 8)
    model = quick("oe", 1, outliers=real)
    assert model.history["train"].last["outliers"] > 0
    assert quick("oe", 1, outliers="noise", value_range=(0.0, 1.0)).history["train"].last["outliers"] > 0
    wide = Noise()
    wide.prepare(-50.0, 50.0)
    own, given = quick("oe", 1, outliers=wide), quick("oe", 1, outliers="noise", value_range=(-50.0, 50.0))
    assert own.history["train"].last["outliers"] == given.history["train"].last["outliers"]
    assert wide.to_config()["range"] == [[-50.0], [50.0]]


@pytest.mark.parametrize("name", ["oe", "sde-net", "deep-ensemble", "abnn"])
def test_mixed_precision(name: str) -> None:
    model = quick(name, 1, precision="bf16-mixed")
    assert all(value.dtype != torch.bfloat16 for value in state(model).values())
    assert torch.isfinite(model.predict(digits().x[:2], draws=2).score).all()


def test_logs(tmp_path: Path) -> None:
    quick("threshold", 2, log="csv", log_dir=tmp_path)
    text = "\n".join(path.read_text() for path in tmp_path.rglob("*.csv"))
    assert "cross_entropy" in text
