"""What a worker does: load the model once, then score shard after shard, each into one file that is complete or absent."""

from __future__ import annotations

import contextlib
import io
import json
from collections import Counter
from dataclasses import dataclass
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
from abnn.errors import AbnnError, InputError, NotFittedError, at_least_one, explain, unknown
from abnn.export.artefact import Exported, ask, is_exported, kind_of
from abnn.files import write_bytes
from abnn.store.names import class_names_of
from abnn.store.saved import load_model

PLAN, ABOUT = "_plan.parquet", b"abnn"
DEVICES = ("auto", "cpu", "cuda")
NUMBERS = pa.list_(pa.float32())
NAME = pa.dictionary(pa.int32(), pa.string())
OWN = {
    "classes": {"label": pa.int64(), "class_name": NAME, "probabilities": NUMBERS},
    "labels": {"labels": pa.list_(pa.int64()), "probabilities": NUMBERS},
    "numbers": {"mean": NUMBERS, "std": NUMBERS},
}
"""Columns of what models of each kind say, and of what stands behind them."""
LAST = {"score": pa.float32(), "verdict": NAME, "error": pa.string(), "model": NAME}


@dataclass(frozen=True, kw_only=True)
class ScoreConfig:
    """How :func:`abnn.batch.job.score` works.

    column      of Parquet files: what to score; None: the only one that fits
    id_column   of Parquet files: what names an input; None: "FILE:ROW"
    tokenizer   folder of a Hugging Face tokenizer: the inputs are texts
    size        inputs in a shard, which is what a killed worker loses and what one file holds
    batch_size  inputs that the model takes at once
    draws, seed of the predictions; None: as calibrated
    backbone, weights  for a model that was saved without its backbone
    ray         address of a Ray cluster; None: processes of this machine
    workers     how many; None: one for each GPU, or for each core where there is none
    device      "auto", "cpu" or "cuda"
    """

    column: str | None = None
    id_column: str | None = None
    tokenizer: str | None = None
    size: int = 1000
    batch_size: int = 64
    draws: int | None = None
    seed: int | None = None
    backbone: str | None = None
    weights: str | None = None
    ray: str | None = None
    workers: int | None = None
    device: str = "auto"

    def __post_init__(self) -> None:
        at_least_one("size", self.size)
        at_least_one("batch_size", self.batch_size)
        if self.workers is not None:
            at_least_one("workers", self.workers)
        if self.device not in DEVICES:
            raise unknown("device", self.device, DEVICES)


@dataclass(frozen=True, kw_only=True)
class Work(ScoreConfig):
    """What workers need to know: the settings that the job began with, the model and its fingerprint, the folders of the results and
    where names of inputs start, and threads to compute with.
    """

    model: str
    fingerprint: str
    output: str
    root: str
    threads: int = 1


def part_path(output: str | Path, shard: int) -> Path:
    """Return where the results of a shard are."""
    return Path(output) / f"part-{shard:07d}.parquet"


def read_notes(path: Path) -> tuple[dict[str, Any], int]:
    """Return what is noted about a part beside its rows, see :meth:`Scorer.score`, and how many these are, from its file's end alone."""
    metadata = pq.read_metadata(path)
    return json.loads((metadata.metadata or {})[ABOUT]), metadata.num_rows


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
        else:
            import abnn.baselines  # noqa: F401 - its saved models, by their format

            torch.set_num_threads(work.threads)
            model = load_model(work.model, work.backbone, work.weights)
            if work.device == "cuda" and not torch.cuda.is_available():
                raise InputError(explain("device", "'cuda'", '"auto" or "cpu": there is no GPU where this worker runs'))
            on_gpu = work.device != "cpu" and torch.cuda.is_available()
            (model if isinstance(model, torch.nn.Module) else model.network).to("cuda" if on_gpu else "cpu")
        self.schema = pa.schema({"id": pa.string(), **OWN[kind_of(model)], **LAST})
        self.names, triage = class_names_of(model), getattr(model, "triage", None)
        # Thresholds, and the scores that drift is told from, are of one number of draws.
        self.judged = triage is not None and work.draws in (None, triage.draws)
        return model

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[Any]]:
        """Score one shard and return its number; one that is there already is left as it is.

        What fails is returned as a text: an exception of ours would not survive Ray's way of passing it on.
        """
        number, reason = int(batch["item"][0]), ""
        try:
            if not part_path(self.work.output, number).exists():
                self.score(number)
        except (AbnnError, OSError) as error:
            reason = str(error)
        return {"shard": [number], "error": [reason]}

    def score(self, number: int) -> None:
        """Score one shard and write its part. The same shard gives the same rows, whoever scores it and however often."""
        work, model, rows, counts, monitor = self.work, self.model, [], Counter[str](), None
        with contextlib.suppress(NotFittedError):  # a model that keeps no calibration scores is not watched
            monitor = model.triage.monitor() if self.judged else None
        shard = read_shard(Path(work.output) / PLAN, number, work.size)
        raw = read_raw(shard, work.root, work.column, work.id_column)
        for batch in self.reading.batches(raw, work.batch_size):
            columns = self._columns(batch)
            counts.update(columns["verdict"])
            if monitor is not None:
                monitor.update([score for score in columns["score"] if score is not None])
            rows.append(pa.table(columns, self.schema))
        table = pa.concat_tables(rows)
        notes = {
            "fingerprint": work.fingerprint,
            "verdicts": {verdict: count for verdict, count in counts.items() if verdict is not None},
            "errors": table.num_rows - table["error"].null_count,
            "drift": None if monitor is None else monitor.to_dict(),
        }
        buffer = io.BytesIO()
        pq.write_table(table.replace_schema_metadata({ABOUT: json.dumps(notes)}), buffer, compression="zstd")
        write_bytes(part_path(work.output, number), buffer.getvalue())

    def _columns(self, batch: Batch) -> dict[str, list[Any]]:
        """Return a row for each input by column; those that could not be read have an error and nothing else."""
        good = [place for place, error in enumerate(batch.errors) if error is None]
        columns: dict[str, list[Any]] = {name: [None] * len(batch.ids) for name in self.schema.names}
        columns |= {"id": batch.ids, "error": batch.errors, "model": [self.work.fingerprint] * len(batch.ids)}
        if not good:
            return columns
        said = ask(self.model, batch.x, self.work.draws, self.work.seed)
        names, labels = self.names, None if said.label is None else said.label.tolist()
        values: dict[str, Any] = {
            "score": said.score.tolist(),
            "verdict": said.verdict if self.judged else None,
            "mean": said.mean,
            "std": said.std,
            "probabilities": said.stated if self.judged else said.probs,
            "labels": None if said.labels is None else [np.flatnonzero(row) for row in said.labels],
            "label": labels,
            "class_name": None if names is None or labels is None else [names[label] for label in labels],
        }
        for name, column in values.items():
            for place, value in zip(good, () if column is None else column):
                columns[name][place] = value
        return columns

    @cached_property
    def reading(self) -> Ahead:
        """What brings inputs into the form that the model takes."""
        folder, model = self.work.tokenizer, self.model
        reader = image_reader(InputForm.of(model)) if folder is None else text_reader(folder, model)
        return Ahead(reader, self.work.threads)
