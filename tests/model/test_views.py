"""Views: images moved by a little, of which each draw of a prediction looks at one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.baselines import Trained, load_trained, make_method
from abnn.errors import InputError
from abnn.model.views import STEPS, can_move, shifted, side_by_side, spread, step, views_of
from abnn.networks.by_name import PaperResNet
from abnn.predict.runtime import runtime_of
from tests.conftest import (
    SmallBatchNormNet,
    alter,
    attach_with,
    generator,
    mlp,
    random_head,
    randomise_attachments,
    with_score,
)
from tests.model.test_attach import LongSkip


def images(count: int = 5, side: int = 28, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, side, side, generator=generator(seed))


def small() -> PaperResNet:
    return random_head(PaperResNet(1, 3, 8, 2, "small"))


def fitted(network: nn.Module, **options: Any) -> Attached:
    model = randomise_attachments(attach_with(network.eval(), images(1), **options), 0.05)
    return with_score(model, images(40, seed=1))


def check(model: Attached, x: Tensor, draws: int = 7, **options: Any) -> None:
    """Draw s says about the inputs what it says about view s mod V of them; the plain network sees the first view."""
    alone = [model.predict(shifted(x, view), draws, views=1) for view in range(model.views)]
    found = model.predict(x, draws, **options)
    first, count = int(model.state.plain), draws or model.views
    wanted = [alone[s % model.views].samples[first + (s if draws else 0)] for s in range(count)]
    wanted = [alone[0].samples[0]] * first + wanted
    torch.testing.assert_close(found.samples, torch.stack(wanted), rtol=1e-4, atol=1e-6)
    if model.combined is None:
        assert found.parts is None
        return
    assert found.parts is not None and alone[0].parts is not None
    for name, part in found.parts.items():
        if "attached" not in name and name != "change of mind":
            torch.testing.assert_close(part, alone[0].parts[name], rtol=1e-3, atol=1e-3)


# -- images ------------------------------------------------------------------------------------------------------------


def test_moving() -> None:
    x = images(2)
    for view, (down, right) in enumerate(STEPS):
        inner = (slice(None), slice(None), slice(1, -1), slice(1, -1))
        assert torch.equal(shifted(x, view)[inner], x.roll((down, right), (2, 3))[inner])
    assert shifted(x, 0) is x
    lower = shifted(x, 1)  # down by one pixel: the first row is there twice, the last one is gone
    assert torch.equal(lower[:, :, 0], x[:, :, 0]) and torch.equal(lower[:, :, 1:], x[:, :, :-1])


def test_steps_grow_with_the_image() -> None:
    assert [step(side) for side in (8, 14, 15, 28, 32, 64, 224)] == [0, 0, 1, 1, 1, 2, 8]
    wide = torch.rand(1, 3, 10, 56, generator=generator())  # too low to be moved down
    assert torch.equal(shifted(wide, 1), wide) and torch.equal(shifted(wide, 3)[..., 2:], wide[..., :-2])


def test_which_inputs_can_be_moved() -> None:
    assert can_move((1, 28, 28), torch.float32) and can_move((3, 10, 64), torch.bfloat16)
    for shape, dtype in (((1, 8, 8), torch.float32), ((6,), torch.float32), ((7, 64), torch.float32)):
        assert not can_move(shape, dtype)
    assert not can_move((3, 32, 32), torch.long)


def test_draws_take_turns() -> None:
    assert views_of(range(7), 3) == (0, 1, 2, 0, 1, 2, 0) and views_of(range(4, 7), 3) == (1, 2, 0)
    assert views_of(range(7), 1) == () and views_of(range(3, 4), 3) == ()
    x = images(2)
    rows = side_by_side(x, (2, 0, 2))  # nobody looks at the second view
    assert len(rows) == 4
    assert torch.equal(spread(rows, (1, 0, 1)), torch.cat([shifted(x, 2), x, shifted(x, 2)]))


# -- predictions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bounded", "chain", "replace"])
@pytest.mark.parametrize("last", [None, 1, 2])
def test_each_draw_looks_at_its_view(kind: str, last: int | None) -> None:
    model = fitted(small(), kind=kind, last=last, views=5)
    assert model.views == 5
    check(model, images(3, seed=2))
    check(model, images(3, seed=2), draws=3)
    check(model, images(6, seed=2), draws=11, memory_limit=2**19)  # in several passes
    if kind == "bounded":
        check(model, images(3, seed=2), draws=0)
        check(model, images(6, seed=2), draws=0, memory_limit=2**18)


def test_networks_that_fold_at_the_input() -> None:
    model = fitted(LongSkip(), at=["down", "up"], views=5)
    assert model.folds_at_input
    for draws in (0, 3, 7):
        check(model, images(3, seed=2), draws)


def test_batch_normalisation_and_nine_views() -> None:
    check(fitted(SmallBatchNormNet(), views=9), images(4, seed=3), draws=12)


@pytest.mark.no_cover
def test_compiled() -> None:
    model = fitted(small(), views=5)
    x = images(4, seed=2)
    plain = model.predict(x)
    model.compile(backend="eager")
    torch.testing.assert_close(model.predict(x).samples, plain.samples, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(model.predict(x).combined, plain.combined, rtol=1e-2, atol=1e-2)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_replayed() -> None:
    model = fitted(small(), views=5).cuda()
    x = images(4, seed=2).cuda()
    once = model.predict(x, replay=False)
    for views in (5, 1, 5, 5, 5):
        found = model.predict(x, views=views)
        assert len(found.samples) == 1 + views
        if views == 5:
            torch.testing.assert_close(found.samples, once.samples, rtol=0, atol=1e-3)
    assert len(runtime_of(model).replay) > 0


@pytest.mark.no_cover
def test_one_compilation_serves_all_passes_of_many_draws() -> None:
    model = fitted(small(), views=5)
    x, compiled = images(2, seed=2), []

    def backend(graph: Any, _: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    model.compile(backend=backend)
    found = model.predict(x, draws=100).samples
    once = len(compiled)  # with the draw of mean weights in the first pass, and without it in the others
    assert 0 < once <= 2
    model.predict(x, draws=50)
    assert len(compiled) == once
    model.compile(disable=True)
    torch.testing.assert_close(found, model.predict(x, draws=100).samples, rtol=1e-4, atol=1e-6)


def test_held_draws_outlive_images_that_do_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fitted(small())
    model.resample(3, seed=7)
    x = images(2)
    before = model(x)

    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr("abnn.predict.passes.side_by_side", full)
    with pytest.raises(torch.OutOfMemoryError):
        model.predict(x)
    assert model.draws == 3 and torch.equal(model(x), before)


def test_channels_last() -> None:
    model = fitted(small(), views=5).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check(model, images(3, seed=2).contiguous(memory_format=torch.channels_last))


def test_results_do_not_depend_on_the_batch() -> None:
    model = fitted(small(), views=5)
    x = images(6, seed=4)
    torch.testing.assert_close(model.predict(x[4:]).samples, model.predict(x).samples[:, 4:], rtol=1e-4, atol=1e-6)


# -- who has them ------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    """One view, unless more are asked for."""
    for preset in ("default", "paper", "authors"):
        assert abnn.attach(small(), images(1), preset=preset).views == 1
    for options in ({}, {"last": 1}, {"preset": "authors"}):
        assert attach_with(small(), images(1), **options, views=3).views == 3
    assert abnn.attach(mlp(), torch.rand(1, 6)).views == 1


def test_smaller_images_than_the_example_are_looked_at_as_they_are() -> None:
    model = fitted(small(), views=5)
    tiny = images(2, side=12)
    alike, once = (
        model.predict(tiny).samples,
        model.predict(tiny, views=1).samples,
    )  # as many samples as larger images have
    assert len(alike) == 6
    torch.testing.assert_close(alike[:1], once[:1], rtol=0, atol=1e-6)
    assert all(torch.allclose(each, once[1], atol=1e-6) for each in alike[1:])
    with pytest.raises(InputError, match=r"views: got 5 for inputs of shape \(1, 12, 12\)"):
        model.predict(tiny, views=5)
    model = fitted(small(), views=1)
    assert len(model.predict(images(2), views=np.int64(3)).samples) == 4 and len(model.predict(images(2)).samples) == 2


@pytest.mark.parametrize("views", [0, 10, 2.0, True, "5", None])
def test_wrong_numbers(views: Any) -> None:
    model = fitted(small())
    if views is None:
        assert len(model.predict(images(2), views=views)) == 2
        return
    with pytest.raises(InputError, match="views: got .* accepted: a whole number from 1 to 9"):
        model.predict(images(2), views=views)
    with pytest.raises(InputError, match="views"):
        abnn.attach(PaperResNet(1, 3, 8, 2, "small"), images(1), config=abnn.AttachConfig(views=views))
    with pytest.raises(InputError, match="views"):
        make_method("abnn", views=views)


def test_inputs_that_cannot_be_moved() -> None:
    with pytest.raises(InputError, match=r"views: got 5 for inputs of shape \(6,\).* accepted: 1, but for images"):
        abnn.attach(mlp(), torch.rand(1, 6), config=abnn.AttachConfig(views=5))
    assert abnn.attach(mlp(), torch.rand(1, 6), config=abnn.AttachConfig(views=1)).views == 1


def test_saved_models_keep_them(tmp_path: Path) -> None:
    model = fitted(small(), views=3)
    model.save(tmp_path / "model")
    description = json.loads((tmp_path / "model" / "abnn.json").read_text())
    assert description["views"] == 3
    loaded = abnn.load(tmp_path / "model", abnn.detach(model))
    assert loaded.views == 3
    alter(tmp_path / "model", views=...)  # as models were saved before there were views
    assert abnn.load(tmp_path / "model", abnn.detach(loaded)).views == 1


def test_methods() -> None:
    def build(name: str, side: int = 28, **options: Any) -> Attached:
        model = make_method(name, **options).build(lambda: PaperResNet(1, 3, 8, 2, "small"), images(1, side=side))
        assert isinstance(model, Attached)
        return model

    assert build("abnn").views == 1 and build("abnn", views=2).views == 2
    assert build("abnn", side=8).views == 1 and build("abnn", variant="authors").views == 1
    assert build("abnn", attach={"views": 2}).views == 2
    assert build("bbp").views == 1 and build("vboe", variant="authors").views == 1
    assert "views" not in make_method("abnn").to_config()
    for method in (make_method("abnn"), make_method("abnn", views=1), make_method("abnn", "paper", views=4)):
        assert make_method(**method.to_config()) == method


def test_saved_methods_keep_them(tmp_path: Path) -> None:
    def trained(**options: Any) -> Trained:
        method, network = make_method("abnn", score="entropy", **options), PaperResNet(1, 3, 8, 2, "small")
        return Trained(method, method.build(lambda: network, images(1)), images(1), 3)

    for name, each, views in (("a", trained(), 5), ("b", trained(views=2), 2), ("c", trained(), 1)):
        assert isinstance(each.network, Attached)
        each.network.views = views
        each.save(tmp_path / name)
        loaded = load_trained(tmp_path / name, PaperResNet(1, 3, 8, 2, "small")).network
        assert isinstance(loaded, Attached) and loaded.views == views
        alter(tmp_path / name, views=...)  # as methods were saved before it was noted
        loaded = load_trained(tmp_path / name, PaperResNet(1, 3, 8, 2, "small")).network
        assert isinstance(loaded, Attached) and loaded.views == (2 if name == "b" else 1)
