"""The learnt score: equal to its formula, without end away from the data, and one of its own for each copy."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import abnn
from abnn.attached import Attached
from abnn.bayes.claims import claims_of
from abnn.errors import NotFittedError
from abnn.export import learnt
from abnn.model.evidence import Evidence
from abnn.networks.by_name import PaperResNet
from abnn.scores import combined as scores
from abnn.scores.combined import CUT, HIDDEN, MEMBERS, Combined
from abnn.tasks import Classification
from abnn.tasks.classification import PARTS, READOUT_PARTS
from abnn.train.combine import gather, members
from tests.conftest import destroyed_term, generator, mlp, random_head, randomise_attachments, trained, with_score

CLASSES, FEATURES, PLACES = 5, 7, ["input", "layer.0", "layer.1"]


def evidence(rows: int = 6, seed: int = 0, readout: bool = True) -> Evidence:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made)

    made = generator(seed)
    plain, attached, variances = 3 * normal(rows, CLASSES), 3 * normal(rows, CLASSES), normal(rows, len(PLACES))
    if not readout:
        return Evidence(plain, attached, None, None, None, variances, normal(rows, 2))
    last, weight, bias = normal(rows, FEATURES), normal(CLASSES, FEATURES), normal(CLASSES)
    return Evidence(plain, attached, last, weight, bias, variances, normal(rows, 2))


def combined(readout: bool = True, seed: int = 0) -> Combined:
    """One with random weights, as after a fit."""
    made = Combined(Classification(), PLACES, FEATURES if readout else None)
    for number, (name, buffer) in enumerate(made.named_buffers()):
        if buffer.is_floating_point():
            buffer.copy_(torch.randn(buffer.shape, generator=generator(100 * seed + number)))
            if name in ("unit", "spread"):
                buffer.abs_().add_(0.5)
    made.fitted.fill_(True)
    return made


# -- what it is --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("readout", [True, False])
def test_equals_numpy(readout: bool) -> None:
    made, given = combined(readout), evidence(readout=readout)
    value, parts, _ = made.judge(given)
    raw = made.raw_parts(given).double().numpy()
    buffers = {name: buffer.double().numpy() for name, buffer in made.named_buffers()}
    x = (raw - buffers["centre"]) / buffers["unit"]
    np.testing.assert_allclose(parts.numpy(), x, rtol=1e-4, atol=1e-4)
    cut, members = np.clip(x, -8, 8), []
    for m in range(MEMBERS):
        hidden = np.tanh(cut @ buffers["inner"][m] + buffers["offset"][m])
        said = (cut @ buffers["linear"][m] + hidden @ buffers["outer"][m])[:, 0]
        members.append((said - buffers["mean"][m]) / buffers["spread"][m])
    beyond = np.exp(given.variances.double().numpy() - buffers["bounds"]).max(1) - 1
    destroyed = np.maximum(0, x - buffers["readable"]).sum(1)
    expected = np.mean(members, axis=0) + x @ buffers["anchor"] + destroyed + 10 * np.maximum(0, beyond)
    np.testing.assert_allclose(value.numpy(), expected, rtol=1e-3, atol=1e-3)


def test_parts_have_names() -> None:
    with_readout, without = combined(), combined(readout=False)
    read = [*(f"distance at {place}" for place in PLACES), "looks changed", "looks destroyed"]
    assert with_readout.names == [*PARTS, *READOUT_PARTS, *read]
    assert without.names == [*PARTS, *read]
    for made, readout in ((with_readout, True), (without, False)):
        assert made.judge(evidence(readout=readout))[1].shape == (6, len(made.names))
        assert made.inner.shape == (MEMBERS, len(made.names), HIDDEN)


def test_each_input_by_itself() -> None:
    made, given = combined(), evidence()
    value, parts, _ = made.judge(given)
    rows = [4, 1]
    assert given.last is not None
    own = {name: getattr(given, name)[rows] for name in ("plain", "attached", "last", "variances", "kinds")}
    part = given._replace(**own)
    torch.testing.assert_close(made.judge(part)[0], value[rows])
    torch.testing.assert_close(made.judge(part)[1], parts[rows])


def test_half_precision_around_it_changes_nothing() -> None:
    made, given = combined(), evidence()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(made.judge(given)[0], combined().judge(given)[0])
    assert torch.equal(made.judge(given)[0], combined().judge(given)[0])


# -- far away ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 50), st.integers(0, len(PLACES) - 1))
def test_far_begins_at_the_bounds_and_has_no_end(seed: int, place: int) -> None:
    """The other terms are taken away, so that the score is T."""
    made = combined(seed=seed)
    for buffer in (made.linear, made.outer, made.mean, made.anchor):
        buffer.zero_()
    made.readable.fill_(scores.NEVER)
    bounds: Tensor = made.bounds  # type: ignore[assignment]

    def far(variances: Tensor) -> Tensor:
        return made.judge(evidence(len(variances))._replace(variances=variances))[0]

    inside = bounds - torch.rand(5, len(PLACES), generator=generator(seed))
    assert not far(inside).any()
    beyond = torch.cat([torch.zeros(1), torch.logspace(-3, math.log10(50), 60)])
    variances = inside[:1].repeat(len(beyond), 1)
    variances[:, place] = bounds[place] + beyond
    found = far(variances)
    assert found[0] <= 1e-5 and (found.diff() > 0).all() and found.isfinite().all()
    torch.testing.assert_close(found[1:], 10 * torch.expm1(beyond[1:]), rtol=1e-2, atol=1e-4)


def test_no_evidence_makes_it_nan() -> None:
    made = combined()
    for value in (0.0, 1e20, 3e38, -3e38):
        rows = torch.full((2, CLASSES), value)
        rows[:, 0] = -value
        found, parts, _ = made.judge(Evidence(rows, rows, torch.full((2, FEATURES), value), torch.ones(CLASSES, FEATURES),
                                     torch.zeros(CLASSES), torch.full((2, len(PLACES)), 80.0), torch.full((2, 2), value)))  # fmt: skip
        assert not found.isnan().any() and not parts.isnan().any()
    assert torch.equal(made.in_units(torch.full((1, len(made.names)), math.nan)), torch.full((1, len(made.names)), CUT))


def blobs(count: int, seed: int) -> tuple[Tensor, Tensor]:
    y = torch.arange(count) % 4
    centres = 3 * torch.eye(4, 6)
    return centres[y] + 0.5 * torch.randn(count, 6, generator=generator(seed)), y


def fitted(network: nn.Module, x: Tensor, y: Tensor, epochs: int = 1) -> Attached:
    model = abnn.attach(network, x[:1])
    loader, config = DataLoader(TensorDataset(x, y), 64, shuffle=True), abnn.FitConfig(accelerator="cpu")
    with pytest.MonkeyPatch.context() as patch:  # fewer steps and outliers than users get, for the sake of time
        patch.setattr(members, "STEPS", 60)
        patch.setattr(gather, "OUTLIERS", 300)
        abnn.fit(model, loader, epochs=epochs, progress=False, config=config)
    return model


@pytest.fixture(scope="module")
def table() -> tuple[Attached, Tensor]:
    torch.manual_seed(0)
    x, y = blobs(256, 0)
    return fitted(trained(mlp(6, 4, 32), x, y), x, y), x


@pytest.fixture(scope="module")
def pictures() -> tuple[Attached, Tensor]:
    torch.manual_seed(0)
    y = torch.arange(128) % 4
    x = 0.1 * torch.rand(128, 1, 12, 12, generator=generator(1))
    for label in range(4):  # a bright quarter
        rows, columns = 6 * (label // 2), 6 * (label % 2)
        x[y == label, :, rows : rows + 6, columns : columns + 6] += 0.7
    network = trained(random_head(PaperResNet(1, 4, 8, 2, "small")), x, y, steps=15)
    return fitted(network, x, y), x


@pytest.mark.parametrize("which", ["table", "pictures"])
@pytest.mark.parametrize("direction", range(4))
def test_a_fitted_score_grows_without_end(which: str, direction: int, request: pytest.FixtureRequest) -> None:
    """Along rays from an ordinary input: once outside, ever more uncertain up to a million times the data's spread."""
    model, x = request.getfixturevalue(which)
    step = x.std() * torch.randn(x.shape[1:], generator=generator(direction))
    if direction == 3:
        step = x[5] - x.mean(0)  # where the network is ever more sure
    t = torch.logspace(0, 6, 61).view(-1, *[1] * (x.ndim - 1))
    found = model.predict(x[0] + t * step)
    assert found.combined is not None and found.parts is not None and found.combined.isfinite().all()
    places = [row for row, name in enumerate(found.parts) if name.startswith("distance at ")]
    units = torch.stack(list(found.parts.values()), dim=1)[:, places]
    variances = units * model.combined.unit[places] + model.combined.centre[places]
    outside = (variances > model.combined.bounds).any(1)
    start = int(outside.float().argmax())
    assert outside[start:].all() and start < 40
    assert (found.combined[start:].diff() > 0).all()
    assert found.combined[start + 8] > model.predict(x).combined.amax()  # type: ignore[union-attr]


