"""Wrong configurations say what was given, what is accepted and what to do."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from abnn.baselines import TrainConfig, Trained, load_trained, make_method, train_method
from abnn.errors import FileFormatError, InputError
from abnn.triage import Triage
from tests.baselines.samples import TINY, digits, loader, quick
from tests.conftest import SmallBatchNormNet, alter, mlp


@pytest.fixture(scope="module")
def model() -> Trained:
    return quick("threshold", 1)


@pytest.mark.parametrize(
    "arguments,words",
    [
        ({"name": "wods"}, "method: got 'wods'.*Did you mean 'woods'"),
        ({"name": "oe", "variant": "author"}, "variant of method 'oe'.*Did you mean 'authors'"),
        ({"name": "oe", "wieght": 1.0}, "option of method 'oe'.*Did you mean 'weight'"),
        ({"name": "threshold", "outliers": "noise"}, "option of method 'threshold'"),
        ({"name": "threshold", "score": "energy"}, "score of method 'threshold'.*max-probability"),
        ({"name": "threshold", "score": "variance"}, "score of method 'threshold'"),
        ({"name": "woods", "score": "ood-head"}, "score of method 'woods'.*energy"),
        ({"name": "abnn", "variant": "authors", "score": "gated"}, "score of method 'abnn'"),
        ({"name": "threshold", "lr": 0}, "lr: got 0; accepted: a positive number"),
        ({"name": "threshold", "lr": float("nan")}, "lr"),
        ({"name": "threshold", "optimizer": "sdg"}, "optimizer of method 'threshold'.*Did you mean 'sgd'"),
        ({"name": "p-sgld", "optimizer": "adam"}, "optimizer of method 'p-sgld'.*langevin"),
        ({"name": "threshold", "schedule": "step"}, "schedule.*Did you mean 'steps'"),
        ({"name": "oe", "loss": "bec"}, "loss.*Did you mean 'bce'"),
        ({"name": "oe", "weight": -1.0}, "weight"),
        ({"name": "woods", "form": "nn"}, "form: got 'nn'; accepted: energy, head"),
        ({"name": "woods", "tune_schedule": "half"}, "tune_schedule"),
        ({"name": "woods", "pretrain": 1.0}, "pretrain: got 1.0; accepted: a number from 0 to below 1"),
        ({"name": "abnn", "pretrain": -0.1}, "pretrain"),
        ({"name": "abnn", "preset": "author"}, "preset"),
        ({"name": "abnn", "attachment_optimizer": "x"}, "attachment_optimizer"),
        ({"name": "deep-ensemble", "members": 0}, "members: got 0; accepted: a whole number of at least 1"),
        ({"name": "mc-dropout", "rate": 1.0}, "rate"),
        ({"name": "bbp", "draws": 1.5}, "draws"),
        ({"name": "bbp", "kl_size": 0}, "kl_size"),
        ({"name": "vboe", "layers": "first"}, "layers"),
        ({"name": "vboe", "temper": 0.0}, "temper"),
        ({"name": "p-sgld", "samples": 0}, "samples"),
        ({"name": "sde-net", "sigma": -1.0}, "sigma"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_method(**arguments)


@pytest.mark.parametrize("method,form", [("sde-net", {}), ("woods", {"form": "head"})])
def test_networks_of_their_own_refuse_foreign_backbones(method: str, form: dict[str, str]) -> None:
    with pytest.raises(InputError, match="backbone: got SmallBatchNormNet; accepted: PaperResNet.*'paper-resnet'"):
        quick(make_method(method, **form), backbone=partial(SmallBatchNormNet, 10))


@pytest.mark.parametrize("method", ["mc-dropout", "vboe"])
def test_last_layer_methods_need_a_last_layer(method: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Softplus())
    with pytest.raises(InputError, match="backbone: got Sequential.*ends with nn.Linear"):
        quick(method, backbone=network)
    with pytest.raises(InputError, match="backbone"):
        quick(method, backbone=nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten()))


def test_an_ensemble_needs_different_members() -> None:
    with pytest.raises(InputError, match="different initial weights for every member"):
        quick("deep-ensemble", backbone=SmallBatchNormNet(10))


class AndMore(nn.Module):
    """A network that returns its features behind its logits if ``more``."""

    def __init__(self, more: bool) -> None:
        super().__init__()
        self.more, self.head = more, nn.Linear(16, 10)
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU())

    def forward(self, x: Tensor) -> Any:
        features = self.features(x)
        return (self.head(features), features) if self.more else self.head(features)


@pytest.mark.parametrize("method", ["abnn", "bbp"])
def test_of_several_outputs_attachments_take_the_first(method: str) -> None:
    one, other = (quick(method, 2, backbone=partial(AndMore, more)) for more in (False, True))
    for single, several in zip(one.network.parameters(), other.network.parameters(), strict=True):
        assert torch.equal(single, several)
    x = digits().x[:4]
    assert torch.equal(one.predict(x).probs, other.predict(x).probs)


@pytest.mark.parametrize("method", ["threshold", "oe", "deep-ensemble", "p-sgld", "woods"])
def test_other_methods_refuse_several_outputs(method: str) -> None:
    with pytest.raises(InputError, match="backbone: got one that returns tuple for method.*logits alone"):
        quick(method, 2, backbone=partial(AndMore, True))


def test_arguments_of_training() -> None:
    with pytest.raises(InputError, match="classes: got None"):
        quick("threshold", backbone="paper-resnet")
    with pytest.raises(InputError, match="backbone: got int"):
        quick("threshold", backbone=3)
    with pytest.raises(InputError, match="epochs: got 0"):
        quick("threshold", 0)
    with pytest.raises(InputError, match="outliers: got 'noise'; accepted: None for method 'threshold'"):
        quick("threshold", outliers="noise")
    with pytest.raises(InputError, match="outliers: got None; accepted: outliers, without which 'oe' is nothing"):
        quick("oe", outliers=None)
    with pytest.raises(InputError, match="outliers: got 'niose'"):
        quick("oe", outliers="niose")
    with pytest.raises(InputError, match="precision"):
        quick("threshold", precision="16")
    with pytest.raises(InputError, match="loader: got list without a batch"):
        train_method("threshold", TINY, [], 1, progress=False)
    with pytest.raises(InputError, match="one logit for each of two or more classes"):
        quick("threshold", backbone=nn.Sequential(nn.Flatten(), nn.Linear(64, 1)))


def test_scores_that_a_method_cannot_give(model: Trained) -> None:
    accepted = "accepted: entropy, margin, max-probability"
    with pytest.raises(InputError, match=f"score of method 'threshold': got 'combined'; {accepted}"):
        model.predict(digits().x[:2], score="combined")
    with pytest.raises(InputError, match="draws"):
        model.predict(digits().x[:2], draws=0)
    with pytest.raises(InputError, match="x: got shape"):
        model.predict(digits().x[0, 0])


def test_saving_replaces_models_only(model: Trained, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(InputError, match="exists and is not a saved method"):
        model.save(tmp_path / "mine")
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["mine", "model"]
    files = ["method.json", "network.safetensors"]
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == files


def test_damaged_and_foreign_files(model: Trained, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="not a saved method"):
        load_trained(tmp_path)

    def changed(**changes: Any) -> Path:
        return alter(model.save(tmp_path / "model"), **changes)

    triage = Triage(1.0, 2.0, 0.05, 0.01, "entropy", 1, 0, 100).to_dict()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": "x"}, "not the description of a saved method"),
        ({"version": 99}, "Update abnn"),
        ({"method": {"name": "nothing"}}, "is not complete or does not fit.*'nothing'"),
        ({"method": {}}, "is not complete or does not fit"),
        ({"backbone": {**TINY, "width": 12}}, "has shape .*; accepted: "),
        ({"input_dtype": "no"}, "input_dtype is 'no'; accepted: one of float16"),
        ({"classes": None}, "classes is None; accepted: a valid integer"),
        ({"extra": [1]}, r"extra is \[1\]; accepted: an object"),
        ({"triage": {**triage, "score": "combined"}}, "triage.score: got 'combined'; accepted: entropy"),
        ({"triage": {**triage, "by_class": [[1.0, 2.0]]}}, "triage.by_class is 1 pairs; accepted: 10"),
        ({"triage": {**triage, "offsets": [1.0]}}, "triage.offsets is 1 numbers; accepted: 10"),
        ({"triage": {**triage, "notice": "x"}}, "triage.notice is 'x'"),
    ]
    for changes, words in cases:
        with pytest.raises(FileFormatError, match=words):
            load_trained(changed(**changes))
    path = changed()
    content = (path / "network.safetensors").read_bytes()
    tensors = load_file(path / "network.safetensors")
    name = next(name for name in tensors if name.endswith(".weight"))
    for value, words in (
        (tensors[name].long(), "is of type torch.int64"),
        (tensors[name] / 0, "NaN or infinite values"),
    ):
        save_file({**tensors, name: value}, path / "network.safetensors")
        with pytest.raises(
            FileFormatError, match="network.safetensors is not the file that was saved with method.json"
        ):
            load_trained(path)
        alter(path)
        with pytest.raises(FileFormatError, match=words):
            load_trained(path)
    (path / "network.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.raises(FileFormatError, match="safetensors"):
        load_trained(path)
    (path / "method.json").write_text("{")
    with pytest.raises(FileFormatError, match="not valid JSON"):
        load_trained(path)


def test_half_of_the_statistics_are_none(tmp_path: Path) -> None:
    path = quick("abnn", 1).save(tmp_path / "model")
    tensors = load_file(path / "network.safetensors")
    assert {"combined.centre", "closed_form.mean0"} <= set(tensors)
    everything = {name for name in tensors if name.startswith(("combined.", "closed_form."))}
    for gone in ({"combined.centre", "closed_form.mean0"}, everything):
        save_file({name: value for name, value in tensors.items() if name not in gone}, path / "network.safetensors")
        alter(path)
        if len(gone) == 2:
            with pytest.raises(FileFormatError, match=r"(closed_form\.mean0|combined\.centre).*missing"):
                load_trained(path)
        else:
            assert not load_trained(path).network.is_judge


def test_a_backbone_without_a_name_is_asked_for(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Flatten(), mlp(64, 10))
    path = quick("threshold", 1, backbone=network).save(tmp_path / "model")
    with pytest.raises(InputError, match="backbone: got None"):
        load_trained(path)
    loaded = load_trained(path, nn.Sequential(nn.Flatten(), mlp(64, 10)))
    assert not torch.equal(loaded.network[1][0].weight, network[1][0].weight)  # type: ignore[index]
    with pytest.raises(FileFormatError, match="with the backbone that it was trained with"):
        load_trained(path, mlp(64, 10, width=3))


class Padded(nn.Module):
    """Reads words; 0 is padding, of which the average is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(9, 8), mlp(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        real = (x > 0).sum(1)
        if not bool((real > 0).all()):
            raise ValueError("a sentence of padding alone")
        words = self.words(x) * (x > 0)[..., None]
        return self.head(self.body(words.sum(1) / real[:, None]))


@pytest.mark.parametrize("method", ["threshold", "mc-dropout", "abnn"])
def test_networks_that_refuse_zeros_are_loaded_with_the_saved_example(method: str, tmp_path: Path) -> None:
    x = torch.randint(1, 9, (20, 5), generator=torch.Generator().manual_seed(0))
    config = TrainConfig(accelerator="cpu")
    trained = train_method(method, Padded(), [(x, x[:, 0] % 2)], 2, progress=False, config=config)
    path = trained.save(tmp_path / "model")
    loaded = load_trained(path, Padded())
    assert torch.equal(loaded.predict(x).probs, trained.predict(x).probs)


def test_loaders_are_checked() -> None:
    x, y = digits()
    with pytest.raises(InputError, match="labels from"):
        train_method("threshold", {**TINY, "classes": 4}, [(x, y)], 1, progress=False)
    with pytest.raises(InputError, match="loader"):
        train_method("threshold", TINY, loader().dataset, 1, progress=False)  # type: ignore[arg-type]
