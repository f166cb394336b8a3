"""Networks of several inputs, dictionaries in and out: what comes back, and which errors say what."""

from __future__ import annotations

import copy
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import abnn
from abnn.config import FitConfig
from abnn.errors import InputError
from abnn.model.inputs import Inputs, pack, read
from abnn.predict import Plain
from abnn.train.batches import check_batch
from abnn.train.hold_out import hold_out
from tests.conftest import randomise_attachments

WORDS, CLASSES, PAD = 40, 4, 0


class Output(OrderedDict):
    """A dict whose fields can be read as attributes, as transformers return it."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise AttributeError(name)


class Reader(nn.Module):
    """A small encoder of padded sentences: masks inside of its layers and in the mean over words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16, padding_idx=PAD)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        x, hidden = self.embed(input_ids), None if bool(mask.all()) else mask == 0
        states = [x]
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
            states.append(x)
        if len(x) != len(mask):  # rows of draws come one after the other
            mask = mask.repeat(len(x) // len(mask), 1)
        weight = mask[..., None].float()
        logits = self.head((x * weight).sum(1) / weight.sum(1))
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return Output({**loss, "logits": logits, "hidden_states": tuple(states)})


class Sentences(Dataset):
    """Words of one quarter of the vocabulary each, of different lengths."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 9, (count,), generator=generator).tolist()
        self.items = [
            (1 + place % CLASSES * 9 + torch.randint(9, (length,), generator=generator), place % CLASSES)
            for place, length in enumerate(lengths)
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self.items[place]


def padded(items: list[tuple[Tensor, int]]) -> dict[str, Tensor]:
    ids = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True, padding_value=PAD)
    return {
        "input_ids": ids,
        "attention_mask": (ids != PAD).long(),
        "labels": torch.tensor([label for _, label in items]),
    }


def batches(count: int = 96, seed: int = 0, size: int = 24) -> DataLoader:
    return DataLoader(Sentences(count, seed), size, collate_fn=padded)


def trained() -> Reader:
    torch.manual_seed(0)
    network = Reader()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(8):
        for batch in batches():
            optimizer.zero_grad()
            network(**batch).loss.backward()
            optimizer.step()
    return network.eval()


@pytest.fixture(scope="module")
def fitted() -> Any:
    model = abnn.attach(trained(), example=next(iter(batches())), last=2)
    abnn.fit(model, batches(), epochs=2, progress=False, config=FitConfig(accelerator="cpu"))
    abnn.calibrate(model, batches(seed=1), progress=False)
    return model


def without_labels(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in batch.items() if name != "labels"}


def longer(batch: dict[str, Tensor], by: int) -> dict[str, Tensor]:
    return {name: nn.functional.pad(value, (0, by)) for name, value in without_labels(batch).items()}


def test_attaching_changes_nothing_and_dicts_stay_what_they_are() -> None:
    network, batch = trained(), next(iter(batches()))
    model = abnn.attach(network, example=batch)
    with torch.no_grad():
        expected, output = network(**batch), model(**batch)
        torch.testing.assert_close(output.logits, expected.logits)
        torch.testing.assert_close(output.loss, expected.loss)
        assert type(output) is Output and list(output) == list(expected)
        for one, other in zip(output.hidden_states, expected.hidden_states):
            torch.testing.assert_close(one, other)
        assert torch.equal(model(batch).logits, output.logits)
        assert "loss" not in model(batch["input_ids"], batch["attention_mask"])
        torch.testing.assert_close(model(batch["input_ids"]).logits, network(batch["input_ids"]).logits)


def test_scores_do_not_depend_on_padding_or_batch(fitted: Any) -> None:
    batch = next(iter(batches(seed=2)))
    whole, more = fitted.predict(batch), fitted.predict(longer(batch, 7))
    torch.testing.assert_close(more.probs, whole.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(more.score, whole.score, rtol=1e-3, atol=1e-3)
    for place in range(3):
        words = int(batch["attention_mask"][place].sum())
        alone = fitted.predict(
            {name: value[place : place + 1, :words] for name, value in without_labels(batch).items()}
        )
        torch.testing.assert_close(alone.score, whole.score[place : place + 1], rtol=1e-3, atol=1e-3)


def test_features_count_no_padding(fitted: Any) -> None:
    from abnn.model.features import note

    x, mask = torch.randn(2, 5, 3), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    torch.testing.assert_close(note(x, "tokens", mask)[:1], note(x[:1, :3], "tokens"))
    torch.testing.assert_close(note(x, "tokens", mask)[1:], note(x[1:], "tokens"))


def test_draws_chunks_and_loaders_give_the_same(fitted: Any) -> None:
    loader = batches(48, seed=3)
    joined = fitted.predict(loader, progress=False)
    assert len(joined) == 48 and set(joined.verdict) <= {"accept", "notice", "reject"}
    first = next(iter(loader))
    cut = fitted.predict(first, memory_limit=20_000)
    torch.testing.assert_close(cut.score, joined.score[: len(cut)], rtol=1e-3, atol=1e-3)
    drawn = fitted.predict(first, draws=3)
    assert drawn.samples.shape == (4, 24, CLASSES)
    torch.testing.assert_close(drawn.samples[0], joined.samples[0, :24], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("example", [True, False])
def test_saved_loaded_and_taken_off_to_the_bit(fitted: Any, tmp_path: Path, example: bool) -> None:
    batch = next(iter(batches(seed=4)))
    expected = fitted.predict(batch)
    fitted.save(tmp_path / "model", example=example)
    loaded = abnn.load(tmp_path / "model", copy.deepcopy(fitted.backbone))
    assert loaded.input_forms == fitted.input_forms
    assert torch.equal(loaded.predict(batch).score, expected.score)
    assert loaded.predict(batch).verdict == expected.verdict
    network = loaded.backbone
    with torch.no_grad():
        logits = network(**without_labels(batch)).logits
        assert torch.equal(abnn.detach(loaded)(**without_labels(batch)).logits, logits)


def test_lists_of_dicts_and_of_pairs_are_held_out_alike(fitted: Any) -> None:
    dicts = list(batches())
    pairs = [(without_labels(batch), batch["labels"]) for batch in dicts]
    for one, other in zip(hold_out(dicts, 0.25, 0), hold_out(pairs, 0.25, 0)):
        assert one is not None and other is not None
        for (x, y), (also, same) in zip(
            (check_batch(fitted, each) for each in one), (check_batch(fitted, each) for each in other)
        ):
            assert torch.equal(y, same) and all(map(torch.equal, x.tensors(), also.tensors()))
    assert sum(len(batch["labels"]) for batch in hold_out(dicts, 0.25, 0)[1] or ()) == 24


class Two(nn.Module):
    """An image and a table, by place."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.body = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        return self.body(torch.cat([self.image(image), table], 1))


def test_two_inputs_by_place(tmp_path: Path) -> None:
    torch.manual_seed(0)
    image, table, y = torch.randn(60, 1, 8, 8), torch.randn(60, 5), torch.arange(60) % 3
    network, loader = Two().eval(), DataLoader(TensorDataset(image, table, y), 20)
    model = abnn.attach(network, example=(image[:2], table[:2]))
    assert model.places[:2] == ["input", "input 1"]
    with torch.no_grad():
        torch.testing.assert_close(model(image, table), network(image, table))
    abnn.fit(model, loader, epochs=1, progress=False, config=FitConfig(accelerator="cpu"))
    usual = model.predict((image, table))
    assert torch.equal(model.predict(loader, progress=False).label, usual.label)
    for batch in ({0: image, 1: table}, {"1": table.numpy(), "0": image.numpy()[::-1].copy()[::-1]}):
        assert torch.equal(model.predict(batch).score, usual.score)
    far = model.predict((image, table + 50))  # the second input counts as well
    assert bool((far.score > usual.score.max()).all())
    model.save(tmp_path / "two")
    loaded = abnn.load(tmp_path / "two", copy.deepcopy(network))
    assert torch.equal(loaded.predict((image, table)).score, usual.score)


class Named(nn.Module):
    """A table, and one number more for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, table: Tensor, more: Tensor) -> Tensor:
        return self.body(table + more[:, None])


def test_a_column_of_a_table_is_an_input() -> None:
    pandas = pytest.importorskip("pandas")
    table, more = torch.randn(4, 5), torch.randn(4)
    model = abnn.attach(Named().eval(), example={"table": table[:1], "more": more[:1]})
    column = pandas.DataFrame({"other": range(4), "more": more.numpy()})["more"]
    expected = model.predict({"table": table, "more": more}).probs
    assert torch.equal(model.predict({"table": table, "more": column}).probs, expected)


def test_plain_networks_take_dicts() -> None:
    network, batch = trained(), next(iter(batches()))
    with torch.no_grad():
        expected = network(**without_labels(batch)).logits.softmax(1)
    torch.testing.assert_close(Plain(network, batch).predict(batch).probs, expected)


BATCH = {"input_ids": torch.ones(2, 5).long(), "attention_mask": torch.ones(2, 5).long()}


@pytest.mark.parametrize(
    "change,message",
    [
        (
            {"attention_mask": torch.ones(2, 4).long()},
            r"'attention_mask' of shape \(2, 4\) beside 'input_ids' of shape",
        ),
        ({"attention_mask": torch.ones(3, 5).long()}, r"'attention_mask' of shape \(3, 5\) .* a row in each for all 2"),
        ({"attention_mask": None}, r"got inputs \['input_ids'\]; accepted: inputs \['input_ids', 'attention_mask'\]"),
        ({"other": torch.ones(2, 5)}, r"got inputs \[.*'other'\]"),
        ({"input_ids": torch.ones(2, 5)}, r"x\['input_ids'\]: got dtype torch.float32; accepted: dtype torch.int64"),
        ({"input_ids": torch.ones(2, 5, 1).long()}, r"x\['input_ids'\]: got shape \(2, 5, 1\)"),
        ({"input_ids": [[1, 2]]}, r"x: got list as 'input_ids'"),
    ],
)
def test_wrong_batches_have_one_clear_error_each(fitted: Any, change: dict[str, Any], message: str) -> None:
    before = fitted.predict(BATCH).score
    with pytest.raises(InputError, match=message):
        fitted.predict({**BATCH, **change})
    with pytest.raises(InputError, match=message):
        abnn.loss(fitted, {**BATCH, **change}, torch.zeros(2).long())
    assert torch.equal(fitted.predict(BATCH).score, before)


def test_loaders_without_labels_are_refused(fitted: Any) -> None:
    with pytest.raises(InputError, match='loader: got dict; accepted: .*dicts with "labels"'):
        abnn.fit(fitted, [BATCH], epochs=1, progress=False, config=FitConfig(accelerator="cpu"))
    with pytest.raises(InputError, match="For a network of several inputs, attach with such an example"):
        abnn.attach(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(1, 4)).predict(BATCH)


def test_inputs_are_cut_and_moved_like_one_tensor() -> None:
    x, labels = read({**BATCH, "labels": torch.zeros(2)})
    assert isinstance(x, Inputs) and labels is not None and x.main == "input_ids" and len(x) == 2
    assert x[1:].shape == (1, 5) and len(x.split(1)) == 2 and x.dtype == torch.int64 and not x.is_floating_point()
    assert x.to("cpu").values.keys() == x.clone().values.keys() == BATCH.keys()
    assert pack((x,), {})[0] is x and "attention_mask: torch.int64 (2, 5)" in repr(x)
    packed, _ = pack((BATCH["input_ids"],), {"flag": True, "scale": torch.ones(())})
    assert isinstance(packed, Inputs) and packed[:1].values["flag"] is True and packed[:1].values["scale"].ndim == 0


class FirstWord(Reader):
    """Reads the answer from the first word: nothing leads around the attachments, so that rows become more half-way."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None) -> Output:
        return Output({"logits": self.head(super().forward(input_ids, attention_mask)["hidden_states"][-1][:, 0])})


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_attachments_count_no_padding(draws: int) -> None:
    torch.manual_seed(0)
    batch = without_labels(next(iter(batches())))
    model = randomise_attachments(abnn.attach(FirstWord().eval(), batch, at="layers.2"), 0.2)
    assert not model.folds_at_input
    whole, more = (model.predict(each, draws=draws, seed=0).samples for each in (batch, longer(batch, 9)))
    assert (whole[0] - whole[1]).abs().max() > 1e-3
    torch.testing.assert_close(more, whole, rtol=1e-4, atol=1e-5)
