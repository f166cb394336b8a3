"""Compiled predictions: they give what ordinary ones give, are compiled seldom, and leave nothing behind.

Most tests let torch trace the pass and run it without generating code, which is quick and needs no compiler.
"""

from __future__ import annotations

import copy
import pickle
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.errors import AbnnWarning, InputError
from abnn.networks.by_name import PaperResNet
from abnn.predict import Prediction
from abnn.predict.compiled_pass import CompiledPass, _without_graphs
from abnn.predict.runtime import runtime_of
from tests.conftest import attach_with, generator, mlp, random_head, randomise_attachments, with_score

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
pytestmark = pytest.mark.no_cover  # tracing is done in Python, and takes twice as long where lines are counted
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


class Counted:
    """A backend that runs what was traced as it is, and counts how often it was asked to compile."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


def make(
    learnt: bool = False, dtype: torch.dtype = torch.float32, device: str = "cpu", blocks: int = 1, **options: Any
) -> Attached:
    torch.manual_seed(0)
    network = random_head(PaperResNet(width=8, blocks=blocks, classes=4, stem="small")).eval().to(device, dtype)
    model = randomise_attachments(attach_with(network, images(1, dtype, device), draws=2, **options), 0.05)
    return with_score(model, images(60, dtype, device)) if learnt else model


def make_table() -> Attached:
    """With a learnt score, and quick to trace."""
    torch.manual_seed(0)
    return with_score(randomise_attachments(attach_with(mlp().eval(), rows(1), draws=2), 0.05), rows(60))


def rows(batch: int) -> Tensor:
    return torch.randn(batch, 6, generator=generator(1))


def images(batch: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.randn(batch, 1, 12, 12, generator=generator(1)).to(device, dtype)


def agree(left: Prediction, right: Prediction, most: float = 1e-5) -> None:
    torch.testing.assert_close(left.samples, right.samples, rtol=0, atol=most)
    assert (left.combined is None) == (right.combined is None) and (left.parts is None) == (right.parts is None)
    if left.combined is not None and right.combined is not None:  # in units of what is usual, which are small ones here
        torch.testing.assert_close(left.combined, right.combined, rtol=100 * most, atol=100 * most)
    if left.parts is not None and right.parts is not None:
        assert list(left.parts) == list(right.parts)


CASES = [
    ("bounded", True, None),
    ("bounded", True, 5),
    ("chain", False, None),
    ("replace", False, 0),
]


@pytest.mark.parametrize(("kind", "learnt", "draws"), CASES)
def test_compiled_predictions_are_the_same(kind: str, learnt: bool, draws: int | None) -> None:
    blocks = 2 if draws is None else 1  # one case of each kind of score has several attachments
    model, x = make(learnt, kind=kind, blocks=blocks), images(6)
    expected = model.predict(x, draws=draws, seed=3)
    assert (expected.combined is not None) == learnt
    backend = Counted()
    model.compile(backend=backend)
    agree(model.predict(x, draws=draws, seed=3), expected)
    agree(model.predict(x, draws=draws, seed=3), expected)
    assert backend.count == 1  # the whole pass in one piece, with what it notes on the way
    torch.testing.assert_close(model(x), Attached.forward(model, x))
    model.compile(disable=True)
    assert runtime_of(model).compiled is None and model._compiled_call_impl is None
    agree(model.predict(x, draws=draws, seed=3), expected, most=0)


def test_compiled_views_and_chunks_of_draws() -> None:
    torch.manual_seed(0)
    network = random_head(PaperResNet(width=8, blocks=1, classes=4, stem="small")).eval()
    x = torch.randn(40, 1, 16, 16, generator=generator(1))
    model = with_score(randomise_attachments(abnn.attach(network, x[:1]), 0.05), x)
    draws, limit = 5, 3 * 4 * model.folded_bytes  # two draws at a time
    expected = model.predict(x[:6], draws=draws, views=3)
    parts = model.predict(x[:6], draws=draws, views=3, memory_limit=limit)
    agree(parts, expected)
    model.compile(backend=Counted())
    for _ in range(2):
        agree(model.predict(x[:6], draws=draws, views=3), expected)
        agree(model.predict(x[:6], draws=draws, views=3, memory_limit=limit), parts)


def test_notes_of_a_compiled_pass_are_its_own() -> None:
    """A pass that fails half-way, or is not judged, leaves nothing for the next one."""
    model, x = make_table(), rows(6)
    expected = [model.predict(part) for part in (x, x[:3])]
    model.compile(backend="eager")
    for _ in range(2):
        agree(model.predict(x), expected[0])
        with pytest.raises(InputError):
            model.predict(torch.zeros(2, 5))
        agree(model.predict(x[:3]), expected[1])
    for run in runtime_of(model).compiled.passes.values():  # type: ignore[union-attr]
        assert not run.notes or run.run.state.features == []


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_generated_code_gives_the_same(dtype: torch.dtype) -> None:
    """Of a network of three layers without a learnt score: generating code for more takes most of a minute."""
    torch.manual_seed(0)
    x = torch.randn(3, 6, generator=generator(1)).to(dtype)
    model = randomise_attachments(abnn.attach(mlp().eval().to(dtype), x[:1]), 0.3)
    expected = model.predict(x, draws=3)
    model.compile(dynamic=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        found = model.predict(x, draws=3)
    agree(found, expected, 1e-5 if dtype == torch.float32 else 2e-2)  # bfloat16 keeps 2^-9 after every kernel


def test_seeds_weights_and_sizes_are_not_compiled_anew() -> None:
    model, backend = make_table(), Counted()
    model.compile(backend=backend)
    ordinary = make_table()

    def check(batch: int, seed: int | None = 0) -> None:
        agree(model.predict(rows(batch), draws=3, seed=seed), ordinary.predict(rows(batch), draws=3, seed=seed))

    check(20)
    assert backend.count == 1
    check(20, seed=7)
    with torch.no_grad():
        for each in (model, ordinary):
            for _, parameter in each.attachment_parameters():
                parameter.mul_(1.5)
    check(20)
    assert backend.count == 1
    check(21)  # once more for all sizes, with some room for what torch tells apart
    check(1)
    few = backend.count
    for batch in (22, 25, 30, 21, 20, 1):
        check(batch)
    assert backend.count == few <= 4


class Shifted(nn.Module):
    """A network with a buffer that its user may replace."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.shift = mlp(), nn.Buffer(torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x + self.shift)


