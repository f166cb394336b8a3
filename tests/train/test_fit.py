"""Fitting: what changes and what does not, killed runs, divergence, devices, logs, bad loaders."""

from __future__ import annotations

import copy
import inspect
import math
import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset, WeightedRandomSampler

import abnn
from abnn import tensors
from abnn.config import PRESETS, FitConfig
from abnn.errors import AbnnWarning, DivergedError, FileFormatError, InputError
from abnn.networks.by_name import PaperResNet
from abnn.outliers import Mixed, Outliers, make_outliers
from abnn.tensors import write_tree
from abnn.train.batches import Batches
from abnn.train.checkpoint import Run
from abnn.train.fit import _choose_epochs as choose_epochs
from abnn.train.loop import make_fabric
from tests.conftest import Reader, SmallBatchNormNet, attach_with, mlp


def quiet(**options: Any) -> dict[str, Any]:
    """Arguments of a fit without a progress bar, on the CPU; those that fit() itself does not take go into its config."""
    own = {name: options.pop(name) for name in list(options) if name in inspect.signature(abnn.fit).parameters}
    return {"progress": False, **own, "config": FitConfig(**{"accelerator": "cpu", **options})}


QUIET = quiet()
# A few steps of the authors' preset cost a trained network its accuracy, which is said.
may_forget = pytest.mark.filterwarnings("ignore:Training the backbone with the attachments cost accuracy")


