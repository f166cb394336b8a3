"""The same network in other libraries does the same work; those that are not installed are left out."""

from __future__ import annotations

import copy

import peers
import pytest
import torch
import work
from torch import Tensor
from work import check, check_folding, disagreement, without_noise

import abnn
from abnn.bayes.priors import gaussian_kl
from abnn.train.randomness import seeded

CPU = torch.device("cpu")
WIDTH, BLOCKS, CLASSES, PIXELS = 8, 3, 4, 12


@pytest.fixture
def images() -> Tensor:
    return torch.rand(5, 1, PIXELS, PIXELS, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def model(images: Tensor) -> abnn.Attached:
    return abnn.attach(work.paper_network(WIDTH, BLOCKS, CLASSES, CPU), images[:1], preset="authors", draws=1)


@pytest.fixture(params=list(peers.LIBRARIES))
def peer(request: pytest.FixtureRequest) -> peers.Peer:
    found, missing = peers.find_peers()
    if request.param not in found:
        pytest.skip(missing[request.param])
    return found[request.param]


def test_folded_draws_equal_a_loop_over_draws(model, images):
    result = check_folding(model, images, draws=4)
    assert result["agrees"]
    assert result["spread"] > 2 * result["most"], "draws differ by less than this test could see"


def test_disagreement_is_total_variation_and_largest_for_nan():
    p, q = torch.tensor([[0.5, 0.5], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.7, 0.3]])
    assert disagreement(p, q) == pytest.approx(0.3)
    assert disagreement(p, q * float("nan")) == 1
    assert not check(p, q * float("nan"))["agrees"]


def test_the_loop_leaves_the_held_draws_alone(model, images):
    before = model(images)
    work.one_by_one(model, images, 3)()
    assert torch.equal(before, model(images))


def test_without_noise_all_networks_agree(peer, model, images):
    network = peers.PeerNetwork(copy.deepcopy(model.backbone), peer)
    assert disagreement(peers.predict(network, images, 1), without_noise(model, images)) > 1e-2  # other means
    network.copy_means(model)
    assert check(peers.predict(network, images, 1), without_noise(model, images))["agrees"]


def test_peers_draw_anew_in_every_pass(peer, model, images):
    network = peers.PeerNetwork(copy.deepcopy(model.backbone), peer)
    assert not torch.equal(peers.predict(network, images, 1), peers.predict(network, images, 1))


def test_peers_have_the_posterior_and_prior_of_the_authors(peer, model, images):
    torch.manual_seed(0)
    network = peers.PeerNetwork(copy.deepcopy(model.backbone), peer)
    network(images)
    layers = [conv for block in (network.first, network.rest) for conv in (block.conv1, block.conv2)]
    expected, numbers = 0.0, 0
    for layer in layers:
        weight, weight_rho, bias, bias_rho = peer.places(layer)
        for mean, rho in ((weight, weight_rho), (bias, bias_rho)):
            kl = gaussian_kl(mean, torch.nn.functional.softplus(rho), peers.PRIOR_SIGMA).item()
            expected += kl / mean.numel() if peer.name == "bayesian-torch" else kl  # it averages over each tensor
            expected -= mean.numel() / 2 if peer.name == "torch-uncertainty" else 0  # a constant of its log q
            numbers += mean.numel()
            assert rho.mean().item() == pytest.approx(peers.RHO, abs=5 * 0.1 / rho.numel() ** 0.5)
    # One draw of log q - log p per number, with a standard deviation of about 0.7 each; closed form in bayesian-torch.
    tolerance = 1e-4 * expected if peer.name == "bayesian-torch" else 5 * 0.7 * numbers**0.5
    assert peer.kl(network).item() == pytest.approx(expected, abs=tolerance)


def test_an_iteration_is_the_same_work(peer, images):
    labels = torch.arange(len(images)) % CLASSES
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels), len(images))
    backbone = work.paper_network(WIDTH, BLOCKS, CLASSES, CPU)
    ours = work.OurTraining(copy.deepcopy(backbone), loader, CPU, "authors")
    network = peers.PeerNetwork(copy.deepcopy(backbone), peer)
    network.copy_means(ours.model)
    for layer in ours.model.layers:
        with torch.no_grad():
            layer.weight_rho.fill_(peers.NO_NOISE)
            layer.bias_rho.fill_(peers.NO_NOISE)
    theirs = peers.PeerTraining(network, iter([(images, labels)]), CPU)
    mine = ours.steps.step(images, labels, seeded("outliers"))
    other = theirs()
    assert set(mine) == set(other)
    assert mine["backbone"].item() == pytest.approx(other["backbone"].item(), rel=1e-5)
    assert mine["id"].item() == pytest.approx(other["id"].item(), rel=1e-3)  # after an update of the backbone
    for name, optimizer in theirs.optimizers.items():
        steps = {int(state["step"]) for state in optimizer.state.values()}
        assert steps == {int(state["step"]) for state in ours.steps.optimizers[name].state.values()}, name


def test_a_library_that_is_not_there_is_named(monkeypatch):
    def load() -> peers.Peer:
        raise ImportError("No module named 'nowhere'")

    monkeypatch.setattr(peers, "LIBRARIES", {"nowhere": load})
    found, missing = peers.find_peers()
    assert not found and "nowhere" in missing["nowhere"]


def test_both_loaders_give_the_same_pictures():
    images, labels = work.made_up(8, PIXELS, CLASSES)
    theirs = next(work.authors_batches(images, labels, 8, workers=0))
    ours = next(iter(work.tensor_loader(images, labels, 8)))
    for batch in (theirs, ours):
        by_label = sorted(zip(batch[1].tolist(), batch[0].flatten(1).tolist()))
        assert by_label == sorted(zip(labels.tolist(), (images / 255).astype("float32").reshape(8, -1).tolist()))


def test_settled_networks_keep_the_size_of_their_features(images):
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 3, 3), torch.nn.BatchNorm2d(3))
    with torch.no_grad():
        network[0].weight.mul_(1000)
    assert work.settle(network, images)(images).std().item() == pytest.approx(1, abs=0.05)
    assert not network.training and network[1].momentum == 0.1
