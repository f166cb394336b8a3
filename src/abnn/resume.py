"""Score a source of data so that nothing is lost when it stops: finished parts are kept in a folder and never done again.

<folder>/<key>/
  part-0000000000.safetensors   what was found out about consecutive inputs, from this place on
  result.safetensors            the whole set; the parts are gone then

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
from abnn.data import InputForm, Source
from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate import Part, Pool, as_result, join
from abnn.evaluation import SetResult
from abnn.files import read_tree, write_tree

BATCHES_PER_PART = 50


@dataclass(frozen=True)
class Settings:
    """What the result of a set depends on, besides its data.

    model  fingerprint of the model
    shown  keep pictures of so many of the most and the least uncertain inputs, and of as many at random
    """

    model: str
    form: InputForm
    score: str
    draws: int = 10
    seed: int = 0
    shown: int = 8


@dataclass(frozen=True)
class TieredSource:
    """A source with its place in an evaluation: labels as the model numbers its classes, -1 for none."""

    source: Source
    tier: str
    labels: np.ndarray

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
    on_batch: Callable[[int], None] | None = None,
) -> SetResult:
    """What ``model`` says about all inputs of a source, going on from what ``folder`` holds of an earlier attempt.

    skip_unreadable  leave out inputs that cannot be read, and list them in the result; otherwise they are an error
    on_batch         called with the number of inputs after each batch, and once for those that were done before
    """
    kept = _Kept(folder / _key(data, settings)[:24])
    result = kept.result(data.name, data.tier)
    if result is None:
        result = _evaluate(model, data, settings, kept, batch_size, skip_unreadable, on_batch)
        kept.finish(result)
    elif on_batch is not None:
        on_batch(len(data.source))
    _check_skipped(data.name, result.skipped, skip_unreadable)
    return result


def _evaluate(
    model: Any,
    data: TieredSource,
    settings: Settings,
    kept: _Kept,
    batch_size: int,
    skip_unreadable: bool,
    on_batch: Callable[[int], None] | None,
) -> SetResult:
    parts, state = kept.progress(Pool(settings.shown, settings.seed))
    _check_skipped(data.name, state.skipped, skip_unreadable)
    if on_batch is not None and state.last:
        on_batch(state.last)
    fresh: list[Part] = []
    first = state.last
    try:
        for number, chunk in enumerate(data.source.chunks(settings.form, batch_size, first), start=1):
            _check_skipped(data.name, chunk.unreadable, skip_unreadable)
            if len(chunk.x):
                prediction = model.predict(chunk.x, draws=settings.draws, seed=settings.seed, score=settings.score)
                fresh.append(Part.of(prediction, chunk.x, torch.from_numpy(data.labels[chunk.rows])))
                state.pool.add(prediction.score.cpu().numpy(), chunk.x, settings.form.pictures)
            state.skipped += chunk.unreadable
            done, state.last = chunk.last - state.last, chunk.last
            if on_batch is not None:
                on_batch(done)
            if number % BATCHES_PER_PART == 0:
                first = _keep(kept, first, fresh, parts, state)
    finally:  # also when interrupted: the next attempt goes on from here
        _keep(kept, first, fresh, parts, state)
    return as_result(parts, state.pool, data.name, data.tier, state.skipped)


@dataclass
class _State:
    """How far an evaluation has come: the place after the last input that was looked at, and what was gathered."""

    last: int
    pool: Pool
    skipped: tuple[str, ...]


def _keep(kept: _Kept, first: int, fresh: list[Part], parts: list[Part], state: _State) -> int:
    """Write down what is new since place ``first``, and return the place from where on it is new next time."""
    if state.last > first:
        new = join(fresh) if fresh else None
        kept.add(first, new, state)
        parts += [new] if new else []
        fresh.clear()
    return state.last


class _Kept:
    """The files of one set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "result.safetensors"

    def result(self, name: str, tier: str) -> SetResult | None:
        tree = _read(self.file)
        if tree is None:
            return None
        return replace(SetResult(**_from_tensors(tree)), name=name, tier=tier)

    def finish(self, result: SetResult) -> None:
        write_tree(self.file, _to_tensors(vars(result)))
        for path in self.folder.glob("part-*.safetensors"):
            path.unlink()

    def add(self, first: int, part: Part | None, state: _State) -> None:
        tree = {"first": first, "last": state.last, "part": part and asdict(part), "skipped": state.skipped}
        path = self.folder / f"part-{first:010d}.safetensors"
        write_tree(path, _to_tensors({**tree, "pool": asdict(state.pool)}))

    def progress(self, empty: Pool) -> tuple[list[Part], _State]:
        chain = [_from_tensors(tree) for tree in self._chain()]
        parts = [Part(**tree["part"]) for tree in chain if tree["part"] is not None]
        if not chain:
            return parts, _State(0, empty, ())
        return parts, _State(chain[-1]["last"], Pool(**chain[-1]["pool"]), chain[-1]["skipped"])

    def _chain(self) -> list[dict[str, Any]]:
        """The parts that follow each other without a gap; a damaged one ends them and is made again."""
        chain: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("part-*.safetensors")):
            tree, place = _read(path), chain[-1]["last"] if chain else 0
            if tree is None or tree["first"] > place:
                break
            if tree["first"] == place:
                chain.append(tree)
        return chain


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return read_tree(path)
    except FileFormatError:
        return None


def _key(data: TieredSource, settings: Settings) -> str:
    facts = {
        **asdict(settings),
        "form": repr(settings.form),
        "source": data.source.fingerprint,
        "labels": hashlib.sha256(np.ascontiguousarray(data.labels).tobytes()).hexdigest(),
        "abnn": __version__,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _check_skipped(name: str, unreadable: tuple[str, ...], skip: bool) -> None:
    if unreadable and not skip:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        fix = "Repair or remove it, or pass --skip-unreadable to leave such images out; what was done so far is kept."
        accepted = "images that can be read"
        raise InputError(
            explain(f"set {name!r}", f"an image that cannot be read: {unreadable[0]}{more}", accepted, fix)
        )


def _to_tensors(node: Any) -> Any:
    if isinstance(node, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(node))
    if isinstance(node, dict):
        return {key: _to_tensors(value) for key, value in node.items()}
    return node


def _from_tensors(node: Any) -> Any:
    if isinstance(node, Tensor):
        return node.numpy()
    if isinstance(node, dict):
        return {key: _from_tensors(value) for key, value in node.items()}
    return node