def data(count: int = 96, classes: int = 3, size: int = 8) -> tuple[Tensor, Tensor]:
    """Images whose class is the third of the rows that is bright."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (count,), generator=g)
    x = 0.3 * torch.rand(count, 1, size, size, generator=g)
    for row, label in enumerate(y.tolist()):
        x[row, :, label * 2 : label * 2 + 2] += 0.6
    return x, y


def loader(batch: int = 16, shuffle: bool = True, count: int = 96) -> DataLoader:
    """Of 96 inputs too few would be held out, so that none is; of 120, 24 are."""
    return DataLoader(TensorDataset(*data(count)), batch_size=batch, shuffle=shuffle)


def backbone(trained: bool = True) -> PaperResNet:
    return copy.deepcopy(_backbone(trained))


@cache
def _backbone(trained: bool) -> PaperResNet:
    torch.manual_seed(0)
    network = PaperResNet(1, 3, width=8, blocks=2, stem="small", kaiming=False)
    if trained:
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        x, y = data()
        for _ in range(20):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    return network.eval()


def attached(trained: bool = True, **options: Any) -> abnn.Attached:
    return attach_with(backbone(trained), data()[0][:1], **options)


def values(model: abnn.Attached) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_frozen_fit_changes_attachments_alone() -> None:
    model = attached()
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    means = [layer.weight_mean.detach().clone() for layer in model.layers]
    history = abnn.fit(model, loader(), epochs=2, **QUIET)
    after = model.backbone.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(not torch.equal(old, layer.weight_mean) for old, layer in zip(means, model.layers))
    assert len(history.rows) == 2 and model.is_judge and not model.training
    assert repr(history).startswith("History(epoch 2, id 0.") and len(repr(history)) < 400
    assert {
        "id",
        "outliers",
        "weighted_kl",
        "id_divergence",
        "id_divergence_growth",
        "sigma_mean",
    } <= history.last.keys()


@pytest.mark.no_cover
def test_fit_raises_uncertainty_on_destroyed_content_and_keeps_accuracy() -> None:
    model = attached()
    x, y = data()
    abnn.fit(model, loader(), epochs=15, lr=1e-2, **QUIET)
    known, strange = (
        model.predict(x),
        model.predict(torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(3))),
    )
    assert (known.label == y).float().mean() > 0.95
    assert strange.score_by("entropy").median() > known.score_by("entropy").median()
    assert strange.score.median() > known.score.median()


@pytest.mark.parametrize(("length", "epochs"), [(1, 40), (8, 38), (20, 15), (60, 5), (1000, 5), (None, 5)])
def test_small_data_gets_more_epochs(length: int | None, epochs: int) -> None:
    """As many as 300 steps take, from 5 to 40."""
    assert choose_epochs(None, length) == epochs
    assert choose_epochs(0, length) == 0 and choose_epochs(3, length) == 3


def test_epochs_are_chosen_by_the_data_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abnn.train.fit.STEPS", 12)
    monkeypatch.setattr("abnn.train.fit.EPOCHS", 2)
    assert len(abnn.fit(attached(), loader(count=120), outliers=None, **QUIET).rows) == 2  # of 6 batches, not of 8
    assert len(abnn.fit(attached(), loader(batch=32, count=120), outliers=None, **QUIET).rows) == 4


def test_frozen_batch_norm_statistics_stay() -> None:
    torch.manual_seed(0)
    network = SmallBatchNormNet()
    network(data()[0])
    network.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    model = abnn.attach(network, data()[0][:1])
    abnn.fit(model, loader(), epochs=1, **QUIET)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_joint_training_changes_the_backbone_too() -> None:
    model = attached(trained=False, preset="authors")
    before = {name: value.clone() for name, value in model.backbone.named_parameters()}
    history = abnn.fit(model, loader(), epochs=1, **QUIET)
    assert all(not torch.equal(value, before[name]) for name, value in model.backbone_parameters())
    assert "backbone" in history.last and not model.is_judge
    assert model.predict(data()[0][:4]).default == "max-probability"


def test_what_was_frozen_before_stays_so_in_joint_training() -> None:
    model = attached()
    first, *others = (parameter for _, parameter in model.backbone_parameters())
    first.requires_grad_(False)
    before = [parameter.detach().clone() for parameter in (first, *others)]
    abnn.fit(model, loader(), **quiet(epochs=1, freeze_backbone=False))
    assert torch.equal(first, before[0]) and not first.requires_grad
    assert not any(torch.equal(parameter, value) for parameter, value in zip(others, before[1:]))
    model.backbone.requires_grad_(False)
    with pytest.raises(InputError, match="backbone: got .* no parameter requires gradients"):
        abnn.fit(model, loader(), **quiet(epochs=1, freeze_backbone=False))


def test_a_seed_is_its_number_whatever_its_type() -> None:
    models = [attached() for _ in range(2)]
    for model, seed in zip(models, (3, np.int64(3))):
        abnn.fit(model, loader(), epochs=1, seed=seed, **QUIET)
    one, other = (model.state_dict() for model in models)
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@may_forget
@pytest.mark.parametrize("name", ["default", "paper", "authors"])
@pytest.mark.no_cover
def test_same_seed_gives_the_same_bits_and_another_seed_does_not(name: str) -> None:
    runs = []
    for seed in (1, 1, 2):
        model = attached(preset=name, prior=None, init=abnn.Init(sigma=0.01) if name == "paper" else None)
        abnn.fit(model, loader(), epochs=1, seed=seed, **QUIET)
        runs.append(values(model))
    assert equal(runs[0], runs[1]) and not equal(runs[0], runs[2])


def test_random_state_flags_and_draws_are_left_alone() -> None:
    model = attached(draws=7)
    flags = [parameter.requires_grad for parameter in model.parameters()]
    torch.manual_seed(5)
    state, numbers = torch.get_rng_state(), np.random.get_state()[1].tolist()
    abnn.fit(model, loader(), epochs=1, **QUIET)
    assert torch.equal(state, torch.get_rng_state()) and numbers == np.random.get_state()[1].tolist()
    assert [parameter.requires_grad for parameter in model.parameters()] == flags and model.draws == 7
    assert all(parameter.grad is None for parameter in model.parameters())


class Interrupted:
    """A loader that stops the run, as a user's Ctrl-C does, after so many batches in all."""

    def __init__(self, after: int) -> None:
        self.inner, self.left = loader(), after
        self.dataset = self.inner.dataset

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield batch


@cache
def uninterrupted(preset: str) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """What a run of three epochs ends with."""
    model = attached(preset=preset)
    history = abnn.fit(model, loader(), **quiet(epochs=3, seed=4))
    return values(model), [{**row, "seconds": 0} for row in history.rows]


@may_forget
@pytest.mark.parametrize("preset", ["default", "authors"])
@pytest.mark.parametrize("after", [3, 12, 17])
def test_an_interrupted_run_ends_bit_identical(tmp_path: Path, preset: str, after: int) -> None:
    file = tmp_path / "fit.safetensors"
    settings = quiet(epochs=3, seed=4, checkpoint=file, checkpoint_every=2)
    cut = attached(preset=preset)
    before = (
        6 + 2
    )  # batches that go into the range of values, or into what the backbone knows; and into what data these are
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(cut, Interrupted(before + after), **settings)
    assert file.exists()
    resumed = attached(preset=preset)
    again = abnn.fit(resumed, loader(), **settings)
    whole, rows = uninterrupted(preset)
    assert equal(whole, values(resumed)) and rows == [{**row, "seconds": 0} for row in again.rows]


