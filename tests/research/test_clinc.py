"""The benchmark of queries: what its changes do, and a whole run on a few made-up queries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import research.clinc.network as network_module
from research.clinc.data import Clinc, with_typos, without_words
from research.clinc.run import measure, table


class Words:
    """Numbers for words, in the place of a tokenizer from a file."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    @classmethod
    def encode_batch(cls, texts: list[str]) -> list[Words]:
        return [cls([1] + [2 + sum(map(ord, word)) % 98 for word in text.split()]) for text in texts]


@pytest.fixture
def clinc() -> Any:
    made = object.__new__(Clinc)
    made.intents, made.digest = [f"intent {n}" for n in range(5)], "0" * 64
    words = [[f"w{n}{k}" for k in range(8)] for n in range(6)]
    random = np.random.default_rng(0)

    def queries(intents: range, count: int) -> list[list[str]]:
        return [[" ".join(random.choice(words[n], 5)), f"intent {n}"] for _ in range(count) for n in intents]

    made.raw = {"train": queries(range(5), 30), "val": queries(range(5), 30), "test": queries(range(5), 10)}
    made.raw |= {"oos_test": queries(range(5, 6), 30)}
    made.tokenizer, made.embeddings = Words, torch.randn(100, 16, generator=torch.Generator().manual_seed(0))
    return made


def test_typos_and_dropped_words() -> None:
    random, text = np.random.default_rng(0), "please transfer ten dollars to my savings account"
    for _ in range(20):
        changed, shorter = with_typos(text, random), without_words(text, random)
        different = sum(one != other for one, other in zip(text.split(), changed.split()))
        assert len(changed.split()) == 8 and different <= 1
        assert len(shorter.split()) == 7 and set(shorter.split()) <= set(text.split())
    assert without_words("hello", random) == "hello"


def test_a_whole_run(clinc: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"WIDTH": 16, "HEADS": 2, "EPOCHS": 3}.items():
        monkeypatch.setattr(network_module, name, value)
    record = json.loads(json.dumps(measure(clinc, 0, "cpu", epochs=1)))
    assert {"abnn", "energy", "margin", "mahalanobis-blocks"} <= set(record["rows"]) and "odin" not in record["rows"]
    assert all(0 <= value <= 1 for row in record["rows"].values() for value in row.values())
    assert set(record["accepted"]) == {"in scope", "typos", "dropped words", "out of scope"}
    text = table([record])
    assert "| abnn |" in text and text.count("\n") == len(record["rows"]) + 4
