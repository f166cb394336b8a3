"""Training by two processes at once, all in one start of them: what they must agree on, and what they must share out.

They are forks of this one, told what torchrun tells those that it starts: importing everything anew takes longer than the tests.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

import abnn
import abnn.train.fit
from abnn.baselines import make_method
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric
from tests.baselines.samples import quick, state
from tests.train.test_fit import attached, backbone, data, equal, loader, quiet, values

PATIENCE = 300  # seconds, after which it hangs


class Stopping:
    """A schedule that stops all processes at the same step, as if they were killed, unless told not to."""

    __qualname__ = "Stopping"
    stop = False

    def __call__(self, progress: float) -> float:
        if self.stop and progress > 0.6:
            raise KeyboardInterrupt
        return 1.0


def score_alone(**options: Any) -> dict[str, Any]:
    """What is learnt without training and outliers: that of all inputs, whatever the number of processes."""
    model = attached()
    abnn.fit(model, loader(count=120, shuffle=False), outliers=None, **quiet(epochs=0, **options))
    prediction = model.predict(data(200)[0])
    return {**values(model), "score": prediction.score}


def resuming(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """An uninterrupted run, and one that was stopped in the middle of its second epoch."""
    whole, stopped, resumed = attached(), attached(), attached()
    schedule = Stopping()
    same = quiet(epochs=2, checkpoint_every=1, schedule=schedule, devices=2)
    abnn.fit(whole, loader(), checkpoint=folder / "whole.safetensors", **same)
    schedule.stop = True
    try:
        abnn.fit(stopped, loader(), checkpoint=folder / "stopped.safetensors", **same)
        raise AssertionError("was not stopped")
    except KeyboardInterrupt:
        schedule.stop = False
    abnn.fit(resumed, loader(), checkpoint=folder / "stopped.safetensors", **same)
    return values(whole), values(resumed)


def all_defaults() -> dict[str, Any]:
    """The whole way with every setting left as it is, but for the number of processes: attach, fit, calibrate, predict."""
    x, y = data(240)
    model = abnn.attach(backbone(), x[:1])
    accuracy = (model.predict(x).label == y).float().mean()
    abnn.fit(model, loader(count=240), progress=False, config=abnn.FitConfig(accelerator="cpu", devices=2))
    triage = abnn.calibrate(model, loader(count=120, shuffle=False), progress=False)
    prediction = model.predict(x)
    assert prediction.stated is not None
    said = {"score": prediction.score, "probs": prediction.probs, "stated": prediction.stated}
    levels = torch.tensor([triage.notice, triage.reject], dtype=torch.float64)
    far = model.predict(5 * torch.randn(50, *x.shape[1:], generator=torch.Generator().manual_seed(0)))
    rejected = torch.tensor([verdict == "reject" for verdict in far.verdict])
    gained = (prediction.label == y).float().mean() - accuracy
    return {**values(model), **said, "levels": levels, "rejected": rejected, "gained": gained}


def langevin() -> dict[str, Any]:
    return state(quick(make_method("p-sgld", samples=2), 1, devices=2))


def order(seed: int) -> list[list[float]]:
    """The first value of every input, by epoch, as one process sees them."""
    batches = Batches(loader(), attached(trained=False), make_fabric("32-true", "cpu", 2, 1), seed)
    list(batches.once())  # an order does not depend on what was read before
    return [[value for _, x, _ in batches.epoch(epoch) for value in x[:, 0, 0, 0].tolist()] for epoch in (0, 1)]


def work(rank: int, port: int, folder: Path) -> None:
    """All of it as one of two processes."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
    os.environ.update(TORCHELASTIC_RUN_ID="two", TORCHELASTIC_USE_AGENT_STORE="True", CUDA_VISIBLE_DEVICES="")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    abnn.train.fit.EPOCHS, abnn.train.fit.STEPS = 2, 1
    try:
        found: dict[str, Any] = {"score": score_alone(devices=2)}
        found["whole"], found["resumed"] = resuming(folder)
        found["defaults"] = all_defaults()
        found["langevin"] = langevin()
        found["orders"] = [order(seed) for seed in (0, 1)]
        torch.save(found, folder / f"{rank}.pt")
    except BaseException:  # noqa: BLE001, the test is told of it
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(0)  # what else is at work in this process is not the fork's to end


@pytest.mark.skipif(torch.cuda.is_available(), reason="forks cannot use CUDA")
@pytest.mark.no_cover  # all work is done in forks, whose counts are lost
def test_two_processes_agree(tmp_path: Path) -> None:
    alone = score_alone()  # before there are forks: what it imports they need not
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    forks = [
        multiprocessing.get_context("fork").Process(target=work, args=(rank, store.port, tmp_path)) for rank in (0, 1)
    ]
    for fork in forks:
        fork.start()
    for fork in forks:
        fork.join(PATIENCE)
        fork.kill()
    errors = [file.read_text() for file in tmp_path.glob("*.txt")]
    assert not errors, errors[0][-2000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    start = values(attached())
    assert equal(first["score"], second["score"])
    for run in ("whole", "resumed", "defaults"):
        assert equal(first[run], second[run]), run
        parts = {name: value for name, value in start.items() if "attachment" in name}
        assert parts and any(not torch.equal(first[run][name], value) for name, value in parts.items()), run
    assert equal(first["whole"], first["resumed"])

    # Both processes end with the same model, thresholds and verdicts to the bit; it is no worse, and refuses what is far.
    assert first["defaults"]["rejected"].float().mean() > 0.9 and first["defaults"]["gained"] > -0.02

    assert equal(first["langevin"], second["langevin"])  # one chain, though each process draws noise of its own

    # The closed form is that of all inputs, though each process has read half of them; sums are rounded in another order.
    for name, value in alone.items():
        if name.startswith("closed_form."):
            torch.testing.assert_close(first["score"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    # From there on, every step makes more of the rounding.
    torch.testing.assert_close(first["score"]["score"], alone["score"], rtol=0.02, atol=0.02)

    everything = sorted(x[0, 0, 0].item() for x, _ in loader().dataset)
    epochs = [epoch for orders in first["orders"] for epoch in orders]
    others = [epoch for orders in second["orders"] for epoch in orders]
    assert all(sorted(mine + yours) == everything for mine, yours in zip(epochs, others))
    assert len({tuple(epoch) for epoch in epochs}) == 4  # every seed and every epoch has an order of its own
