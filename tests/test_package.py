"""What `import abnn` shows and costs, and that one of each kind can be added from outside of the package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.config import Objective
from abnn.errors import InputError, NotFittedError
from abnn.model.evidence import Evidence
from abnn.predict import Prediction
from abnn.scores import SCORES, score
from abnn.tasks import TASKS, Task
from abnn.tasks.base import Usual
from tests.conftest import generator, mlp


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh process has loaded after some code."""
    listed = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, check=True, text=True
    )
    return set(listed.stdout.split())


def test_the_public_names_are_all_there_is_to_see() -> None:
    assert dir(abnn) == sorted(abnn.__all__)
    assert all(getattr(abnn, name) is not None for name in abnn.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = abnn.nothing


def test_importing_costs_no_more_than_torch() -> None:
    assert "torch" not in loaded_by("import abnn")
    used = loaded_by("import abnn; abnn.attach; abnn.fit; abnn.load")
    assert not {"torch._dynamo", "lightning_fabric", "matplotlib", "sklearn", "torchvision", "fastapi"} & used


def test_the_version_needs_no_torch() -> None:
    code = "from abnn.cli import main\nimport sys\nsys.argv = ['abnn', '--version']\ntry:\n    main()\nexcept SystemExit: pass"
    modules = loaded_by(code)
    assert "torch" not in modules and "numpy" not in modules


@pytest.fixture
def model() -> abnn.Attached:
    return abnn.attach(mlp().eval(), torch.randn(1, 6, generator=generator(0)))


def test_a_score_of_ones_own(model: abnn.Attached) -> None:
    @score("least-likely")
    def least_likely(prediction: Prediction) -> Tensor:
        return prediction.probs.amin(1)

    try:
        x = torch.randn(5, 6, generator=generator(1))
        assert torch.equal(model.predict(x, score="least-likely").score, model.predict(x).probs.amin(1))
        with pytest.raises(InputError, match="a name that no other score has"):
            score("least-likely")(least_likely)
    finally:
        del SCORES["least-likely"]


def test_a_task_of_ones_own() -> None:
    class Mean(Task):
        """One real number for each input, wider where draws disagree."""

        name = "mean-only"

        def check_outputs(self, shape: tuple[int, ...], batch: int, outputs: Tensor | None) -> int:
            return shape[1]

        def id_loss(self, objective: Objective, outputs: Tensor, target: Tensor, plain: Tensor | None = None) -> Tensor:
            return (outputs.mean(0)[:, 0] - target).square().mean()

        def outlier_loss(
            self,
            objective: Objective,
            outputs: Tensor,
            target: Tensor,
            severity: Tensor,
            generator: Any,
            plain: Tensor | None = None,
        ) -> Tensor:
            return -outputs.var(0).mean()

        def part_names(self, readout: bool) -> list[str]:
            return ["change"]

        def parts(self, evidence: Evidence, usual: Usual, visible: Tensor | None = None) -> Tensor:
            return (evidence.plain - evidence.attached).abs()

        def samples(self, outputs: Tensor) -> Tensor:
            return outputs.float()

        def right(self, outputs: Tensor, target: Tensor) -> Tensor:
            return ((outputs.mean(0)[:, 0] - target).abs() < 1).float()

    try:
        torch.manual_seed(0)
        x = torch.randn(9, 3, generator=generator(2))
        network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).eval()
        model = abnn.attach(network, x[:1], config=abnn.AttachConfig(task="mean-only"))
        samples = model.predict(x, draws=4).samples
        assert samples.shape == (5, 9, 1)  # the plain network comes first
        torch.testing.assert_close(samples[:2], model.predict(x, draws=1).samples)
        torch.testing.assert_close(samples[0], network(x))
        read = ["distance at input", "distance at 0", "distance at 2", "looks changed", "looks destroyed"]
        assert model.combined.names == ["change", *read]
        loss = model.task.id_loss(Objective(), model.draw_logits(x), torch.zeros(9))
        loss.backward()
        assert all(p.grad is not None for name, p in model.attachment_parameters() if not name.endswith("_rho"))
    finally:
        del TASKS["mean-only"]


def test_unknown_tasks_are_named() -> None:
    with pytest.raises(InputError, match="task: got 'clasification'.*Did you mean 'classification'"):
        abnn.attach(mlp(), torch.zeros(1, 6), config=abnn.AttachConfig(task="clasification"))


def test_calibrating_gives_verdicts_and_a_table(model: abnn.Attached) -> None:
    x = torch.randn(200, 6, generator=generator(3))
    loader = list(zip(x.split(50), (torch.arange(200) % 3).split(50)))
    with pytest.raises(NotFittedError, match=r"abnn.calibrate\(model, loader\)"):
        _ = model.predict(x).verdict
    triage = abnn.calibrate(model, loader, progress=False)
    assert model.triage is triage
    prediction = model.predict(x[:7])
    assert prediction.verdict == triage(prediction).verdict
    assert prediction.stated is not None and torch.equal(prediction.stated, triage.probabilities(prediction))
    other = model.predict(x[:7], score="variance")
    assert other.levels is None  # thresholds belong to one score
    table = prediction.to_pandas(class_names=["a", "b", "c"])
    assert list(table.columns) == ["label", "score", "verdict", "p(a)", "p(b)", "p(c)"] and len(table) == 7
    assert table["p(a)"].to_numpy() == pytest.approx(prediction.stated[:, 0].numpy())
    assert set(table["label"]) <= {"a", "b", "c"}


def test_a_loader_is_predicted_batch_by_batch(model: abnn.Attached) -> None:
    x = torch.randn(20, 6, generator=generator(4))
    whole = model.predict(x)
    for loader in ([part for part in x.split(7)], [(part, torch.zeros(len(part))) for part in x.split(7)]):
        parts = model.predict(loader, progress=False)
        torch.testing.assert_close(parts.samples, whole.samples, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="a loader without batches"):
        model.predict([], progress=False)


def test_a_loader_of_sizes_with_and_without_thresholds_has_none() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    x = torch.rand(60, 1, 28, 28, generator=generator(5))
    model = abnn.attach(network, x[:1], config=abnn.AttachConfig(views=3))
    abnn.calibrate(model, [(x, torch.arange(60) % 3)], abnn.TriageConfig(draws=3), progress=False)
    small = torch.rand(3, 1, 12, 12, generator=generator(6))  # too small for views
    both = model.predict([x[:3], small], draws=3, progress=False)
    assert len(both) == 6 and both.levels is None


def test_whole_numbers_do_not_wrap() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.one(x.float() / 255).relu())

    model = abnn.attach(Bytes().eval(), torch.zeros(1, 4, dtype=torch.uint8), at=["one"])
    model.predict(torch.full((1, 4), 200))
    with pytest.raises(InputError, match="x: got numbers from 300 to 300; accepted: what torch.uint8 can hold"):
        model.predict(torch.full((1, 4), 300))
