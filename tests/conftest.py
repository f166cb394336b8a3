"""Networks and small helpers that several test files share."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import coverage
import hypothesis
import pytest
import torch
from filelock import FileLock
from lightning_fabric.utilities import registry
from torch import Tensor, nn

import abnn
from abnn.attached import Attached
from abnn.bayes.noise import held_noise, pick_draws
from abnn.model.calls import logits_of
from abnn.model.passes import Pass
from abnn.networks.by_name import PaperResNet
from abnn.networks.vision import torchvision
from abnn.predict.processor import WITHOUT_AMX, bfloat16_works
from abnn.scores.combined import FOR_DESTROYED, Combined
from abnn.store.folder import file_digest, seal
from abnn.train.combine import gather as gathering
from abnn.train.combine import learn_score, members
from abnn.triage.calibrate import gather

STEPS, OUTLIERS = members.STEPS, gathering.OUTLIERS


def pytest_configure(config: pytest.Config) -> None:
    """An unexpected warning of ours is an error. Said here, for naming it in the settings of pytest would import the
    package before coverage starts to count."""
    config.addinivalue_line("filterwarnings", "error::abnn.errors.AbnnWarning")
    hypothesis.settings.register_profile("abnn", deadline=None)  # no test depends on the clock
    hypothesis.settings.load_profile("abnn")
    if not hasattr(config, "workerinput"):
        torchvision()  # which lightning imports, and the process that collects warnings imports lightning's kinds of them
    # Calibration sets of tests are small; that too few inputs are said to be too few is tested in tests/triage.
    config.addinivalue_line("filterwarnings", "ignore:rejected. got:abnn.errors.AbnnWarning")
    # Data sets of tests are small, and often the same for fit and calibration; that this is said is tested there, too.
    config.addinivalue_line("filterwarnings", "ignore:loader. got few inputs:abnn.errors.AbnnWarning")
    config.addinivalue_line(
        "filterwarnings", "ignore:loader. got inputs that the model was fitted on:abnn.errors.AbnnWarning"
    )
    # Many networks of tests are neither trained nor fitted; that this is said is tested in tests/train and tests/triage.
    config.addinivalue_line("filterwarnings", "ignore:backbone. got a network at chance:abnn.errors.AbnnWarning")
    config.addinivalue_line("filterwarnings", "ignore:model. got a model that was not fitted:abnn.errors.AbnnWarning")
    if not bfloat16_works():  # before the first product of this process: that is when PyTorch looks
        os.environ.setdefault(*WITHOUT_AMX)
        bfloat16_works.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def short_learning() -> None:
    """Fewer steps for the members of the learnt score, and fewer outliers: they take most of the time of a small fit."""
    members.STEPS, gathering.OUTLIERS = 15, 250
    sys.modules[gather.__module__].LEAST_OUTLIERS = 200  # type: ignore[attr-defined]


@pytest.fixture
def full_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as users have, for tests of how good the learnt score is."""
    monkeypatch.setattr(members, "STEPS", STEPS)
    monkeypatch.setattr(gathering, "OUTLIERS", OUTLIERS)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Count no lines: counting makes Python slower by half, above all that of libraries."""
    counter = coverage.Coverage.current()
    if counter is None or not counter._started:
        yield
        return
    counter.stop()
    try:
        yield
    finally:
        counter.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """What is made for a test that counts no lines counts none either."""
    with uncounted() if item.get_closest_marker("no_cover") else contextlib.nullcontext():
        return (yield)


@pytest.fixture(autouse=True, scope="session")
def uncounted_tracing() -> Iterator[None]:
    """Tracing and translating for exports run thousands of lines of torch for each of ours, which other tests count."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (torch.export, torch.onnx):
            patch.setattr(module, "export", uncounted()(module.export))
        yield


@pytest.fixture(autouse=True, scope="session")
def plugins_looked_for_once() -> Iterator[None]:
    """Each start of Lightning Fabric reads what every installed package registers, which does not change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", cache(registry.entry_points))
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a test with several cases only the first counts lines: counting makes Python slower by half."""
    counted: set[str] = set()
    for item in items:
        test = item.nodeid.partition("[")[0]
        if test in counted:
            item.add_marker("no_cover")
        counted.add(test)


def alter(folder: Path, **fields: Any) -> Path:
    """Change fields of a saved folder's description, and make all checksums fit to what is there; ``...`` takes one out."""
    file = next(folder.glob("*.json"))
    changed = {**json.loads(file.read_text()), **fields}
    changed = {name: value for name, value in changed.items() if value is not ...}
    parts = [part for part in sorted(folder.iterdir()) if part.suffix != ".json"]
    file.write_text(json.dumps(seal({**changed, "files": {part.name: file_digest(part) for part in parts}})))
    return folder