def test_an_interrupted_run_has_the_order_of_a_sampler_with_epochs(tmp_path: Path) -> None:
    def run(steps: int | None, **options: Any) -> dict[str, Tensor]:
        model, dataset = attached(), TensorDataset(*data())
        sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
        counted: list[float] = []

        def flat(progress: float) -> float:
            counted.append(progress)
            if steps is not None and len(counted) > steps:
                raise KeyboardInterrupt
            return 1.0

        batched = DataLoader(dataset, batch_size=16, sampler=sampler)
        abnn.fit(model, batched, **quiet(epochs=2, schedule=flat, **options))
        return values(model)

    file = tmp_path / "fit.safetensors"
    with pytest.raises(KeyboardInterrupt):
        run(8, checkpoint=file, checkpoint_every=1)
    assert equal(run(None, checkpoint=file, checkpoint_every=1), run(None))


def test_a_run_that_goes_on_after_the_last_step_of_an_epoch_has_the_same_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, settings = tmp_path / "fit.safetensors", quiet(epochs=2, checkpoint_every=6)
    history = abnn.fit(attached(), loader(), **settings)

    def stop(run: Run) -> None:
        save(run)
        raise KeyboardInterrupt

    save = Run.save
    monkeypatch.setattr(Run, "save", stop)  # the epoch's own checkpoint is not written any more
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(attached(), loader(), checkpoint=file, **settings)
    monkeypatch.undo()
    again = abnn.fit(attached(), loader(), checkpoint=file, **settings)
    assert [{**row, "seconds": 0} for row in again.rows] == [{**row, "seconds": 0} for row in history.rows]


def test_checkpoints_that_cannot_be_written_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place, trouble in ((tmp_path, "which is a folder"), (tmp_path / "file" / "fit.safetensors", "is a file")):
        with pytest.raises(InputError, match=f"checkpoint: got .*{trouble}"):
            abnn.fit(attached(), loader(), **quiet(checkpoint=place))


@pytest.mark.parametrize("epochs", [0, 1])
def test_torchs_default_type_may_be_float64(epochs: int) -> None:
    model, data = attached(), loader()
    torch.set_default_dtype(torch.float64)
    try:
        abnn.fit(model, data, **quiet(epochs=epochs))
    finally:
        torch.set_default_dtype(torch.float32)
    assert model.is_judge and all(value.dtype != torch.float64 for value in model.state_dict().values())
    assert model.predict(data.dataset[0][0][None]).score.isfinite().all()


