"""The closed form of words: compared with counting in loops, and what hidden classes take along."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from abnn.bayes.words import NOWHERE, PRIOR, WordCounts, Words

WORDS, CLASSES = 12, 3


def data() -> tuple[Tensor, Tensor]:
    """Sentences of words 0 to 9, with padding; word 9 occurs in class 2 alone, which has no inputs of class 1's words."""
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(30) % 2 * 2  # class 1 has no inputs
    x = torch.randint(9, (30, 6), generator=generator)
    x[y == 2, 0] = 9
    x[::3, 4:] = -1
    return x, y


def fitted(x: Tensor, y: Tensor, classes: int = CLASSES) -> Words:
    counts, words = WordCounts(WORDS), Words(WORDS, classes)
    for rows in torch.arange(len(x)).split(7):
        counts.add(x[rows], y[rows])
    words.set(counts)
    return words


def test_variances_and_classes_are_those_of_counting_in_loops() -> None:
    x, y = data()
    words = fitted(x, y)
    count = {t: int((x == t).sum()) for t in range(WORDS)}
    total, different = sum(count.values()), sum(n > 0 for n in count.values())
    share = {t: (count[t] + 1) / (total + different + 1) for t in range(WORDS)}
    new = torch.tensor([[0, 9, 11, -1], [3, -1, -1, -1]])
    variance, relative = words(new)
    assert relative is not None
    for row, own in enumerate(([0, 9, 11], [3])):
        expected = sum(1 / (different * share[t]) for t in own) / len(own)
        assert math.isclose(float(variance[row]), expected, rel_tol=1e-5)
        for label in (0, 2):
            mine = x[y == label]
            n = int((mine >= 0).sum())
            logs = [math.log(share[t] * (n + PRIOR) / (int((mine == t).sum()) + PRIOR * share[t])) for t in own]
            assert math.isclose(float(relative[row, label]), sum(logs) / len(own), rel_tol=1e-4, abs_tol=1e-5)
    assert (relative[:, 1] == NOWHERE).all()  # a class without inputs explains nothing


def test_the_mean_variance_over_the_data_is_one() -> None:
    """E[v] = sum_t q_t / (d q_t) = 1 but for the ones that are added to counts."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(9, (3000, 10), generator=generator)
    variance, _ = fitted(x, torch.zeros(3000, dtype=torch.int64), 0)(x)
    assert abs(float(variance.mean()) - 1) < 0.01


def test_unknown_words_vary_more_and_no_words_at_all_like_these() -> None:
    words = fitted(*data())
    variance, _ = words(torch.tensor([[0, 1, 2], [0, 1, 11], [11, 11, 11], [-1, -1, -1]]))
    assert variance[0] < variance[1] < variance[2]
    assert variance[3] == words.rarity.amax()


def test_padding_and_order_do_not_count() -> None:
    words = fitted(*data())
    one, other = words(torch.tensor([[4, 9, 2]])), words(torch.tensor([[2, -1, 4, -1, 9]]))
    for left, right in zip(one, other):
        torch.testing.assert_close(left, right)


def test_joined_counts_are_those_of_all_data() -> None:
    x, y = data()
    whole, first, second = WordCounts(WORDS), WordCounts(WORDS), WordCounts(WORDS)
    whole.add(x, y)
    first.add(x[:11], y[:11])
    second.add(x[11:], y[11:])
    first.join(second)
    assert first.inputs == whole.inputs == 30
    assert all(torch.equal(left, right) for left, right in zip(first.finish(), whole.finish()))


def test_hidden_classes_take_their_words_along() -> None:
    x, y = data()
    counts, words = WordCounts(WORDS), Words(WORDS, CLASSES)
    counts.add(x, y)
    words.set(counts.without(torch.tensor([False, False, True])))
    alone = fitted(x[y == 0], y[y == 0])
    torch.testing.assert_close(words.rarity, alone.rarity)
    torch.testing.assert_close(words.ratios, alone.ratios)
    assert words.rarity[9] == words.rarity.amax()


def test_no_words_at_all_are_explained_by_classes_as_unknown_ones_are() -> None:
    _, classes = fitted(*data())(torch.tensor([[11, 11, 11], [-1, -1, -1]]))
    assert classes is not None and torch.equal(classes[0], classes[1])
