"""What one pass says about inputs: against hooks on the plain network and passes of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.noise import held_noise
from abnn.model.attached_blocks import AttachedBlock, Readout, WatchedBlock
from abnn.model.blocks import of_any_output
from abnn.model.features import condense, note
from abnn.model.passes import Pass
from tests.conftest import SmallBatchNormNet, generator, mlp, randomise_attachments, with_score
from tests.model.test_attach import Encoder, LongSkip, image, small


class AllConvolutions(nn.Module):
    """No linear layer makes its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).mean((2, 3))


class Words(nn.Module):
    """Its inputs are numbers of words, which have no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.rest = Encoder()

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.embed(x))


def numbers(*shape: int) -> Tensor:
    return torch.randn(40, *shape, generator=generator(1))


CASES: dict[str, tuple[Any, Tensor, dict[str, Any], bool]] = {
    "images": (small, image(40), {}, True),
    "two blocks": (small, image(40), {"last": 2}, True),
    "batch norm": (SmallBatchNormNet, image(40), {}, True),
    "tokens": (Encoder, numbers(7, 5), {}, True),
    "words": (Words, torch.randint(9, (40, 7), generator=generator(1)), {}, True),
    "table": (mlp, numbers(6), {}, True),
    "long skip": (LongSkip, image(40), {"at": ["down", "up"]}, True),
    "no readout": (AllConvolutions, image(40), {}, False),
    "attached readout": (mlp, numbers(6), {"at": ["0", "4"]}, False),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Attached, Tensor, bool]:
    make, x, options, readout = CASES[request.param]
    torch.manual_seed(0)
    model = randomise_attachments(abnn.attach(make().eval(), x[:1], **options), 0.3)
    return with_score(model, x), x[:6], readout


READ = ("input", "words", "meaning")
"""Places that are no blocks."""


def seen(model: Attached, x: Tensor) -> dict[str, Tensor]:
    """What every watched place says in a pass of the plain network."""
    found: dict[str, Tensor] = {"input": x}
    network, handles = model.backbone, []
    if model.state.table is not None:
        found |= {"words": x, "meaning": nn.functional.normalize(model.state.table(x).mean(1), dim=1)}
    for name in model.places:
        if name not in READ:
            hook = network.get_submodule(name).register_forward_hook
            handles.append(hook(lambda _, args, out, name=name: found.update({name: out})))
    network(x)
    for handle in handles:
        handle.remove()
    return found


@torch.no_grad()
def test_evidence_is_that_of_the_plain_network_and_the_attached_one(case: tuple[Attached, Tensor, bool]) -> None:
    model, x, readout = case
    run = Pass(model, noting=True)
    outputs = run(x)
    evidence = model.gather(run, outputs)
    torch.testing.assert_close(evidence.plain, model.backbone(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(evidence.attached, Pass(model, plain=False)(x)[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(evidence.plain, evidence.attached, atol=1e-4)
    assert (evidence.last is not None) == readout
    if readout:
        assert evidence.last is not None and evidence.weight is not None
        logits = nn.functional.linear(evidence.last, evidence.weight, evidence.bias)
        torch.testing.assert_close(logits, evidence.plain, rtol=1e-4, atol=1e-5)
    layouts = {name: part.layout for name, part in model.net.named_modules() if isinstance(part, WatchedBlock)}
    places, form = seen(model, x), model.closed_form
    assert form is not None
    features = [
        condense(note(places[name], layouts.get(name, "channels"))) for name in model.places
    ]  # words stay words
    torch.testing.assert_close(evidence.statistics, form(features), rtol=1e-3, atol=1e-2)


@torch.no_grad()
def test_notes_do_not_depend_on_draws_and_views(case: tuple[Attached, Tensor, bool]) -> None:
    model, x, _ = case
    alone = Pass(model, noting=True, plain=True)
    alone(x)
    expected, last = alone.take_features()
    model.resample(3, seed=0)
    several = Pass(model, held_noise(model.layers), noting=True)
    several(x)
    found, found_last = several.take_features()
    assert len(found) == len(expected) == len(model.places)
    for left, right in zip(found, expected):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-4)
    assert (last is None) == (found_last is None)
    if last is not None:
        torch.testing.assert_close(found_last, last, rtol=1e-3, atol=1e-4)
    assert several.take_features() == ([], None)  # taken is taken


@torch.no_grad()
def test_every_block_is_watched(case: tuple[Attached, Tensor, bool]) -> None:
    model, x, readout = case
    stand_ins = {name: part for name, part in model.net.named_modules() if isinstance(part, WatchedBlock)}
    places = [name for name in model.places if name not in READ]
    assert set(stand_ins) == set(places) and ("input" in model.places) == x.is_floating_point()
    assert [name for name in places if isinstance(stand_ins[name], AttachedBlock)] == model.block_names
    assert sum(isinstance(part, Readout) for part in model.net.modules()) == int(readout)
    assert model.closed_form is not None and len(model.closed_form.sizes) == len(model.places)
    assert not any(isinstance(part, WatchedBlock | Readout) for part in model.backbone.modules())


@pytest.mark.parametrize("blocks", [2, 12])
def test_the_readout_is_told_from_blocks_whose_name_it_begins_with(blocks: int) -> None:
    """In a long nn.Sequential, "22" is not inside of "2"."""
    layers = [part for _ in range(blocks) for part in (nn.Linear(6, 6), nn.ReLU())]
    model = abnn.attach(nn.Sequential(*layers, nn.Linear(6, 3)).eval(), torch.zeros(1, 6))
    assert isinstance(model.net.get_submodule(str(2 * blocks)), Readout)
    assert "clipped energy" in model.combined.names


class TwoHeads(nn.Module):
    """Two heads, of one width or not. The first output is that of the head that is named."""

    def __init__(self, first: str, width: int = 3) -> None:
        super().__init__()
        self.body, self.first = mlp(6, 8, 8), first
        self.one, self.two = nn.Linear(8, 3), nn.Linear(8, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        one, two = self.one(features), self.two(features.sin())
        return (one, two) if self.first == "one" else (two, one)


@pytest.mark.parametrize("width", [3, 4])
@pytest.mark.parametrize("first", ["one", "two"])
def test_of_two_heads_the_readout_makes_the_output_and_no_attachment_lies_behind_it(first: str, width: int) -> None:
    model = abnn.attach(TwoHeads(first, width).eval(), torch.zeros(1, 6))
    replaced = [name for name, part in model.net.named_modules() if isinstance(part, WatchedBlock | Readout)]
    assert isinstance(model.net.get_submodule(first), Readout) and replaced[-1] == first


@pytest.mark.parametrize("first", ["one", "two"])
def test_models_of_all_outputs_say_what_they_said(first: str, tmp_path: Path) -> None:
    """Those that were saved before blocks and the last layer were those of the first of several outputs."""
    network, x = TwoHeads(first).eval(), torch.randn(60, 6, generator=torch.Generator().manual_seed(0))

    def saved(name: str) -> tuple[abnn.Attached, Path]:
        model = with_score(abnn.attach(network, x[:1], at="body.0"), x)
        randomise_attachments(model)
        return model, model.save(tmp_path / name)

    with of_any_output():
        before, path = saved("before")
    today, newer = saved("today")
    assert before.readout.block is network.two and today.readout.block is network.get_submodule(first)
    assert ("one" in before.places, "one" in today.places) == (True, first == "two")
    again = abnn.load(path, network).save(tmp_path / "again")
    for folder, model in ((path, before), (again, before), (newer, today)):
        loaded = abnn.load(folder, network)
        assert loaded.places == model.places and torch.equal(loaded.predict(x).score, model.predict(x).score)
