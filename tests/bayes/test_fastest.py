"""Which way of convolving is taken: by rule, by measurement, or by wish."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import abnn
from abnn.attached import Attached
from abnn.bayes import convolutions
from abnn.bayes.convolutions import WAYS, Geometry
from abnn.bayes.layers import BayesConv
from abnn.errors import InputError
from tests.conftest import generator

GEOMETRY = Geometry((1, 1), (1, 1))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(convolutions.VARIABLE, raising=False)
    convolutions._choices.clear()
    yield
    convolutions._choices.clear()


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Everything counts as large enough, and measurements are noted instead of taken."""
    shapes: list[Any] = []

    def measure(x: Tensor, *_: Any) -> str:
        shapes.append(tuple(x.shape))
        return "matmul"

    monkeypatch.setattr(convolutions, "SMALL", 0)
    monkeypatch.setattr(convolutions, "_measure", measure)
    return shapes


def problem(batch: int = 2, draws: int = 3, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    x = torch.randn(draws * batch, 4, 6, 6, generator=generator()).to(dtype)
    return x, torch.randn(draws, 4, 4, 3, 3, generator=generator(1)).to(dtype), None, GEOMETRY, True


def test_a_prediction_measures_each_problem_once(measured: list[Any]) -> None:
    with torch.inference_mode():
        assert [convolutions.choose(*problem()) for _ in range(3)] == ["matmul"] * 3
        assert len(measured) == 1
        convolutions.choose(*problem(draws=4))
        convolutions.choose(*problem(dtype=torch.float64))
        x, weight, _, geometry, _ = problem()
        convolutions.choose(x[:2], weight, None, geometry, False)
        convolutions.choose(x, weight, torch.zeros(3, 4), geometry, True)
        assert len(measured) == 5
        for batch in (5, 6, 7, 8):  # one power of two
            convolutions.choose(*problem(batch=batch))
        assert len(measured) == 6
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(threads + 1)
            convolutions.choose(*problem())
        finally:
            torch.set_num_threads(threads)
        assert len(measured) == 7


def test_clocks_decide_nothing_outside_of_predictions(measured: list[Any]) -> None:
    convolutions.choose(*problem())
    with torch.no_grad():
        convolutions.choose(*problem())
    with torch.inference_mode():
        torch.use_deterministic_algorithms(True)
        try:
            convolutions.choose(*problem())
        finally:
            torch.use_deterministic_algorithms(False)
    assert measured == []


def test_small_problems_are_not_measured(monkeypatch: pytest.MonkeyPatch, measured: list[Any]) -> None:
    monkeypatch.setattr(convolutions, "SMALL", 2 * 3 * 4 * 4 * 9 * 36 + 1)  # one more than the multiplications
    with torch.inference_mode():
        assert convolutions.choose(*problem()) == "grouped"
        assert measured == []
        convolutions.choose(*problem(batch=3))
    assert len(measured) == 1


def test_the_rule_groups_what_a_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, *_ = problem()
    monkeypatch.setattr(convolutions, "CACHED", 4 * (x.numel() + weight.numel()))
    assert convolutions.rule(x, weight, True) == "grouped"
    monkeypatch.setattr(convolutions, "CACHED", 4 * (x.numel() + weight.numel()) - 1)
    assert convolutions.rule(x, weight, True) == "loop"
    assert convolutions.rule(x, weight, False) == "grouped"
    assert convolutions.rule(x.to("meta"), weight.to("meta"), True) == "grouped"


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize("seconds", [0.02, 0.0011], ids=["hopeless", "close"])
@pytest.mark.parametrize("fastest", list(WAYS))
def test_the_fastest_way_is_found(monkeypatch: pytest.MonkeyPatch, fastest: str, seconds: float, folded: bool) -> None:
    """In the first round, where others are hopeless, or in the second, where they are close."""
    now = [0.0]  # a clock that only these ways move

    def slowed(name: str) -> Any:
        def way(*args: Any) -> Tensor:
            now[0] += 0.001 if name == fastest else seconds
            return WAYS["loop"](*args)

        return way

    monkeypatch.setattr(convolutions, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(convolutions, "SMALL", 0)
    monkeypatch.setattr(convolutions, "WAYS", {name: slowed(name) for name in WAYS})
    x, weight, bias, geometry, _ = problem(batch=9)
    with torch.inference_mode():
        assert convolutions.choose(x, weight, bias, geometry, folded) == fastest


def test_measurements_choose_one_of_the_ways() -> None:
    """With real clocks, on a problem where all are about as fast, so that the second round is needed."""
    with torch.inference_mode():
        assert convolutions._measure(*problem(batch=16)) in WAYS


@pytest.mark.parametrize("name", list(WAYS))
def test_a_fixed_way_is_taken_everywhere(monkeypatch: pytest.MonkeyPatch, measured: list[Any], name: str) -> None:
    monkeypatch.setenv(convolutions.VARIABLE, name)
    assert convolutions.choose(*problem()) == name
    with torch.inference_mode():
        assert convolutions.choose(*problem()) == name
    assert measured == []


def test_an_unknown_way_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(convolutions.VARIABLE, "group")
    with pytest.raises(InputError, match="ABNN_CONV: got 'group'; accepted: grouped, loop, matmul.*'grouped'"):
        convolutions.choose(*problem())


def test_predictions_do_not_depend_on_the_way(
    attached: Attached, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to rounding: three convolutions of 72 products each, so about 100 times the precision of float32."""
    found = []
    for name in WAYS:
        monkeypatch.setenv(convolutions.VARIABLE, name)
        found.append(attached.predict(images, draws=5).samples)
    for samples in found[1:]:
        torch.testing.assert_close(samples, found[0], rtol=100 * torch.finfo(torch.float32).eps, atol=1e-6)


@pytest.mark.parametrize("way", [None, *WAYS])
def test_compiled_layers_follow_a_rule_or_a_wish(
    monkeypatch: pytest.MonkeyPatch, measured: list[Any], way: str | None
) -> None:
    layer = BayesConv(4, 4, (3, 3))
    layer.resample(3)
    x = torch.randn(24, 4, 5, 5, generator=generator()).requires_grad_()
    monkeypatch.setenv(convolutions.VARIABLE, "loop")
    expected = layer(x)
    slope = torch.autograd.grad(expected.square().sum(), [x, *layer.parameters()])
    taken: list[str] = []
    ways = {name: _noting(name, each, taken) for name, each in WAYS.items()}
    monkeypatch.setattr(convolutions, "WAYS", ways)
    if way is None:
        monkeypatch.delenv(convolutions.VARIABLE)
    else:
        monkeypatch.setenv(convolutions.VARIABLE, way)
    torch._dynamo.reset()
    found = torch.compile(layer, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found.square().sum(), [x, *layer.parameters()]), slope):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert taken == [way or "grouped"] and measured == []


def _noting(name: str, way: Any, taken: list[str]) -> Any:
    def noted(*args: Any) -> Tensor:
        taken.append(name)
        return way(*args)

    return noted


def test_exported_models_agree(attached: Attached, images: Tensor) -> None:
    program = torch.export.export(attached.eval(), (images,))
    torch.testing.assert_close(program.module()(images), attached(images))


def test_trained_models_agree_with_every_way(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = abnn.build_backbone("paper-resnet", 3, 1, width=8, blocks=2, stem="small").eval()
    x = torch.rand(4, 1, 8, 8, generator=generator(3))
    gradients = []
    for name in WAYS:
        monkeypatch.setenv(convolutions.VARIABLE, name)
        model = abnn.attach(network, x[:1], draws=3, preset="authors")
        model(x).logsumexp(1).sum().backward()
        gradients.append([parameter.grad for _, parameter in model.attachment_parameters()])
        for parameter in network.parameters():
            parameter.grad = None
    for found in gradients[1:]:
        for one, other in zip(found, gradients[0]):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
