"""What a fit leaves as it was, and the surroundings and data in which it must work."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import abnn
from abnn.bayes.noise import held_noise, tensors_of
from abnn.config import preset
from abnn.errors import InputError
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric, to_end, training
from abnn.train.steps import Steps
from research.lanes import together
from tests.conftest import mlp
from tests.train.test_fit import QUIET, attached, backbone, data, equal, loader, may_forget, quiet, values


@pytest.mark.parametrize("hold", [{"draws": 5, "seed": 3}, {"draws": 2}])
def test_held_draws_are_the_same_before_and_after(hold: dict[str, int]) -> None:
    model = attached(seed=1)
    model.resample(**hold)  # those of another seed than 0, or of none
    before = [part.clone() for part in tensors_of(held_noise(model.layers))]
    abnn.fit(model, loader(), epochs=1, **QUIET)
    after = tensors_of(held_noise(model.layers))
    assert model.draws == hold["draws"] and all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@may_forget
@pytest.mark.parametrize(("preset", "draws"), [("default", 5), ("paper", 0)])
def test_a_fitted_model_is_saved_with_the_draws_that_it_holds(preset: str, draws: int, tmp_path: Any) -> None:
    """Those of its steps are others: none in the default, some in the paper's."""
    network, x = backbone(), data()[0]
    model = abnn.attach(network, x[:1], preset=preset, draws=draws)
    abnn.fit(model, loader(), epochs=1, **QUIET)
    assert model.mean_weights is (draws == 0)
    model.save(tmp_path / "model", backbone=True)
    assert torch.equal(abnn.load(tmp_path / "model", network)(x), model.eval()(x))


def test_generators_of_the_loader_are_left_alone_and_have_no_say() -> None:
    """Neither that of the loader nor that of its sampler, whatever state they are in."""
    results = []
    for seed in (1, 2):
        dataset, generator, own = TensorDataset(*data()), torch.Generator(), torch.Generator()
        for each in (generator, own):
            each.manual_seed(seed)
        state = own.get_state()
        sampler = RandomSampler(dataset, generator=own)
        model = attached()
        abnn.fit(model, DataLoader(dataset, 16, sampler=sampler, generator=generator), epochs=1, **QUIET)
        assert torch.equal(own.get_state(), state) and torch.equal(generator.get_state(), state)
        results.append(values(model))
    assert equal(*results)


class Endless(IterableDataset):
    """Inputs whose number nobody knows before they are read."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(*data())


@pytest.mark.filterwarnings("ignore:loader. got a DataLoader of whose inputs none can be held out")
def test_a_loader_without_a_length() -> None:
    model, same = attached(), attached()
    history = abnn.fit(model, DataLoader(Endless(), batch_size=16), **quiet(epochs=2, schedule="constant"))
    abnn.fit(same, loader(shuffle=False), **quiet(epochs=2, schedule="constant"))
    assert len(history.rows) == 2 and equal(values(model), values(same))


@pytest.mark.filterwarnings("ignore:loader. got a DataLoader of whose inputs none can be held out")
def test_a_checkpoint_beside_a_loader_without_a_length(tmp_path: Any) -> None:
    whole, resumed = attached(), attached()
    file, batches = tmp_path / "fit.safetensors", DataLoader(Endless(), batch_size=16)
    abnn.fit(whole, batches, epochs=2, **QUIET)
    counted: list[float] = []

    def stop(progress: float) -> float:
        counted.append(progress)
        if len(counted) == 9:
            raise KeyboardInterrupt
        return 1.0

    stopped = {"checkpoint": file, "checkpoint_every": 1, "schedule": stop}
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(attached(), batches, **quiet(epochs=2, **stopped))
    abnn.fit(resumed, batches, **quiet(epochs=2, **stopped))
    plain = attached()
    abnn.fit(plain, batches, **quiet(epochs=2, schedule="constant"))
    assert equal(values(resumed), values(plain)) and not equal(values(whole), values(plain))


def test_under_inference_mode() -> None:
    model, same = attached(), attached()
    with torch.inference_mode():
        x, y = (part.clone() for part in data())  # tensors that gradients cannot pass
        abnn.fit(model, [(x[:48], y[:48]), (x[48:], y[48:])], epochs=1, **QUIET)
        assert torch.is_inference_mode_enabled()
    x, y = data()
    abnn.fit(same, [(x[:48], y[:48]), (x[48:], y[48:])], epochs=1, **QUIET)
    assert equal(values(model), values(same))
    with torch.inference_mode():
        frozen = abnn.attach(mlp(), torch.zeros(1, 6))
    with pytest.raises(InputError, match="made under torch.inference_mode.*attach outside"):
        abnn.fit(frozen, [(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long))], **QUIET)


def flag() -> bool:
    return torch.backends.cudnn.benchmark


def started_run() -> Generator[None, None, Any]:
    """A run of one epoch, as train_seeds() starts several of them to take turns."""
    model, fabric = attached(), make_fabric("32-true", "cpu", 1, 1)
    optimizer = torch.optim.Adam([parameter for _, parameter in model.attachment_parameters()])
    steps = Steps(model, preset("default").objective, None, fabric, {"attachments": optimizer})
    return training(steps, Batches(loader(), model, fabric, 0), fabric, 1, {}, progress=False)


def test_runs_that_take_turns_leave_the_flag_of_cudnn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that sets it, and puts it back at its own end, puts it back while others run, and the last to end sets it."""
    during: list[bool] = []

    def watching(run: Generator[None, None, Any]) -> Generator[None, None, Any]:
        for _ in run:
            during.append(flag())
            yield

    before = flag()
    run = started_run()
    next(run)
    assert flag() is before  # no run changes it on its own
    run.close()
    to_end(watching(started_run()))
    together([watching(started_run()), watching(started_run())], torch.device("cpu"))
    assert all(during) and flag() is before

    def failing() -> Generator[None, None, None]:
        yield
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        to_end(failing())
    assert flag() is before


def without_spread(scale: float = 1.0) -> tuple[nn.Module, Tensor, Tensor]:
    """A network with activations of a size, and data of which every class is one point."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 16, 3)
    ).eval()
    with torch.no_grad():
        network[0].weight.mul_(scale)
        network[-1].weight.div_(scale)
    y = torch.arange(96) % 3
    x = torch.zeros(96, 1, 8, 8)
    x[y == 1, :, 2], x[y == 2, :, 5] = 3.7, 1.1
    return network, x, y


@pytest.mark.parametrize(("scale", "noise"), [(1.0, 0.0), (1e6, 0.0), (1e20, 1.0), (1e28, 1.0)])
def test_classes_without_spread_and_huge_activations(scale: float, noise: float) -> None:
    network, x, y = without_spread(scale)
    x = x + noise * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))
    model = abnn.attach(network, x[:1])
    abnn.fit(model, DataLoader(TensorDataset(x, y), 16), epochs=1, **QUIET)
    assert model.closed_form is not None and model.is_judge
    for part in (model.closed_form, model.combined):
        assert all(value.isfinite().all() for value in part.state_dict().values())
    if noise == 0:
        far = model.predict(torch.rand(16, 1, 8, 8) * 9).score
        assert model.predict(x).score.isfinite().all() and far.median() > model.predict(x).score.median()
