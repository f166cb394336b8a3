"""Training by two processes at once, all in one start of them: what they must agree on, and what they must share out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import abnn
from abnn.baselines import make_method
from abnn.train.batches import Batches
from abnn.train.loop import make_fabric
from tests.baselines.samples import quick, state
from tests.train.test_fit import attached, equal, loader, quiet

TWO = quiet(devices=2)


class Stopping:
    """A schedule that stops all processes at the same step, as if they were killed, unless told not to."""

    __qualname__ = "Stopping"
    stop = False

    def __call__(self, progress: float) -> float:
        if self.stop and progress > 0.6:
            raise KeyboardInterrupt
        return 1.0


def agreement() -> tuple[dict[str, Any], dict[str, Any]]:
    """Attachments, and the statistics of features."""
    model = attached()
    history = abnn.fit(model, loader(), epochs=1, **TWO)
    assert history.begun_again == 0
    return dict(model.attachment_parameters()), model.distance.state_dict()


def beginning_again() -> dict[str, Any]:
    """See abnn.rescue: each process looks at inputs of its own."""
    model = attached()
    assert abnn.fit(model, loader(), epochs=3, lr=1.0, **TWO).begun_again > 0
    return dict(model.attachment_parameters())


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
    return dict(whole.attachment_parameters()), dict(resumed.attachment_parameters())


def langevin() -> dict[str, Any]:
    return state(quick(make_method("p-sgld", samples=2), 1, devices=2))


def order(seed: int) -> list[list[float]]:
    """The first value of every input, by epoch, as one process sees them."""
    batches = Batches(loader(), attached(trained=False), make_fabric("32-true", "cpu", 2, 1), seed)
    list(batches.once())  # an order does not depend on what was read before
    return [[value for _, x, _ in batches.epoch(epoch) for value in x[:, 0, 0, 0].tolist()] for epoch in (0, 1)]


def main(folder: Path) -> None:
    found: dict[str, Any] = {"again": beginning_again()}
    found["fitted"], found["distance"] = agreement()
    found["whole"], found["resumed"] = resuming(folder)
    found["langevin"] = langevin()
    found["orders"] = [order(seed) for seed in (0, 1)]
    torch.save(found, folder / f"{torch.distributed.get_rank()}.pt")


def test_two_processes_agree(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "tests.train.test_two_processes", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(command, capture_output=True, check=False, cwd=root, env=environment)
    assert result.returncode == 0, result.stderr.decode()[-2000:]
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1))
    start = dict(attached().attachment_parameters())
    for run in ("fitted", "again", "whole", "resumed"):
        assert equal(first[run], second[run]), run
        assert any(not torch.equal(first[run][name], start[name]) for name in start), run
    assert equal(first["whole"], first["resumed"])

    assert equal(first["langevin"], second["langevin"])  # one chain, though each process draws noise of its own

    # Statistics of features are those of all inputs, less every fifth of them.
    assert equal(first["distance"], second["distance"])
    counts = first["distance"]["class_shares"] * (96 - 96 // 5)
    torch.testing.assert_close(counts, counts.round(), rtol=0, atol=1e-4)
    assert first["distance"]["largest"] == loader().dataset.tensors[0].max()  # type: ignore[attr-defined]

    everything = sorted(x[0, 0, 0].item() for x, _ in loader().dataset)
    epochs = [epoch for orders in first["orders"] for epoch in orders]
    others = [epoch for orders in second["orders"] for epoch in orders]
    assert all(sorted(mine + yours) == everything for mine, yours in zip(epochs, others))
    assert len({tuple(epoch) for epoch in epochs}) == 4  # every seed and every epoch has an order of its own


if __name__ == "__main__":
    main(Path(sys.argv[1]))
