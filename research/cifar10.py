"""CIFAR-10 against the tests of OpenOOD v1.5: a ResNet-18 of one's own, frozen, without real outliers.

    python -m research.cifar10 --data DIR --seed 0     measure what has no record yet; --table: only render

The data, as :mod:`abnn.data` keeps them, in one folder: ``cifar10/{train,test}.npz``, ``{cifar100,tiny-imagenet,mnist,svhn}/test.npz``,
and ``textures/`` as images. Tiny-ImageNet without the classes that CIFAR-10 has. Everything is seen at 32 pixels.

The network is trained on all training images (SGD, random crops, flips and covered squares, 100 epochs) and kept in ``runs/cifar10``. Attachments and
post-hoc scores are fitted to the same images. As in OpenOOD, 1,000 test images calibrate and the other 9,000 are the test.
Rows are those of :mod:`research.pretrained.run`. Columns: near (CIFAR-100, Tiny-ImageNet) and far (MNIST, SVHN, textures) are means
of the AUROC against their sets; errors, of the row's own predictions; accuracy. Records: <output>/resnet18/<row>-seed<seed>.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from abnn.data import InputForm
from abnn.data.arrays import ArraySource
from abnn.evaluate.evaluation import Evaluation
from abnn.evaluate.records import find_records, record_path, write_record
from abnn.evaluate.summary import Numbers
from abnn.metrics import auroc
from abnn.networks.vision import torchvision
from abnn.tensors import read_tensors, write_tensors
from research.compare import has_record
from research.pretrained.data import ImageSet, Split, files_in, read_pictures
from research.pretrained.networks import Pretrained
from research.pretrained.run import ATTACHED, ROWS, device, measure_attached, measure_plain, settings_of
from research.records import rounded
from research.tables import Column, render, update_between_markers

NEAR, FAR = ("cifar100", "tiny-imagenet"), ("mnist", "svhn", "textures")
COLUMNS = [Column(name, f"columns.{name}") for name in ("near", "far", "errors", "accuracy")]
COLUMNS += [Column(name, f"detection.{name}") for name in (*NEAR, *FAR)]
SIDE, CALIBRATED, EPOCHS, BATCH, RATE, DECAY, MARGIN, COVERED = 32, 1000, 100, 256, 0.2, 5e-4, 4, 16


def network() -> nn.Module:
    """A ResNet-18 for 32 pixels: a first convolution of 3 x 3, and no pooling after it."""
    made: Any = torchvision().models.resnet18(num_classes=10)
    made.conv1, made.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return made


def train(made: nn.Module, images: Tensor, labels: Tensor, seed: int, epochs: int) -> nn.Module:
    """Train on random crops and flips of images, uint8 [N, 3, 32, 32], each with a square covered in grey.

    The rate rises for a twentieth of the steps and falls like a cosine.
    """
    torch.manual_seed(seed)
    where = device()
    made = made.to(where, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    padded = F.pad(images.to(where).float(), (MARGIN,) * 4, mode="reflect").to(torch.uint8)
    labels, batch = labels.to(where), min(BATCH, len(images))
    optimizer = torch.optim.SGD(made.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    steps = epochs * (len(images) // batch)
    warm = max(1, steps // 20)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / warm) * (1 + math.cos(math.pi * step / steps)) / 2
    )
    pixels, channels = torch.arange(SIDE, device=where), torch.arange(3, device=where)
    for _ in range(epochs):
        for rows in torch.randperm(len(images), device=where).split(batch):
            if len(rows) < batch:
                continue
            down, across = (pixels + torch.randint(2 * MARGIN + 1, (batch, 1), device=where) for _ in range(2))
            across = torch.where(torch.rand(batch, 1, device=where) < 0.5, across.flip(1), across)
            places = (
                rows[:, None, None, None],
                channels[:, None, None],
                down[:, None, :, None],
                across[:, None, None, :],
            )
            rows_in, columns_in = (
                (pixels - torch.randint(SIDE, (batch, 1), device=where)).abs() < COVERED // 2 for _ in range(2)
            )
            covered = (rows_in[:, :, None] & columns_in[:, None, :])[:, None]
            x = torch.where(covered, 0.5, padded[places].float() / 255).contiguous(memory_format=torch.channels_last)
            with torch.autocast(where, torch.bfloat16, enabled=where == "cuda"):
                loss = F.cross_entropy(made(x).float(), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rate.step()
    return made.eval()


def trained(folder: Path, images: ImageSet, seed: int, epochs: int) -> nn.Module:
    """The network of a seed: from its file, or trained and then kept there."""
    path, made = folder / f"resnet18-seed{seed}-epochs{epochs}.safetensors", network()
    if not path.exists():
        torch.manual_seed(seed)
        state = train(network(), images.images, images.labels, seed, epochs).state_dict()
        folder.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {name: value.contiguous().cpu() for name, value in state.items()})
    made.load_state_dict(read_tensors(path))
    return made.eval()


def read(root: Path, limit: int | None) -> Split:
    """All sets at 32 pixels; ``limit``: at most so many images of each, for rehearsals."""

    def named(name: str, tier: str, rows: np.ndarray | None = None) -> ImageSet:
        source = ArraySource(root / f"{name}.npz")
        chosen = np.sort((np.arange(len(source)) if rows is None else rows)[:limit])
        labels = torch.from_numpy(source.labels[chosen]) if tier == "id" else torch.full((len(chosen),), -1)
        images = source.take(chosen, InputForm((3, SIDE, SIDE), torch.uint8)).x
        return ImageSet(name.removesuffix("/test"), tier, images, labels)

    order = np.random.default_rng(0).permutation(len(ArraySource(root / "cifar10" / "test.npz")))
    calibrate, test = (named("cifar10/test", "id", rows) for rows in (order[:CALIBRATED], order[CALIBRATED:]))
    pictures = read_pictures(files_in(root / "textures")[:limit], SIDE, 1.0)
    textures = ImageSet("textures", "full", pictures, torch.full((len(pictures),), -1))
    others = [named(f"{name}/test", "full") for name in (*NEAR, *FAR[:2])]
    return Split(tuple(range(10)), named("cifar10/train", "id"), calibrate, (test, *others, textures))


def columns(evaluation: Evaluation, by_score: bool = True) -> Numbers:
    """The columns of the module's docstring, and A(ordinary, set) by set."""
    scores = {each.name: each.scores[evaluation.score] for each in evaluation.sets}
    ordinary = evaluation.sets[0]
    good, right = scores[ordinary.name], ordinary.correct
    detection = {name: auroc(good, values) for name, values in scores.items() if name != ordinary.name}
    means = {name: float(np.mean([detection[each] for each in sets])) for name, sets in (("near", NEAR), ("far", FAR))}
    errors = {} if right.all() or not right.any() else {"errors": auroc(good[right], good[~right])}
    return {"columns": {**means, **errors, "accuracy": float(right.mean())}, "detection": detection}


