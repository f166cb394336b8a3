"""Training by two processes at once, all in one start of them: what they must agree on, and what they must share out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import abnn
import abnn.train.combine.members
import abnn.train.fit
from abnn.baselines import make_method
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric
from tests.baselines.samples import quick, state
from tests.train.test_fit import attached, backbone, data, equal, loader, quiet, values

TWO = quiet(devices=2)
STEPS = 30  # of the members of the learnt score


class Stopping:
    """A schedule that stops all processes at the same step, as if they were killed, unless told not to."""

    __qualname__ = "Stopping"
    stop = False

    def __call__(self, progress: float) -> float:
        if self.stop and progress > 0.6:
            raise KeyboardInterrupt
        return 1.0


def agreement(count: int) -> dict[str, Any]:
    """Attachments, closed form and learnt score; of 96 inputs nothing is held out, so each process learns from its own."""
    model = attached()
    abnn.fit(model, loader(count=count), epochs=1, **TWO)
    return values(model)


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


def main(folder: Path) -> None:
    abnn.train.combine.members.STEPS = STEPS
    abnn.train.fit.EPOCHS, abnn.train.fit.STEPS = 2, 1
    found: dict[str, Any] = {"fitted": agreement(96), "held out": agreement(120), "score": score_alone(devices=2)}
    found["whole"], found["resumed"] = resuming(folder)
    found["defaults"] = all_defaults()
    found["langevin"] = langevin()
    found["orders"] = [order(seed) for seed in (0, 1)]
    torch.save(found, folder / f"{torch.distributed.get_rank()}.pt")


def test_two_processes_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abnn.train.combine.members.STEPS", STEPS)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.train.test_two_processes", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, check=False, cwd=root, env=environment)
    assert result.returncode == 0, result.stderr.decode()[-2000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    start = values(attached())
    assert equal(first["score"], second["score"])
    for run in ("fitted", "held out", "whole", "resumed"):
        assert equal(first[run], second[run]), run
        parts = {name: value for name, value in start.items() if "attachment" in name}
        assert parts and any(not torch.equal(first[run][name], value) for name, value in parts.items()), run
    assert equal(first["whole"], first["resumed"])

    # Both processes end with the same model, thresholds and verdicts to the bit; it is no worse, and refuses what is far.
    assert equal(first["defaults"], second["defaults"])
    assert first["defaults"]["rejected"].float().mean() > 0.9 and first["defaults"]["gained"] > -0.02

    assert equal(first["langevin"], second["langevin"])  # one chain, though each process draws noise of its own

    # The closed form is that of all inputs, though each process has read half of them; sums are rounded in another order.
    alone = score_alone()
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