def fit_and_die(file: Path, freeze: bool) -> None:
    """Fit until the fifth checkpoint is half written."""
    real, count = tensors.write_bytes, iter(range(1, 100))

    def write(path: Path, content: bytes) -> None:
        if next(count) == 5:
            Path(f"{path}.part").write_bytes(content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        real(path, content)

    tensors.write_bytes = write
    torch.set_num_threads(1)
    same: dict[str, Any] = {"freeze_backbone": freeze, "epochs": 2, "seed": 4}
    abnn.fit(attached(), loader(), **quiet(checkpoint=file, checkpoint_every=1, **same))


@pytest.mark.skipif(torch.cuda.is_available(), reason="forks cannot use CUDA")
@pytest.mark.parametrize("freeze", [True, False])
def test_a_killed_run_ends_bit_identical(tmp_path: Path, freeze: bool) -> None:
    file = tmp_path / "fit.safetensors"
    child = multiprocessing.get_context("fork").Process(target=fit_and_die, args=(file, freeze), daemon=True)
    child.start()
    child.join(300)  # if it hangs, it has no exit code
    assert child.exitcode == -signal.SIGKILL and file.exists()
    whole, resumed = attached(), attached()
    same: dict[str, Any] = {"freeze_backbone": freeze, "epochs": 2, "seed": 4}
    abnn.fit(whole, loader(), **quiet(**same))
    abnn.fit(resumed, loader(), **quiet(checkpoint=file, checkpoint_every=1, **same))
    assert equal(values(whole), values(resumed))


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    file = tmp_path / "fit.safetensors"
    first, second = attached(), attached()
    abnn.fit(first, loader(), epochs=1, checkpoint=file, **QUIET)
    stamp = file.stat().st_mtime_ns
    abnn.fit(second, loader(), epochs=1, checkpoint=file, **QUIET)
    assert file.stat().st_mtime_ns == stamp and equal(values(first), values(second))


def test_going_on_with_another_number_of_threads_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, threads = tmp_path / "fit.safetensors", torch.get_num_threads()
    abnn.fit(attached(), loader(count=120), epochs=1, checkpoint=file, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        abnn.fit(attached(), loader(count=120), epochs=1, checkpoint=file, **QUIET)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads + 1)
    with pytest.warns(AbnnWarning, match=f"written with {threads} threads.* goes on with {threads + 1}") as caught:
        abnn.fit(attached(), loader(count=120), epochs=1, checkpoint=file, **QUIET)
    assert [warning.filename for warning in caught] == [__file__]


def test_checkpoints_of_other_runs_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "fit.safetensors"
    abnn.fit(attached(), loader(), epochs=1, checkpoint=file, **QUIET)
    with pytest.raises(InputError, match="other settings"):
        abnn.fit(attached(), loader(), epochs=1, lr=0.5, checkpoint=file, **QUIET)
    x, y = data()
    other = attached()
    with torch.no_grad():
        other.backbone.get_parameter(next(name for name, _ in other.backbone_parameters())).mul_(1.5)
    turned = DataLoader(TensorDataset(1 - x, y), batch_size=16, shuffle=True)
    others: list[tuple[abnn.Attached, DataLoader, dict[str, Any], str]] = [
        (attached(), loader(), {"optimizer": "sgd"}, "optimizer"),
        (attached(), loader(), {"schedule": lambda progress: 1.0}, "schedule"),
        (attached(width=2), loader(), {}, "attachments"),
        (attached(), loader(), {"hold_out": 0.1}, "hold_out"),
        (attached(), loader(batch=32), {}, "data"),
        (attached(), turned, {"value_range": (0.0, 1.0)}, "data, outliers"),
        (other, loader(), {}, "backbone"),
    ]
    for model, batches, changes, names in others:
        start = values(model)
        with pytest.raises(InputError, match=rf"other settings \({names}\)"):
            abnn.fit(model, batches, epochs=1, checkpoint=file, **quiet(**changes))
        assert equal(start, values(model))
    write_tree(file, {"format": "something else"})
    with pytest.raises(FileFormatError, match="not a checkpoint"):
        abnn.fit(attached(), loader(), epochs=1, checkpoint=file, **QUIET)
    file.write_bytes(b"\x00" * 10)
    with pytest.raises(FileFormatError, match="not a readable safetensors"):
        abnn.fit(attached(), loader(), epochs=1, checkpoint=file, **QUIET)


def test_checkpoints_of_other_real_outliers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "fit.safetensors"
    real, other = (torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    config = make_outliers(real).to_config()
    assert config == make_outliers(other).to_config() == {"name": "dataset", "severity": [1, 1], "data": "Tensor of 40"}

    def run(outliers: Any) -> dict[str, Tensor]:
        model = attached()
        abnn.fit(model, loader(), **quiet(outliers=outliers, epochs=1, checkpoint=file))
        return values(model)

    first = run(Mixed(parts=("noise", make_outliers(real))))
    with pytest.raises(InputError, match="other settings"):
        run(Mixed(parts=("noise", make_outliers(other))))
    again = run(Mixed(parts=("noise", make_outliers(DataLoader(TensorDataset(real.clone()))))))
    assert equal(first, again)


def test_workers_that_stay_are_warned_about_beside_a_checkpoint(tmp_path: Path) -> None:
    def workers(stay: bool) -> DataLoader:
        return DataLoader(TensorDataset(*data()), batch_size=96, num_workers=1, persistent_workers=stay)

    model = attached()
    with pytest.warns(AbnnWarning, match="persistent_workers=True beside a checkpoint.* Give persistent_workers=False"):
        abnn.fit(model, workers(True), epochs=1, checkpoint=tmp_path / "fit.safetensors", **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        Batches(workers(False), model, make_fabric("32-true", "cpu", 1, 1), 0).warn_if_not_repeatable()


class Shifted(Dataset):
    """Rows of the test data, each read a little brighter than they are: by a fixed amount, or by chance."""

    def __init__(self, by: float | None) -> None:
        self.by, self.rows = by, data()

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        by = torch.rand(()) if self.by is None else self.by
        return self.rows[0][place] + 0.1 * by, int(self.rows[1][place])


def test_a_checkpoint_knows_data_sets_by_their_items(tmp_path: Path) -> None:
    def run(by: float | None) -> None:
        settings = {"epochs": 1, "checkpoint": tmp_path / f"{by is None}.safetensors", **QUIET}
        abnn.fit(attached(), DataLoader(Shifted(by), batch_size=32, shuffle=True), **settings)

    run(0.0)
    run(0.0)
    with pytest.raises(InputError, match="other settings"):
        run(0.5)
    run(None)
    run(None)  # other inputs at every reading, and the same labels


def one_after_the_other(by: float = 0.0, batch: int = 50) -> list[tuple[Tensor, Tensor]]:
    """Batches of a list; the last has other values, if asked."""
    x, y = data()
    x[-1] += by
    return list(zip(x.split(batch), y.split(batch)))


def in_order(batch: int, shuffle: bool, seed: int = 0) -> DataLoader:
    return DataLoader(TensorDataset(*data()), batch, shuffle, generator=torch.Generator().manual_seed(seed))


def weighted(first: float) -> DataLoader:
    weights = [first] * 48 + [1.0] * 48
    return DataLoader(TensorDataset(*data()), 32, sampler=WeightedRandomSampler(weights, 96))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (lambda: one_after_the_other(), lambda: one_after_the_other(by=0.5)),
        (lambda: one_after_the_other(batch=50), lambda: one_after_the_other(batch=60)),
        (lambda: in_order(50, False), lambda: in_order(60, False)),
        (lambda: in_order(32, False), lambda: in_order(32, True)),
        (lambda: weighted(1.0), lambda: weighted(9.0)),
    ],
    ids=["values of a list", "batches of a list", "size of batches", "order", "weights"],
)
def test_other_data_or_another_order_is_refused(tmp_path: Path, then: Any, now: Any) -> None:
    """All have as many batches and inputs as before, so that nothing else can tell."""
    settings = quiet(epochs=1, checkpoint=tmp_path / "fit.safetensors", value_range=(0.0, 1.0))
    model = attached()
    abnn.fit(model, then(), **settings)
    other = attached()
    with pytest.raises(InputError, match=r"other settings \(.*data.*in the same order and in batches of the same size"):
        abnn.fit(other, now(), **settings)
    abnn.fit(other, then(), **settings)
    assert equal(values(model), values(other))


def test_a_generator_of_the_caller_has_no_say_in_the_order(tmp_path: Path) -> None:
    settings = quiet(epochs=1, checkpoint=tmp_path / "fit.safetensors")
    first, second = attached(), attached()
    abnn.fit(first, in_order(32, True, seed=1), **settings)
    abnn.fit(second, in_order(32, True, seed=2), **settings)
    assert equal(values(first), values(second))


class Unsteady:
    """A loader with inputs, and if asked labels, that are other ones at every reading, whatever is seeded."""

    def __init__(self, labels: bool) -> None:
        self.labels, self.random = labels, torch.Generator()
        self.random.seed()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = data()
        order = torch.randperm(len(y), generator=self.random) if self.labels else torch.arange(len(y))
        yield x + 0.1 * torch.rand(x.shape, generator=self.random), y[order]


@pytest.mark.parametrize("labels", [False, True])
def test_a_loader_that_never_repeats_can_go_on(tmp_path: Path, labels: bool) -> None:
    settings = quiet(epochs=1, checkpoint=tmp_path / "fit.safetensors", value_range=(0.0, 1.0))
    first, second = attached(), attached()
    abnn.fit(first, Unsteady(labels), **settings)
    abnn.fit(second, Unsteady(labels), **settings)
    assert equal(dict(first.attachment_parameters()), dict(second.attachment_parameters()))


def test_divergence_keeps_the_last_good_state() -> None:
    model = attached(preset="authors")
    start = values(model)
    with pytest.raises(DivergedError, match=r"epoch 1, step .* set back to its state after 0 complete epochs"):
        abnn.fit(model, loader(), epochs=1, lr=1e30, **QUIET)
    assert equal(start, values(model))


class Poisoned(Outliers):
    """Outliers that are no numbers, from a given step on."""

    left = 10**9

    @property
    def uses_range(self) -> bool:
        return False

    def generate(self, x: Tensor, severity: Tensor | None, rng: Any) -> tuple[Tensor, Tensor]:
        type(self).left -= 1
        return x * (math.nan if type(self).left < 0 else 1.0), torch.ones(len(x))


def test_the_score_of_attachments_as_they_were_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    model = attached()
    abnn.fit(model, loader(), epochs=1, **QUIET)
    assert model.is_judge and model.predict(data()[0][:4]).default == "combined"
    monkeypatch.setattr(Poisoned, "left", 3)
    with pytest.raises(DivergedError):
        abnn.fit(model, loader(), outliers=Poisoned(), epochs=1, **QUIET)
    assert not model.is_judge and model.predict(data()[0][:4]).default != "combined"


def test_divergence_after_going_on_keeps_the_state_of_the_last_whole_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the checkpoint, which is of the middle of the second epoch."""
    file, after = tmp_path / "fit.safetensors", attached()
    settings: dict[str, Any] = {"outliers": Poisoned(), "lr": 1e-3, "schedule": "constant"}
    abnn.fit(after, loader(), **quiet(epochs=1, **settings))
    monkeypatch.setattr(Poisoned, "left", 10**9)
    with pytest.raises(KeyboardInterrupt):
        abnn.fit(attached(), Interrupted(2 + 9), **quiet(epochs=2, checkpoint=file, checkpoint_every=1, **settings))
    monkeypatch.setattr(Poisoned, "left", 1)
    model = attached()
    with pytest.raises(DivergedError, match="epoch 2, step 5: .* set back to its state after 1 complete epochs"):
        abnn.fit(model, loader(), **quiet(epochs=2, checkpoint=file, checkpoint_every=1, **settings))
    assert equal(dict(after.attachment_parameters()), dict(model.attachment_parameters()))


class Breaking(torch.optim.SGD):
    """An optimiser whose step leaves values that are not finite, or a sigma that no network can take."""

    value = math.inf

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.fill_(self.value)


@pytest.mark.parametrize("value", [math.inf, math.nan, -math.inf, 1e5])
def test_a_bad_last_step_of_an_epoch_is_not_kept(tmp_path: Path, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Breaking, "value", value)
    model, whole = attached(), DataLoader(TensorDataset(*data()), batch_size=96)
    start, file = values(model), tmp_path / "fit.safetensors"
    with pytest.raises(DivergedError, match="a trained value is not finite|sigma reached"):
        abnn.fit(model, whole, **quiet(epochs=1, checkpoint=file, optimizer=Breaking))
    assert equal(start, values(model)) and not file.exists()


def test_exploding_sigma_is_noticed() -> None:
    model = attached()
    with torch.no_grad():
        model.layers[0].weight_rho[0] = 1e5
    with pytest.raises(DivergedError, match="sigma reached"):
        abnn.fit(model, loader(), epochs=1, **QUIET)


def test_bf16_follows_full_precision() -> None:
    exact, mixed = attached(), attached()
    first = abnn.fit(exact, loader(), epochs=2, **QUIET)
    second = abnn.fit(mixed, loader(), **quiet(epochs=2, precision="bf16-mixed"))
    # bfloat16 keeps 8 bits, a relative 2^-8 per operation; the losses of this shallow network stay within a few of them.
    assert second.last["id"] == pytest.approx(first.last["id"], rel=0.05, abs=0.02)
    assert all(parameter.dtype == torch.float32 for parameter in mixed.parameters())


def test_logs(tmp_path: Path) -> None:
    abnn.fit(attached(), loader(), **quiet(epochs=2, log=["csv", "tensorboard"], log_dir=tmp_path))
    rows = next(tmp_path.rglob("metrics.csv")).read_text().splitlines()
    assert len(rows) == 3 and "id_divergence" in rows[0]
    assert list(tmp_path.rglob("events.out.tfevents*"))
    with pytest.raises(InputError, match="csv"):
        abnn.fit(attached(), loader(), **quiet(epochs=1, log="cvs", log_dir=tmp_path))


def test_logs_to_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setattr(mlflow.tracking._tracking_service.utils, "_tracking_uri", None)
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    history = abnn.fit(attached(), loader(), **quiet(epochs=2, log="mlflow"))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("abnn").experiment_id])
    assert run.info.status == "FINISHED" and run.data.metrics["id"] == pytest.approx(history.last["id"])
    assert [each.step for each in client.get_metric_history(run.info.run_id, "id")] == [0, 1]
    with mlflow.start_run() as mine:
        abnn.fit(attached(), loader(), **quiet(epochs=1, log="mlflow"))
        assert mlflow.active_run().info.run_id == mine.info.run_id
    assert client.get_run(mine.info.run_id).data.metrics["epoch"] == 1
    model = attached()
    with torch.no_grad():
        model.layers[0].weight_rho[0] = 1e5
    with pytest.raises(DivergedError):
        abnn.fit(model, loader(), **quiet(epochs=1, log=["mlflow", "csv", "tensorboard"], log_dir=tmp_path))
    last, _ = client.search_runs([run.info.experiment_id], order_by=["attributes.start_time DESC"])
    assert last.info.status == "FAILED"


@pytest.mark.parametrize("change", [{"target": "random"}, {"target": "uniform"}, {"distil": 0.0}])
def test_ablation_switches_change_the_result(change: dict[str, Any]) -> None:
    plain, changed = attached(), attached()
    abnn.fit(plain, loader(), epochs=1, **QUIET)
    abnn.fit(changed, loader(), **quiet(epochs=1, objective=replace(PRESETS["default"].objective, **change)))
    assert not equal(values(plain), values(changed))


def test_no_outliers_and_real_outliers() -> None:
    without, real = attached(), attached()
    assert "outliers" not in abnn.fit(without, loader(), outliers=None, epochs=1, **QUIET).last
    own = TensorDataset(torch.rand(40, 1, 8, 8))
    assert "outliers" in abnn.fit(real, loader(), outliers=own, epochs=1, **QUIET).last
    assert not equal(values(without), values(real))


def test_the_range_of_the_users_generator_is_used_and_left_alone() -> None:
    def fitted(outliers: Any, **options: Any) -> list[float]:
        model = attached()
        abnn.fit(model, loader(), **quiet(outliers=outliers, epochs=1, **options))
        return [float(value.detach().double().sum()) for _, value in model.attachment_parameters()]

    wide, fresh = abnn.outliers.Noise(), abnn.outliers.Noise()
    wide.prepare(-50.0, 50.0)
    measured = fitted("noise")
    assert fitted(wide) == fitted("noise", value_range=(-50.0, 50.0)) != measured
    assert fitted(wide, value_range=(-1.0, 1.0)) == fitted("noise", value_range=(-1.0, 1.0))
    assert wide.to_config()["range"] == [[-50.0], [50.0]]
    assert fitted(fresh) == measured and fresh.needs_range


def test_no_attachment_trains_everything_with_outliers() -> None:
    model = attached(trained=False, kind="replace")
    goal = abnn.preset("authors", keep_gradient=False, outliers_update="all").objective
    before = values(model)
    abnn.fit(model, loader(), **quiet(objective=goal, freeze_backbone=False, epochs=1, lr=1e-4))
    after = values(model)
    assert all(not torch.equal(before[name], after[name]) for name in before if name.startswith("net.head"))
    with pytest.raises(InputError, match="freeze_backbone"):
        abnn.fit(model, loader(), **quiet(objective=goal, freeze_backbone=True, epochs=1))


def test_outliers_that_no_network_can_take_are_named() -> None:
    with pytest.raises(DivergedError, match="outliers nan.* check that outliers are finite"):
        abnn.fit(attached(), loader(), outliers=torch.full((8, 1, 8, 8), torch.nan), epochs=1, **QUIET)


def test_tabular_data() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.randint(3, (64,))
    model = abnn.attach(mlp().eval(), x[:1])
    abnn.fit(model, [(x[:32], y[:32]), (x[32:], y[32:])], epochs=2, **QUIET)
    assert model.predict(x).score.shape == (64,)


def test_own_optimiser_schedule_and_range() -> None:
    model = attached()
    seen: list[float] = []
    options = quiet(
        epochs=2,
        optimizer=lambda parameters, lr: torch.optim.RMSprop(parameters, lr=lr),
        schedule=lambda progress: seen.append(progress) or 0.5,  # type: ignore[func-returns-value]
        value_range=(0.0, 1.0),
    )
    history = abnn.fit(model, loader(), **options)
    assert seen == pytest.approx([step / 12 for step in range(12)])
    assert history.last["lr_factor"] == 0.5


X, Y = data(8)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "loader: got a loader without batches"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "without batches"),
        (X, "loader: got Tensor"),
        (iter([(X, Y)]), "every time it is iterated"),
        ([X], r"pairs \(inputs, labels\)"),
        ([(X, Y, Y)], "tuple of 3"),
        ([(X, Y + 1)], "0 to 2, the backbone's classes"),
        ([(X, Y - 5)], "labels from -5"),
        ([(X, nn.functional.one_hot(Y, 3))], "Give class numbers, not one-hot"),
        ([(X, Y[:, None])], r"labels of shape .*Give y\[:, 0\]"),
        ([(X, Y.float())], r"type torch.float32 .*one whole number per input. Give y.long\(\), or .*regression"),
        ([(X, Y[:4])], "for 8 inputs"),
        ([(X[:, 0], Y)], "Check the rank"),
        ([(X.repeat(1, 3, 1, 1), Y)], "Check channels"),
        (
            [(torch.full_like(X, torch.nan), Y)],
            "NaN or infinite values in rows 0, 1, .* of the batch.*Found in batch 0 of the loader",
        ),
        (
            [(X, Y), (torch.full_like(X, torch.inf), Y)],
            "NaN or infinite values in rows .*Found in batch 1 of the loader",
        ),
        ([("x", Y)], "x: got str"),
    ],
)
def test_bad_loaders(batches: Any, message: str) -> None:
    model = attached()
    start, modes = values(model), [module.training for module in model.modules()]
    with pytest.raises(InputError, match=message):
        abnn.fit(model, batches, epochs=1, **QUIET)
    assert equal(start, values(model)) and modes == [module.training for module in model.modules()]


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("row", [2, 119])  # of a batch, and of those that are held out
def test_tokens_without_an_embedding_are_explained(several: bool, epochs: int, row: int) -> None:
    x, y = torch.arange(120 * 5).view(120, 5) % 20, torch.arange(120) % 3
    x[row, 1] = 20
    batches = [({"input_ids": x}, y) if several else (x, y)]
    model = abnn.attach(Reader(), {"input_ids": x[:1]} if several else x[:1])
    message = r"x: got whole numbers from 0 to 20 in shape \(120, 5\), on which the network fails: .*tokenizer"
    with pytest.raises(InputError, match=message):
        abnn.fit(model, batches, epochs=epochs, **QUIET)
    with pytest.raises(InputError, match=message):
        abnn.loss(model, *batches[0])


def test_an_index_error_that_is_not_about_tokens_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise IndexError("of something else")

    monkeypatch.setattr("abnn.train.fit.learn_score", fails)
    x, y = torch.arange(8 * 5).view(8, 5) % 20, torch.arange(8) % 3
    with pytest.raises(IndexError, match="of something else"):
        abnn.fit(abnn.attach(Reader(), x[:1]), [(x, y)], epochs=0, **QUIET)
    with pytest.raises(IndexError, match="of something else"):
        abnn.fit(attached(), [(X, Y)], epochs=0, **QUIET)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": -1}, "epochs: got -1"),
        ({"hold_out": 0.6}, "hold_out: got 0.6; accepted: a number from 0 to 0.5"),
        ({"epochs": "3"}, "epochs: got '3'"),
        ({"lr": 0.0}, "lr"),
        ({"lr": "fast"}, "lr: got 'fast'"),
        ({"lr": float("inf")}, "lr: got inf"),
        ({"lr": True}, "lr: got True"),
        (
            {"outliers": torch.zeros(4, 1, 8, 8, dtype=torch.uint8)},
            "data: got items of torch.uint8; .*Scale and convert",
        ),
        ({"seed": "a"}, "seed: got 'a'"),
        ({"objective": "paper"}, "objective: got 'paper'; .* abnn.preset"),
        ({"value_range": 5}, r"value_range: got 5; accepted: \(low, high\)"),
        ({"backbone_lr": -1.0}, "backbone_lr: got -1.0; accepted: a positive number, or None for the preset's"),
        ({"precision": "16"}, "precision"),
        ({"optimizer": "adma"}, "Did you mean 'adam'"),
        ({"schedule": "cosin"}, "Did you mean 'cosine'"),
        ({"outliers": "nois"}, "Did you mean 'noise'"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        abnn.fit(attached(), loader(), **quiet(**{"epochs": 1, **options}))


def test_a_plain_network_is_not_a_model() -> None:
    with pytest.raises(InputError, match="what abnn.attach"):
        abnn.fit(backbone(), loader(), **QUIET)  # type: ignore[arg-type]


def test_attachments_of_a_network_in_float16_are_not_trained() -> None:
    x, y = torch.rand(120, 6).half(), torch.arange(120) % 3
    model = abnn.attach(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).half().eval(), x[:1])
    with pytest.raises(InputError, match=r"model: got a network in float16.*epochs=0"):
        abnn.fit(model, [(x, y)], **QUIET)
    abnn.fit(model, [(x, y)], epochs=0, **QUIET)
