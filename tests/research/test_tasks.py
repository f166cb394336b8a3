"""The paper's tasks on small made-up files in the place of the real ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from abnn.baselines import Trained
from abnn.baselines.base import AUTHORS_NOISE
from abnn.data import InputForm, load_digits
from abnn.data.digits import Labelled
from abnn.errors import InputError
from abnn.evaluate.records import read_record
from abnn.networks.by_name import build_backbone
from research.cli.experiments import train
from research.compare import METHODS, columns_of
from research.data.tiers import present
from research.tasks import DRAWS, PLANS, TASKS, Task, load_task

SHAPES = {
    "mnist": (28, 28),
    "semeion": (16, 16),
    "svhn": (32, 32, 3),
    "cifar10": (32, 32, 3),
    "cifar100": (32, 32, 3),
    "fashion_mnist": (28, 28),
    "notmnist": (28, 28),
}
TRAIN, TEST = 1050, 30


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("data")
    for name, shape in SHAPES.items():
        for split, count in (("train", TRAIN), ("test", TEST)):
            classes = 100 if name == "cifar100" else 10
            labels = np.arange(count) % classes
            if name == "cifar100":
                labels = np.array([0, 43, 7, 97, 1, 2] * 5)[:count] if split == "test" else labels
            if name == "cifar10" and split == "train":
                labels = np.where(np.arange(count) < 1000, 3 + 2 * (np.arange(count) % 2), labels)
            most = 2 if name == "semeion" else 256
            arrays = {"images": rng.integers(0, most, (count, *shape), np.uint8), "labels": labels}
            if name == "cifar100":
                arrays["names"] = np.array([{43: "tiger", 97: "wolf"}.get(n, f"kind {n}") for n in range(100)])
            (folder / name).mkdir(exist_ok=True)
            np.savez(folder / name / f"{split}.npz", **arrays)  # type: ignore[arg-type]
    return folder


def original(root: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(root / f"{name}.npz") as arrays:
        return arrays["images"], arrays["labels"]


def described(task: Task) -> list[tuple[str, str, int]]:
    return [(name, tier, len(data.x)) for name, tier, data in task.sets]


def test_mnist(root: Path) -> None:
    task, form = load_task("mnist", root=root), InputForm((1, 28, 28))
    images, labels = original(root, "mnist/train")
    assert torch.equal(task.train.x, form.images(images)) and task.train.y.tolist() == labels.tolist()
    assert task.train.x.dtype == torch.float32 and task.train.x.is_contiguous()
    assert described(task) == [
        ("MNIST", "id", TEST),
        ("SEMEION", "semi", TEST),
        ("SVHN", "semi", TEST),
        ("CIFAR-10", "full", TEST),
    ]
    digits = (np.arange(TEST) % 10).tolist()
    assert [data.y.tolist() for _, _, data in task.sets] == [digits, digits, digits, [-1] * TEST]
    converted = [form.images(original(root, name)[0]) for name in ("mnist/test", "svhn/test", "cifar10/test")]
    assert all(torch.equal(task.sets[place][2].x, x) for place, x in zip((0, 2, 3), converted))
    assert torch.equal(task.sets[1][2].x, form.images(original(root, "semeion/test")[0] * 255))


def test_svhn(root: Path) -> None:
    task, form = load_task("svhn", root=root), InputForm((3, 32, 32))
    assert torch.equal(task.train.x, form.images(original(root, "svhn/train")[0]))
    assert described(task) == [("SVHN", "id", TEST), ("CIFAR-10", "full", TEST), ("CIFAR-100", "full", TEST)]
    assert torch.equal(task.sets[2][2].x, form.images(original(root, "cifar100/test")[0]))
    assert all((data.y == -1).all() for _, tier, data in task.sets if tier == "full")


def test_cat_dog(root: Path) -> None:
    task, form = load_task("cat-dog", root=root), InputForm((3, 32, 32))
    images, labels = original(root, "cifar10/train")
    pets = np.isin(labels, [3, 5])
    assert torch.equal(task.train.x, form.images(images[pets])) and set(task.train.y.tolist()) == {0, 1}
    assert described(task) == [
        ("Cat-Dog", "id", 6),
        ("Tiger-Wolf", "semi", 10),
        ("unrelated", "full", 12),
        ("MNIST", "full", TEST),
    ]
    assert task.sets[1][2].y.tolist() == [0, 1] * 5
    assert torch.equal(task.sets[3][2].x, form.images(original(root, "mnist/test")[0]))


def test_choosing_looks_at_no_test(root: Path) -> None:
    """Other data throughout, apart from the training data, of which a part is held out."""
    for name, channels in (("mnist", 1), ("cat-dog", 3)):
        final, choosing = load_task(name, root=root), load_task(name, validation=True, root=root)
        assert len(choosing.train.x) + len(choosing.sets[0][2].x) == len(final.train.x)
        together = torch.cat([choosing.train.x, choosing.sets[0][2].x]).flatten(1)
        assert torch.equal(together.sum(1).sort()[0], final.train.x.flatten(1).sum(1).sort()[0])
        assert not set(choosing.parts) & set(final.parts)
        others = [("Fashion-MNIST", "full", TEST), ("notMNIST", "full", TEST), ("photographs", "full", 4000)]
        printed = [("printed digits", "semi", 2060 if present(("cmti10",)) else 1960)] if channels == 1 else []
        assert described(choosing)[1:] == [*printed, *others]
        assert all(data.x.shape[1] == channels and data.x.max() <= 1 for _, _, data in choosing.sets)
        assert choosing.sets[0][:2] == final.sets[0][:2] and choosing.sha256 != final.sha256


def test_the_hash_is_that_of_the_data_in_use(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(root, folder)
    before = load_task("svhn", root=root)
    assert load_task("svhn", root=folder).sha256 == before.sha256 == load_task("svhn", 7, root=root).sha256

    def change(name: str, key: str) -> Task:
        with np.load(root / f"{name}.npz") as arrays:
            changed = {each: arrays[each].copy() for each in arrays.files}
        changed[key][-1] ^= 1
        np.savez(folder / f"{name}.npz", **changed)
        task = load_task("svhn", root=folder)
        shutil.copy(root / f"{name}.npz", folder / f"{name}.npz")
        return task

    for name, key in (("svhn/train", "images"), ("svhn/train", "labels"), ("cifar100/test", "images")):
        after = change(name, key)
        assert after.sha256 != before.sha256
        assert {each for each, value in after.parts.items() if before.parts[each] != value} == {name}
    for name, key in (("mnist/test", "images"), ("cifar100/test", "labels")):  # labels of full sets do not count
        assert change(name, key).sha256 == before.sha256
    assert list(before.parts) == ["svhn/train", "svhn/test", "cifar10/test", "cifar100/test"]


@pytest.fixture(scope="module")
def tasks(root: Path) -> Iterator[dict[str, Task]]:
    yield {name: load_task(name, root=root) for name in TASKS}


def test_every_method_has_settings_everywhere(tasks: dict[str, Task]) -> None:
    for task in tasks.values():
        keys = {key.split(":")[0] for key in (*task.settings, *task.epochs)}
        assert keys <= {"default", *(each.split(":")[0] for each in METHODS)}
        for each in (*METHODS, "oe:authors", "woods:authors", "vboe:authors", "sde-net:authors", "bbp:authors"):
            name, _, variant = each.partition(":")
            method = task.method(name, variant or "reference")
            assert task.epochs_of(method) > 0
            config = task.config(method, 3)
            assert json.loads(json.dumps(config))["data"]["sha256"] == task.sha256


def test_settings_of_the_authors_runs(tasks: dict[str, Task]) -> None:
    mnist, svhn, pets = (tasks[name] for name in ("mnist", "svhn", "cat-dog"))
    for task, count, rate in ((mnist, 40, 1e-3), (svhn, 40, 1e-2), (pets, 40, 1e-2)):
        woods = task.method("woods", "authors")
        assert task.epochs_of(woods) == count and woods.to_config()["tune_lr"] == rate
        assert task.method("threshold").to_config()["lr"] == 0.1
        assert task.method("woods").to_config()["tune_lr"] == 1e-3
    assert [task.epochs_of(task.method("threshold")) for task in (mnist, svhn, pets)] == [40, 60, 40]
    assert [task.epochs_of(task.method("abnn", "authors")) for task in (mnist, svhn, pets)] == [40, 25, 40]
    assert [task.epochs_of(task.method("bbp")) for task in (mnist, svhn, pets)] == [40, 40, 80]
    scales = [task.method("abnn", "authors").to_config()["outliers"]["scale"] for task in (mnist, svhn, pets)]
    assert scales == [16.0, 2.0, 16.0] and AUTHORS_NOISE["scale"] == 16.0
    sde = svhn.method("sde-net").to_config()
    assert (sde["sigma"], sde["test_sigma"], sde["diffusion_convs"], sde["diffusion_lr"]) == (1.0, 50.0, 3, 0.005)
    assert mnist.method("oe", lr=0.5).to_config()["lr"] == 0.5


def test_networks_and_batches(tasks: dict[str, Task]) -> None:
    sizes = {"mnist": 576_778, "svhn": 577_930, "cat-dog": 577_410}
    for name, size in sizes.items():
        task = tasks[name]
        network = build_backbone(**task.backbone)
        assert sum(parameter.numel() for parameter in network.parameters()) == size
        assert network(task.train.x[:2]).shape == (2, PLANS[name].classes)
        batches = [len(y) for _, y in task.loader()]
        assert batches == [128] * (len(task.train.y) // 128)
    assert sum(len(y) for _, y in tasks["digits"].loader()) == len(tasks["digits"].train.y)


@pytest.mark.parametrize(
    ("name", "variant", "draws"),
    [
        ("abnn", "reference", 0),
        ("abnn", "authors", DRAWS),
        ("abnn", "paper", DRAWS),
        ("mc-dropout", "reference", DRAWS),
    ],
)
def test_draws_are_recorded_as_predictions_have_them(name: str, variant: str, draws: int) -> None:
    task = load_task("digits")
    method = task.method(name, variant)
    network = method.build(lambda: build_backbone(**task.backbone), task.train.x[:1])
    asked: list[int | None] = []

    class Model(Trained):
        def predict(self, x: Any, draws: int | None = None, seed: int | None = 0, score: str | None = None) -> Any:
            asked.append(draws)
            return super().predict(x[:2], draws, seed, "entropy")

    some = replace(
        task, sets=tuple((title, tier, Labelled(*(each[:2] for each in part))) for title, tier, part in task.sets)
    )
    some.evaluate(Model(method, network.eval(), task.train.x, 10))
    assert set(asked) == {draws} == {task.config(method, 1)["draws"]}


def test_digits_are_as_they_were() -> None:
    """Records that were made before must still be found to be of the same settings."""
    task = load_task("digits", 3)
    data = load_digits(3)
    assert task.config(task.method("oe"), 30)["data"] == {"name": "digits", "sha256": data.hash(), "batch": 64}
    assert task.epochs_of(task.method("abnn", "paper")) == 30 and torch.equal(task.train.x, data.train.x)


def test_no_such_task_and_missing_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="data: got 'cifar10'.*accepted: 'digits', 'mnist', 'svhn', 'cat-dog'"):
        load_task("cifar10")
    (tmp_path / "mnist").mkdir()
    np.savez(tmp_path / "mnist" / "train.npz", features=np.ones((2, 3)), target=np.zeros(2, int))
    for name in ("mnist/test", "semeion/test", "svhn/test", "cifar10/test"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / f"{name}.npz", images=np.full((2, 4, 4), 9, np.uint8), labels=np.zeros(2, int))
    with pytest.raises(InputError, match="rows of features"):
        load_task("mnist", root=tmp_path)


def test_the_train_command_on_a_task_of_the_paper(root: Path, tmp_path: Path) -> None:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(train)
    few = Path(shutil.copytree(root, tmp_path / "data"))
    images, labels = original(root, "mnist/train")
    np.savez(few / "mnist" / "train.npz", images=images[:130], labels=labels[:130])
    arguments = ["--method", "threshold", "--data", "mnist", "--data-root", str(few), "--epochs", "1", "--quiet"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "AUROC SEMEION" in result.output and "accuracy" in result.output
    record = read_record(tmp_path / "records" / "train-mnist" / "threshold-seed0.json")
    assert set(record.config["data"]["parts"]) == set(load_task("mnist", root=root).parts)
    assert record.config["data"]["drop_last"] is True
    assert [each.header for each in columns_of(load_task("svhn", root=root))] == [
        "accuracy",
        "AUROC CIFAR-10",
        "AUROC CIFAR-100",
        "errors AUROC",
    ]


@pytest.mark.skipif("ABNN_DATA" not in os.environ, reason="needs real data in $ABNN_DATA")
def test_real_counts() -> None:
    task = load_task("mnist")
    assert len(task.train.x) == 60_000 and len(task.loader()) == 468
    assert [count for _, _, count in described(task)] == [10_000, 1_593, 26_032, 10_000]
