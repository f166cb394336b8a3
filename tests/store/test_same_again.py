"""A loaded model is the saved one: the same draws, probed with the same input."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import abnn
from abnn.baselines import load_trained, train_method
from abnn.errors import FileFormatError
from tests.conftest import randomise_attachments
from tests.store.test_model import X, attached, backbone


@pytest.mark.parametrize("seed", [0, 5])
def test_the_same_draws_are_held_after_loading(seed: int, tmp_path: Path) -> None:
    model = randomise_attachments(attached(seed=seed, draws=3))
    model.resample(4, seed=seed)
    vars(model)["seed"] = seed
    loaded = abnn.load(model.save(tmp_path / "model"), backbone())
    assert loaded.draws == 4 and torch.equal(loaded(X), model(X))
    again = abnn.load(loaded.save(tmp_path / "model"), backbone())
    assert torch.equal(again(X), model(X))


class Padded(nn.Module):
    """Reads tokens, of which zero is padding: an input of nothing but padding has no mean."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        words = (tokens != 0)[..., None]
        if not words.any(1).all():
            raise ValueError("an input without words")
        return self.head(torch.relu(self.block((self.embed(tokens) * words).sum(1) / words.sum(1))))


def test_token_models_with_padding_load_with_the_saved_example(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokens = torch.tensor([[3, 4, 0, 0], [1, 2, 5, 0]])
    model = abnn.attach(Padded().eval(), tokens[:1], at=["block"])
    vars(model)["example"] = tokens[:1]
    path = model.save(tmp_path / "model")
    for _ in range(2):
        loaded = abnn.load(path, model.backbone)
        assert torch.equal(loaded(tokens), model(tokens))
        loaded.save(path)  # with the example that it was loaded with
    names = safetensors.torch.load_file(model.save(path, example=False) / "attachments.safetensors").keys()
    assert "example" not in names
    with pytest.raises(Exception, match="without words"):
        abnn.load(path, model.backbone)
    vars(model)["example"] = tokens[:1, :2]
    with pytest.raises(FileFormatError, match=r"example has shape \(1, 2\); accepted: \(1, 4\)"):
        abnn.load(model.save(path), model.backbone)


def test_token_methods_with_padding_load_with_the_saved_example(tmp_path: Path) -> None:
    tokens = torch.randint(1, 9, (12, 4), generator=torch.Generator().manual_seed(0))
    tokens[:, 3] = 0
    loader = [(tokens, torch.arange(12) % 3)]
    trained = train_method("threshold", Padded, loader, epochs=1, progress=False)
    assert isinstance(trained.network, nn.Module)
    loaded = load_trained(trained.save(tmp_path / "method"), Padded)
    trained.network.cpu()  # where the loaded one is: devices round differently
    assert torch.equal(loaded.predict(tokens).samples, trained.predict(tokens).samples)