def without_checksums(folder: Path, **fields: Any) -> Path:
    """A saved folder as versions before checksums wrote it."""
    file = next(folder.glob("*.json"))
    changed = {**json.loads(file.read_text()), **fields}
    file.write_text(json.dumps({name: value for name, value in changed.items() if name not in ("files", "digest")}))
    return folder


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class PlainFabric:
    """What the steps need of Lightning Fabric, on one process in full precision."""

    world_size = 1

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def attach_with(backbone: nn.Module, example: Tensor, **options: Any) -> Attached:
    """abnn.attach() with all settings side by side, as tests list them."""
    names = {field.name for field in dataclasses.fields(abnn.AttachConfig)}
    own = {name: options.pop(name) for name in list(options) if name in names}
    return abnn.attach(backbone, example, config=abnn.AttachConfig(**own), **options)


def one_draw_at_a_time(model: Attached, x: Tensor) -> Tensor:
    """[S, B, K]: every held draw alone, for every input alone, after the plain network where that comes along. No folding
    takes place."""
    outputs: list[Tensor] = []
    if model.state.plain:
        rows = [logits_of(model.backbone(row[None])) for row in x]
        outputs.append(torch.cat([row for row in rows if row is not None])[None])
    for index in range(model.draws):
        single = Pass(model, pick_draws(held_noise(model.layers), slice(index, index + 1)), plain=False)
        outputs.append(torch.cat([single(row[None]) for row in x], dim=1))
    return torch.cat(outputs)


def randomise_attachments(model: Attached, mean_std: float = 0.02, seed: int = 0) -> Attached:
    """Means away from zero, so that every attachment matters."""
    with torch.no_grad():
        for _, parameter in model.attachment_parameters():
            noise = torch.randn(parameter.shape, generator=generator(seed)).to(parameter)
            parameter.add_(mean_std * noise)
    return model


def with_score(model: Attached, x: Tensor, y: Tensor | None = None, steps: int = 5) -> Attached:
    """The model with closed form and combined score learnt from these inputs in a few steps, without outliers."""
    y = torch.arange(len(x)) % model.classes if y is None else y
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "STEPS", steps)
        learn_score(model, lambda: list(zip(x.split(8), y.split(8))), None, None, SimpleNamespace(world_size=1), seed=0)
    return model


def destroyed_term(combined: Combined, x: Tensor) -> Tensor:
    """Return D of the score of parts in units, [B], from the constants that predictions compute with."""
    constants, parts = combined.constants(), x.shape[1]
    low, high = (limit[FOR_DESTROYED, :parts] for limit in (constants.low, constants.high))
    beyond = (x - constants.shift[FOR_DESTROYED, :parts]).clamp(low, high)
    return beyond @ constants.weight.view(len(constants.low), -1)[FOR_DESTROYED, :parts]


def trained(network: nn.Module, x: Tensor, y: Tensor, steps: int = 60) -> nn.Module:
    """Return the network after a short plain training, in eval mode."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network.eval()


class Reader(nn.Module):
    """A network of 20 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.last(self.first(self.words(input_ids).mean(1)).relu())


def mlp(features: int = 6, classes: int = 3, width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Linear(features, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


class SmallBatchNormNet(nn.Module):
    """Two convolutions with batch normalisation and dropout."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.head(self.drop(x.mean(dim=(2, 3))))


def random_head(network: PaperResNet) -> PaperResNet:
    """The paper's head starts at 10^-3, so that logits hardly differ; tests need ones that do."""
    nn.init.normal_(network.head.weight, std=0.3)
    return network


@pytest.fixture
def images() -> Tensor:
    return torch.randn(5, 1, 12, 12, generator=generator(1))


@pytest.fixture
def small_net() -> nn.Module:
    """The paper's network, narrow and on small images."""
    torch.manual_seed(0)
    return random_head(PaperResNet(width=8, blocks=3, classes=4, stem="small")).eval()


@pytest.fixture
def attached(small_net: nn.Module, images: Tensor) -> Attached:
    return randomise_attachments(abnn.attach(small_net, images[:1], draws=4))


@pytest.fixture
def tabular() -> tuple[Tensor, Tensor]:
    x = torch.randn(64, 6, generator=generator(2))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


State = dict[str, Tensor]


@pytest.fixture
def snapshot() -> Callable[[nn.Module], State]:
    def take(module: nn.Module) -> State:
        return {name: value.clone() for name, value in module.state_dict().items()}

    return take


def same_state(left: State, right: State) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A Ray cluster of one worker, started once for all tests that need it; they are skipped where Ray is not installed."""
    pytest.importorskip("ray")
    from abnn.batch.engine import connected

    with pytest.MonkeyPatch.context() as patch:
        root = str(Path(__file__).parents[1])
        patch.setenv("PYTHONPATH", os.pathsep.join([root, os.path.join(root, "src")]))
        patch.setenv("RAY_worker_niceness", "0")  # otherwise workers hardly run beside other tests
        with connected(None, workers=1) as module:
            yield module


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Any]) -> Path:
    """A folder that the first of all test processes makes; nobody changes it."""
    shared = factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / name / "made"
    folder.parent.mkdir(exist_ok=True)
    with FileLock(shared / f"{name}.lock"):
        if not folder.exists():
            make(folder)
    return folder


@pytest.fixture(scope="session")
def exported_pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of pictures as it was exported, once for all rooms."""
    from tests.export.models import picture_model

    return made_once(tmp_path_factory, "pictures", lambda folder: picture_model().export(folder))
