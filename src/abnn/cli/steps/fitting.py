"""The steps of ``abnn fit``, in their order. Nothing is written before all of them are done."""

from __future__ import annotations

import copy
import math
import os
import shlex
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from abnn.attached import Attached, attach, detach
from abnn.baselines import TrainConfig, make_method, train_method
from abnn.cli._common import RUN_FILE, say, size_beside_network, waiting, write_options
from abnn.cli.fit import FitRequest
from abnn.cli.steps import image_data, own_backbone, own_report
from abnn.cli.steps.image_data import Files, OwnData, Reading
from abnn.config import AttachConfig, FitConfig, TriageConfig, check_rate
from abnn.data import InputForm
from abnn.decisions import check_promise
from abnn.errors import AbnnWarning, InputError, explain, readable
from abnn.files import check_replaceable, check_writable, write_bytes
from abnn.outliers import DEFAULT
from abnn.predict import Plain
from abnn.predict.plain import device_of
from abnn.train.fit import fit
from abnn.train.loop import plan_fabric
from abnn.train.watch import progress_bar
from abnn.triage import calibrate as choose_thresholds
from abnn.triage.thresholds import least_count

LOST = (
    "The attachments cost accuracy",
    "They learnt too fast: fit again with a lower --lr, more --epochs, or on fewer blocks (--last).",
    *("with attachments", "without"),
)
LOST_JOINT = (
    "Training the backbone with the attachments cost accuracy",
    "Leave out --joint, or fit again with a lower --lr and --backbone-lr.",
    *("now", "were before"),
)
"""What is said of lost accuracy, what helps, and the words for after and before."""
AT_CHANCE = (
    "The backbone is at chance: it reads {:.1%} of the held-out images right, and always naming the most frequent class "
    "would give {:.1%}. No score can be better than the predictions it is about. {}"
)
TRAIN_LONGER = "Train it for longer, or with another --backbone-lr."
CHECK_WEIGHTS = (
    "Check --weights, --normalise, --size, and that classes are in the order of the folders' names; or train it with "
    "--train-backbone."
)
TOLERANCE = 0.02  # share of images to fit that may be lost
MOST_FITTED = 1000  # images to fit of which it is looked whether they are still classified right
SEPARATE_FROM = 200  # held-out images, of which thresholds are chosen on one half, and the page is about the other


@dataclass(frozen=True)
class Job:
    """What is read and checked before any training begins."""

    request: FitRequest
    network: nn.Module
    form: InputForm
    images: OwnData
    outliers: Any  # what places the upper threshold
    new_tensors: list[str]  # of the backbone, which the weights did not fill because the classes are others
    skipped: tuple[str, ...]  # images that could not be read, with the reason

    @property
    def triage(self) -> TriageConfig:
        """How thresholds are chosen."""
        names = ("noticed", "rejected", "per_class", "draws", "seed")
        return TriageConfig(**{name: getattr(self.request, name) for name in names})

    def train_loader(self) -> DataLoader:
        size = self.request.batch_size
        return make_loader(self.images.train, size, shuffle=True, drop_last=len(self.images.train_labels) > size)

    def announce(self) -> None:
        """Say what was read."""
        images, form = self.images, self.form
        counts = f"{len(images.train_labels):,} images to fit, {len(images.held_out_labels):,} held out"
        say(f"{counts}, {len(images.class_names)} classes")
        normal = "in [0, 1]" if form.mean is None else f"normalised by {form.mean} / {form.std}"
        say(f"Inputs: {' x '.join(map(str, form.shape))}, {normal}")
        for note in (*images.notes, *(f"skipped {each}" for each in self.skipped)):
            say(note)


@dataclass(frozen=True)
class Before:
    """The network without attachments, and which images it reads right: held out, and ``some`` of those to fit."""

    plain: Plain
    example: Tensor
    some: Dataset
    held_out: Tensor
    fitted: Tensor
    warning: str  # what to say of a network that knows nothing; "" for others


def check(request: FitRequest) -> None:
    """Raise an error for options that cannot be used, before anything is read."""
    for name in ("noticed", "rejected", "held_out"):
        check_promise(f"--{name.replace('_', '-')}", getattr(request, name))
    check_rate("--lr", request.lr)
    check_rate("--backbone-lr", request.backbone_lr)
    try:
        plan_fabric("32-true", request.device)
    except InputError as error:
        raise InputError(str(error).replace("accelerator", "--device", 1)) from None
    check_writable("--output", request.output, folder=True)  # before hours of work, not after
    check_replaceable(request.output / "model", "abnn.json", argument="--output")
    if request.checkpoint is not None:
        check_writable("--checkpoint", request.checkpoint)


