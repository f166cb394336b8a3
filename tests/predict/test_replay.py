"""Predictions as CUDA graphs: what they give, what they see, and when they are captured anew.

The book-keeping is tested everywhere, with graphs that run their pass again; all else needs a device.
"""

from __future__ import annotations

import copy
import gc
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.noise import map_noise
from abnn.errors import AbnnWarning, InputError
from abnn.networks.by_name import PaperResNet
from abnn.predict import Prediction
from abnn.predict import replay as module
from abnn.predict.replay import GRAPHS, Replay
from abnn.predict.runtime import Runtime, runtime_of
from tests.conftest import attach_with, generator, random_head, randomise_attachments, with_score

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


# -- book-keeping ------------------------------------------------------------------------------------------------------


class Again:
    """A graph that runs its pass again, into the same outputs."""

    def __init__(self, run: Any, x: Tensor, outputs: Any) -> None:
        self.run, self.x, self.outputs = run, x, outputs

    def replay(self) -> None:
        for old, new in zip(self.outputs, self.run(self.x)):
            if old is not None:
                old.copy_(new)


class Watched(Replay):
    """Notes what was done to each input: "aside", "capture" or nothing (a replay)."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[str, int]] = []

    def _run_kernels(self, run: Any, x: Tensor) -> Any:
        self.done.append(("aside", len(x)))
        return run(x)

    def _capture(self, make: Any, x: Tensor, noise: Any, device: torch.device) -> Any:
        self.done.append(("capture", len(x)))
        held, own = x.clone(), map_noise(noise, torch.clone)
        run = make(own)
        outputs = run(held)
        return module._Graph(Again(run, held, outputs), held, own, noise, outputs)  # type: ignore[arg-type]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return Watched()


class OnCpu(nn.Linear):
    device = torch.device("cpu")


class Work:
    """A network, the noise of two draws, and a pass that uses both."""

    def __init__(self) -> None:
        self.network: Any = OnCpu(3, 3)
        self.noise: Any = [(torch.zeros(1, 2, 3), None)]

    def __call__(self, replay: Replay, x: Tensor, *flags: Any) -> Tensor:
        def make(noise: Any) -> Any:
            return lambda x: (self.network(x) + noise[0][0][0, :, None], None)

        with torch.inference_mode():
            found = replay(self.network, make, x, self.noise, *flags)[0].clone()
            assert torch.equal(found, make(self.noise)(x)[0])
        return found


def rows(batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, generator=generator(batch))


def test_the_second_pass_of_a_shape_is_captured(watched: Watched) -> None:
    work = Work()
    for _ in range(4):
        work(watched, rows())
    assert watched.done == [("aside", 2), ("capture", 2)] and len(watched) == 1
    for _ in range(3):
        work(watched, rows(5))
    assert watched.done[2:] == [("aside", 5), ("capture", 5)] and len(watched) == 2
    work(watched, rows(), True)
    work(watched, rows().double().float().T.contiguous().T)
    assert watched.done[4:] == [("aside", 2), ("aside", 2)]  # other flags, another layout in memory


def test_updates_in_place_need_no_capture(watched: Watched) -> None:
    work = Work()
    before = [work(watched, rows()) for _ in range(3)][-1]
    with torch.no_grad():
        work.network.weight.mul_(2)
    work.noise = [(torch.ones(1, 2, 3), None)]  # other draws are copied into the graph's own noise
    assert not torch.equal(work(watched, rows()), before)
    work.network.load_state_dict(nn.Linear(3, 3).state_dict())
    work.network.weight.data.add_(1)
    work(watched, rows())
    assert len(watched.done) == 2


@pytest.mark.parametrize("change", ["parameter", "data", "type", "module"])
def test_what_was_moved_or_replaced_is_captured_anew(watched: Watched, change: str) -> None:
    work = Work()
    for _ in range(3):
        work(watched, rows())
    if change == "parameter":
        work.network.weight = nn.Parameter(torch.ones(3, 3))
    elif change == "data":
        work.network.weight.data = torch.ones(3, 3)
    elif change == "module":
        work.network = OnCpu(3, 3)
    else:
        work.network.double()
        work.noise = [(torch.ones(1, 2, 3).double(), None)]
    for _ in range(4):
        work(watched, rows().to(work.noise[0][0].dtype))
    assert [name for name, _ in watched.done[2:]].count("capture") == 1 and len(watched) == 1


def test_few_graphs_are_kept_and_captures_do_not_take_over(watched: Watched) -> None:
    work = Work()
    for _ in range(200):
        for batch in range(1, GRAPHS + 3):
            work(watched, rows(batch))
    assert len(watched) == GRAPHS
    captures = [batch for name, batch in watched.done if name == "capture"]
    assert len(captures) <= 8 * (GRAPHS + 2)  # each shape: after 1, 2, 4, ... 128 passes in vain


def test_modes_have_graphs_of_their_own(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    for _ in range(3):
        work(watched, rows())
    monkeypatch.setenv("ABNN_CONV", "loop")
    work(watched, rows())
    monkeypatch.delenv("ABNN_CONV")
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = not before
    work(watched, rows())
    torch.backends.cudnn.deterministic = before
    assert watched.done[2:] == [("aside", 2), ("aside", 2)]
    work(watched, rows())
    assert len(watched.done) == 4


def test_hooks_are_called(watched: Watched) -> None:
    work, called = Work(), []
    for _ in range(3):
        work(watched, rows())
    work.network.register_forward_hook(lambda *_: called.append(1))
    for _ in range(3):
        work(watched, rows())
    assert len(called) == 2 * 3 and len(watched.done) == 2  # the check runs the network a second time


def test_off_is_off(watched: Watched) -> None:
    work = Work()
    watched.off = True
    for _ in range(3):
        work(watched, rows())
    assert watched.done == []


def test_copies_start_afresh() -> None:
    runtime = Runtime()
    runtime.replay.off = True
    for other in (copy.deepcopy(runtime), pickle.loads(pickle.dumps(runtime))):
        assert len(other.replay) == 0 and not other.replay.off and len(other.noise) == 0


# -- on a device -------------------------------------------------------------------------------------------------------


def network(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return random_head(PaperResNet(width=16, blocks=3, classes=4, stem="small", **options)).eval().cuda()


def images(batch: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, 1, 12, 12, generator=generator(seed)).cuda()


def make(learnt: bool = True, **options: Any) -> Attached:
    model = randomise_attachments(attach_with(network(), images(1), draws=2, **options), 0.05)
    return with_score(model, images(60, seed=8)) if learnt else model


def agree(left: Prediction, right: Prediction) -> None:
    """The same kernels give the same numbers; some room is left for those that add in any order."""
    torch.testing.assert_close(left.samples, right.samples, rtol=1e-5, atol=1e-6)
    assert (left.combined is None) == (right.combined is None) and (left.parts is None) == (right.parts is None)
    if left.combined is not None and right.combined is not None:  # in units of what is usual, which are small ones here
        torch.testing.assert_close(left.combined, right.combined, rtol=1e-3, atol=1e-3)
    if left.parts is not None and right.parts is not None:
        assert list(left.parts) == list(right.parts)


def check(model: Attached, x: Tensor, draws: int = 5, times: int = 4, **options: Any) -> Prediction:
    """Several predictions, of which the later ones are replays, against one kernel by kernel."""
    expected = model.predict(x, draws=draws, replay=False, **options)
    for _ in range(times):
        found = model.predict(x, draws=draws, **options)
        agree(found, expected)
    return found


@needs_cuda
@pytest.mark.parametrize(
    ("kind", "learnt"), [("bounded", True), ("bounded", False), ("chain", False), ("replace", False)]
)
def test_replays_give_what_kernels_one_by_one_give(kind: str, learnt: bool) -> None:
    model = make(learnt, kind=kind)
    found = check(model, images(7))
    assert len(runtime_of(model).replay) == 1 and not runtime_of(model).replay.off
    assert not found.samples.is_inference() and found.samples.is_cuda
    other = images(7, seed=5)
    agree(model.predict(other, draws=5), model.predict(other, draws=5, replay=False))
    assert not torch.equal(model.predict(other, draws=5).samples, found.samples)
    agree(model.predict(images(7), draws=5), found)  # earlier results were not overwritten
    assert len(runtime_of(model).replay) == 1


@needs_cuda
def test_the_device_gives_what_the_cpu_gives() -> None:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        model = make()
        found = check(model, images(7))
        expected = copy.deepcopy(model).cpu().predict(images(7).cpu(), draws=5)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    torch.testing.assert_close(found.samples.cpu(), expected.samples, rtol=1e-3, atol=1e-4)
    for name in ("distance at input", "distance at blocks.0"):
        assert found.parts is not None and expected.parts is not None
        torch.testing.assert_close(found.parts[name].cpu(), expected.parts[name], rtol=1e-2, atol=1e-2)


@needs_cuda
def test_inputs_from_the_cpu() -> None:
    model = make()
    for _ in range(4):
        agree(model.predict(images(6).cpu(), draws=3), model.predict(images(6), draws=3, replay=False))
    assert len(runtime_of(model).replay) == 1


@needs_cuda
def test_other_seeds_need_no_capture() -> None:
    model, x = make(), images(6)
    check(model, x)
    graphs = list(runtime_of(model).replay._graphs.values())
    for seed in (1, 2, 1):
        check(model, x, times=2, seed=seed)
    fresh = [model.predict(x, draws=5, seed=None).samples for _ in range(3)]
    assert not torch.equal(fresh[0], fresh[1]) and not torch.equal(fresh[1], fresh[2])
    torch.manual_seed(3)
    first = model.predict(x, draws=5, seed=None)
    torch.manual_seed(3)
    agree(model.predict(x, draws=5, seed=None), first)
    assert list(runtime_of(model).replay._graphs.values()) == graphs


@needs_cuda
def test_changed_weights_are_seen() -> None:
    model, x = make(), images(6)
    before = check(model, x)
    graphs = list(runtime_of(model).replay._graphs.values())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(6).cuda() % 4).backward()
        optimizer.step()
    stepped = check(model, x)
    assert (stepped.samples - before.samples).abs().max() > 1e-3
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data.mul_(1.1)
    check(model, x)
    model.load_state_dict(state)
    agree(check(model, x), stepped)
    assert list(runtime_of(model).replay._graphs.values()) == graphs  # all of this happened in place


@needs_cuda
def test_moved_weights_are_captured_anew() -> None:
    model, x = make(), images(6)
    before = check(model, x)
    parameter = model.backbone.head.weight
    parameter.data = 2 * parameter.data  # type: ignore[union-attr,operator]
    assert (check(model, x).samples - before.samples).abs().max() > 1e-3
    parameter.data = parameter.data / 2  # type: ignore[union-attr,operator]
    model.cpu()
    torch.testing.assert_close(model.predict(x.cpu(), draws=5).samples, before.samples.cpu(), rtol=1e-2, atol=1e-2)
    model.cuda()
    agree(check(model, x), before)


@needs_cuda
def test_a_score_learnt_later_is_seen() -> None:
    model, x = make(learnt=False), images(6)
    assert check(model, x).combined is None
    found = [check(with_score(model, images(60, seed)), x).combined for seed in (8, 9)]
    assert found[0] is not None and found[1] is not None and not torch.equal(found[0], found[1])


@needs_cuda
@pytest.mark.parametrize("draws", [0, 30])
def test_mean_weights_and_draws_in_several_passes(draws: int) -> None:
    """The learnt score is that of all draws; with mean weights the whole prediction is one graph."""
    model, x = make(), images(6)
    found = check(model, x, draws=draws)
    assert found.samples.shape[0] == 1 + (draws or 1) and found.combined is not None
    assert (len(runtime_of(model).replay) == 1) == (draws == 0)
    parts = model.predict(x, draws=draws, memory_limit=20 * 4 * model.folded_bytes)
    torch.testing.assert_close(parts.samples, found.samples, rtol=1e-2, atol=1e-2)  # TF32, other kernels


@needs_cuda
def test_views_are_replayed() -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 1, 16, 16, generator=generator(1)).cuda()
    model = with_score(randomise_attachments(attach_with(network(), x[:1]), 0.05), torch.randn(40, 1, 16, 16).cuda())
    for draws in (0, 5):
        assert check(model, x, draws=draws, views=3).views == 3


@needs_cuda
def test_modes_of_the_model_do_not_matter() -> None:
    model, x = make(), images(6)
    before = check(model, x)
    model.train()
    agree(check(model, x), before)
    assert model.training and all(part.training for part in model.net.modules())
    noise = [layer.weight_noise for layer in model.layers]
    model.predict(x, draws=5)
    assert all(old is layer.weight_noise for old, layer in zip(noise, model.layers))
    model(x).sum().backward()  # nothing of inference mode is left


@needs_cuda
def test_many_shapes() -> None:
    model = make()
    for _ in range(3):
        for batch in range(1, GRAPHS + 4):
            check(model, images(batch), draws=3, times=1)
    assert 0 < len(runtime_of(model).replay) <= GRAPHS
    for draws in (1, 2, 7, 10, 23):
        check(model, images(5), draws=draws)
    wide = torch.randn(3, 1, 20, 16, generator=generator()).cuda()
    check(model, wide)


@needs_cuda
@pytest.mark.parametrize("inputs", [1, 7, 20, 55])
def test_chunks_change_nothing(inputs: int) -> None:
    model, x = make(), images(11)
    whole = model.predict(x, draws=6, replay=False)
    limit = inputs * 4 * model.folded_bytes
    for _ in range(3):
        found = model.predict(x, draws=6, memory_limit=limit)
        torch.testing.assert_close(found.samples, whole.samples, rtol=1e-2, atol=1e-2)  # TF32, other kernels
    agree(found, model.predict(x, draws=6, memory_limit=limit, replay=False))


@needs_cuda
def test_copies_are_independent(tmp_path: Path) -> None:
    model, x = make(), images(6)
    before = check(model, x)
    other = copy.deepcopy(model)
    assert len(runtime_of(other).replay) == 0 and other.state_dict().keys() == model.state_dict().keys()
    agree(check(other, x), before)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.5)
    check(other, x)
    agree(check(model, x), before)
    model.save(tmp_path / "model")
    loaded = abnn.load(tmp_path / "model", copy.deepcopy(model.backbone))
    agree(check(loaded, x), before)


@needs_cuda
def test_graphs_go_with_their_model() -> None:
    def left() -> int:
        model = make(learnt=False)
        for batch in (3, 4, 200):
            for _ in range(3):
                model.predict(images(batch), draws=10)
        assert len(runtime_of(model).replay) == 3
        del model
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = left()  # with the workspaces of libraries, which stay
    assert left() <= first + 2**16


@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    model, x = make(), images(6)
    exact = check(model, x)
    for _ in range(2):
        with torch.autocast("cuda", dtype):
            found = check(model, x)
        assert (found.samples - exact.samples).abs().max() > 0
        agree(model.predict(x, draws=5), exact)
    with torch.no_grad():  # casts of weights are not remembered
        for parameter in model.parameters():
            parameter.mul_(1.5)
    with torch.autocast("cuda", dtype):
        check(model, x)


@needs_cuda
def test_half_precision_and_channels_last() -> None:
    torch.manual_seed(0)
    base = network().to(torch.bfloat16).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = images(6).to(torch.bfloat16).to(memory_format=torch.channels_last)
    for kind in ("bounded", "chain"):
        check(randomise_attachments(abnn.attach(base, x[:1], kind=kind), 0.05), x)


class Looking(nn.Module):
    """Looks at a value in the middle of its pass, which no graph can do."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.one(x)
        return self.two(h if h.sum().item() < 1e9 else -h)


