"""What a worker does: load the model once, then score shard after shard, each into one file that is complete or absent."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from abnn.batch.plan import read_shard
from abnn.batch.reading import Ahead, Batch, image_reader, read_raw, text_reader
from abnn.data import InputForm
from abnn.errors import AbnnError, NotFittedError
from abnn.export.artefact import Exported, ask, is_exported
from abnn.export.schema import SAID
from abnn.files import write_bytes
from abnn.store.names import class_names_of
from abnn.store.saved import load_model
from abnn.triage.drift import DriftMonitor

PLAN, ABOUT = "_plan.parquet", b"abnn"
NUMBERS = pa.list_(pa.float32())
NAME = pa.dictionary(pa.int32(), pa.string())
OWN = {
    "classes": {"label": pa.int64(), "class_name": NAME, "probabilities": NUMBERS},
    "labels": {"labels": pa.list_(pa.int64()), "probabilities": NUMBERS},
    "numbers": {"mean": NUMBERS, "std": NUMBERS},
}
"""Columns of what models of each kind say."""


def schema_of(kind: str) -> pa.Schema:
    """Return the columns of the results of models of classes, labels or numbers."""
    last = {"score": pa.float32(), "verdict": NAME, "error": pa.string(), "model": NAME}
    return pa.schema({"id": pa.string(), **OWN[kind], **last})


@dataclass(frozen=True, kw_only=True)
class Work:
    """What workers need to know, the same for all of them and for every start of a job but for ``device`` and ``threads``.

    model, backbone, weights  as in :func:`abnn.store.saved.load_model`
    fingerprint               of the model
    output, root              folders of the results, and where names of inputs start
    column, id_column         of Parquet files: what is scored, and what is its id (None: file and row)
    tokenizer                 folder of the tokenizer, for text
    size, batch_size          inputs in a shard, and in a batch
    """

    model: str
    backbone: str | None = None
    weights: str | None = None
    fingerprint: str
    output: str
    root: str
    column: str | None = None
    id_column: str | None = None
    tokenizer: str | None = None
    size: int
    batch_size: int
    draws: int | None = None
    seed: int | None = None
    device: str = "auto"
    threads: int = 1


@dataclass(frozen=True)
class PartNotes:
    """What is written about a shard beside its rows, in the metadata of its file."""

    fingerprint: str
    verdicts: dict[str, int]
    errors: int
    drift: dict[str, Any] | None

    @classmethod
    def of(cls, path: Path) -> tuple[PartNotes, int]:
        """Return the notes of a part and its number of rows, from the end of its file alone."""
        metadata = pq.read_metadata(path)
        values = json.loads((metadata.metadata or {})[ABOUT])
        return cls(**{field.name: values[field.name] for field in fields(cls)}), metadata.num_rows


def part_path(output: str | Path, shard: int) -> Path:
    """Return where the results of a shard are."""
    return Path(output) / f"part-{shard:07d}.parquet"


class Scorer:
    """One worker, in a process of its own or on Ray Data: it gets numbers of shards."""

    def __init__(self, work: Work) -> None:
        self.work = work

    @cached_property
    def model(self) -> Any:
        """The model on its device. Loaded with the first shard: Ray tries again for ever where making a worker fails."""
        work = self.work
        if is_exported(Path(work.model)):
            model: Any = Exported(work.model, work.threads)
            kind = next(kind for kind, names in SAID.items() if set(names) <= set(model.description.outputs))
        else:
            import abnn.baselines  # noqa: F401 - its saved models, by their format

            torch.set_num_threads(work.threads)
            model = load_model(work.model, work.backbone, work.weights)
            on_gpu = work.device != "cpu" and torch.cuda.is_available()
            (model if isinstance(model, torch.nn.Module) else model.network).to("cuda" if on_gpu else "cpu")
            kind = getattr(getattr(model, "task", None), "distribution", "classes")
        self.schema = schema_of(kind)
        self.names, triage = class_names_of(model), getattr(model, "triage", None)
        # Thresholds are of one number of draws.
        self.judged = triage is not None and work.draws in (None, triage.draws)
        return model

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Score some shards and return their numbers; one that is there already is left as it is.

        What fails is returned as a text: an exception of ours would not survive Ray's way of passing it on.
        """
        numbers = [int(number) for number in batch["item"]]
        for number in numbers:
            try:
                if not part_path(self.work.output, number).exists():
                    self.score(number)
            except (AbnnError, OSError) as error:
                return {"shard": [number], "error": [str(error)]}
        return {"shard": numbers, "error": [""] * len(numbers)}

    def score(self, number: int) -> None:
        """Score one shard and write its part. The same shard gives the same rows, whoever scores it and however often."""
        work, rows = self.work, []
        monitor, counts = self._monitor(), Counter[str]()
        shard = read_shard(Path(work.output) / PLAN, number, work.size)
        raw = read_raw(shard, work.root, work.column, work.id_column)
        for batch in self.reading.batches(raw, work.batch_size):
            columns = self._columns(batch)
            counts.update(columns["verdict"])
            if monitor is not None:
                monitor.update([score for score in columns["score"] if score is not None])
            rows.append(pa.table(columns, self.schema))
        table = pa.concat_tables(rows)
        errors = table.num_rows - table["error"].null_count
        verdicts = {verdict: count for verdict, count in counts.items() if verdict is not None}
        notes = PartNotes(work.fingerprint, verdicts, errors, None if monitor is None else monitor.to_dict())
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({ABOUT: json.dumps(vars(notes))}), buffer, compression="zstd")
        write_bytes(part_path(work.output, number), buffer.getvalue())

    def _columns(self, batch: Batch) -> dict[str, list[Any]]:
        """Return a row for each input by column; those that could not be read have an error and nothing else."""
        good = [place for place, error in enumerate(batch.errors) if error is None]
        columns: dict[str, list[Any]] = {name: [None] * len(batch.ids) for name in self.schema.names}
        columns |= {"id": batch.ids, "error": batch.errors, "model": [self.work.fingerprint] * len(batch.ids)}
        if not good:
            return columns
        said = ask(self.model, batch.x, self.work.draws, self.work.seed)
        values: dict[str, Any] = {"score": said.score.tolist()}
        if said.mean is not None:
            values |= {"mean": list(said.mean)} | ({} if said.std is None else {"std": list(said.std)})
        else:
            values["probabilities"] = list(said.stated if self.judged else said.probs)  # type: ignore[arg-type]
        if said.labels is not None:
            values["labels"] = [np.flatnonzero(row) for row in said.labels]
        if said.label is not None:
            values["label"] = said.label.tolist()
            if self.names is not None:
                values["class_name"] = [self.names[label] for label in values["label"]]
        if self.judged:
            values["verdict"] = said.verdict
        for name, column in values.items():
            for place, value in zip(good, column):
                columns[name][place] = value
        return columns

    def _monitor(self) -> DriftMonitor | None:
        triage = getattr(self.model, "triage", None)
        try:
            return None if triage is None else triage.monitor()
        except NotFittedError:
            return None

    @cached_property
    def reading(self) -> Ahead:
        """What brings inputs into the form that the model takes."""
        if self.work.tokenizer is None:
            return Ahead(image_reader(InputForm.of(self.model)), self.work.threads)
        return Ahead(text_reader(self.work.tokenizer, self.model), self.work.threads)
