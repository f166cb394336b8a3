"""Several labels at once: probabilities for each, one score and verdict for each input."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import abnn
from abnn.config import Objective
from abnn.errors import AttachError, InputError
from abnn.model.evidence import Evidence
from abnn.predict import LabelPrediction
from abnn.tasks import Multilabel
from abnn.tasks.base import Usual
from tests.conftest import generator


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = generator(seed)
    x = torch.randn(count, 6, generator=random)
    logits = torch.stack([4 * x[:, 0] - 2, 4 * x[:, 1] * x[:, 2], 3 * x[:, 3] + x[:, 4]], dim=1)
    return x, (torch.rand(count, 3, generator=random) < logits.sigmoid()).long()


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3))
    x, y = draw(800, 0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for step in range(150):
        rows = torch.arange(step * 64, step * 64 + 64) % 800
        loss = F.binary_cross_entropy_with_logits(net(x[rows]), y[rows].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


@pytest.fixture(scope="module")
def model() -> abnn.Attached:
    made = abnn.attach(network(), torch.zeros(1, 6), task="multilabel")
    x, y = draw(800, 0)
    abnn.fit(made, list(zip(x.split(100), y.split(100))), epochs=2, progress=False)
    x, y = draw(400, 1)
    abnn.calibrate(made, list(zip(x.split(100), y.split(100))), progress=False)
    return made


def test_labels_have_probabilities_and_inputs_have_verdicts(model: abnn.Attached) -> None:
    x, y = draw(500, 2)
    p = model.predict(x)
    assert isinstance(p, LabelPrediction) and p.probs.shape == (500, 3)
    plain, both = (((each > 0.5) == (y > 0)).float().mean() for each in (p.plain, p.probs))
    assert both > 0.8 and both > plain - 0.01
    assert p.stated is not None and p.stated.shape == (500, 3)
    own, stated = (F.binary_cross_entropy(each, y.float()) for each in (p.probs, p.stated))
    assert stated < own + 0.01
    assert p.verdict.count("accept") > 450
    far = model.predict(x + 8)
    assert far.verdict.count("accept") == 0 and bool((far.score > p.score.median()).all())
    table = p.to_pandas(["a", "b", "c"])
    assert list(table) == ["labels", "score", "verdict", "p(a)", "p(b)", "p(c)"]
    assert table["labels"][0] == ", ".join(n for n, yes in zip("abc", p.labels[0].tolist()) if yes)


def test_saved_models_say_the_same(model: abnn.Attached, tmp_path: Path) -> None:
    x, _ = draw(20, 3)
    model.save(tmp_path / "model")
    again = abnn.load(tmp_path / "model", copy.deepcopy(model.backbone))
    p, q = model.predict(x), again.predict(x)
    assert torch.equal(p.score, q.score) and p.stated is not None and q.stated is not None
    assert torch.equal(p.stated, q.stated) and p.verdict == q.verdict
    assert torch.equal(abnn.detach(again)(x), model.backbone(x))


def test_losses_are_those_of_torch() -> None:
    random = generator(4)
    outputs, y = torch.randn(3, 5, 4, generator=random), torch.randint(2, (5, 4), generator=random).float()
    mean = outputs.sigmoid().mean(0)
    task, goal = Multilabel(), Objective(distil=0.0)
    torch.testing.assert_close(task.id_loss(goal, outputs, y), F.binary_cross_entropy(mean, y))
    torch.testing.assert_close(task.id_loss(goal, outputs[:1], y), F.binary_cross_entropy(outputs[0].sigmoid(), y))
    half = task.outlier_loss(goal, outputs, y, torch.ones(5), None)
    torch.testing.assert_close(half, F.binary_cross_entropy(mean, torch.full_like(y, 0.5)))
    torch.testing.assert_close(task.average(outputs).sigmoid(), mean)
    plain = torch.randn(5, 4, generator=random)
    kept = task.id_loss(Objective(distil=1.0), outputs, y, plain)
    torch.testing.assert_close(kept, F.binary_cross_entropy(mean, plain.sigmoid()))


@pytest.mark.parametrize("draws", [1, 3])
def test_probabilities_that_were_rounded_leave_losses_and_parts_finite(draws: int) -> None:
    random = generator(4)
    outputs, y = torch.randn(draws, 5, 4, generator=random), torch.randint(2, (5, 4), generator=random).float()
    outputs[:, 0, :2], outputs[0, 1] = torch.tensor([-torch.inf, torch.inf]), -torch.inf
    outputs.requires_grad_()
    task, plain = Multilabel(), outputs[0].detach()
    loss = task.id_loss(Objective(), outputs, y, plain) + task.outlier_loss(
        Objective(), outputs, y, y[:, 0], None, plain
    )
    loss.backward()
    assert loss.isfinite() and outputs.grad is not None and outputs.grad.isfinite().all()
    none = torch.zeros(5, 0)
    parts = task.parts(Evidence(plain, plain, None, None, None, none, none), Usual(none, none, none))
    assert parts.isfinite().all()


def test_what_does_not_fit_is_named(model: abnn.Attached) -> None:
    x = torch.zeros(4, 6)
    for y, message in (
        (torch.zeros(4, dtype=torch.int64), r"targets of shape \(4,\) for 4 inputs; accepted: shape \(4, 3\)"),
        (torch.full((4, 3), 0.5), "targets other than 0 and 1"),
        (torch.full((4, 3), float("nan")), "targets other than 0 and 1"),
    ):
        with pytest.raises(InputError, match=message):
            abnn.fit(model, [(x, y)], progress=False)
    with pytest.raises(InputError, match="label: got a prediction of several labels"):
        _ = model.predict(x).label
    with pytest.raises(AttachError, match=r"outputs of shape \(1,\)"):
        abnn.attach(nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 1), nn.Flatten(0)), x[:1], task="multilabel")


def test_the_mean_of_sure_predictions_stays_sure() -> None:
    z = torch.tensor([[[-74.6, 90.0, 0.3]], [[-74.6, 90.0, 0.3]]])
    torch.testing.assert_close(Multilabel().average(z), z[0])
    z = torch.randn(4, 5, 3)
    torch.testing.assert_close(Multilabel().average(z).sigmoid(), z.sigmoid().mean(0))
