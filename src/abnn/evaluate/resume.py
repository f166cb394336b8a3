"""Score a source of data so that nothing is lost when it stops: finished parts are kept in a folder and never done again.

<folder>/<key>/
  part-0000000000.safetensors   what was found out about consecutive inputs, from this place on

The key is a hash of everything that the result depends on: model, data, labels, draws, seed, score, version. Each file is
complete or absent. The name of the set, the size of batches and whether unreadable inputs may be skipped can change between attempts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from abnn._version import __version__
from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.collect import Pool, Rows, Stated, as_result, join, rows_of
from abnn.evaluate.evaluation import SetResult
from abnn.tensors import read_tree, write_tree

BATCHES_PER_PART = 50


@dataclass(frozen=True)
class Settings:
    """What the result of a set depends on, besides its data."""

    model: str  # its fingerprint
    form: Any  # of its inputs, as sources take it; ``form.pictures(x)`` makes pictures of inputs
    score: str
    draws: int
    seed: int = 0
    shown: int = 8  # so many pictures of the most and the least uncertain inputs are kept, and as many at random
    temperature: float = 1.0  # of the probabilities that are kept


@dataclass(frozen=True)
class TieredSource:
    """A source of data with its place in an evaluation."""

    source: Any  # with the name, fingerprint, length and ``chunks(form, size, first)`` of an abnn.data.Source
    tier: str
    labels: np.ndarray  # as the model numbers its classes, -1 for none

    @property
    def name(self) -> str:
        return self.source.name


def evaluate_source(
    model: Any,
    data: TieredSource,
    settings: Settings,
    folder: Path,
    batch_size: int = 256,
    skip_unreadable: bool = False,
    on_batch: Callable[[int], None] = lambda count: None,
    stated: Stated | None = None,
) -> SetResult:
    """Return what ``model`` says about all inputs of a source; it goes on from what ``folder`` has of an earlier try.

    skip_unreadable  leave out inputs that cannot be read, and list them in the result; otherwise they are an error
    on_batch         called with the number of inputs after each batch, and once for those that were done before
    stated           the probabilities to keep, at the temperature of ``settings``; None: those of the model
    """
    place = folder / _key(data, settings)[:24]
    state = _read_parts(place, Pool(settings.shown, settings.seed))
    _check_skipped(data.name, state.skipped, skip_unreadable)
    if state.last:
        on_batch(state.last)
    try:
        for number, chunk in enumerate(data.source.chunks(settings.form, batch_size, state.last), start=1):
            _check_skipped(data.name, chunk.unreadable, skip_unreadable)
            fresh, pool = state.fresh, replace(state.pool)
            if len(chunk.x):
                prediction = model.predict(chunk.x, draws=settings.draws, seed=settings.seed, score=settings.score)
                fresh = (*fresh, rows_of(prediction, chunk.x, torch.from_numpy(data.labels[chunk.rows]), stated))
                pool.add(prediction.score.cpu().numpy(), chunk.x, settings.form.pictures)
            done, skipped = chunk.last - state.last, state.skipped + chunk.unreadable
            # One assignment: an interrupt finds all of the batch in the state, or nothing of it.
            state = replace(state, last=chunk.last, fresh=fresh, pool=pool, skipped=skipped)
            on_batch(done)
            if number % BATCHES_PER_PART == 0:
                state = _write_part(place, state)
    finally:  # also when interrupted: the next attempt goes on from here
        state = _write_part(place, state)
    return as_result(state.parts, state.pool, data.name, data.tier, state.skipped)


@dataclass(frozen=True)
class _State:
    """How far an evaluation has come."""

    pool: Pool  # pictures of all
    first: int = 0  # the place after the last input that is written down
    last: int = 0  # the place after the last input that was looked at
    parts: tuple[Rows, ...] = ()  # what is written down
    fresh: tuple[Rows, ...] = ()  # what is not yet
    skipped: tuple[str, ...] = ()  # inputs up to ``last`` that could not be read

    @property
    def is_whole(self) -> bool:
        """Whether each input up to the last place was predicted once or skipped once."""
        return sum(len(each["labels"]) for each in (*self.parts, *self.fresh)) + len(self.skipped) == self.last


def _write_part(place: Path, state: _State) -> _State:
    """Write down what is new and return the state after it; again after an interrupt, it writes the same file."""
    if state.last == state.first:
        return state
    assert state.is_whole
    joined = (join(state.fresh),) if state.fresh else ()
    tree: dict[str, Any] = {"first": state.first, "last": state.last, "skipped": state.skipped}
    for name, arrays in (("rows", dict(*joined)), ("pool", vars(state.pool))):
        tree[name] = _map(arrays, np.ndarray, lambda array: torch.from_numpy(array.copy()))
    write_tree(place / f"part-{state.first:010d}.safetensors", tree)
    return replace(state, first=state.last, parts=(*state.parts, *joined), fresh=())


def _read_parts(place: Path, empty: Pool) -> _State:
    """Return the state after the parts that follow each other without a gap; a damaged one ends them and is redone."""
    state = _State(empty)
    for path in sorted(place.glob("part-*.safetensors")):
        try:
            tree = read_tree(path)
        except FileFormatError:
            break
        if tree["first"] > state.last:
            break
        if tree["first"] == state.last:
            rows, pool = (_map(tree[name], Tensor, Tensor.numpy) for name in ("rows", "pool"))
            parts = (*state.parts, rows) if rows else state.parts
            longer = _State(Pool(**pool), tree["last"], tree["last"], parts, (), tree["skipped"])
            if not longer.is_whole:
                break
            state = longer
    return state


def _key(data: TieredSource, settings: Settings) -> str:
    facts = {
        **asdict(settings),
        "form": repr(settings.form),
        "source": data.source.fingerprint,
        "labels": hashlib.sha256(np.ascontiguousarray(data.labels).tobytes()).hexdigest(),
        "abnn": __version__,
        "files": 3,  # their layout and what they hold, of which there were others
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check_skipped(name: str, unreadable: tuple[str, ...], skip: bool) -> None:
    if unreadable and not skip:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        fault = f"an image that cannot be read: {unreadable[0]}{more}"
        fix = "Repair or remove it, or pass --skip-unreadable to leave such images out; what was done so far is kept."
        raise InputError(explain(f"set {name!r}", fault, "images that can be read", fix))


def _map(tree: dict[str, Any], kind: type, convert: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: convert(value) if isinstance(value, kind) else value for name, value in tree.items()}
