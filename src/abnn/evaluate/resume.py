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
from abnn.errors import FileFormatError, InputError, explain
from abnn.evaluate.collect import Part, Pool, Stated, as_result, join
from abnn.evaluate.evaluation import SetResult
from abnn.files import read_tree, write_tree

BATCHES_PER_PART = 50


@dataclass(frozen=True)
class Settings:
    """What the result of a set depends on, besides its data.

    model        fingerprint of the model
    form         of its inputs, as sources take it; ``form.pictures(x)`` makes pictures of inputs
    shown        keep pictures of so many of the most and the least uncertain inputs, and of as many at random
    temperature  of the probabilities that are kept
    """

    model: str
    form: Any
    score: str
    draws: int = 10
    seed: int = 0
    shown: int = 8
    temperature: float = 1.0


@dataclass(frozen=True)
class TieredSource:
    """A source of data with its place in an evaluation.

    source  has ``name``, ``fingerprint``, a length and ``chunks(form, size, first)``, as :class:`abnn.data.Source`
    labels  as the model numbers its classes, -1 for none
    """

    source: Any
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
    on_batch: Callable[[int], None] = lambda count: None,
    stated: Stated | None = None,
) -> SetResult:
    """What ``model`` says about all inputs of a source, going on from what ``folder`` holds of an earlier attempt.

    skip_unreadable  leave out inputs that cannot be read, and list them in the result; otherwise they are an error
    on_batch         called with the number of inputs after each batch, and once for those that were done before
    stated           the probabilities to keep, at the temperature of ``settings``; None: those of the model
    """
    files = _SetFiles(folder / _key(data, settings)[:24])
    result = files.result(data.name, data.tier)
    if result is not None and len(result) + len(result.skipped) == len(data.source):
        on_batch(len(data.source))
        _check_skipped(data.name, result.skipped, skip_unreadable)
        return result
    state = files.progress(Pool(settings.shown, settings.seed))
    _check_skipped(data.name, state.skipped, skip_unreadable)
    if state.last:
        on_batch(state.last)
    try:
        for number, chunk in enumerate(data.source.chunks(settings.form, batch_size, state.last), start=1):
            _check_skipped(data.name, chunk.unreadable, skip_unreadable)
            fresh, pool = state.fresh, replace(state.pool)
            if len(chunk.x):
                prediction = model.predict(chunk.x, draws=settings.draws, seed=settings.seed, score=settings.score)
                fresh = (*fresh, Part.of(prediction, chunk.x, torch.from_numpy(data.labels[chunk.rows]), stated))
                pool.add(prediction.score.cpu().numpy(), chunk.x, settings.form.pictures)
            done, skipped = chunk.last - state.last, state.skipped + chunk.unreadable
            # One assignment: an interrupt finds all of the batch in the state, or nothing of it.
            state = replace(state, last=chunk.last, fresh=fresh, pool=pool, skipped=skipped)
            on_batch(done)
            if number % BATCHES_PER_PART == 0:
                state = files.add(state)
    finally:  # also when interrupted: the next attempt goes on from here
        state = files.add(state)
    result = as_result(state.parts, state.pool, data.name, data.tier, state.skipped)
    files.finish(result)
    return result


@dataclass(frozen=True)
class _State:
    """How far an evaluation has come.

    first         the place after the last input that is written down
    last          the place after the last input that was looked at
    parts, fresh  what is written down, and what is not yet
    pool          pictures of all
    skipped       inputs up to ``last`` that could not be read; the first ``listed`` of them are written down
    """

    pool: Pool
    first: int = 0
    last: int = 0
    parts: tuple[Part, ...] = ()
    fresh: tuple[Part, ...] = ()
    skipped: tuple[str, ...] = ()
    listed: int = 0


class _SetFiles:
    """The files of one set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "result.safetensors"

    def result(self, name: str, tier: str) -> SetResult | None:
        tree = _read(self.file)
        return None if tree is None else SetResult(**{**tree, "name": name, "tier": tier})

    def finish(self, result: SetResult) -> None:
        _write(self.file, vars(result))
        for path in self.folder.glob("part-*.safetensors"):
            path.unlink()

    def add(self, state: _State) -> _State:
        """Write down what is new; done again after an interrupt, it writes the same file."""
        if state.last == state.first:
            return state
        part = join(state.fresh) if state.fresh else None
        tree = {"first": state.first, "last": state.last, "part": part and asdict(part), "skipped": state.skipped}
        assert _is_whole(tree, state.listed), "each input is predicted once or skipped once"
        _write(self.folder / f"part-{state.first:010d}.safetensors", {**tree, "pool": asdict(state.pool)})
        parts = state.parts if part is None else (*state.parts, part)
        return replace(state, first=state.last, parts=parts, fresh=(), listed=len(state.skipped))

    def progress(self, empty: Pool) -> _State:
        """The parts that follow each other without a gap; a damaged one ends them and is made again."""
        state = _State(empty)
        for path in sorted(self.folder.glob("part-*.safetensors")):
            tree = _read(path)
            if tree is None or tree["first"] > state.last:
                break
            if tree["first"] == state.last:
                if not _is_whole(tree, state.listed):
                    break
                last, skipped, parts = tree["last"], tree["skipped"], state.parts
                if tree["part"] is not None:
                    parts = (*parts, Part(**tree["part"]))
                state = _State(Pool(**tree["pool"]), last, last, parts, (), skipped, len(skipped))
        return state


def _is_whole(tree: dict[str, Any], listed: int) -> bool:
    """Whether a part has all inputs from its first to its last place, each once; ``listed`` were skipped before it."""
    rows = 0 if tree["part"] is None else len(tree["part"]["labels"])
    return rows + len(tree["skipped"]) - listed == tree["last"] - tree["first"]


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
        fault = f"an image that cannot be read: {unreadable[0]}{more}"
        fix = "Repair or remove it, or pass --skip-unreadable to leave such images out; what was done so far is files."
        raise InputError(explain(f"set {name!r}", fault, "images that can be read", fix))


def _write(path: Path, tree: dict[str, Any]) -> None:
    write_tree(path, _convert(tree, np.ndarray, lambda array: torch.from_numpy(np.ascontiguousarray(array))))


def _read(path: Path) -> dict[str, Any] | None:
    """What :func:`_write` wrote; None if the file is absent or damaged."""
    try:
        return _convert(read_tree(path), Tensor, lambda tensor: tensor.numpy())
    except FileFormatError:
        return None


def _convert(node: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    if isinstance(node, dict):
        return {key: _convert(value, kind, convert) for key, value in node.items()}
    return convert(node) if isinstance(node, kind) else node
