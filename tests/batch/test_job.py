"""Jobs: what is written is what the model says, every input is there once, and a stopped job goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from filelock import FileLock
from torch import nn

import abnn
from abnn.batch.job import ScoreConfig, score
from abnn.data import InputForm, read_image
from abnn.errors import FileFormatError, InputError
from abnn.predict.prediction import LabelPrediction, NumberPrediction
from abnn.store.saved import fingerprint
from abnn.triage.drift import DriftMonitor, merge
from tests.batch.conftest import Here, png
from tests.conftest import generator
from tests.export.models import picture_model

FIVE = ScoreConfig(size=5, batch_size=3)


def run(*arguments: Any, config: ScoreConfig = FIVE) -> dict[str, Any]:
    return score(*arguments, config=config, progress=False)


def read(output: Path) -> dict[str, list[Any]]:
    return pq.read_table(output).to_pydict()


def test_rows_are_what_the_model_says(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    summary = run(saved, pictures, tmp_path / "out")
    rows, model = read(tmp_path / "out"), abnn.load(saved)
    assert len(rows["id"]) == len(set(rows["id"])) == summary["inputs"] == 21
    bad = rows["id"].index("0/05-damaged.png")
    assert rows["error"][bad] and rows["score"][bad] is None and rows["label"][bad] is None and summary["errors"] == 1
    good = [place for place in range(21) if place != bad]
    assert all(rows["error"][place] is None for place in good)
    form = InputForm.of(model)
    x = torch.cat([form.images(read_image(pictures / rows["id"][place], 1)[None]) for place in good])
    prediction = model.predict(x)
    assert prediction.stated is not None
    assert [rows["label"][place] for place in good] == prediction.label.tolist()
    assert [rows["class_name"][place] for place in good] == ["abcd"[label] for label in prediction.label]
    np.testing.assert_allclose([rows["probabilities"][place] for place in good], prediction.stated.numpy(), atol=1e-5)
    np.testing.assert_allclose([rows["score"][place] for place in good], prediction.score.numpy(), atol=1e-4)
    assert [rows["verdict"][place] for place in good] == prediction.verdict
    assert set(rows["model"]) == {fingerprint(saved)} == {summary["model"]}
    assert sum(summary["verdicts"].values()) == 20
    assert json.loads((tmp_path / "out" / "_summary.json").read_text()) == summary


def test_a_stopped_job_goes_on_with_the_inputs_it_began_with(
    saved: Path, pictures: Path, tmp_path: Path, here: Here
) -> None:
    calm, output = tmp_path / "calm", tmp_path / "out"
    expected = run(saved, pictures, calm)
    here.shards, here.most = [], 2
    with pytest.raises(KeyboardInterrupt):
        run(saved, pictures, output)
    assert not (output / "_summary.json").exists()
    first = {path: (path.stat().st_ino, path.read_bytes()) for path in output.glob("part-*")}
    assert len(first) == 2
    (output / ".part-0000003.parquet.x1y2").write_bytes(b"half of it")  # what a killed worker leaves
    (pictures / "0" / "00-new.png").write_bytes(png(99))
    here.shards, here.most = [], None
    assert run(saved, pictures, output) == expected
    assert here.shards == [2, 3, 4]
    assert {path: (path.stat().st_ino, path.read_bytes()) for path in first} == first
    assert read(output) == read(calm) and not list(output.glob(".part-*"))
    here.shards = []
    assert run(saved, pictures, output) == expected and here.shards == []  # nothing is left to do


def test_another_job_in_the_same_folder_is_refused(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    output = tmp_path / "out"
    run(saved, pictures, output)
    with pytest.raises(InputError, match="where a job with size 5 began"):
        run(saved, pictures, output, config=ScoreConfig(size=6, batch_size=3))
    with pytest.raises(InputError, match="where a job with input"):
        run(saved, pictures / "0", output)
    other = abnn.load(saved)
    other.save(tmp_path / "other", backbone=True, extra={"class_names": list("wxyz")})
    with pytest.raises(InputError, match="where a job with fingerprint"):
        run(tmp_path / "other", pictures, output)
    with pytest.raises(InputError, match="is no folder of a job"):
        run(saved, pictures, pictures / "0")
    with FileLock(output / ".lock"), pytest.raises(InputError, match="which another process works on"):
        run(saved, pictures, output)
    (output / "_plan.parquet").write_bytes(b"other")
    with pytest.raises(FileFormatError, match="not the plan that the job began with"):
        run(saved, pictures, output)
    (output / "_job.json").write_text((output / "_job.json").read_text().replace('"size": 5', '"size": 7'))
    with pytest.raises(FileFormatError, match="was changed since"):
        run(saved, pictures, output)


def test_a_first_try_that_failed_is_no_job(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    """Where nothing is scored yet, nothing is lost: the same folder takes another question, as after a wrong option."""
    here.most = 0
    with pytest.raises(KeyboardInterrupt):
        run(saved, pictures / "0", tmp_path / "out")
    here.most = None
    assert run(saved, pictures, tmp_path / "out") == run(saved, pictures, tmp_path / "calm")
    assert read(tmp_path / "out") == read(tmp_path / "calm")


@pytest.mark.parametrize("name, value", [("size", 0), ("batch_size", 0), ("workers", 0), ("device", "tpu")])
def test_settings_are_checked_first(name: str, value: object) -> None:
    with pytest.raises(InputError, match=f"{name}: got {value!r}; accepted: "):
        ScoreConfig(**{name: value})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    with pytest.raises(InputError, match="device: got 'cuda'; accepted: .*there is no GPU"):
        run(saved, pictures, tmp_path / "out", config=ScoreConfig(device="cuda"))


def test_a_damaged_part_is_named(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    expected = run(saved, pictures, tmp_path / "out")
    part = tmp_path / "out" / "part-0000001.parquet"
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match="part-0000001.parquet is not a part of this job.*Delete this file"):
        run(saved, pictures, tmp_path / "out")
    part.unlink()
    assert run(saved, pictures, tmp_path / "out") == expected


@pytest.mark.parametrize("nested", [False, True], ids=["bytes", "datasets"])
def test_bytes_in_parquet_give_the_same_scores(
    saved: Path, pictures: Path, tmp_path: Path, here: Here, nested: bool
) -> None:
    run(saved, pictures, tmp_path / "folder")
    expected = read(tmp_path / "folder")
    contents: list[Any] = [(pictures / name).read_bytes() for name in expected["id"]] + [None]
    if nested:
        contents = [None if each is None else {"bytes": each, "path": "x"} for each in contents]
    table = pa.table({"picture": contents, "name": [*expected["id"], "none"], "other": range(22)})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=8)
    config = ScoreConfig(size=5, batch_size=3, id_column="name")
    assert run(saved, tmp_path / "in.parquet", tmp_path / "out", config=config)["errors"] == 2
    rows = read(tmp_path / "out")
    assert rows.pop("error")[-1] == "no image" and rows["id"] == [*expected.pop("id"), "none"]
    assert rows["label"][:-1] == expected["label"] and rows["verdict"][:-1] == expected["verdict"]
    np.testing.assert_allclose(np.array(rows["score"][:-1], float), np.array(expected["score"], float), atol=1e-4)
    with pytest.raises(InputError, match="--column: got 'name'; accepted: a column with image bytes: picture"):
        config = ScoreConfig(column="name")
        run(saved, tmp_path / "in.parquet", tmp_path / "other", config=config)


def test_drift_of_a_job_is_that_of_its_parts(saved: Path, pictures: Path, tmp_path: Path, here: Here) -> None:
    summary = run(saved, pictures, tmp_path / "out")
    triage, monitors = abnn.load(saved).triage, []
    assert triage is not None
    for part in sorted((tmp_path / "out").glob("part-*")):
        monitor = triage.monitor()
        monitor.update([each for each in pq.read_table(part)["score"].to_pylist() if each is not None])
        monitors.append(monitor)
    merged = DriftMonitor.from_dict(summary["drift"])
    assert merged.seen == 20 and merged.counts == merge(monitors).counts
    assert merged.log_wealth == pytest.approx(merge(monitors).log_wealth, abs=1e-9)


@pytest.mark.filterwarnings("ignore:prediction. got 4 samples")
def test_predictions_with_other_draws_have_neither_verdicts_nor_drift(
    saved: Path, pictures: Path, tmp_path: Path, here: Here
) -> None:
    summary = run(saved, pictures, tmp_path / "out", config=ScoreConfig(draws=3))
    assert summary["verdicts"] == {} and summary["drift"] is None and summary["errors"] < summary["inputs"]


@pytest.mark.no_cover
def test_an_exported_model_gives_the_same_rows(
    exported_pictures: Path, pictures: Path, tmp_path: Path, here: Here
) -> None:
    model = picture_model()
    model.save(tmp_path / "saved", extra=model.extra)
    names = tmp_path / "names.txt"  # some by their names, one that is not there
    names.write_text("".join(f"{path}\n" for path in [*sorted(pictures.rglob("*.png")), tmp_path / "none.png"]))
    summary = run(exported_pictures, names, tmp_path / "out")
    own = {"backbone": "tests.batch.test_job:picture_network"}
    expected = run(tmp_path / "saved", names, tmp_path / "own", config=ScoreConfig(size=5, batch_size=3, **own))
    assert {**summary, "model": 0, "drift": 0} == {**expected, "model": 0, "drift": 0} and summary["errors"] == 2
    rows, others = read(tmp_path / "out"), read(tmp_path / "own")
    scores = [np.array(each.pop("score"), float) for each in (rows, others)]
    probabilities = [each.pop("probabilities") for each in (rows, others)]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(*([row for row in each if row is not None] for each in probabilities), atol=1e-5)
    assert {**rows, "model": 0} == {**others, "model": 0} and rows["error"][-1] == "no such file"
    with pytest.raises(InputError, match="which was exported"):
        run(exported_pictures, names, tmp_path / "other", config=ScoreConfig(**own))


def picture_network() -> nn.Module:
    return picture_model().backbone


@pytest.mark.parametrize("kind", ["numbers", "labels"])
def test_numbers_and_labels(pictures: Path, tmp_path: Path, here: Here, kind: str) -> None:
    x = torch.rand(120, 1, 8, 8, generator=generator(3))
    y = torch.stack([x.mean((1, 2, 3)), x[:, 0, 0, 0]], 1)
    config = abnn.AttachConfig(task="regression" if kind == "numbers" else "multilabel")
    model = abnn.attach(pixel_network(), x[:1], config=config)
    targets = y if kind == "numbers" else (y > 0.5).float()
    batches = list(zip(x.split(60), targets.split(60)))
    abnn.fit(model, batches, epochs=0, progress=False)
    abnn.calibrate(model, batches, progress=False)
    model.save(tmp_path / "model")
    run(
        tmp_path / "model", pictures, tmp_path / "out", config=ScoreConfig(size=9, backbone=f"{__name__}:pixel_network")
    )
    rows = read(tmp_path / "out")
    good = [place for place, error in enumerate(rows["error"]) if error is None]
    form = InputForm.of(model)
    prediction = model.predict(torch.cat([form.images(read_image(pictures / rows["id"][n], 1)[None]) for n in good]))
    assert len(good) == 20 and [rows["verdict"][place] for place in good] == prediction.verdict
    near = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose([rows["score"][place] for place in good], prediction.score.numpy(), **near)
    if isinstance(prediction, NumberPrediction):
        np.testing.assert_allclose([rows["mean"][place] for place in good], prediction.mean.numpy(), **near)
        np.testing.assert_allclose([rows["std"][place] for place in good], prediction.std.numpy(), **near)
        assert "probabilities" not in rows
    else:
        assert isinstance(prediction, LabelPrediction) and prediction.stated is not None
        chosen = [row.nonzero().flatten().tolist() for row in prediction.labels]
        assert [rows["labels"][place] for place in good] == chosen
        np.testing.assert_allclose([rows["probabilities"][n] for n in good], prediction.stated.numpy(), **near)


def pixel_network() -> nn.Module:
    """Two numbers from a picture."""
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))
    return nn.Sequential(*layers).eval()


class Words(nn.Module):
    """Three classes from token numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.one, self.head = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mean = (self.words(input_ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return self.head(self.one(mean).relu())


def backbone() -> nn.Module:
    torch.manual_seed(0)
    return Words().eval()


@pytest.mark.parametrize("several", [False, True], ids=["numbers", "with a mask"])
def test_texts_go_through_a_tokenizer(tmp_path: Path, here: Here, several: bool) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *"abcdefghij"])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    own: dict[str, Any] = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 6}
    PreTrainedTokenizerFast(tokenizer_object=plain, **own).save_pretrained(tmp_path / "tok")
    x = torch.randint(0, 12, (60, 6), generator=generator(1))
    example = {"input_ids": x[:1], "attention_mask": torch.ones_like(x[:1])} if several else x[:1]
    model = abnn.attach(backbone(), example, at=["one"])  # type: ignore[arg-type]
    model.save(tmp_path / "model", extra={"backbone": "tests.batch.test_job:backbone"})
    texts = ["a b c", "d e f g h i j a b", None, "zz a"]
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    own = {"tokenizer": str(tmp_path / "tok"), "backbone": "tests.batch.test_job:backbone"}
    run(tmp_path / "model", tmp_path / "in.parquet", tmp_path / "out", config=ScoreConfig(**own))
    rows = read(tmp_path / "out")
    assert rows["error"] == [None, None, "no text", None] and rows["id"][1] == "in.parquet:1"
    tokens = torch.tensor([[2, 3, 4, 0, 0, 0], [5, 6, 7, 8, 9, 10], [1, 2, 0, 0, 0, 0]])
    expected = model.predict({"input_ids": tokens, "attention_mask": (tokens > 0).long()} if several else tokens)
    np.testing.assert_allclose([rows["score"][n] for n in (0, 1, 3)], expected.score.numpy(), rtol=1e-5)
    with pytest.raises(InputError, match="--tokenizer: got .*nothing"):
        bad = ScoreConfig(**{**own, "tokenizer": str(tmp_path / "nothing")})
        run(tmp_path / "model", tmp_path / "in.parquet", tmp_path / "other", config=bad)