@needs_cuda
def test_networks_that_cannot_be_captured() -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 6, generator=generator()).cuda()
    model = randomise_attachments(abnn.attach(Looking().cuda(), x[:1], at="one"), 0.2)
    expected = model.predict(x, draws=4, replay=False)
    agree(model.predict(x, draws=4), expected)
    with pytest.warns(AbnnWarning, match="cannot be captured as one CUDA graph"):
        agree(model.predict(x, draws=4), expected)
    for _ in range(3):  # once is enough
        agree(model.predict(x, draws=4), expected)
    assert runtime_of(model).replay.off and len(runtime_of(model).replay) == 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.rand(3, device="cuda").isfinite().all()
    check(make(), images(4))  # and others are not concerned


class Swapping(nn.Module):
    """Puts channels into another order, by a list that has to be copied from the host, in the middle of its pass."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.two(self.one(x)[:, [7, 6, 5, 4, 3, 2, 1, 0]].relu())
        return self.head(h.mean((2, 3)))


@needs_cuda
def test_a_failed_capture_leaves_nothing_behind() -> None:
    """Its stream is left, and memory that the second stream has read is used again by later passes."""
    torch.manual_seed(0)
    x = torch.rand(64, 3, 64, 64, generator=generator())
    model = with_score(abnn.attach(Swapping().cuda().eval(), x[:1].cuda()), x.cuda())
    expected, stream = model.predict(x.cuda(), replay=False), torch.cuda.current_stream()
    agree(model.predict(x.cuda()), expected)
    with pytest.warns(AbnnWarning, match="cannot be captured as one CUDA graph .*pinned"):
        agree(model.predict(x.cuda()), expected)
    assert torch.cuda.current_stream() == stream
    reserved = []
    for _ in range(40):
        agree(model.predict(x.cuda()), expected)
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] == reserved[9]


@needs_cuda
def test_other_streams() -> None:
    model, x = make(), images(6)
    expected = [check(model, x, seed=seed) for seed in (0, 1)]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    found = []
    for number in range(20):
        with torch.cuda.stream(streams[number % 2]):
            found.append(model.predict(x, draws=5, seed=number % 2))
    torch.cuda.synchronize()
    for number, each in enumerate(found):
        agree(each, expected[number % 2])


@needs_cuda
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_are_looked_at(value: float) -> None:
    model, x = make(), images(6)
    check(model, x)
    x[3, 0, 0, 0] = value
    with pytest.raises(InputError, match="NaN or infinite values in rows 3"):
        model.predict(x, draws=5)
    check(model, images(6))


@needs_cuda
def test_a_hundred_draws_take_little_more_memory_than_ten() -> None:
    def peak(draws: int) -> int:
        torch.manual_seed(0)
        model = abnn.attach(PaperResNet().eval().cuda(), torch.zeros(1, 1, 28, 28).cuda(), preset="authors", draws=1)
        x = torch.rand(128, 1, 28, 28, generator=generator()).cuda()
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        for _ in range(4):
            model.predict(x, draws=draws)
        return torch.cuda.max_memory_allocated()

    peak(1)  # whatever libraries keep
    assert peak(100) <= 1.5 * peak(10)
