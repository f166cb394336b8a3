"""A text classifier that trains in minutes on one core: a small transformer on pretrained embeddings of tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from research.clinc.data import Clinc, collate

WIDTH, LAYERS, HEADS = 256, 3, 4
EPOCHS, BATCH, RATE = 12, 64, 1e-3


class Encoder(nn.Module):
    """Embeddings as they were given, positions, transformer layers, and the mean over all words."""

    def __init__(self, embeddings: Tensor, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding.from_pretrained(embeddings, freeze=True)
        self.project = nn.Linear(embeddings.shape[1], WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(64, WIDTH))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=0.2, batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        )
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.2)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.dropout(self.project(self.embed(input_ids)) + self.position[: input_ids.shape[1]])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=attention_mask == 0)
        weight = attention_mask.repeat(len(x) // len(attention_mask), 1)[..., None].to(x.dtype)
        pooled = (self.norm(x) * weight).sum(1) / weight.sum(1)
        return {"logits": self.head(self.dropout(pooled))}


def train(clinc: Clinc, seed: int, device: str = "cpu") -> Encoder:
    """The classifier, trained on all queries for training: AdamW with one cycle of the rate."""
    torch.manual_seed(seed)
    network = Encoder(clinc.embeddings, len(clinc.intents)).to(device)
    tokens = [
        (row[: int(kept)], int(label))
        for x, y in clinc.batches(clinc.queries("train", "train", "id"), 512)
        for row, kept, label in zip(x["input_ids"], x["attention_mask"].sum(1), y)
    ]
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, RATE, weight_decay=0.01)
    steps = EPOCHS * -(-len(tokens) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(tokens)).split(BATCH):
            x, y = collate([tokens[row] for row in rows.tolist()])
            logits = network(**{name: value.to(device) for name, value in x.items()})["logits"]
            optimizer.zero_grad()
            F.cross_entropy(logits, y.to(device)).backward()
            optimizer.step()
            schedule.step()
    return network.eval()