def test_what_was_replaced_is_seen() -> None:
    network, x, backend = Shifted().eval(), rows(20), Counted()
    model = abnn.attach(network, x[:1])
    model.compile(backend=backend)
    model.predict(x)
    network.shift = torch.ones(6)  # as moving to another device and back does
    torch.testing.assert_close(model.predict(x).plain, network(x).softmax(1))
    model.train().eval()
    model.predict(x)
    assert backend.count == 2


def test_parts_of_a_batch_are_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model, backend, x = make(), Counted(), images(12)
    expected = model.predict(x, draws=3)
    model.compile(backend=backend)
    agree(model.predict(x[:4], draws=3), make().predict(x[:4], draws=3))
    monkeypatch.setattr("abnn.predict.chunks.FEWEST", 16)
    monkeypatch.setattr("abnn.predict.chunks.CACHE", 1)
    agree(model.predict(x, draws=3), expected)  # three parts of four
    assert backend.count == 1


def test_many_models_do_not_get_into_each_others_way() -> None:
    backend, x = Counted(), torch.randn(3, 6, generator=generator(1))
    for number in range(1, 10):  # torch stops compiling a function that it has compiled eight times
        model = abnn.attach(mlp().eval(), x[:1])
        model.compile(backend=backend)
        model.predict(x, draws=2)
        assert backend.count == number


class Failing:
    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        raise NotImplementedError("no such machine")