def test_far_noise_is_above_all_ordinary_inputs(table: tuple[Attached, Tensor]) -> None:
    model, _ = table
    ordinary = model.predict(blobs(200, 7)[0]).score
    for scale in (20.0, 1e3, 1e6, 1e15, 1e25, 1e30, 1e36):  # far away the energy of a ReLU network says: very sure
        noise = scale * torch.randn(100, 6, generator=generator(3))
        assert model.predict(noise).score.amin() > ordinary.quantile(0.99)


# -- copies and readiness ----------------------------------------------------------------------------------------------


def test_readiness_is_read_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Combined(Classification(), PLACES, None)
    reads, before = [], Tensor.__bool__

    def read(value: Tensor) -> bool:
        reads.append(value)
        return before(value)

    monkeypatch.setattr(Tensor, "__bool__", read)
    assert not made.is_ready() and not made.is_ready() and len(reads) == 1
    made.fitted.fill_(True)
    assert made.is_ready() and made.is_ready() and len(reads) == 2
    made.fitted.fill_(False)
    assert not made.is_ready()
    made.load_state_dict(combined(readout=False).state_dict())
    assert made.is_ready()
    made.fitted = torch.zeros((), dtype=torch.bool)  # another tensor, of the same version
    assert not made.is_ready()
    with torch.inference_mode():
        made.fitted = torch.ones((), dtype=torch.bool)
        assert made.is_ready()
        made.fitted.fill_(False)
        assert not made.is_ready()