def prepare(request: FitRequest) -> Job:
    """Return the job: the network, and all images; everything that can be wrong with them is said here."""
    source, held_out = image_data.open_folders(request.data)
    sample, names = image_data.look(source), source.class_names or ()
    network, channels, new_tensors = own_backbone.make_backbone(request, len(names), sample)
    form = own_backbone.choose_form(request, network, channels, sample)
    own_backbone.check_output(network, form, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AbnnWarning)  # said when it is attached to stay
        example = torch.rand(1, *form.shape, generator=torch.Generator().manual_seed(request.seed))
        detach(_attach(request, network, example))
    outliers: Any = DEFAULT
    unreadable: tuple[str, ...] = ()
    if request.outliers is not None:
        outliers, unreadable = image_data.read_outliers(request.outliers, Reading(form, request.skip_unreadable))
    with progress_bar(disable=request.quiet) as bar:
        task = bar.add_task("reading images", total=len(source) + len(held_out or ()), status="")
        how = Reading(form, request.skip_unreadable, lambda count: bar.advance(task, count))
        images = image_data.read_own(source, held_out, how, request.held_out, request.seed)
    needed = least_count(request.noticed) * (len(names) if request.per_class else 1)
    if len(images.held_out_labels) < needed:
        within = " within each class" if request.per_class else ""
        accepted = f"at least {needed} to promise {request.noticed:.1%}{within}"
        fix = "Add images, raise --held-out, or promise less with --noticed."
        raise InputError(explain("--data", f"{len(images.held_out_labels)} held-out images", accepted, fix))
    return Job(request, network, form, images, outliers, new_tensors, (*images.skipped, *unreadable))


def train_backbone(job: Job) -> nn.Module:
    """Return the network, trained on the images to fit; it still knows how it was built."""
    request, path = job.request, job.request.checkpoint
    if job.new_tensors:
        say(f"Not taken from {request.weights}, because the shapes differ: {', '.join(job.new_tensors)}")
    checkpoint = None if path is None else path.with_name(f"{path.stem}-backbone{path.suffix}")
    method = make_method("threshold", optimizer="adamw", lr=request.backbone_lr, schedule="cycle", kaiming=False)
    steps = math.ceil(len(job.images.train_labels) / request.batch_size)
    epochs = request.backbone_epochs or min(40, max(10, math.ceil(1000 / steps)))
    config = TrainConfig(accelerator=request.device, checkpoint=checkpoint)
    options: dict[str, Any] = {"seed": request.seed, "progress": not request.quiet, "config": config}
    network = train_method(method, job.network, job.train_loader(), epochs, **options).network
    if (recipe := getattr(job.network, "abnn_recipe", None)) is not None:
        network.__dict__["abnn_recipe"] = recipe
    return network.eval()


def measure(job: Job, network: nn.Module) -> Before:
    """Return what the network knows before attachments are fitted, and say it."""
    images = job.images
    example = images.train[0][0][None]
    example = example.to(device_of(network, example.device))  # training may have moved the network
    plain = Plain(copy.deepcopy(network) if job.request.joint else network, example)
    some = Subset(images.train, range(0, len(images.train_labels), math.ceil(len(images.train_labels) / MOST_FITTED)))
    held_out, fitted = (_right(plain, make_loader(part)) for part in (images.held_out, some))
    accuracy, warning = held_out.float().mean().item(), ""
    say(f"The backbone reads {accuracy:.1%} of the held-out images right")
    if (chance := own_backbone.at_chance(accuracy, images.held_out_labels)) is not None:
        advice = TRAIN_LONGER if job.request.train_backbone else CHECK_WEIGHTS
        warning = AT_CHANCE.format(accuracy, chance, advice)
        say(warning, warning=True)
    return Before(plain, example, some, held_out, fitted, warning)