@pytest.mark.parametrize("learnt", [True, False])
def test_what_cannot_be_compiled_runs_as_it_is(learnt: bool) -> None:
    model, x = (make_table(), rows(4)) if learnt else (make(), images(4))
    expected = model.predict(x, draws=3)
    model.compile(backend=Failing())
    with pytest.warns(AbnnWarning, match="cannot be compiled and run as they are .*no such machine"):
        agree(model.predict(x, draws=3), expected, most=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agree(model.predict(x, draws=3), expected, most=0)  # said once


def test_errors_of_the_input_are_explained_as_ever() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    model = randomise_attachments(abnn.attach(network, torch.zeros(1, 1, 6, 6), at=["0"], draws=2), 0.05)
    x, backend = torch.rand(2, 1, 6, 6), Counted()
    expected = model.predict(x, draws=3)
    model.compile(backend=backend)
    with pytest.raises(InputError, match="on which the network fails"):
        model.predict(torch.zeros(2, 1, 7, 7), draws=3)
    compiled = runtime_of(model).compiled
    assert compiled is not None and not compiled.off  # the compiler was not to blame
    agree(model.predict(x, draws=3), expected)
    assert backend.count >= 1


def test_copies_and_files_hold_nothing_compiled(tmp_path: Path) -> None:
    model, x = make_table(), rows(4)
    expected = model.predict(x, draws=3)
    model.compile(backend="eager", dynamic=False)
    model.predict(x, draws=3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        compiled = runtime_of(twin).compiled
        assert compiled is not None and compiled is not runtime_of(model).compiled
        assert compiled.options == {"backend": "eager", "dynamic": False} and not compiled.passes
        agree(twin.predict(x, draws=3), expected)
    model.save(tmp_path / "saved")
    loaded = abnn.load(tmp_path / "saved", model.backbone)
    assert runtime_of(loaded).compiled is None
    agree(loaded.predict(x, draws=3), expected, most=0)


def test_networks_with_skips_around_the_first_attachment() -> None:
    class Skipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 8), nn.Linear(8, 8)
            self.head = nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).relu()
            return self.head(torch.cat([h, self.second(h).relu()], dim=1))

    x = torch.randn(5, 3, generator=generator(2))
    model = randomise_attachments(abnn.attach(Skipping().eval(), x[:1], at=["second"]), 0.3)
    with_score(model, torch.randn(40, 3, generator=generator(3)))
    assert model.folds_at_input  # such a network runs twice
    for draws in (0, 3):
        expected, backend = model.predict(x, draws=draws), Counted()
        model.compile(backend=backend)
        agree(model.predict(x, draws=draws), expected)
        agree(model.predict(x, draws=draws), expected)
        assert backend.count == 1
        model.compile(disable=True)


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ({}, {"options": None}),
        ({"mode": "reduce-overhead"}, {"mode": "default"}),
        ({"mode": "max-autotune", "dynamic": False}, {"mode": "max-autotune-no-cudagraphs", "dynamic": False}),
        ({"options": {"triton.cudagraphs": True}}, {"options": {"triton.cudagraphs": False}}),
    ],
)
def test_the_compiler_makes_no_graphs_of_its_own(given: dict[str, Any], made: dict[str, Any]) -> None:
    assert _without_graphs(given) == made
    assert torch.compile(lambda x: x, **made) is not None
    assert CompiledPass(given).options == given


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("learnt", [True, False])
def test_compiled_passes_are_captured(learnt: bool, dtype: torch.dtype) -> None:
    model, x = make(learnt, dtype, "cuda"), images(6, dtype, "cuda")
    expected = model.predict(x, draws=5)
    model.compile()
    with warnings.catch_warnings():
        warnings.simplefilter("error", AbnnWarning)
        for _ in range(4):
            agree(model.predict(x, draws=5), expected, 2e-3 if dtype == torch.float32 else 2e-2)
    assert len(runtime_of(model).replay) == 1 and not runtime_of(model).replay.off


@needs_cuda
def test_compiled_once_for_trial_and_capture() -> None:
    model, x, backend = make(True, device="cuda"), images(6, device="cuda"), Counted()
    model.compile(backend=backend)
    for _ in range(4):
        model.predict(x, draws=5)
    assert backend.count == 1 and len(runtime_of(model).replay) == 1