def run(options: Any) -> None:
    """Measure the rows that have no record yet."""
    seed = options.seed
    common = {"network": "resnet18", "epochs of the network": options.epochs, "limit": options.limit}
    missing = {
        row: config
        for row, config in settings_of(options.rows, common).items()
        if not has_record(record_path(options.output, "resnet18", row, seed), config)
    }
    if not missing:
        return
    split = read(options.data, options.limit)
    kept = trained(options.runs, split.fit, seed, options.epochs)

    def build(_: Any) -> nn.Module:
        made = network()
        made.load_state_dict(kept.state_dict())
        return made.eval()

    model = Pretrained("resnet18", SIDE, 10, build)
    plain = {row: config for row, config in missing.items() if row not in ATTACHED}
    attached = {row: config for row, config in missing.items() if row in ATTACHED}
    for each in itertools.chain(
        measure_attached(model, split, attached, seed, not options.quiet), measure_plain(model, split, plain, seed)
    ):
        write_record(rounded(each, 16), options.output, "resnet18", device(), arrays=False, summary=columns)
        print(f"seed {seed}: {each.name}", flush=True)


def table(output: Path) -> str:
    """The table of the records; one sentence if there are none."""
    records = find_records(output, "resnet18") if output.is_dir() else []
    if not records:
        return "No numbers are recorded yet.\n"
    rows = {record.name for record in records}
    return render(records, COLUMNS, [row for row in ROWS if row in rows])


def main(arguments: list[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m research.cifar10", description=__doc__, formatter_class=form)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--data", type=Path, metavar="DIR", help="the images")
    what.add_argument("--table", action="store_true", help="only put the table of what was recorded into the document")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of the network")
    parser.add_argument("--rows", nargs="+", default=ROWS, metavar="ROW", help="only these")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images of each set, for rehearsals")
    parser.add_argument("--runs", type=Path, default=Path("runs/cifar10"), help="folder of the networks")
    parser.add_argument("--output", type=Path, default=Path("results/cifar10"), help="folder of the records")
    parser.add_argument("--into", type=Path, default=Path("docs/pretrained.md"), help="the document with the table")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        update_between_markers(options.into, "cifar10", table(options.output))
        return
    run(options)


if __name__ == "__main__":
    main()
