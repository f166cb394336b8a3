"""``abnn fit``: a user's backbone and folder of images in, a model that says when to trust it out."""

from __future__ import annotations

import copy
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from abnn.errors import AbnnWarning, InputError, explain

ADVICE_JOINT = "Leave out --joint, or fit again with a lower --lr and --backbone-lr."
MOST_FITTED = 1000
"""Of so many images to fit at most it is looked whether they are still classified right."""
SEPARATE_FROM = 200
"""With so many held-out images, thresholds are chosen on one half of them and the page is about the other."""


def fit(
    backbone: Annotated[
        str, typer.Option(help='Of torchvision ("resnet18"), "timm/NAME", "paper-resnet", or module:function.')
    ],
    data: Annotated[Path, typer.Option(help="Images in one sub-folder for each class, or train/ and val/ with those.")],
    output: Annotated[Path, typer.Option(help="Folder for the model and the page.")],
    weights: Annotated[Path | None, typer.Option(help="The backbone's weights: .safetensors, .pt, .pth.")] = None,
    train_backbone: Annotated[
        bool, typer.Option("--train-backbone", help="Train the backbone first, from the weights or from nothing.")
    ] = False,
    joint: Annotated[
        bool, typer.Option("--joint", help="Let the backbone learn along with the attachments, by the same losses.")
    ] = False,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Of the attachments; default: by the amount of data.")
    ] = None,
    backbone_epochs: Annotated[
        int | None, typer.Option(min=1, help="Of the backbone; default: by the amount of data.")
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of the attachments; default: the preset's.")] = None,
    backbone_lr: Annotated[float, typer.Option(help="Learning rate of the backbone.")] = 1e-3,
    batch_size: Annotated[int, typer.Option(min=2, help="Images in a step.")] = 64,
    size: Annotated[int | None, typer.Option(min=1, help="Side of the inputs; default: see the docs.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 for grey, 3 for colour; default: see the docs.")] = None,
    normalise: Annotated[str, typer.Option(help="auto, none, imagenet, or MEAN/STD of values in [0, 1].")] = "auto",
    held_out: Annotated[float, typer.Option(help="Share of images to hold out, unless there is val/.")] = 0.2,
    noticed: Annotated[
        float, typer.Option(help="At most this share of good inputs is not accepted, on average over calibration sets.")
    ] = 0.05,
    rejected: Annotated[
        float, typer.Option(help="At most this share of good inputs is refused, on average over calibration sets.")
    ] = 0.01,
    per_class: Annotated[bool, typer.Option("--per-class", help="Keep these promises within each class.")] = False,
    outliers: Annotated[
        Path | None, typer.Option(help="Folder of images that do not belong: places the upper threshold.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Of the attachments: conv, bottleneck, chain.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="Attach to the last so many blocks only.")] = None,
    draws: Annotated[int, typer.Option(min=1, help="Weight draws for each prediction.")] = 10,
    views: Annotated[
        int | None, typer.Option(help="Views of an image, moved by a little, for a prediction; default: see the docs.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split, initial values, outliers and draws.")] = 0,
    accelerator: Annotated[str, typer.Option(help='"auto", "cpu", "cuda" or "mps".')] = "auto",
    checkpoint: Annotated[
        Path | None, typer.Option(help="Written after every epoch; a stopped run goes on from there.")
    ] = None,
    skip_unreadable: Annotated[bool, typer.Option("--skip-unreadable", help="Leave out damaged images.")] = False,
    report: Annotated[bool, typer.Option(help="Write the HTML page.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")] = False,
) -> None:
    """Clip attachments onto your own network, fit them on your images, choose thresholds, and save it all."""
    import torch
    from torch.utils.data import Subset

    from abnn.attached import attach, detach
    from abnn.baselines.base import check_positive
    from abnn.cli import _own_backbone as own
    from abnn.cli._image_data import check_share, look, open_folders, read_outliers
    from abnn.config import AttachConfig, FitConfig
    from abnn.files import check_replaceable, check_writable
    from abnn.outliers import DEFAULT
    from abnn.predict import Plain
    from abnn.predict.plain import device_of
    from abnn.train.fit import fit as fit_attachments
    from abnn.train.knowledge import ADVICE, LOST, LOST_JOINT, compare
    from abnn.train.loop import plan_fabric
    from abnn.triage import TriageConfig, calibrate
    from abnn.triage.thresholds import check_promise, least_count

    check_promise("--noticed", noticed)
    check_promise("--rejected", rejected)
    if lr is not None:
        check_positive("--lr", lr)
    check_positive("--backbone-lr", backbone_lr)
    check_share(held_out)
    plan_fabric("32-true", accelerator)
    check_writable("--output", output, folder=True)  # before hours of work, not after
    check_replaceable(output / "model", "abnn.json", argument="--output")
    if checkpoint is not None:
        check_writable("--checkpoint", checkpoint)
    source, given = open_folders(data)
    seen = look(source)
    names = source.class_names or ()
    network, channels, new = own.make_backbone(backbone, len(names), channels, seen, weights, train_backbone, seed)
    form = own.choose_form(backbone, network, channels, seen, size, normalise)
    own.check_output(network, form, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AbnnWarning)  # said when it is attached to stay
        example = torch.rand(1, *form.shape, generator=torch.Generator().manual_seed(seed))
        detach(attach(network, example, kind=kind, last=last, config=AttachConfig(views=views)))
    strange, unreadable = (DEFAULT, ()) if outliers is None else read_outliers(outliers, form, skip_unreadable)
    images = _read(source, given, form, held_out, seed, skip_unreadable, quiet)
    needed = least_count(noticed) * (len(names) if per_class else 1)
    if len(images.held_out_labels) < needed:
        found = f"{len(images.held_out_labels)} held-out images"
        accepted = f"at least {needed} to promise {noticed:.1%}{' within each class' if per_class else ''}"
        fix = "Add images, raise --held-out, or promise less with --noticed."
        raise InputError(explain("--data", found, accepted, fix))
    say = _speaker()
    normal = "in [0, 1]" if form.mean is None else f"normalised by {form.mean} / {form.std}"
    say(f"{len(images.train_labels):,} images to fit, {len(images.held_out_labels):,} held out, {len(names)} classes")
    say(f"Inputs: {' x '.join(map(str, form.shape))}, {normal}")
    for note in (*images.notes, *(f"skipped {each}" for each in (*images.skipped, *unreadable))):
        say(note)

    steps = math.ceil(len(images.train_labels) / batch_size)
    loader = _loader(images.train, batch_size, shuffle=True, drop_last=len(images.train_labels) > batch_size)
    example = images.train[0][0][None]
    if train_backbone:
        if new:
            say(f"Not taken from {weights}, because the shapes differ: {', '.join(new)}")
        network = _train_backbone(
            network,
            loader,
            backbone_epochs or min(40, max(10, math.ceil(1000 / steps))),
            backbone_lr,
            *(seed, accelerator, _beside(checkpoint, "backbone"), not quiet),
        )
    example = example.to(device_of(network, example.device))  # training may have moved the network
    plain = Plain(copy.deepcopy(network) if joint else network, example)
    right = _right(plain, _loader(images.held_out, 256))
    some = Subset(images.train, range(0, len(images.train_labels), math.ceil(len(images.train_labels) / MOST_FITTED)))
    right_of_some = _right(plain, _loader(some, 256))
    accuracy = torch.cat(right).float().mean().item()
    chance = own.at_chance(accuracy, images.held_out_labels)
    say(f"The backbone reads {accuracy:.1%} of the held-out images right")
    if chance is not None:
        say(_chance_text(accuracy, chance, train_backbone), warning=True)

    model = attach(network, example, kind=kind, last=last, seed=seed, config=AttachConfig(views=views))
    with warnings.catch_warnings():
        # Looked at below, on held-out images first.
        warnings.filterwarnings("ignore", LOST)
        warnings.filterwarnings("ignore", LOST_JOINT)
        fit_attachments(
            *(model, loader),
            epochs=epochs or min(20, max(3, math.ceil(400 / steps))),
            lr=lr,
            seed=seed,
            checkpoint=checkpoint,
            progress=not quiet,
            config=FitConfig(freeze_backbone=not joint, backbone_lr=backbone_lr, accelerator=accelerator),
        )
    kept = compare(model, _loader(images.held_out, 256), known=right)
    say(f"Of the held-out images {kept}")
    # A handful of held-out images does not show what a network has lost; those that it was fitted with may.
    fitted = compare(model, _loader(some, 256), known=right_of_some)
    lost = [(each, what) for each, what in ((kept, "held-out images"), (fitted, "images to fit")) if each.lost]
    forgot = f"{lost[0][0].complaint(lost[0][1])} {ADVICE_JOINT if joint else ADVICE}" if lost else ""
    if forgot:
        say(forgot, warning=True)
    extra: dict[str, Any] = {"class_names": list(names), "backbone": backbone}
    if form.mean is not None and form.std is not None:
        extra["preprocess"] = {"mean": list(form.mean), "std": list(form.std)}
    saved = model.save(output / "model", backbone=True, extra=extra)
    shown, chosen = _halves(images, seed, least_count(noticed), keep_whole=per_class)
    calibration = _loader(chosen, 256)
    try:
        config = TriageConfig(noticed, rejected, per_class=per_class, draws=draws, seed=seed)
        triage = calibrate(model, calibration, config, strange, progress=not quiet)
    except InputError as error:
        text = f"{error} The fitted model is in {saved}, without thresholds; abnn.calibrate() chooses them."
        raise InputError(text) from error
    model.save(saved, backbone=True, triage=triage, extra=extra)
    say(f"Model: {saved} (attachments {(saved / 'attachments.safetensors').stat().st_size / 1024:,.0f} kB)")
    page = output / "report.html"
    if not report:
        page.unlink(missing_ok=True)  # that of another model
    else:
        from abnn.cli._own_report import write_own_report

        plain_triage = calibrate(
            plain, calibration, TriageConfig(noticed, rejected, seed=seed), strange, progress=False
        )
        write_own_report(
            page,
            {"plain network": (plain, plain_triage), "attached network": (model, triage)},
            *(_loader(shown, 256), form, names, draws, seed),
            {"backbone": backbone, "data": str(data), "held-out accuracy of the backbone": accuracy},
            forgot if chance is None else _chance_text(accuracy, chance, train_backbone),
            separate=shown is not chosen,
            joint=joint,
        )
        say(f"Page: {page}")
    call = f" --backbone {backbone}" if ":" in backbone else ""
    say(f"Next: abnn predict {saved} IMAGE...{call}")


def _read(source: Any, given: Any, form: Any, held_out: float, seed: int, skip_unreadable: bool, quiet: bool) -> Any:
    from abnn.cli._image_data import read_own
    from abnn.train.watch import progress_bar

    with progress_bar(disable=quiet) as bar:
        task = bar.add_task("reading images", total=len(source) + (len(given) if given else 0), status="")
        return read_own(
            *(source, given, form, held_out, seed, skip_unreadable), on_read=lambda count: bar.advance(task, count)
        )


def _loader(dataset: Any, batch_size: int, shuffle: bool = False, drop_last: bool = False) -> Any:
    import os

    import torch
    from torch.utils.data import DataLoader, Subset

    from abnn.cli._image_data import Files

    inner = dataset.dataset if isinstance(dataset, Subset) else dataset
    workers = min(4, os.cpu_count() or 1) if isinstance(inner, Files) else 0
    # A generator of its own: the loop seeds it by epoch, so that a resumed run sees the same order.
    generator = torch.Generator() if shuffle else None
    return DataLoader(
        dataset, batch_size, shuffle=shuffle, drop_last=drop_last, num_workers=workers, generator=generator
    )


def _train_backbone(
    network: Any, loader: Any, epochs: int, lr: float, seed: int, accelerator: str, checkpoint: Path | None, bar: bool
) -> Any:
    from abnn.baselines import TrainConfig, make_method, train_method

    method = make_method("threshold", optimizer="adamw", lr=lr, schedule="cycle", kaiming=False)
    config = TrainConfig(accelerator=accelerator, checkpoint=checkpoint)
    trained = train_method(method, network, loader, epochs, seed=seed, progress=bar, config=config)
    recipe = getattr(network, "abnn_recipe", None)
    if recipe is not None:
        trained.network.__dict__["abnn_recipe"] = recipe
    return trained.network.eval()


def _right(plain: Any, loader: Any) -> list[Any]:
    return [plain.predict(x).label.cpu() == y for x, y in loader]


def _chance_text(accuracy: float, chance: float, trained: bool) -> str:
    advice = (
        "Train it for longer, or with another --backbone-lr."
        if trained
        else "Check --weights, --normalise, --size, and that classes are in the order of the folders' names; or train it "
        "with --train-backbone."
    )
    return (
        f"The backbone is at chance: it reads {accuracy:.1%} of the held-out images right, and always naming the most "
        f"frequent class would give {chance:.1%}. No score can be better than the predictions it is about. {advice}"
    )


def _halves(images: Any, seed: int, least: int, keep_whole: bool) -> tuple[Any, Any]:
    """Held-out images to show, and at least ``least`` to choose thresholds on: two halves, or twice all if too few."""
    import numpy as np
    from torch.utils.data import Subset

    from abnn.cli._image_data import stratified

    held, labels = images.held_out, images.held_out_labels
    fewest = np.bincount(labels, minlength=len(images.class_names)).min()
    if keep_whole or len(labels) < SEPARATE_FROM or fewest < 2:
        return held, held
    first, second = stratified(labels, images.class_names, 0.5, seed)
    if len(second) < least:
        return held, held
    return Subset(held, first.tolist()), Subset(held, second.tolist())


def _beside(path: Path | None, word: str) -> Path | None:
    return None if path is None else path.with_name(f"{path.stem}-{word}{path.suffix}")


def _speaker() -> Any:
    def say(text: str, warning: bool = False) -> None:
        typer.secho(text, err=warning, fg="yellow" if warning else None)

    return say
