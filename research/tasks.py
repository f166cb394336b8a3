"""Data to train and evaluate on: the embedded digits, and the combinations of the paper with its conversions.

=========== =================== ============================================================================== =============
task        trained on          tests: id; semi; full                                                          inputs
=========== =================== ============================================================================== =============
digits      handwritten digits  handwritten; printed; photographs                                              1 x 8 x 8
mnist       mnist/train         MNIST; SEMEION, SVHN; CIFAR-10                                                 1 x 28 x 28
svhn        svhn/train          SVHN; none; CIFAR-10, CIFAR-100                                                3 x 32 x 32
cat-dog     cat-dog/train       cats and dogs; tigers and wolves; unrelated classes of CIFAR-10, and MNIST     3 x 32 x 32
=========== =================== ============================================================================== =============

Pixels are in [0, 1], not normalised. Every test image counts; the authors dropped incomplete batches. For choosing settings,
training uses the part "fit" of the training data and evaluation its part "val" beside sets that are in none of these tests.
The authors tested "Cat-Dog" on images it was trained on and "Tiger-Wolf" on training images; here both are test images.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from abnn.baselines import REGISTRY, Method, make_method
from abnn.baselines.abnn import Attachments
from abnn.data import InputForm, Source, match_labels
from abnn.data.digits import Labelled, load_digits
from abnn.errors import InputError, explain, unknown
from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import SetResult
from abnn.outliers import DEFAULT, make_outliers
from research import settings
from research.data import open_source

DRAWS = 10
"""Of predictions of all methods but those whose models make as many as their preset says."""
CHUNK = 2048
Sets = tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Task:
    """Data to train and evaluate on, and how networks are trained there.

    sets       (name, tier, data) to evaluate
    backbone   recipe for :func:`abnn.networks.by_name.build_backbone`
    settings   hyper-parameters by "method" or "method:variant", beside the method's own
    sha256     of all data that is used, as the network sees it
    epochs     by "method" or "method:variant", and "default"
    drop_last  leave incomplete training batches out, as the authors did
    parts      SHA-256 of each source
    """

    name: str
    train: Labelled
    sets: tuple[tuple[str, str, Labelled], ...]
    backbone: dict[str, Any]
    settings: dict[str, dict[str, Any]]
    sha256: str
    batch: int
    epochs: dict[str, int]
    drop_last: bool = False
    parts: dict[str, str] = field(default_factory=dict)

    def method(self, name: str, variant: str = "reference", **options: Any) -> Method:
        """A method with the settings for this data, and changes to them."""
        if name not in REGISTRY:
            raise unknown("method", name, REGISTRY)
        own = self.settings.get(f"{name}:{variant}", self.settings.get(name, {}))
        return make_method(name, variant, **{**own, **options})

    def epochs_of(self, method: Method) -> int:
        """For how many epochs a method is trained here, over all its stages."""
        for key in (f"{method.name}:{method.variant}", method.name):
            if key in self.epochs:
                return self.epochs[key]
        return self.epochs["default"]

    def loader(self) -> DataLoader:
        return DataLoader(TensorDataset(*self.train), batch_size=self.batch, shuffle=True, drop_last=self.drop_last)

    def evaluate(self, model: Any) -> tuple[SetResult, ...]:
        """What a model says about all sets, without pictures."""
        draws = usual_draws(model)
        return tuple(
            evaluate_set(model, DataLoader(TensorDataset(*part), batch_size=256), name, tier, draws, shown=0)
            for name, tier, part in self.sets
        )

    def config(self, method: Method, epochs: int) -> dict[str, Any]:
        """Everything that leads to a result, also what the default outliers and the default score stand for."""
        data: dict[str, Any] = {"name": self.name, "sha256": self.sha256, "batch": self.batch}
        if self.parts:
            data |= {"drop_last": self.drop_last, "parts": self.parts}
        config = {
            "data": data,
            "backbone": self.backbone,
            "method": method.to_config(),
            "epochs": epochs,
            "draws": draws_of(method),
        }
        if getattr(method, "outliers", None) == DEFAULT:
            config["outliers"] = make_outliers().chosen_for(self.train.x[:1]).to_config()
        if isinstance(method, Attachments) and not method.frozen and method.goal.together:
            config["together"] = "the backbone and the attachments"  # it had a step of its own once
        return config


def draws_of(method: Method) -> int:
    """Return how many draws predictions of a method have; 0: mean weights, which attachments of the default preset use."""
    return 0 if isinstance(method, Attachments) and method.judges else DRAWS


def usual_draws(model: Any) -> int:
    """Return the same for a model: as many as it makes when it is not told, and ``DRAWS`` where it does not say."""
    return getattr(getattr(model, "network", model), "usual_draws", DRAWS)


@dataclass(frozen=True)
class Plan:
    """A combination of data sets by name.

    data     "fit", "val" and "train" of this data set are used for training and choosing
    shape    of the inputs
    tests    (name, tier, source)
    choices  the same for choosing settings
    """

    data: str
    shape: tuple[int, int, int]
    classes: int
    tests: Sets
    choices: Sets
    settings: dict[str, dict[str, Any]]
    epochs: dict[str, int]


OTHERS: Sets = (
    ("Fashion-MNIST", "full", "fashion-mnist/test"),
    ("notMNIST", "full", "notmnist/test"),
    ("photographs", "full", "photographs/val"),
)
PLANS = {
    "mnist": Plan(
        "mnist",
        (1, 28, 28),
        10,
        (
            ("MNIST", "id", "mnist/test"),
            ("SEMEION", "semi", "semeion/test"),
            ("SVHN", "semi", "svhn/test"),
            ("CIFAR-10", "full", "cifar10/test"),
        ),
        (("MNIST", "id", "mnist/val"), ("printed digits", "semi", "printed-digits/val"), *OTHERS),
        settings.MNIST,
        settings.MNIST_EPOCHS,
    ),
    "svhn": Plan(
        "svhn",
        (3, 32, 32),
        10,
        (("SVHN", "id", "svhn/test"), ("CIFAR-10", "full", "cifar10/test"), ("CIFAR-100", "full", "cifar100/test")),
        (("SVHN", "id", "svhn/val"), *OTHERS),
        settings.SVHN,
        settings.SVHN_EPOCHS,
    ),
    "cat-dog": Plan(
        "cat-dog",
        (3, 32, 32),
        2,
        (
            ("Cat-Dog", "id", "cat-dog/test"),
            ("Tiger-Wolf", "semi", "tiger-wolf/test"),
            ("unrelated", "full", "unrelated/test"),
            ("MNIST", "full", "mnist/test"),
        ),
        (("Cat-Dog", "id", "cat-dog/val"), *OTHERS),
        settings.CAT_DOG,
        settings.CAT_DOG_EPOCHS,
    ),
}
TASKS = ("digits", *PLANS)


def load_task(name: str, seed: int = 0, validation: bool = False, root: str | Path | None = None) -> Task:
    """The task of a name.

    seed        decides the split of the embedded digits; the splits of all others are fixed
    validation  train and evaluate on the data for choosing settings instead of the tests
    root        where data sets by name are kept; see :mod:`abnn.data.named`
    """
    if name not in TASKS:
        fault = f"{name!r}, for which there is no task"
        raise InputError(explain("data", fault, ", ".join(repr(each) for each in TASKS)))
    if name == "digits":
        return _digits(seed, validation)
    plan = PLANS[name]
    texts = (
        ("train", "id", f"{plan.data}/{'fit' if validation else 'train'}"),
        *(plan.choices if validation else plan.tests),
    )
    sources = [open_source(text, root) for _, _, text in texts]  # what is missing is missed before anything is read
    digest, parts, loaded = hashlib.sha256(), {}, []
    for (title, tier, text), source in zip(texts, sources):
        data, parts[text] = read_all(source, tier, plan.shape, plan.classes)
        digest.update(json.dumps([title, tier, text, parts[text]]).encode())
        loaded.append((title, tier, data))
    backbone = {"name": "paper-resnet", "classes": plan.classes, "in_channels": plan.shape[0]}
    train, tests = loaded[0][2], tuple(loaded[1:])
    options: dict[str, Any] = {"batch": 128, "epochs": plan.epochs, "drop_last": True, "parts": parts}
    return Task(name, train, tests, backbone, plan.settings, digest.hexdigest(), **options)


def read_all(source: Source, tier: str, shape: tuple[int, int, int], classes: int) -> tuple[Labelled, str]:
    """All inputs of a source of 8-bit pictures as a network of this form takes them, and their SHA-256.

    The hash is over the pictures in this form, in 8 bits, and the labels.
    """
    form = InputForm(shape, torch.uint8)
    source.check(form)
    labels = torch.from_numpy(match_labels(source, tier, classes, None)[0].copy())
    x = torch.empty(len(source), *shape)
    digest = hashlib.sha256(f"{tuple(x.shape)}".encode())
    for chunk in source.chunks(form, CHUNK):
        digest.update(chunk.x.numpy())  # type: ignore[arg-type]
        x[chunk.last - len(chunk.x) : chunk.last].copy_(chunk.x).div_(255)  # in place: there is one copy in float32
    digest.update(labels.numpy().tobytes())
    return Labelled(x, labels), digest.hexdigest()


def _digits(seed: int, validation: bool) -> Task:
    data = load_digits(seed)
    tests = (
        ("handwritten digits", "id", data.val if validation else data.test),
        ("printed digits", "semi", data.val_semi if validation else data.semi),
        ("patterns" if validation else "photographs", "full", data.val_full if validation else data.full),
    )
    backbone = {"name": "paper-resnet", "classes": 10, "in_channels": 1, "width": 32, "blocks": 3, "stem": "small"}
    return Task(
        "digits", data.train, tests, backbone, settings.DIGITS, data.hash(), batch=64, epochs=settings.DIGITS_EPOCHS
    )
