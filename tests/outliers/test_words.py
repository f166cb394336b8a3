"""Outliers of sentences: what may change, what stays, and how severe it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from abnn.model.inputs import Inputs, read
from abnn.outliers import Outliers, make_outliers, vocabulary_of
from abnn.outliers.random import Rng
from abnn.outliers.words import Words

WORDS, BEGIN, END, PAD = 60, 1, 2, 0


def sentences(count: int = 40, longest: int = 12, seed: int = 0) -> Inputs:
    """Sentences between two special tokens, padded."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest - 1, (count,), generator=generator)
    ids = torch.randint(3, WORDS, (count, longest), generator=generator)
    at = torch.arange(longest)
    ids[:, 0] = BEGIN
    ids[at == lengths[:, None] + 1] = END
    mask = at <= lengths[:, None] + 1
    return read({"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long()})[0]


def model(pad: int | None = PAD) -> Any:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Embedding(WORDS, 32, padding_idx=pad))
    network.config = SimpleNamespace(bos_token_id=BEGIN, eos_token_id=END)  # type: ignore[assignment]
    return SimpleNamespace(backbone=network, input_dtype=torch.int64, input_shape=(12,))


def maker(name: str, known: bool = True, **options: Any) -> Outliers:
    outliers = make_outliers(name, **options)
    tokens = model() if known else SimpleNamespace(backbone=nn.Identity(), input_dtype=torch.int64, input_shape=(12,))
    return outliers.prepared_for(tokens, None, lambda layout: (torch.zeros(1), torch.ones(1)))


def made(name: str, x: Any, severity: float | None = None, known: bool = True) -> Any:
    return maker(name, known)(x, torch.zeros(len(x)).long(), torch.Generator().manual_seed(1), severity)


def specials(x: Inputs) -> tuple[Tensor, Tensor]:
    last = x.values["attention_mask"].sum(1, keepdim=True) - 1
    return x.first[:, 0], x.first.gather(1, last)[:, 0]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("name", ["changed-words", "destroyed-words", "sentences", "auto", "tokens"])
def test_padding_and_special_tokens_stay(name: str, known: bool) -> None:
    x = sentences()
    batch = made(name, x, known=known)
    ids, mask = batch.x.first, batch.x.values["attention_mask"]
    assert ids.shape == x.shape and ids.dtype == x.dtype and mask.dtype == torch.int64
    assert bool((ids[mask == 0] == PAD).all()) and bool((ids >= 0).all()) and bool((ids < WORDS).all())
    assert bool((mask <= x.values["attention_mask"]).all()) and bool((mask.sum(1) >= 3).all())
    if name != "tokens":  # which keeps what it is told to
        begin, end = specials(batch.x)
        assert bool((begin == BEGIN).all()) and bool((end == END).all())
        assert int((ids == END).sum()) == len(x)  # none is drawn as a word
    assert bool((batch.severity[(ids != x.first).any(1)] > 0).all())
    again = made(name, x, known=known)
    assert torch.equal(again.x.first, ids) and torch.equal(again.severity, batch.severity)


def test_readable_ones_change_few_words_and_the_others_most() -> None:
    x = sentences(400)
    words = x.values["attention_mask"].sum(1) - 2
    changed, destroyed = made("changed-words", x), made("destroyed-words", x)
    same = [((each.x.first == x.first) & (x.first > END)).sum(1) / words for each in (changed, destroyed)]
    assert float(changed.severity.max()) <= 0.3 and float(destroyed.severity.min()) >= 0.5
    kept = (
        changed.x.values["attention_mask"].sum(1) == words + 2
    )  # nothing dropped, so that words stand where they stood
    assert float(same[0][kept].mean()) > 0.7 and float(same[1].mean()) < 0.35
    assert bool((~kept).any()) and float((~kept).float().mean()) < 0.45
    for row in (~kept).nonzero()[:5, 0]:  # what is left comes in its order
        left = changed.x.first[row][changed.x.values["attention_mask"][row] == 1].tolist()
        before = iter(x.first[row].tolist())
        assert all(token in before for token in left)


def test_swapped_words_are_neighbours() -> None:
    x, vocabulary = sentences(400), vocabulary_of(model())
    assert vocabulary is not None
    outliers = maker("changed-words")
    batch = outliers(x, torch.zeros(400).long(), torch.Generator().manual_seed(1), 0.3)
    kept = batch.x.values["attention_mask"].sum(1) == x.values["attention_mask"].sum(1)
    changed = (batch.x.first != x.first) & kept[:, None]
    near = vocabulary.neighbours(x.first[changed])
    alike = (near == batch.x.first[changed][:, None]).any(1).float().mean()
    assert 0.4 < float(alike) < 0.8  # one half swapped; of the mistyped ones 8 of 57 by chance
    vectors = model().backbone[0].weight.detach()
    like = nn.functional.cosine_similarity(vectors[5], vectors, dim=1)
    like[[5, PAD, BEGIN, END]] = -2
    assert set(vocabulary.neighbours(torch.tensor([5]))[0].tolist()) == set(like.topk(8).indices.tolist())


def test_one_tensor_gets_shorter_where_its_padding_is_known() -> None:
    x = sentences(200).first
    shorter = made("changed-words", x).x
    assert isinstance(shorter, Tensor) and int((shorter != PAD).sum()) < int((x != PAD).sum())
    unknown = made("changed-words", x, known=False).x
    assert unknown.shape == x.shape and not torch.equal(unknown, x)


def test_severity_zero_changes_nothing_and_one_word_stays() -> None:
    x = sentences(50)
    assert torch.equal(made("sentences", x, 0.0).x.first, x.first)
    gone = maker("changed-words", severity=(1.0, 1.0))(x, torch.zeros(50).long(), torch.Generator().manual_seed(0))
    assert int(gone.x.values["attention_mask"].sum(1).min()) == 3


@pytest.mark.parametrize("known", [True, False])
def test_another_language_has_another_word_for_each(known: bool) -> None:
    """Always the same one, so that sentences keep their shape; some sentences of a batch are in it."""
    outliers = maker("destroyed-words", known)
    assert isinstance(outliers, Words)
    ids = sentences().first
    words = ids > END
    rng = Rng(torch.Generator().manual_seed(0), torch.zeros(0))
    foreign = outliers.foreign_words(ids, words, rng)
    pairs = torch.stack([ids[words], foreign[words]], 1).unique(dim=0)
    assert len(pairs) == len(pairs[:, 0].unique()) == len(pairs[:, 1].unique())
    assert bool((pairs[:, 0] != pairs[:, 1]).all()) and bool((foreign[words] > END).all())
    assert torch.equal(outliers.foreign_words(ids[:1, :1], words[:1, :1], rng), ids[:1, :1]) or known
