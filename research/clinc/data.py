"""CLINC150 (Larson et al. 2019, aclanthology.org/D19-1131): queries of 150 intents, and queries of none.

    DIR/data_full.json                              of github.com/clinc/oos-eval, CC BY 3.0
    DIR/l2_supercat_256.safetensors                 of PyPI's wordllama, MIT: 256 numbers for each of 32,000 tokens
    DIR/l2_supercat_tokenizer_config.json           its tokenizer

15,000 queries are for training, 3,000 for validation; 4,500, and 1,000 out of scope, are the test. No network and no score learns from
queries out of scope: the 200 others of them are for choosing settings.
"""

from __future__ import annotations

import hashlib
import json
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

PAD = 0


@dataclass(frozen=True)
class Queries:
    """Texts with their labels; -1: no intent."""

    name: str
    tier: str
    texts: list[str]
    labels: list[int]


class Clinc:
    """All queries, or ``limit`` of each intent, with their tokens and the embeddings of these."""

    def __init__(self, folder: str | Path, limit: int | None = None) -> None:
        from tokenizers import Tokenizer

        folder = Path(folder)
        content = (folder / "data_full.json").read_bytes()
        self.digest = hashlib.sha256(content).hexdigest()
        self.raw: dict[str, list[list[str]]] = json.loads(content)
        if limit is not None:
            self.raw = {part: _first(rows, limit) for part, rows in self.raw.items()}
        self.intents = sorted({intent for _, intent in self.raw["train"]})
        self.tokenizer: Any = Tokenizer.from_file(str(folder / "l2_supercat_tokenizer_config.json"))
        self.tokenizer.no_padding()
        self.embeddings = next(iter(load_file(folder / "l2_supercat_256.safetensors").values())).float()

    def queries(self, part: str, name: str, tier: str) -> Queries:
        number = {intent: place for place, intent in enumerate(self.intents)}
        texts, intents = zip(*self.raw[part])
        return Queries(name, tier, list(texts), [number.get(intent, -1) for intent in intents])

    def tests(self) -> list[Queries]:
        """Queries in scope, the same with typos and with words left out, and queries out of scope."""
        good = self.queries("test", "in scope", "id")
        return [
            good,
            _changed(good, "typos", with_typos),
            _changed(good, "dropped words", without_words),
            self.queries("oos_test", "out of scope", "full"),
        ]

    def trials(self) -> list[Queries]:
        """The same of validation data."""
        good = self.queries("val", "in scope", "id")
        far = [self.queries(part, "out of scope", "full") for part in ("oos_train", "oos_val")]
        every = Queries("out of scope", "full", far[0].texts + far[1].texts, far[0].labels + far[1].labels)
        return [good, _changed(good, "typos", with_typos), _changed(good, "dropped words", without_words), every]

    def batches(self, queries: Queries, size: int) -> list[tuple[dict[str, Tensor], Tensor]]:
        """Padded batches in the order of the queries, as a loader yields them."""
        tokens = [torch.tensor(each.ids) for each in self.tokenizer.encode_batch(queries.texts)]
        labels = torch.tensor(queries.labels)
        places = range(0, len(tokens), size)
        return [(padded(tokens[place : place + size]), labels[place : place + size]) for place in places]


def padded(tokens: Sequence[Tensor]) -> dict[str, Tensor]:
    """Tokens and the mask that says which are no padding."""
    mask = pad_sequence([torch.ones_like(each) for each in tokens], batch_first=True)
    return {"input_ids": pad_sequence(list(tokens), batch_first=True, padding_value=PAD), "attention_mask": mask}


def collate(rows: list[tuple[Tensor, int]]) -> tuple[dict[str, Tensor], Tensor]:
    """A batch of tokens and labels, as a loader yields it."""
    return padded([tokens for tokens, _ in rows]), torch.tensor([label for _, label in rows])


def with_typos(text: str, random: np.random.Generator) -> str:
    """One typo in every third word that has more than three letters, at least one: two letters swapped, one left out, doubled or another."""
    words = text.split()
    long = [place for place, word in enumerate(words) if len(word) > 3] or list(range(len(words)))
    for place in random.permutation(long)[: max(1, len(long) // 3)]:
        word = words[place]
        at, kind = int(random.integers(0, max(1, len(word) - 1))), int(random.integers(4))
        letter = string.ascii_lowercase[int(random.integers(26))]
        middle = (
            word[at : at + 2][::-1],
            word[at + 1 : at + 2],
            word[at] * 2 + word[at + 1 : at + 2],
            letter + word[at + 1 : at + 2],
        )
        words[place] = word[:at] + middle[kind] + word[at + 2 :]
    return " ".join(words)


def without_words(text: str, random: np.random.Generator) -> str:
    """A fifth of the words left out, at least one; one word stays."""
    words = text.split()
    gone = set(random.permutation(len(words))[: max(1, len(words) // 5)].tolist()) if len(words) > 1 else set()
    return " ".join(word for place, word in enumerate(words) if place not in gone)


def _first(rows: list[list[str]], limit: int) -> list[list[str]]:
    seen: Counter[str] = Counter()
    kept = []
    for text, intent in rows:
        seen[intent] += 1
        if seen[intent] <= limit:
            kept.append([text, intent])
    return kept


def _changed(queries: Queries, name: str, change: Callable[[str, np.random.Generator], str]) -> Queries:
    random = np.random.default_rng(0)
    return Queries(name, "semi", [change(text, random) for text in queries.texts], queries.labels)
