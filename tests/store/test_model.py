"""Saved models: round trips, sizes, and files that are damaged, foreign, newer or not meant for this network."""

from __future__ import annotations

import copy
import functools
import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import abnn
from abnn.errors import AbnnWarning, FileFormatError, InputError
from abnn.networks.by_name import PaperResNet
from abnn.scores.combined import DIRECTION
from abnn.store.folder import check_tensors, fingerprint
from abnn.store.model import PARTS_AT, SILENT
from abnn.store.saved import load_model
from abnn.tasks.classification import UNCLAIMED
from abnn.triage import TriageConfig, calibrate
from tests.conftest import alter, attach_with, mlp, randomise_attachments, with_score, without_checksums
from tests.train import test_fit
from tests.train.test_fit import QUIET, data, loader, may_forget, quiet

X = data()[0]
ONE = TriageConfig(draws=1)


@functools.cache
def trained() -> PaperResNet:
    return test_fit.backbone()


def backbone(trained_before: bool = True) -> PaperResNet:
    return copy.deepcopy(trained()) if trained_before else test_fit.backbone(trained=False)


def attached(**options: Any) -> abnn.Attached:
    return attach_with(backbone(), X[:1], **options)


@pytest.fixture(scope="module")
def fitted_once() -> abnn.Attached:
    model = attached()
    abnn.fit(model, loader(), epochs=1, **QUIET)
    return model


@pytest.fixture
def fitted(fitted_once: abnn.Attached) -> abnn.Attached:
    fitted_once.extra = {}
    return fitted_once


def same(left: abnn.Attached, right: abnn.Attached) -> bool:
    one, two = left.predict(X), right.predict(X)
    return torch.equal(one.samples, two.samples) and torch.equal(one.score, two.score)


def test_round_trip_onto_a_fresh_copy(fitted: abnn.Attached, tmp_path: Path) -> None:
    triage = calibrate(fitted, loader(), ONE, progress=False)
    fitted.save(tmp_path / "model", triage=triage, extra={"class_names": ["a", "b", "c"]})
    loaded = abnn.load(tmp_path / "model", backbone())
    assert same(fitted, loaded)
    assert loaded.triage == triage and loaded.extra == {"class_names": ["a", "b", "c"]}
    assert sorted(file.name for file in (tmp_path / "model").iterdir()) == ["abnn.json", "attachments.safetensors"]
    assert torch.equal(fitted(X), loaded(X))


