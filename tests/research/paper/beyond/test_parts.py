"""The measurements on models whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from abnn.attached import attach
from abnn.baselines import Trained, make_method
from abnn.data.digits import Labelled
from abnn.metrics import auroc, calibration
from abnn.model.views import shifted
from abnn.networks.by_name import PaperResNet
from abnn.outliers import make_outliers
from abnn.predict import Prediction
from research.paper.beyond import parts
from research.paper.beyond.parts import (
    COUNTS,
    FAR_KINDS,
    GENERATORS,
    PARTS,
    SEED,
    SEVERITIES,
    VIEWS,
    WIDTH_EVERY,
    Inputs,
    changed,
    far_inputs,
    look,
    predict,
    quality,
    rank_correlation,
    widened,
)
from tests.research.paper.beyond.samples import fake_inputs, fake_models


def test_a_severity_of_zero_is_the_unchanged_set() -> None:
    models, inputs = fake_models(), fake_inputs()
    found = PARTS["severity"].measure(models, inputs)
    x, y = inputs.known
    for name, model in models.items():
        clean = predict(model, x)
        for kind in GENERATORS:
            curves = found[name][kind]
            assert curves["auroc"][0] == 0.5 and len(curves["auroc"]) == len(SEVERITIES)
            assert curves["accuracy"][0] == float((clean.label == y).double().mean())
            assert curves["rank_correlation"] == rank_correlation(curves["score"])
    outliers = make_outliers("leaves")
    outliers.prepare(0.0, 1.0)
    last = predict(models["abnn"], changed(outliers, x, y, 1.0))
    assert found["abnn"]["leaves"]["auroc"][-1] == auroc(predict(models["abnn"], x).score, last.score)


def test_changes_do_not_depend_on_the_severity_but_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = fake_inputs().known
    outliers = make_outliers("noise")
    outliers.prepare(0.0, 1.0)
    small, large = (changed(outliers, x, y, level) - x for level in (0.25, 0.5))
    torch.testing.assert_close(2 * small, large, rtol=1e-3, atol=1e-5)
    monkeypatch.setattr(parts, "CHUNK", 5)  # a last chunk that is not full
    assert changed(outliers, x, y, 0.5).shape == x.shape
    assert predict(fake_models()["abnn"], x).samples.shape == (10, len(x), 10)


def test_far_inputs_are_far() -> None:
    inputs = fake_inputs(size=40)
    made = far_inputs(*inputs.known)
    assert tuple(made) == FAR_KINDS
    torch.testing.assert_close(made[FAR_KINDS[0]], 5000 * inputs.known.x)
    constant = made[FAR_KINDS[1]].flatten(1)
    assert torch.equal(constant.amin(1), constant.amax(1)) and constant.max() <= 5000 and len(constant.unique()) == 40
    assert float((made[FAR_KINDS[2]] - inputs.known.x).std()) == pytest.approx(16, rel=0.03)
    found = PARTS["far"].measure(fake_models(), inputs)
    for numbers in found.values():
        assert numbers["unchanged"]["auroc"] == 0.5 and numbers["unchanged"]["above"] == 1 / 40
        # a linear network is the surer the farther: nothing is above, and its confidence is full
        assert numbers[FAR_KINDS[0]]["above"] == 0 and numbers[FAR_KINDS[0]]["confidence"] > 0.99


def test_each_number_of_draws_is_a_prediction_of_its_own() -> None:
    models, inputs = fake_models(), fake_inputs()
    found = PARTS["draws"].measure(models, inputs)
    assert found["threshold"]["draws"] == [1] and found["abnn"]["draws"] == list(COUNTS)
    counted = torch.arange(len(inputs.known.x)) % WIDTH_EVERY > 0  # the others choose the width
    x, y = (part[counted] for part in inputs.known)
    for place, count in enumerate(COUNTS):
        said = predict(models["abnn"], x, count)
        assert found["abnn"]["nll"][place] == quality(said, y)["nll"]
        for other, images in inputs.others.items():
            score = predict(models["abnn"], images, count).score
            assert found["abnn"][f"auroc {other}"][place] == auroc(said.score, score)
    assert found["abnn"]["width"] is None  # a network without bounded attachments has none


def test_the_width_is_that_of_a_copy() -> None:
    x = torch.rand(20, 1, 12, 12, generator=torch.Generator().manual_seed(0))
    network = attach(PaperResNet(1, 3, 8, 2, "small").eval(), x[:1])
    for layer in network.layers:
        torch.nn.init.normal_(layer.weight_mean, std=0.3, generator=torch.Generator().manual_seed(0))
    trained = Trained(make_method("abnn", score="entropy"), network, x, 3)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    wide, width = widened(trained, Labelled(x, predict(trained, x).label))
    assert width is not None and width > 1e-3  # ten times that is never too wide for its own predictions
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(predict(wide, x, 0).samples, predict(trained, x, 0).samples)
    draws = [each.samples[1:].std(0).mean() for each in (predict(wide, x, 4), predict(trained, x, 4))]
    assert draws[0] > draws[1]
    plain = fake_models()["threshold"]
    assert widened(plain, Labelled(x, torch.zeros(20))) == (plain, None)


def test_views_of_networks_with_and_without_draws() -> None:
    models, inputs = fake_models(), fake_inputs()
    found = PARTS["views"].measure(models, inputs)
    x, y = inputs.known
    assert found["threshold"]["views"] == found["abnn"]["views"] == list(VIEWS)
    for name, model in models.items():
        assert found[name]["nll"][0] == quality(look(model, x, 1), y)["nll"]
        assert found[name]["nll"][2] == quality(look(model, x, 5), y)["nll"]
    plain = models["threshold"]
    looks = torch.cat([predict(plain, shifted(x, view)).samples for view in range(3)])
    assert torch.equal(look(plain, x, 3).samples, looks)


def test_attachments_have_their_usual_views_afterwards() -> None:
    x = torch.rand(3, 1, 28, 28)
    network = attach(PaperResNet(1, 3, 8, 2, "small").eval(), x[:1])
    trained = Trained(make_method("abnn", score="entropy"), network, x, 3)
    three = look(trained, x, 3)
    assert three.samples.shape[0] == 4  # the plain network, and mean weights at each view
    assert torch.equal(three.samples, network.predict(x, None, SEED, views=3, score="entropy").samples)
    assert network.views == 1 == PARTS["views"].settings["usual_views"]


def test_corrupted_begins_with_the_unchanged_inputs() -> None:
    models, inputs = fake_models(), fake_inputs()
    found = PARTS["corrupted"].measure(models, inputs)
    for name, model in models.items():
        clean = quality(predict(model, inputs.known.x), inputs.known.y)
        for curves in found[name].values():
            assert {key: curves[key][0] for key in clean} == clean
            assert all(len(each) == 6 for key, each in curves.items() if key != "rank_correlation")


def test_quality() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.7, 0.3]])
    labels = torch.tensor([0, 1, 1, 0])
    prediction = Prediction(probs[None], default="entropy")
    numbers, reference = quality(prediction, labels), calibration(probs, labels)
    assert numbers["accuracy"] == 0.75 and numbers["errors_auroc"] == 1.0  # the wrong one is the least certain
    assert numbers["ece"] == reference.ece and numbers["nll"] == reference.nll
    assert numbers["confidence"] == pytest.approx(0.75)
    for all_alike in (prediction.label, 1 - prediction.label):
        assert quality(prediction, all_alike)["errors_auroc"] is None


def test_rank_correlation() -> None:
    assert rank_correlation([0.1, 0.2, 0.5]) == 1 and rank_correlation([3.0, 2.0, 1.0]) == -1
    assert rank_correlation([1.0, 1.0]) is None
    ranks = np.array([0, 2, 1, 3])
    assert rank_correlation([0.0, 5.0, 1.0, 9.0]) == pytest.approx(float(np.corrcoef(ranks, range(4))[0, 1]))


def test_two_parts_look_at_other_sets() -> None:
    inputs = fake_inputs(size=4)
    alone = Inputs(Labelled(*inputs.known), {})
    for part in PARTS.values():
        if not part.others:
            assert part.measure(fake_models(), alone) == part.measure(fake_models(), inputs)
    assert [name for name, part in PARTS.items() if part.others] == ["draws", "views"]
