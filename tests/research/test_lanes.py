from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from abnn.baselines import TrainConfig, make_method, train_method
from abnn.errors import InputError
from abnn.train.loop import to_end
from research.lanes import together
from research.seeds import train_seeds

BACKBONE = {"name": "paper-resnet", "classes": 3, "in_channels": 1, "width": 32, "blocks": 1, "stem": "small"}
CUDA = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))
CPU = TrainConfig(accelerator="cpu")


def counting(upto: int, seen: list[int]) -> Generator[None, None, int]:
    for number in range(upto):
        seen.append(number)
        yield
    return upto


def loader() -> DataLoader:
    x = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, torch.arange(40) % 3), batch_size=8, shuffle=True)


def test_a_run_gives_what_it_returns() -> None:
    seen: list[int] = []
    assert to_end(counting(3, seen)) == 3
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_runs_of_different_length_give_their_results_in_order(device: str) -> None:
    assert together([counting(n, []) for n in (2, 5, 0)], torch.device(device)) == [2, 5, 0]


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_an_error_of_one_run_closes_the_others(device: str) -> None:
    closed: list[str] = []

    def patient() -> Generator[None, None, None]:
        try:
            while True:
                yield
        finally:
            closed.append("patient")

    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    runs = [failing(), patient()] if device == "cpu" else [patient(), failing()]
    with pytest.raises(ValueError, match="broken"):
        together(runs, torch.device(device))
    assert closed == ([] if device == "cpu" else ["patient"])


@pytest.mark.parametrize("method", ["threshold", "abnn"])
def test_seeds_together_are_the_single_runs(method: str) -> None:
    many = train_seeds(method, BACKBONE, loader(), 2, seeds=[3, 4], config=CPU, progress=False)
    for seed, together_ in zip([3, 4], many):
        alone = train_method(method, BACKBONE, loader(), 2, seed=seed, config=CPU, progress=False)
        for name, value in alone.network.state_dict().items():
            assert torch.equal(value, together_.network.state_dict()[name]), name
    first, second = (each.network.state_dict() for each in many)
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_every_seed_may_start_from_a_network_of_its_own() -> None:
    starts = train_seeds("threshold", BACKBONE, loader(), 1, seeds=[0, 1], config=CPU, progress=False)
    networks = [each.network for each in starts]
    fitted = train_seeds("abnn", networks, loader(), 1, seeds=[0, 1], config=CPU, progress=False)
    for start, end in zip(networks, fitted):
        for name, value in start.state_dict().items():
            assert torch.equal(value, end.network.backbone.state_dict()[name])


@pytest.mark.parametrize(
    "wrong, message",
    [({"seeds": []}, "seeds: got"), ({"seeds": [0, 1], "backbone": [torch.nn.Identity()]}, "1 networks")],
)
def test_wrong_input(wrong: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        train_seeds("threshold", loader=loader(), **{"backbone": BACKBONE, **wrong})


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_seeds_at_once_on_cuda_agree_with_single_runs() -> None:
    """The same kernels on the same numbers; only sums whose order is free may differ in their last digits."""
    many = train_seeds("threshold", BACKBONE, loader(), 6, seeds=[3, 4, 5], progress=False)
    for seed, at_once in zip([3, 4, 5], many):
        alone = train_method("threshold", BACKBONE, loader(), 6, seed=seed, progress=False)
        gap = abs(alone.history["train"].last["cross_entropy"] - at_once.history["train"].last["cross_entropy"])
        assert gap < 1e-2 * alone.history["train"].last["cross_entropy"] + 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_replaced_blocks_need_not_be_on_the_device() -> None:
    """The blocks that Bayesian ones replace are no part of what trains; they stay where they were."""
    method = make_method(
        "abnn", "authors", attach={"kind": "replace", "share": None}, objective={"outliers_update": "all"}
    )
    trained = train_seeds(method, BACKBONE, loader(), 1, seeds=[0], progress=False)[0]
    assert len(trained.history["attachments"].rows) == 1