def test_torchs_default_type_has_no_say(fitted: abnn.Attached, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    network = backbone()
    torch.set_default_dtype(torch.float64)
    try:
        assert same(fitted, abnn.load(tmp_path / "model", network))
    finally:
        torch.set_default_dtype(torch.float32)


def test_what_was_loaded_is_saved_again(fitted: abnn.Attached, tmp_path: Path) -> None:
    triage = calibrate(fitted, loader(), ONE, progress=False)
    extra = {"class_names": ["a", "b", "c"], "preprocess": {"mean": [0.5], "std": [0.2]}}
    fitted.save(tmp_path / "first", triage=triage, extra=extra)
    abnn.load(tmp_path / "first", backbone()).save(tmp_path / "second")
    second = abnn.load(tmp_path / "second", backbone())
    assert second.triage == triage and second.extra == extra
    second.save(tmp_path / "third", extra={})
    assert abnn.load(tmp_path / "third", backbone()).extra == {}


def test_names_that_were_given_once_are_kept_by_later_saves_and_cards(fitted: abnn.Attached, tmp_path: Path) -> None:
    names = ["cat", "dog", "emu"]
    fitted.save(tmp_path / "first", extra={"class_names": tuple(names)})
    fitted.save(tmp_path / "second")
    assert abnn.load(tmp_path / "second", backbone()).extra == fitted.extra == {"class_names": names}
    folder = fitted.save_pretrained(tmp_path / "third")
    assert "emu" in (folder / "README.md").read_text()
    with pytest.raises(InputError, match="class_names"):
        fitted.save(tmp_path / "fourth", extra={"class_names": ["cat"]})
    assert fitted.extra == {"class_names": names}


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"size": torch.ones(1)}, "extra: got something that JSON cannot hold .*Tensor"),
        ({"share": float("nan")}, "extra: got something that JSON cannot hold"),
        ([1], r"extra: got \[1\]; accepted: a dict"),
    ],
)
def test_what_cannot_be_kept_beside_a_model_is_named(
    tmp_path: Path, fitted: abnn.Attached, extra: Any, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        fitted.save(tmp_path / "model", extra=extra)
    assert not (tmp_path / "model").exists()


def test_a_fit_voids_thresholds(tmp_path: Path) -> None:
    model = attached()
    model.triage = calibrate(model, loader(), TriageConfig(draws=1, score="entropy"), progress=False)
    model.extra = {"class_names": ["a", "b", "c"]}
    abnn.fit(model, loader(), epochs=1, **QUIET)
    loaded = abnn.load(model.save(tmp_path / "model"), backbone())
    assert loaded.triage is None and loaded.extra == model.extra


@pytest.mark.parametrize(
    "options",
    [
        {"preset": "authors"},
        {"kind": "chain", "share": False},
        {"width": 4, "last": 1},
        {"kind": "replace"},
        {"prior": abnn.ScaleMixture(1.0, 0.01, 0.3), "init": abnn.Init(0.1, 0.05, 0.1)},
    ],
)
def test_round_trip_of_every_kind(options: dict[str, Any], tmp_path: Path) -> None:
    model = attached(**options)
    model.save(tmp_path / "model")
    loaded = abnn.load(tmp_path / "model", backbone())
    assert same(model, loaded) and loaded.spec == model.spec and loaded.preset == model.preset
    assert loaded.layers[0].prior == model.layers[0].prior


def test_with_the_backbone_nothing_else_is_needed(tmp_path: Path) -> None:
    recipe = {"width": 8, "blocks": 2, "stem": "small", "kaiming": False}
    network = abnn.build_backbone("paper-resnet", 3, 1, **recipe).eval()
    model = abnn.attach(network, X[:1])
    model.save(tmp_path / "model", backbone=True)
    state = torch.get_rng_state()
    assert same(model, abnn.load(tmp_path / "model"))
    assert torch.equal(torch.get_rng_state(), state)
    model.save(tmp_path / "alone")
    with pytest.raises(InputError, match="backbone: got None"):
        abnn.load(tmp_path / "alone")


def test_places_where_nothing_can_be_written_are_named(fitted: abnn.Attached, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"path: got .*file, where .*file is a file; accepted: a place in a folder of yours"
    ):
        fitted.save(tmp_path / "file" / "model")


def test_attachments_are_small(fitted: abnn.Attached, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    assert fitted.closed_form is not None
    numbers = fitted.attachment_size + sum(each.numel() for each in fitted.combined.buffers()) + fitted.example.numel()
    widths, classes = fitted.closed_form.widths, fitted.closed_form.classes
    numbers += sum(width * (width + 2 + classes) for width in widths)  # means, and halves of two matrices
    numbers += sum(each.numel() for each in fitted.closed_form.witness.buffers())
    size = sum(file.stat().st_size for file in (tmp_path / "model").iterdir())
    assert size < 4 * numbers + 8000  # four bytes a number, and the names


def test_fingerprint_sees_every_weight() -> None:
    one, two = backbone(), backbone()
    assert fingerprint(one) == fingerprint(two)
    with torch.no_grad():
        two.head.bias[0] += 1e-6
    assert fingerprint(one) != fingerprint(two)


def test_another_backbone_is_refused(fitted: abnn.Attached, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    with pytest.raises(FileFormatError, match="other weights or layers"):
        abnn.load(tmp_path / "model", backbone(False))


def test_saved_weights_are_loaded_into_a_given_network(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model", backbone=True)
    fresh = backbone(False)
    assert same(fitted, abnn.load(path, fresh)) and fingerprint(fresh) == fingerprint(fitted.backbone)


def test_a_network_that_is_refused_is_left_as_it_was(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model", backbone=True)
    wider = PaperResNet(1, 4, width=8, blocks=2, stem="small")
    doubled = backbone().double()
    for network, names in ((wider, "head.bias, head.weight"), (doubled, "blocks.0")):
        before = fingerprint(network)
        with pytest.raises(FileFormatError, match=f"other layers, which differ in {names}"):
            abnn.load(path, network)
        assert fingerprint(network) == before
    fresh = backbone(False)
    before = fingerprint(fresh)
    alter(path, fingerprint="0" * 64)
    with pytest.raises(FileFormatError, match="does not have the fingerprint"):
        abnn.load(path, fresh)
    assert fingerprint(fresh) == before


@may_forget
@pytest.mark.parametrize("preset,freeze", [("default", False), ("authors", None)])
def test_a_trained_backbone_is_not_left_out_without_a_word(preset: str, freeze: bool | None, tmp_path: Path) -> None:
    model = attached(preset=preset)
    abnn.fit(model, loader(), **quiet(freeze_backbone=freeze, epochs=1, lr=1e-3))
    with pytest.warns(AbnnWarning, match="backbone: got False.*save with backbone=True") as caught:
        model.save(tmp_path / "alone")
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(FileFormatError, match="other weights or layers"):
        abnn.load(tmp_path / "alone", backbone())
    model.save(tmp_path / "whole", backbone=True)
    loaded = abnn.load(tmp_path / "whole", backbone())
    assert same(model, loaded)
    with pytest.warns(AbnnWarning, match="save with backbone=True"):
        loaded.save(tmp_path / "whole")  # which would take the only copy of the weights away
    trained = model.backbone
    abnn.load(tmp_path / "alone", trained).save(tmp_path / "alone")  # the user has the weights


def test_thresholds_that_are_none_are_refused(fitted: abnn.Attached, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="triage: got 5; accepted: what abnn.calibrate"):
        fitted.save(tmp_path / "model", triage=5)  # type: ignore[arg-type]
    assert not (tmp_path / "model").exists()


def test_damaged_and_foreign_files(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(FileFormatError, match="not a saved model"):
        abnn.load(path, backbone())
    fitted.save(path)
    weights = path / "attachments.safetensors"
    whole = weights.read_bytes()
    network = backbone()
    for content in (whole[: len(whole) // 2], b"", b"not a tensor file at all" * 10):
        weights.write_bytes(content)
        with pytest.raises(
            FileFormatError, match="attachments.safetensors is not the file that was saved with abnn.json"
        ):
            abnn.load(path, network)
        with pytest.raises(FileFormatError, match="restore or save it again"):
            abnn.load(alter(path), network)
    for value in (float("nan"), float("inf")):
        tensors = safetensors.torch.load(whole)
        tensors["combined.centre"][1] = value
        weights.write_bytes(safetensors.torch.save(tensors))
        words = r"NaN or infinite values in combined\.centre: the file is damaged, or"
        with pytest.raises(FileFormatError, match=words):
            abnn.load(alter(path), network)
    weights.unlink()
    for damaged in (path, alter(path)):
        with pytest.raises(FileFormatError, match="attachments.safetensors does not exist"):
            abnn.load(damaged, network)
    weights.write_bytes(whole)
    alter(path, version=99, abnn="9.0")
    with pytest.raises(FileFormatError, match=r"by abnn 9\.0.*Update abnn"):
        abnn.load(path, backbone())
    alter(path, version=9, at=["blocks.0", "blocks.1"])
    with pytest.raises(FileFormatError, match="missing or not expected"):
        abnn.load(path, backbone())
    alter(path, format="other")
    with pytest.raises(FileFormatError, match="not the description"):
        abnn.load(path, backbone())
    (path / "abnn.json").write_text('{"format": "abnn-model", ')
    with pytest.raises(FileFormatError, match="not valid JSON"):
        abnn.load(path, backbone())


def test_tensors_of_another_form_are_refused(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    whole = weights.read_bytes()
    name = next(name for name in safetensors.torch.load(whole) if name.startswith("attachments."))
    assert fitted.closed_form is not None
    size = fitted.closed_form.widths[0]
    for tensor, change_of, message in (
        (name, torch.Tensor.long, "is of type torch.int64; accepted: a floating-point type"),
        (name, lambda value: value[..., None], "has shape"),
        ("closed_form.mean0", torch.Tensor.int, "is of type torch.int32"),
        (
            "closed_form.whitening0",
            lambda value: value[:1],
            rf"has shape \(1,\); accepted: \({size * (size + 1) // 2},\)",
        ),
        ("closed_form.whitening0", lambda value: value[0], r"has shape \(\)"),
        ("combined.fitted", torch.Tensor.float, "is of type torch.float32; accepted: torch.bool"),
        ("combined.fitted", lambda value: value.expand(2), r"has shape \(2,\)"),
        ("combined.linear", lambda value: value[:, 1:], "has shape"),
    ):
        tensors = safetensors.torch.load(whole)
        tensors[tensor] = change_of(tensors[tensor]).contiguous().clone()
        weights.write_bytes(safetensors.torch.save(tensors))
        with pytest.raises(FileFormatError, match=f"{tensor} (are .*)?{message}.*restore it, or save the model again"):
            abnn.load(alter(path), fitted.backbone)
    for missing in ("closed_form.fitted", "combined.bounds"):
        tensors = safetensors.torch.load(whole)
        del tensors[missing]
        weights.write_bytes(safetensors.torch.save(tensors))
        with pytest.raises(FileFormatError, match=f"tensors {missing} are missing or not expected"):
            abnn.load(alter(path), fitted.backbone)
    halved = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    weights.write_bytes(safetensors.torch.save({**halved, "combined.bounds": fitted.combined.bounds.half()}))
    abnn.load(alter(path), fitted.backbone)  # of another precision


def test_fields_of_another_kind_are_refused(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model", triage=abnn.Triage(0.1, 0.2, 0.05, 0.01, "combined", 0, 0, 50))
    description = json.loads((path / "abnn.json").read_text())
    wrong: dict[str, tuple[Any, ...]] = {
        "views": (None, 99, "5"),
        "classes": (4, "3", None),
        "extra": (None, [1]),
        "draws": ("x", -1, 10**9, True, 2.5),
        "seed": ("0", 0.5),
        "score": ("bogus", None),
        "at": ([], "blocks.0", [0]),
        "fingerprint": (5, None, "00"),
        "input_shape": (None, [0], ["1"]),
        "input_dtype": ("load", 5),
        "triage": ([1], {"notice": 1}),
    }
    inside: dict[str, dict[str, tuple[Any, ...]]] = {
        "triage": {
            "draws": ("ten",),
            "score": ("nope",),
            "by_class": ([[0.1, 0.2]],),
            "notice": (math.nan, math.inf, 9),
        },
        "spec": {
            "width": (10**9, 0),
            "kind": (5,),
            "init": ({"sigma": -1.0}, {"x": 1}),
            "prior": ([], {"kind": True}, {"sigma": {}}),
        },
    }
    cases = [(name, {name: value}) for name, values in wrong.items() for value in values]
    for outer, fields in inside.items():
        cases += [(name, {outer: {**description[outer], name: v}}) for name, values in fields.items() for v in values]
    for name, changes in cases:
        with pytest.raises(FileFormatError, match=rf"model: .*{name}.*(; accepted: | is missing| is not known)"):
            abnn.load(alter(path, **{**description, **changes}), fitted.backbone)
    for changes in (
        {"spec": {**description["spec"], "kind": "unheard"}},
        {"spec": {**description["spec"], "prior": {"kind": "Gaussian", "sigma": 0.0}}},
        {"spec": {**description["spec"], "prior": {"kind": "Gaussian", "colour": 1.0}}},
        {"spec": {**description["spec"], "prior": {"kind": "Colour"}}},
        {"preset": "unheard"},
    ):
        with pytest.raises(FileFormatError, match="is not complete or does not fit"):
            abnn.load(alter(path, **{**description, **changes}), fitted.backbone)
    with pytest.raises(FileFormatError, match="model: colour is not known; written by a newer version"):
        abnn.load(alter(path, **description, colour=1), fitted.backbone)
    path = fitted.save(tmp_path / "model")
    assert abnn.load(alter(path, views=...), fitted.backbone).views == 1


@pytest.mark.parametrize("version", [1, 5, 6])
def test_models_of_the_earlier_method_say_what_to_do(fitted: abnn.Attached, tmp_path: Path, version: int) -> None:
    """One error, whatever else they hold: kinds and tensors that there no longer are."""
    path = fitted.save(tmp_path / "model")
    spec = {**json.loads((path / "abnn.json").read_text())["spec"], "kind": "conv"}
    words = rf"format {version}, by abnn 0\.0\.1.*reads formats from 7 to 12.*earlier version.*another method.*fit again.*abnn\.fit"
    for change in (alter, without_checksums):
        with pytest.raises(FileFormatError, match=words):
            abnn.load(change(path, version=version, abnn="0.0.1", spec=spec, score="gated"), backbone())
    with pytest.raises(FileFormatError, match=words):
        load_model(path)


def test_another_score_is_calibrated_and_saved_with_the_model(tmp_path: Path) -> None:
    x, y = data(80)
    model = with_score(randomise_attachments(attached()), x)
    model.score = "failures"
    calibrate(model, [(x, y)], progress=False)
    said, loaded = model.predict(x), abnn.load(model.save(tmp_path / "model"), backbone()).predict(x)
    assert loaded.default == "failures" and loaded.verdict == said.verdict
    assert torch.equal(loaded.score, said.score_by("failures"))


def silence(model: abnn.Attached, part: str) -> abnn.Attached:
    """Let a part of the score count nothing."""
    place = model.combined.names.index(part)
    for name, dimension in PARTS_AT.items():
        getattr(model.combined, name).select(dimension, place).fill_(SILENT.get(name, 0.0))
    return model


def with_silent_claims(x: Tensor) -> abnn.Attached:
    """A model with a score, in which what classes claim counts nothing."""
    return silence(with_score(randomise_attachments(attached()), x), UNCLAIMED)


def narrowed(model: abnn.Attached, tensors: dict[str, Tensor], *lacking: str) -> dict[str, Tensor]:
    """The tensors of a model whose score lacks the parts whose names begin so."""
    old = torch.tensor([n for n, name in enumerate(model.combined.names) if not name.startswith(lacking)])
    names = [(f"combined.{name}", dimension) for name, dimension in PARTS_AT.items()]
    less = {name: tensors[name].index_select(at, old).contiguous() for name, at in names if name in tensors}
    return {**tensors, **less}


def test_models_without_directions_say_what_they_said(tmp_path: Path) -> None:
    """Those of format 11; only classes that can be hidden bring directions along, so there are four."""
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0))
    network = mlp(6, 4).eval()
    today = with_score(randomise_attachments(abnn.attach(network, x[:1])), x)
    said = abnn.load(today.save(tmp_path / "today"), network).predict(x)
    assert torch.equal(said.score, today.predict(x).score) and said.parts is not None
    torch.testing.assert_close(said.parts[DIRECTION], today.predict(x).parts[DIRECTION])
    path = silence(today, DIRECTION).save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    tensors = narrowed(today, safetensors.torch.load(weights.read_bytes()), DIRECTION)
    older = {name: value for name, value in tensors.items() if ".direction." not in name}
    assert len(older) == len(tensors) - 2
    weights.write_bytes(safetensors.torch.save(older))
    loaded = abnn.load(alter(path, version=11), network)
    assert torch.equal(loaded.predict(x).score, today.predict(x).score)
    parts = abnn.load(loaded.save(tmp_path / "again"), network).predict(x).parts
    assert parts is not None and parts[DIRECTION].abs().max() < 1e-3  # nothing that would look unusual
    with pytest.raises(FileFormatError, match=r"combined\."):
        abnn.load(alter(path, version=12), network)


def test_models_without_claims_say_what_they_said(tmp_path: Path) -> None:
    """Those of format 10."""
    x, _ = data(60)
    model = with_silent_claims(x)
    path = model.save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    tensors = narrowed(model, safetensors.torch.load(weights.read_bytes()), UNCLAIMED)
    weights.write_bytes(safetensors.torch.save(tensors))
    loaded = abnn.load(alter(path, version=10), backbone())
    assert torch.equal(loaded.predict(x).score, model.predict(x).score)
    parts = loaded.predict(x).parts
    assert parts is not None and parts[UNCLAIMED].abs().max() < 1e-3  # nothing that would look unusual
    with pytest.raises(FileFormatError, match=r"combined\."):
        abnn.load(alter(path, version=11), backbone())


def test_models_without_a_witness_say_what_they_said(tmp_path: Path) -> None:
    """Those of format 7. Here nothing was held out, so that the witness of the model is silent and can be taken away."""
    x, _ = data(60)
    model = with_silent_claims(x)
    path = model.save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    tensors = safetensors.torch.load(weights.read_bytes())
    later = ("combined.readable", "combined.familiar", "combined.trust")
    kept = {name: value for name, value in tensors.items() if "witness" not in name and name not in later}
    kept = narrowed(model, kept, "looks ", UNCLAIMED)
    weights.write_bytes(safetensors.torch.save(kept))
    loaded = abnn.load(alter(path, version=7), backbone())
    assert torch.equal(loaded.predict(x).score, model.predict(x).score)
    assert loaded.predict(x).parts is not None and not loaded.predict(x).parts["looks destroyed"].any()  # type: ignore[index]
    torch.testing.assert_close(
        loaded.predict(x).probs, model.predict(x).samples.mean(0)
    )  # whatever an input looks like
    weights.write_bytes(safetensors.torch.save({**kept, "combined.centre": torch.zeros(3)}))
    with pytest.raises(FileFormatError, match=r"combined\.centre"):
        abnn.load(alter(path, version=7), backbone())
    with pytest.raises(FileFormatError, match="was changed since it was saved"):  # checksums are older than format 7
        abnn.load(without_checksums(path), backbone())


def test_models_whose_attachments_always_count_say_what_they_said(fitted: abnn.Attached, tmp_path: Path) -> None:
    """Those of format 8."""
    path = fitted.save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    tensors = safetensors.torch.load(weights.read_bytes())
    del tensors["combined.trust"]
    weights.write_bytes(safetensors.torch.save(tensors))
    prediction, said = abnn.load(alter(path, version=9), backbone()).predict(X), fitted.predict(X)
    assert said.share is not None and prediction.share is not None  # of format 9: half at most
    torch.testing.assert_close(prediction.share, 0.5 * said.share / fitted.combined.trust)
    del tensors["combined.familiar"]
    weights.write_bytes(safetensors.torch.save(tensors))
    prediction = abnn.load(alter(path, version=8), backbone()).predict(X)
    torch.testing.assert_close(prediction.probs, said.samples.mean(0))
    with pytest.raises(FileFormatError, match="missing or not expected"):
        abnn.load(alter(path, version=9), backbone())


def test_tensors_of_the_earlier_method_say_what_to_do(fitted: abnn.Attached, tmp_path: Path) -> None:
    """A trained method may hold them in a folder of a version that can be read."""
    own = dict(fitted.attachment_parameters())
    saved = {**own, "distance.whitening": torch.zeros(3)}
    with pytest.raises(FileFormatError, match="earlier version, with another method.*fit again"):
        check_tensors(tmp_path, saved, own)


def test_what_is_left_of_checksums_is_checked(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = without_checksums(fitted.save(tmp_path / "model"))
    with pytest.raises(FileFormatError, match="abnn.json was changed since it was saved"):
        abnn.load(path, backbone())


def test_statistics_of_a_network_that_has_none_are_refused(fitted: abnn.Attached, tmp_path: Path) -> None:
    """Attachments of another kind have no learnt score; a changed folder may say otherwise."""
    path = attached(kind="chain").save(tmp_path / "model")
    weights = path / "attachments.safetensors"
    tensors = safetensors.torch.load(weights.read_bytes())
    weights.write_bytes(safetensors.torch.save({**tensors, "combined.fitted": torch.tensor(True)}))
    with pytest.raises(FileFormatError, match="combined.fitted are missing or not expected"):
        abnn.load(alter(path), backbone())


def test_the_learnt_score_is_kept(fitted: abnn.Attached, tmp_path: Path) -> None:
    loaded = abnn.load(fitted.save(tmp_path / "model"), backbone())
    one, two = fitted.predict(X), loaded.predict(X)
    assert one.default == two.default == "combined" and loaded.is_judge
    assert one.parts is not None and two.parts is not None and one.parts.keys() == two.parts.keys()
    assert all(torch.equal(one.parts[name], two.parts[name]) for name in one.parts)
    bare = abnn.load(attached().save(tmp_path / "bare"), backbone())
    assert not bare.is_judge and bare.predict(X).default == "entropy"


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_held_draws_are_kept(fitted: abnn.Attached, tmp_path: Path, draws: int) -> None:
    model = attached(draws=draws)
    model.layers[0].weight_mean.data.add_(0.3)
    loaded = abnn.load(model.save(tmp_path / "model"), backbone())
    assert loaded.mean_weights == (draws == 0) and torch.equal(model(X), loaded(X))


def test_incomplete_description(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = alter(fitted.save(tmp_path / "model"), spec=...)
    with pytest.raises(FileFormatError, match="spec is missing"):
        abnn.load(path, backbone())


def test_damaged_backbone(tmp_path: Path) -> None:
    network = abnn.build_backbone("paper-resnet", 3, 1, width=8, blocks=2, stem="small").eval()
    path = abnn.attach(network, X[:1]).save(tmp_path / "model", backbone=True)
    print_of = json.loads((path / "abnn.json").read_text())["fingerprint"]
    with pytest.raises(FileFormatError, match="does not have the fingerprint"):
        abnn.load(alter(path, fingerprint="0" * 64))
    with pytest.raises(FileFormatError, match="other layers, which differ in"):
        abnn.load(alter(path, fingerprint=print_of, backbone={"name": "paper-resnet", "classes": 4, "in_channels": 1}))


def test_saving_replaces_a_model_but_nothing_else(fitted: abnn.Attached, tmp_path: Path) -> None:
    path = fitted.save(tmp_path / "model")
    fitted.save(path, extra={"second": True})
    assert abnn.load(path, backbone()).extra == {"second": True}
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(InputError, match="is not a saved model"):
        fitted.save(other)
    assert (other / "holiday.jpg").read_bytes() == b"precious"


def test_a_failed_save_leaves_the_old_model(
    fitted: abnn.Attached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fitted.save(tmp_path / "model")
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("abnn.tensors.write_tensors", fail)
    with pytest.raises(OSError, match="disk full"):
        fitted.save(path, extra={"new": True})
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["model"]


def test_loading_runs_no_code() -> None:
    folder = Path(abnn.__file__).parent
    source = "".join(
        (folder / name).read_text() for name in ("store/folder.py", "store/model.py", "files.py", "train/checkpoint.py")
    )
    assert "import pickle" not in source and "torch.load" not in source


def test_models_of_words_without_a_witness_say_what_to_do(tmp_path: Path) -> None:
    """Their closed form had other places; nothing of them can be taken over."""
    torch.manual_seed(0)
    x = torch.randint(1, 30, (60, 7))
    layers = (torch.nn.Embedding(30, 8), torch.nn.Linear(8, 16), torch.nn.ReLU(), FirstToken(), torch.nn.Linear(16, 3))
    network = torch.nn.Sequential(*layers).eval()
    model = with_score(abnn.attach(network, x[:1]), x)
    assert model.closed_form is not None and model.closed_form.words is not None
    path = model.save(tmp_path / "model")
    assert torch.equal(abnn.load(path, network).predict(x).score, model.predict(x).score)
    with pytest.raises(FileFormatError, match="earlier version, with another method.*fit again"):
        abnn.load(alter(path, version=7), network)


class FirstToken(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, 0]
