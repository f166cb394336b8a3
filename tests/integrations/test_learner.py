"""Attachments trained by other libraries' loops: the losses of abnn.fit on the same batches, and a score in the end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import abnn
from abnn.config import FitConfig
from abnn.errors import InputError
from abnn.integrations import Learner
from abnn.networks.vision import torchvision

RATE, EPOCHS = 1e-3, 2
CONFIG = FitConfig(accelerator="cpu", hold_out=0.0, schedule=lambda progress: 1.0)


class Reader(nn.Module):
    """Mean of embedded words, two layers; named inputs, as transformers take them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(30, 16, padding_idx=0), nn.Dropout(0.5)
        self.one, self.two, self.head = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        weight = attention_mask[..., None].float()
        mean = (self.embed(input_ids) * weight).sum(1) / weight.sum(1)
        return {"logits": self.head(self.drop(torch.relu(self.two(torch.relu(self.one(mean))))))}


def rows(count: int = 48) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, 30, (count, 7), generator=generator)
    mask = torch.arange(7) < torch.randint(2, 8, (count, 1), generator=generator)
    labels = torch.arange(count) % 4
    parts = (ids * mask, mask.long(), labels)
    return [dict(zip(("input_ids", "attention_mask", "labels"), row)) for row in zip(*parts)]


def loader() -> DataLoader:
    return DataLoader(rows(), 16)  # type: ignore[arg-type]


def attached() -> Any:
    torch.manual_seed(0)
    return abnn.attach(Reader(), example=next(iter(loader())))


@pytest.fixture(scope="module")
def fitted() -> tuple[Any, list[float]]:
    """A model that abnn.fit has fitted, and the mean loss of every epoch."""
    model = attached()
    history = abnn.fit(model, loader(), epochs=EPOCHS, lr=RATE, seed=3, progress=False, config=CONFIG)
    return model, [row["id"] + row["weighted_kl"] + row["outliers"] for row in history.rows]


def same_as(model: Any, fitted: tuple[Any, list[float]], losses: list[float]) -> None:
    means = torch.tensor(losses).view(EPOCHS, -1).mean(1)
    torch.testing.assert_close(means, torch.tensor(fitted[1]), rtol=1e-5, atol=1e-6)
    assert not math.isclose(losses[0], losses[-1], rel_tol=1e-3)  # it has learnt something
    batch = next(iter(loader()))
    one, other = model.predict(batch), fitted[0].predict(batch)
    assert model.is_judge and model.combined.names == fitted[0].combined.names
    torch.testing.assert_close(one.probs, other.probs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one.score, other.score, rtol=1e-3, atol=1e-3)
    assert all(parameter.requires_grad for parameter in model.backbone.parameters())


def test_transformers_trainer(fitted: tuple[Any, list[float]], tmp_path: Path) -> None:
    torchvision()  # which transformers imports
    import transformers

    from abnn.integrations import TrainerCallback

    model = attached()
    learner = Learner(model, seed=3)
    optimizer = torch.optim.Adam([p for p in learner.parameters() if p.requires_grad], RATE)
    arguments = transformers.TrainingArguments(
        str(tmp_path), num_train_epochs=EPOCHS, per_device_train_batch_size=16, logging_steps=1, report_to=[],
        use_cpu=True, save_strategy="no", max_grad_norm=0.0, lr_scheduler_type="constant", disable_tqdm=True,
        train_sampling_strategy="sequential", dataloader_pin_memory=False,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    callbacks = [TrainerCallback(learner)]
    trainer = transformers.Trainer(
        learner,
        arguments,
        train_dataset=rows(),
        callbacks=callbacks,
        optimizers=(optimizer, schedule),  # type: ignore[arg-type]
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    same_as(model, fitted, losses)
    with torch.no_grad():
        output = learner.eval()(**next(iter(loader())))
    assert output["logits"].shape == (16, 4) and output["loss"] > 0


def test_lightning_trainer(fitted: tuple[Any, list[float]], tmp_path: Path) -> None:
    torchvision()  # which torchmetrics imports
    import lightning

    from abnn.integrations import LightningCallback

    class Task(lightning.LightningModule):
        def __init__(self, learner: Learner) -> None:
            super().__init__()
            self.learner, self.losses = learner, []

        def training_step(self, batch: dict[str, Tensor], number: int) -> Tensor:
            loss = self.learner(**batch)["loss"]
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], RATE)

    model = attached()
    task = Task(Learner(model, seed=3))
    trainer = lightning.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, callbacks=[LightningCallback(task.learner)],
    )  # fmt: skip
    trainer.fit(task, loader())
    same_as(model, fitted, task.losses)


def test_a_loop_of_ones_own_with_pairs_and_held_out_data() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 5, generator=generator), torch.arange(60) % 3
    network = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    network[0].weight.requires_grad_(False)
    model = abnn.attach(network, x[:1])
    batches = list(zip(x[:40].split(20), y[:40].split(20)))
    learner = Learner(model, held_out=[(x[40:], y[40:])])
    state = torch.get_rng_state()
    learner.begin(batches)
    learner.train()
    learner(*batches[0])["loss"].backward()
    assert all((p.grad is not None) == p.requires_grad for p in learner.parameters())
    assert {id(p) for p in learner.parameters() if p.requires_grad} == {id(p) for _, p in model.attachment_parameters()}
    learner.finish(batches)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.is_judge and not network[0].weight.requires_grad and network[2].weight.requires_grad
    with pytest.raises(InputError, match="Attach first"):
        Learner(network)  # type: ignore[arg-type]
