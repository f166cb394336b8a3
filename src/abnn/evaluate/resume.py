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
from abnn.evaluate.collect import Part, Pool, as_result, join
from abnn.evaluate.evaluation import SetResult
from abnn.files import read_tree, write_tree
from abnn.predict import Prediction
from abnn.triage.temperature import rescale

BATCHES_PER_PART = 50


@dataclass(frozen=True)
class Settings:
    """What the result of a set depends on, besides its data.

    model        fingerprint of the model
    shown        keep pictures of so many of the most and the least uncertain inputs, and of as many at random
    temperature  of the probabilities that are kept, see :mod:`abnn.triage.temperature`
    """

    model: str
    form: InputForm
    score: str
    draws: int = 10
    seed: int = 0
    shown: int = 8
    temperature: float = 1.0

    def stated(self, prediction: Prediction) -> Tensor:
        """The probabilities to keep."""
        return rescale(prediction.probs, self.temperature)


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
    if result is None or len(result) + len(result.skipped) != len(data.source):
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
    state = kept.progress(Pool(settings.shown, settings.seed))
    _check_skipped(data.name, state.skipped, skip_unreadable)
    if on_batch is not None and state.last:
        on_batch(state.last)
    try:
        for number, chunk in enumerate(data.source.chunks(settings.form, batch_size, state.last), start=1):
            _check_skipped(data.name, chunk.unreadable, skip_unreadable)
            fresh, pool = state.fresh, replace(state.pool)
            if len(chunk.x):
                prediction = model.predict(chunk.x, draws=settings.draws, seed=settings.seed, score=settings.score)
                fresh = (
                    *fresh,
                    Part.of(prediction, chunk.x, torch.from_numpy(data.labels[chunk.rows]), settings.stated),
                )
                pool.add(prediction.score.cpu().numpy(), chunk.x, settings.form.pictures)
            done, skipped = chunk.last - state.last, state.skipped + chunk.unreadable
            # One assignment: an interrupt finds all of the batch in the state, or nothing of it.
            state = replace(state, last=chunk.last, fresh=fresh, pool=pool, skipped=skipped)
            if on_batch is not None:
                on_batch(done)
            if number % BATCHES_PER_PART == 0:
                state = kept.add(state)
    finally:  # also when interrupted: the next attempt goes on from here
        state = kept.add(state)
    return as_result(state.parts, state.pool, data.name, data.tier, state.skipped)


@dataclass(frozen=True)
class _State:
    """How far an evaluation has come.

    first    the place after the last input that is written down
    last     the place after the last input that was looked at
    parts    what is written down
    fresh    what is not yet
    pool     pictures of all
    skipped  inputs up to ``last`` that could not be read
    known    how many of them are written down
    """

    pool: Pool
    first: int = 0
    last: int = 0
    parts: tuple[Part, ...] = ()
    fresh: tuple[Part, ...] = ()
    skipped: tuple[str, ...] = ()
    known: int = 0


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

    def add(self, state: _State) -> _State:
        """Write down what is new; done again after an interrupt, it writes the same file."""
        if state.last == state.first:
            return state
        part = join(state.fresh) if state.fresh else None
        tree = {"first": state.first, "last": state.last, "part": part and asdict(part), "skipped": state.skipped}
        assert _is_whole(tree, state.known), "each input is predicted once or skipped once"
        path = self.folder / f"part-{state.first:010d}.safetensors"
        write_tree(path, _to_tensors({**tree, "pool": asdict(state.pool)}))
        parts = state.parts if part is None else (*state.parts, part)
        return replace(state, first=state.last, parts=parts, fresh=(), known=len(state.skipped))

    def progress(self, empty: Pool) -> _State:
        chain = self._chain()
        parts = tuple(Part(**tree["part"]) for tree in chain if tree["part"] is not None)
        if not chain:
            return _State(empty)
        last, skipped = chain[-1]["last"], chain[-1]["skipped"]
        return _State(Pool(**chain[-1]["pool"]), last, last, parts, (), skipped, len(skipped))

    def _chain(self) -> list[dict[str, Any]]:
        """The parts that follow each other without a gap; a damaged one ends them and is made again."""
        chain: list[dict[str, Any]] = []
        for path in sorted(self.folder.glob("part-*.safetensors")):
            tree = _from_tensors(_read(path))
            place, known = (chain[-1]["last"], len(chain[-1]["skipped"])) if chain else (0, 0)
            if tree is None or tree["first"] > place:
                break
            if tree["first"] == place:
                if not _is_whole(tree, known):
                    break
                chain.append(tree)
        return chain


def _is_whole(tree: dict[str, Any], known: int) -> bool:
    """Whether a part has all inputs from its first to its last place, each once; ``known`` were skipped before it."""
    rows = 0 if tree["part"] is None else len(tree["part"]["labels"])
    return rows + len(tree["skipped"]) - known == tree["last"] - tree["first"]


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
