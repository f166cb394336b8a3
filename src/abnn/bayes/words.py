"""Linear attachments to words in closed form: the variance of the words of a sentence.

A linear attachment that reads which words t a sentence has adds the mean of w_t over them to a logit. With prior N(0,
1) on w, a word that occurs n_t times in the data has a posterior variance of about 1 / n_t, up to units. q_t is the
word's share of all words, one added to every count, and d the number of different words in the data. Then

    v(x) = mean_t 1 / (d q_t).

It is 1 on average over the data, as in :mod:`abnn.bayes.closed_form`, and large where words are rare or new.

Where classes are told apart, each has word shares of its own. n_ct is the count of word t in class c, n_c that of all
words in class c. With a Dirichlet prior around q that is worth 100 words,

    p_ct = (n_ct + 100 q_t) / (n_c + 100),    r_c(x) = mean_t ln q_t / p_ct

says how much worse class c explains the words than all data together do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PRIOR = 100.0
MOST_WORDS = 8192  # only the most frequent words have shares in classes; others count as absent from every class
NOWHERE = 10.0  # ln q_t / p_ct of a class without inputs


class WordCounts:
    """Counts of each word in each class, accumulated from batches."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary, self.inputs = vocabulary, 0
        self.keys: list[Tensor] = []

    def add(self, tokens: Tensor, y: Tensor) -> None:
        """Count tokens, [B, L], of inputs of classes ``y``, [B]. Negative tokens are no words."""
        words = tokens >= 0
        self.inputs += len(tokens)
        self.keys.append((y[:, None] * self.vocabulary + tokens.clamp(max=self.vocabulary - 1))[words])

    def join(self, other: WordCounts) -> None:
        """Add the counts of another one."""
        self.keys += other.keys
        self.inputs += other.inputs

    def without(self, hidden: Tensor) -> WordCounts:
        """Return the counts without those of hidden classes; ``hidden`` is true for them, [C]."""
        rest = WordCounts(self.vocabulary)
        keys = torch.cat(self.keys)
        rest.keys, rest.inputs = [keys[~hidden[keys // self.vocabulary]]], self.inputs
        return rest

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return classes, words and counts of all pairs that occur, each [N]."""
        keys = torch.cat([*self.keys, torch.zeros(0, dtype=torch.int64)])
        pairs, counts = keys.unique(return_counts=True)
        return pairs // self.vocabulary, pairs % self.vocabulary, counts.double()


class Words(nn.Module):
    """The posterior of a linear attachment to words: returns v and r_c of sentences; the module has the formulas.

    vocabulary  number of words
    classes     number of classes that have word shares of their own; 0: no r_c
    """

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.vocabulary, self.classes = vocabulary, classes
        self.rarity = nn.Buffer(torch.ones(vocabulary))  # 1 / (d q_t)
        self.different = nn.Buffer(torch.zeros((), dtype=torch.int64))  # d
        if classes:
            self.rows = nn.Buffer(torch.zeros(vocabulary, dtype=torch.int64))  # of each word in ratios; 0: it has none
            self.ratios = nn.Buffer(torch.zeros(1 + min(vocabulary, MOST_WORDS), classes))  # ln q_t / p_ct

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return v, [B], and r_c, [B, classes], of tokens, [B, L]; negative ones are no words.

        A sentence without words gets the largest v that a word can have.
        """
        words = (tokens >= 0).float()
        count = words.sum(1)
        index, share = tokens.clamp(0, self.vocabulary - 1), words / count.clamp_min(1)[:, None]
        variance = torch.where(count > 0, (self.rarity[index] * share).sum(1), self.rarity.amax(0))
        if not self.classes:
            return variance, None
        ratios = (self.ratios[self.rows[index]] * share[..., None]).sum(1)
        return variance, torch.where(count[:, None] > 0, ratios, self.ratios[0])

    @torch.no_grad()
    def set(self, counts: WordCounts) -> None:
        """Set the posterior that follows from these counts."""
        classes, words, numbers = counts.finish()
        per_word = torch.zeros(self.vocabulary, dtype=torch.float64).index_add_(0, words, numbers)
        different = int((per_word > 0).sum())
        share = (per_word + 1) / (per_word.sum() + different + 1)
        self.different.fill_(different)
        self.rarity.copy_(1 / (max(1, different) * share))
        if not self.classes:
            return
        frequent = per_word.argsort(descending=True, stable=True)[: len(self.ratios) - 1]
        frequent = frequent[per_word[frequent] > 0]
        rows = torch.zeros(self.vocabulary, dtype=torch.int64)
        rows[frequent] = 1 + torch.arange(len(frequent))
        per_class = torch.zeros(self.classes, dtype=torch.float64).index_add_(0, classes, numbers)
        class_counts = torch.zeros(len(self.ratios), self.classes, dtype=torch.float64)
        class_counts[rows[words], classes] = numbers
        class_counts[0] = 0
        prior = PRIOR * torch.ones(len(self.ratios), 1, dtype=torch.float64)
        prior[1 : 1 + len(frequent), 0] *= share[frequent]
        ratios = (prior * (per_class + PRIOR) / PRIOR / (class_counts + prior)).log()
        self.rows.copy_(rows)
        self.ratios.copy_(torch.where(per_class > 0, ratios, NOWHERE))