def fit_attachments(job: Job, network: nn.Module, before: Before) -> Attached:
    """Return the network with attachments, fitted."""
    request = job.request
    model = _attach(request, network, before.example)
    options = {name: getattr(request, name) for name in ("epochs", "lr", "seed", "checkpoint")}
    config = FitConfig(freeze_backbone=not request.joint, backbone_lr=request.backbone_lr, accelerator=request.device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*cost accuracy", AbnnWarning)  # judge() looks, on held-out images first
        warnings.filterwarnings("ignore", ".*at chance", AbnnWarning)  # so does measure()
        fit(model, job.train_loader(), progress=not request.quiet, config=config, **options)
    return model


def judge(job: Job, model: Attached, before: Before) -> str:
    """Return what to say about lost accuracy, "" where none is. More than a point of held-out accuracy ends the command."""
    cost, advice, now, then = LOST_JOINT if job.request.joint else LOST
    held_out = _right(model, make_loader(job.images.held_out), draws=job.triage.draws)
    # A handful of held-out images does not show what a network has lost; those that it was fitted with may.
    fitted = _right(model, make_loader(before.some), draws=job.triage.draws)

    def compare(was_right: Tensor, is_right: Tensor) -> str:
        shares = (is_right.float().mean(), was_right.float().mean())
        return f"{shares[0]:.1%} are classified right {now} and {shares[1]:.1%} {then}"

    say(f"Of the held-out images {compare(before.held_out, held_out)}")
    points = 100 * (before.held_out.float().mean() - held_out.float().mean()).item()
    forgotten, learnt = (before.fitted & ~fitted).sum().item(), (fitted & ~before.fitted).sum().item()
    if points > 1:
        text = f"{cost}: of {len(held_out):,} held-out images {compare(before.held_out, held_out)}."
        text = f"{text} That is {points:.1f} percentage points less. {advice}"
        if not job.request.accept_loss:
            say(f"abnn: {text} Nothing was saved; --accept-loss saves such a model, too.", warning=True)
            raise typer.Exit(1)
    elif forgotten - learnt > max(TOLERANCE * len(fitted), 2 * math.sqrt(forgotten + learnt)):  # two standard errors
        text = f"{cost}: of {len(fitted):,} images to fit {compare(before.fitted, fitted)}. {advice}"
    else:
        return ""
    say(text, warning=True)
    return text


def calibrate(job: Job, model: Attached, before: Before, alert: str) -> bytes | None:
    """Choose the model's thresholds, and return the page about it if there is to be one."""
    request, images, form = job.request, job.images, job.form
    counts = f"{len(images.train_labels):,} images to fit, {len(images.held_out_labels):,} held out"
    model.extra = {"class_names": list(images.class_names), "backbone": request.backbone}
    model.extra["data"] = f"{readable(request.data.resolve().name)}, {counts}"
    if form.mean is not None and form.std is not None:
        model.extra["preprocess"] = {"mean": list(form.mean), "std": list(form.std)}
    least = least_count(request.noticed)
    to_show, to_choose = split_held_out(images, request.seed, least, keep_whole=request.per_class)
    loader = make_loader(to_choose)
    try:
        triage = choose_thresholds(model, loader, job.triage, job.outliers, progress=not request.quiet)
    except InputError as error:
        raise InputError(f"{error} Nothing was saved.") from error
    if not request.report:
        return None
    shared = replace(job.triage, per_class=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AbnnWarning)  # said above, of the same images
        plain_triage = choose_thresholds(before.plain, loader, shared, job.outliers, progress=not request.quiet)
    models = {"plain network": (before.plain, plain_triage), "attached network": (model, triage)}
    accuracy = before.held_out.float().mean().item()
    config = {"backbone": request.backbone, "data": str(request.data), "held-out accuracy of the backbone": accuracy}
    intro = f"{before.warning}\n\n" if before.warning else ""
    intro += own_report.INTRO + (own_report.JOINT if request.joint else "")
    intro += own_report.SAME if to_show is to_choose else own_report.SEPARATE
    about = (make_loader(to_show), form, images.class_names, config, intro, alert)
    with tempfile.TemporaryDirectory() as folder, waiting("writing the page", request.quiet):
        return own_report.write_own_report(Path(folder) / "report.html", models, *about).read_bytes()


def save(job: Job, model: Attached, page: bytes | None) -> None:
    """Replace the model and the page of an earlier run, and say where they are."""
    output, backbone = job.request.output, job.request.backbone
    folder, file = model.save(output / "model", backbone=True), output / "report.html"
    say(f"Model: {folder} ({size_beside_network(folder)})")
    if page is None:
        file.unlink(missing_ok=True)  # that of another model
    else:
        write_bytes(file, page)
        say(f"Page: {file}")
    write_options(output / RUN_FILE)
    own = f" --backbone {shlex.quote(backbone)}" if ":" in backbone else ""
    say(f"Next: abnn predict {shlex.quote(str(folder))} IMAGE...{own}")


def make_loader(dataset: Dataset, size: int = 256, shuffle: bool = False, drop_last: bool = False) -> DataLoader[Any]:
    """Return batches of (x, y); images that stay in their files are read by workers."""
    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    workers = min(4, os.cpu_count() or 1) if isinstance(inner, Files) else 0
    # A generator of its own: the loop seeds it by epoch, so that a resumed run sees the same order.
    generator = torch.Generator() if shuffle else None
    return DataLoader(dataset, size, shuffle, num_workers=workers, drop_last=drop_last, generator=generator)


def split_held_out(images: OwnData, seed: int, least: int, keep_whole: bool) -> tuple[Dataset, Dataset]:
    """Held-out images to show, and at least ``least`` to choose thresholds on: two halves, or twice all if too few."""
    held, labels = images.held_out, images.held_out_labels
    fewest = np.bincount(labels, minlength=len(images.class_names)).min()
    if not keep_whole and len(labels) >= SEPARATE_FROM and fewest >= 2:
        first, second = image_data.stratified(labels, images.class_names, 0.5, seed)
        if len(second) >= least:
            return Subset(held, first.tolist()), Subset(held, second.tolist())
    return held, held


def _attach(request: FitRequest, network: nn.Module, example: Tensor) -> Attached:
    config = AttachConfig(views=request.views)
    return attach(network, example, kind=request.kind, last=request.last, seed=request.seed, config=config)


def _right(model: Any, loader: DataLoader, **options: Any) -> Tensor:
    """Return whether each image is classified right."""
    return torch.cat([model.predict(x, **options).label.cpu() == y for x, y in loader])
