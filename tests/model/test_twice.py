"""Networks whose rows cannot become more half-way run twice: the same results, and nothing before the first attachment again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.noise import held_noise
from abnn.model.attached_blocks import AttachedBlock, Readout, Twice, WatchedBlock
from abnn.model.passes import Pass
from tests.conftest import generator, one_draw_at_a_time, randomise_attachments, with_score


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.two(self.one(x).relu())


class Shapes(nn.Module):
    """Four blocks and a head; ``reads``: whether the batch size is read at the start and used further on."""

    def __init__(self, reads: bool, between: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.blocks = nn.ModuleList([Block(6) for _ in range(4)])
        self.head = nn.Linear(6 * 36, 4)
        self.reads, self.between = reads, between

    def forward(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        x = self.stem(x)
        for block in self.blocks:
            x = self.between(block(x))
        return self.head(x.view(rows, -1) if self.reads else x.flatten(1))


def images(count: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(count, 1, 6, 6, generator=generator(seed))


def pair(between: Callable[[Tensor], Tensor] = torch.relu, **options: Any) -> tuple[Attached, Attached]:
    """Two models with the same weights: one that runs twice, and one that need not."""
    options = {"at": ["blocks.2", "blocks.3"], **options}
    models = []
    for reads in (True, False):
        model = randomise_attachments(abnn.attach(Shapes(reads, between).eval(), images(1), **options), 0.3)
        models.append(with_score(model, images(40, seed=1)))
    twice, once = models
    assert twice.folds_at_input and not once.folds_at_input
    return twice, once


def same(twice: Attached, once: Attached, x: Tensor, **options: Any) -> None:
    left, right = twice.predict(x, **options), once.predict(x, **options)
    torch.testing.assert_close(left.samples, right.samples, rtol=1e-4, atol=1e-6)
    assert left.parts is not None and right.parts is not None and left.parts.keys() == right.parts.keys()
    for name, part in left.parts.items():
        torch.testing.assert_close(part, right.parts[name], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(left.combined, right.combined, rtol=1e-2, atol=1e-2)


def calls(modules: dict[str, nn.Module], run: Callable[[], Any]) -> dict[str, list[int]]:
    """How many rows each call of each module has."""
    rows: dict[str, list[int]] = {name: [] for name in modules}
    handles = [
        module.register_forward_hook(lambda _, args, out, name=name: rows[name].append(len(out)))
        for name, module in modules.items()
    ]
    run()
    for handle in handles:
        handle.remove()
    return rows


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_says_what_a_network_says_that_runs_once(draws: int) -> None:
    twice, once = pair()
    x = images(5, seed=3)
    same(twice, once, x, draws=draws)
    for model in (twice, once):
        model.resample(draws, seed=0)
    with torch.no_grad():
        torch.testing.assert_close(twice.draw_logits(x), once.draw_logits(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(twice(x), once(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(twice.draw_logits(x), one_draw_at_a_time(twice, x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(twice.draw_logits(x)[0], twice.backbone(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "between",
    [lambda x: x.add_(1.0), lambda x: x.mul_(1.5), lambda x: nn.functional.silu(x, inplace=True)],
)
def test_networks_that_change_in_place_what_blocks_say(between: Callable[[Tensor], Tensor]) -> None:
    """What is remembered must not change with it, also in inference mode, where nothing counts changes."""
    twice, once = pair(between)
    same(twice, once, images(5, seed=3))
    with torch.no_grad():
        torch.testing.assert_close(twice(images()), once(images()), rtol=1e-4, atol=1e-5)


def test_blocks_before_the_first_attachment_are_computed_once() -> None:
    twice, once = pair()
    x = images(5)
    for model, counts in ((twice, [5, 5, 5]), (once, [5, 5, 5])):
        network: Any = model.backbone
        modules = {f"blocks.{n}": block for n, block in enumerate(network.blocks)} | {"head": network.head}
        for run in (lambda: model.predict(x), lambda: model(x)):  # noqa: B023
            rows = calls(modules, run)
            assert [rows[f"blocks.{n}"] for n in range(3)] == [
                [count] for count in counts
            ]  # the first attachment's too
            assert rows["blocks.3"] == rows["head"] == ([5, 5] if model is twice else [10])
    first: Any = twice.backbone.get_submodule("blocks.0")
    noisy = calls({"first": first}, lambda: twice.predict(x, draws=3))
    assert noisy == {"first": [5, 15]}  # several draws have rows of their own in the second run


def test_who_remembers() -> None:
    twice, once = pair()
    for model in (twice, once):
        watched = [part for part in model.net.modules() if isinstance(part, WatchedBlock)]
        assert [part.remembers for part in watched] == [True, True, True, False]
        assert [isinstance(part, AttachedBlock) for part in watched] == [False, False, True, True]
        assert sum(isinstance(part, Readout) for part in model.net.modules()) == 1


def test_nothing_stays_behind() -> None:
    twice, _ = pair()
    x = images()
    expected = twice.predict(x).samples
    network: Any = twice.backbone

    def fail(*_: Any) -> None:
        raise RuntimeError("broken")

    handle = network.blocks[3].register_forward_hook(fail)
    for run in (lambda: twice.predict(x), lambda: twice(x)):
        with pytest.raises(RuntimeError, match="broken"):
            run()
    handle.remove()
    state = twice.state.twice
    assert not state.running and state.outputs is None and state.first_run is None and not state._outputs
    assert torch.equal(twice.predict(x).samples, expected)
    twin = copy.deepcopy(twice)
    assert torch.equal(twin.predict(x).samples, expected) and isinstance(copy.deepcopy(state), Twice)


def test_gradients_flow_through_both_runs() -> None:
    twice, once = pair()
    x = images()
    found = []
    for model in (twice, once):
        model(x).square().sum().backward()
        parameters = [*model.attachment_parameters(), *model.backbone_parameters()]
        assert all(parameter.grad is not None for name, parameter in parameters if not name.endswith("_rho"))
        found.append([parameter.grad for _, parameter in parameters])
    for left, right in zip(*found):
        assert (left is None) == (right is None)  # mean weights ask for no width
        if left is not None:
            torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)


@pytest.mark.no_cover
def test_compiled_and_exported() -> None:
    twice, _ = pair()
    x = images()
    torch._dynamo.reset()
    with torch.no_grad():
        expected = twice(x)
        torch.testing.assert_close(torch.compile(twice, backend="eager", fullgraph=True)(x), expected)
        exported = torch.export.export(twice, (x,), strict=False)
        torch.testing.assert_close(exported.module()(x), expected)
    samples = twice.predict(x).samples
    twice.compile(backend="eager")
    torch.testing.assert_close(twice.predict(x).samples, samples, rtol=1e-4, atol=1e-6)


def test_a_pass_notes_the_plain_network_alone() -> None:
    twice, once = pair()
    x = images(5, seed=4)
    with torch.no_grad():
        notes = []
        for model in (twice, once):
            run = Pass(model, held_noise(model.layers), noting=True)
            run(x)
            features, last = run.take_features()
            assert [len(part) for part in features] == [5] * 5 and last is not None and len(last) == 5
            notes.append([*features, last])
        plain = Pass(twice, noting=True, plain=True)
        plain(x)
    for left, right, own in zip(*notes, [*(taken := plain.take_features())[0], taken[1]]):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(left, own, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("which", ["twice", "once"])
def test_threads_get_what_they_get_one_after_another(which: str) -> None:
    """Outputs, and predictions of mean weights and of several draws, mixed over eight threads, bit by bit."""
    model = dict(zip(("twice", "once"), pair()))[which]
    inputs = [images(rows, seed=rows) for rows in (1, 2, 4)]

    def output(part: Tensor) -> Tensor:
        with torch.no_grad():
            return model(part)

    jobs = [partial(output, part) for part in inputs]
    jobs += [partial(lambda p, d: model.predict(p, draws=d).samples, part, d) for part in inputs for d in (0, 1, 3)]
    jobs += [partial(lambda p: model.predict(p).score, part) for part in inputs]
    expected = [job() for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        results = [(index, pool.submit(jobs[index])) for _ in range(8) for index in range(len(jobs))]
    assert all(torch.equal(each.result(), expected[index]) for index, each in results)
    assert not model.state.twice._outputs and not model.state.twice._is_second