def test_readiness_moves_along() -> None:
    made = combined()
    assert made.is_ready()
    made.to("meta")
    assert made.fitted.device.type == "meta" and made.centre.device.type == "meta"
    other = combined()
    assert other.is_ready() and other.double().is_ready() and other.fitted.dtype == torch.bool


@pytest.mark.parametrize("way", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_are_their_own(way: object) -> None:
    made, given = combined(), evidence()
    assert made.is_ready()
    twin = way(made)  # type: ignore[operator]
    expected = made.judge(given)[0]
    assert torch.equal(twin.judge(given)[0], expected) and twin.is_ready() and twin.names == made.names
    twin.centre.add_(1)
    twin.fitted.fill_(False)
    assert torch.equal(made.judge(given)[0], expected) and made.is_ready() and not twin.is_ready()
    assert not torch.equal(twin.judge(given)[0], expected)


def test_a_model_without_a_fit_has_none() -> None:
    x = torch.randn(40, 6, generator=generator(0))
    model = randomise_attachments(abnn.attach(mlp(), x[:1]))
    assert not model.is_judge
    found = model.predict(x[:3])
    assert found.combined is None and found.parts is None and found.default == "entropy"
    for name in ("combined", "energy", "distance"):
        with pytest.raises(NotFittedError, match=f"score: '{name}' needs"):
            model.predict(x[:3], score=name)
    with_score(model, x)
    assert model.is_judge
    found = model.predict(x[:3])
    assert found.default == "combined" and found.parts is not None and list(found.parts) == model.combined.names
    assert torch.equal(found.score, found.combined)  # type: ignore[arg-type]
    assert list(found.parts)[-8:-5] == ["distance at input", "distance at 0", "distance at 2"]
    assert list(found.parts)[-5:-3] == ["looks changed", "looks destroyed"]
    assert list(found.parts)[-3:] == ["nearest class at input", "nearest class at 0", "nearest class at 2"]


def test_a_copy_of_a_model_has_a_score_of_its_own() -> None:
    x = torch.randn(40, 6, generator=generator(0))
    model = with_score(randomise_attachments(abnn.attach(mlp(), x[:1])), x)
    expected = model.predict(x).combined
    twin = copy.deepcopy(model)
    assert torch.equal(twin.predict(x).combined, expected)  # type: ignore[arg-type]
    with_score(twin, 3 * x + 1)
    assert not torch.allclose(twin.predict(x).combined, expected)  # type: ignore[arg-type]
    assert torch.equal(model.predict(x).combined, expected)  # type: ignore[arg-type]


def test_ordinary_inputs_are_about_zero_in_every_part() -> None:
    x = torch.randn(200, 6, generator=generator(0))
    model = with_score(randomise_attachments(abnn.attach(mlp(), x[:1])), x)
    parts = model.predict(x).parts
    assert parts is not None
    for name, part in parts.items():
        if name.startswith("looks "):  # nothing was held out, so that the witness says nothing
            assert not part.any()
            continue
        assert part.median().abs() < 0.05
        if name != "change of mind":  # of random attachments, which change little
            assert 0.3 < part.quantile(0.84) - part.quantile(0.16) < 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_devices_agree() -> None:
    x = torch.randn(40, 6, generator=generator(0))
    model = with_score(randomise_attachments(abnn.attach(mlp(), x[:1])), x)
    expected = model.predict(x)
    found = model.cuda().predict(x.cuda())
    assert found.combined is not None and found.combined.is_cuda and model.is_judge
    torch.testing.assert_close(found.combined.cpu(), expected.combined, rtol=1e-3, atol=1e-3)
    assert torch.equal(model.cpu().predict(x).combined, expected.combined)  # type: ignore[arg-type]


def test_what_classes_claim_is_found_once_for_heads_with_parametrised_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their weight is another tensor each time it is read."""
    head = nn.utils.parametrizations.weight_norm(nn.Linear(16, 5))
    backbone = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), head).eval()
    x = torch.randn(60, 6, generator=generator(0))
    model = with_score(abnn.attach(backbone, x[:1]), x)
    calls = []
    monkeypatch.setattr("abnn.scores.combined.claims_of", lambda weight: calls.append(1) or claims_of(weight))
    before = model.predict(x).parts["unclaimed"]
    model.predict(x)
    assert not calls
    with torch.no_grad():
        head.parametrizations.weight.original1.copy_(torch.randn(5, 16, generator=generator(1)))
    assert not torch.equal(model.predict(x).parts["unclaimed"], before) and len(calls) == 1


def test_what_classes_claim_follows_weights_that_lie_elsewhere() -> None:
    """As those of a model that was moved to another device: its parameters stay the same objects."""
    x = torch.randn(60, 6, generator=generator(0))
    model = with_score(abnn.attach(mlp(), x[:1]), x)
    before = model.predict(x).parts["unclaimed"]
    head = [layer for layer in model.backbone.modules() if isinstance(layer, nn.Linear)][-1]
    head.weight.data = torch.randn(head.weight.shape, generator=generator(1))
    after = model.predict(x).parts["unclaimed"]
    assert not torch.equal(after, before)
    assert torch.equal(copy.deepcopy(model).predict(x).parts["unclaimed"], after)


def test_exported_models_compute_with_the_same_constants() -> None:
    """They import no torch, so the numbers stand twice."""
    for name in ("CUT", "LOWEST", "NEVER", "WEIGHT_OF_ODDS"):
        assert getattr(learnt, name) == getattr(scores, name)


def test_no_other_part_counts_in_how_destroyed_an_input_looks() -> None:
    x = torch.randn(60, 6, generator=generator(0))
    combined = with_score(abnn.attach(mlp(), x[:1]), x).combined
    far = torch.full((1, len(combined.names)), 1e7)
    own = combined.readable < scores.NEVER
    assert own.any() and not own.all()
    torch.testing.assert_close(destroyed_term(combined, far), (far - combined.readable)[:, own].sum(1))
    assert not combined.constants().weight.view(4, -1)[scores.FOR_DESTROYED, : len(own)][~own].any()
