"""The networks, tiny, with random weights, and data that they take: dicts with padding, images, signals, several inputs.

A network is built by the library that wrote it; recurrent ones are torch's layers with one linear layer behind them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from abnn.networks.vision import timm, torchvision

CLASSES, WORDS, COUNT, SIZE = 4, 60, 48, 16
BEGIN, END = 2, 3
Batches = list[Any]


@dataclass(frozen=True)
class Case:
    """One network: who wrote it, how it is built, its batches, and what its outputs mean."""

    name: str
    source: str
    build: Callable[[], nn.Module]
    batches: Callable[[int], Batches]
    task: str = "classification"


def targets(task: str, generator: torch.Generator, numbers: int = CLASSES) -> Tensor:
    if task == "regression":
        return torch.randn(COUNT, numbers, generator=generator)
    if task == "multilabel":
        return (torch.rand(COUNT, numbers, generator=generator) < 0.5).float()
    return torch.arange(COUNT) % CLASSES


def cut(x: dict[str, Tensor] | tuple[Tensor, ...], y: Tensor) -> Batches:
    """Batches as loaders yield them: dicts with labels, or inputs one after the other and labels."""
    rows = [slice(start, start + SIZE) for start in range(0, COUNT, SIZE)]
    if isinstance(x, dict):
        return [{**{name: value[part] for name, value in x.items()}, "labels": y[part]} for part in rows]
    return [(*(value[part] for value in x), y[part]) for part in rows]


def text(
    pad: int = 0, task: str = "classification", numbers: int = CLASSES, boxes: bool = False
) -> Callable[[int], Batches]:
    """Sentences of different lengths between two special tokens, padded, with a mask."""

    def make(seed: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        y = targets(task, generator, numbers)
        lengths = torch.randint(3, 9, (COUNT, 1), generator=generator)
        at = torch.arange(11)
        ids = torch.randint(4, WORDS, (COUNT, 11), generator=generator)
        ids[:, 0], ids[at == lengths + 1] = BEGIN, END
        mask = at <= lengths + 1
        x = {"input_ids": torch.where(mask, ids, pad), "attention_mask": mask.long()}
        if boxes:
            x["bbox"] = torch.randint(0, 100, (COUNT, 11, 2), generator=generator).sort(1).values.repeat(1, 1, 2)
        return cut(x, y)

    return make


def images(
    side: int, name: str | None = None, task: str = "classification", numbers: int = CLASSES
) -> Callable[[int], Batches]:
    def make(seed: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        x, y = torch.randn(COUNT, 3, side, side, generator=generator), targets(task, generator, numbers)
        return cut((x,) if name is None else {name: x}, y)

    return make


def signals(words: bool) -> Callable[[int], Batches]:
    def make(seed: int) -> Batches:
        generator = torch.Generator().manual_seed(seed)
        x = (
            torch.randint(1, WORDS, (COUNT, 9), generator=generator)
            if words
            else torch.randn(COUNT, 9, 5, generator=generator)
        )
        return cut((x,), targets("classification", generator))

    return make


def image_and_text(seed: int) -> Batches:
    """Sentences, and features of four parts of an image that belongs to each."""
    parts = torch.randn(COUNT, 4, 12, generator=torch.Generator().manual_seed(seed)).split(SIZE)
    return [{**sentence, "visual_embeds": part} for part, sentence in zip(parts, text()(seed))]


class Recurrent(nn.Module):
    """torch's recurrent layers, and a linear layer behind their last state."""

    def __init__(self, layers: nn.RNNBase, words: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, layers.input_size) if words else nn.Identity()
        self.layers, self.head = layers, nn.Linear(layers.hidden_size, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = self.layers(self.embed(x))[1]
        return self.head((state[0] if isinstance(state, tuple) else state)[-1])


def transformer(name: str, kind: str = "SequenceClassification", **settings: Any) -> Callable[[], nn.Module]:
    """A classifier of transformers by the name of its classes, three layers of 32 features."""

    def build() -> nn.Module:
        torchvision()  # which transformers imports
        import transformers

        common = {"num_labels": CLASSES, "hidden_dropout_prob": 0.0}
        config = getattr(transformers, f"{name}Config")(**{**common, **settings})
        return getattr(transformers, f"{name}For{kind}")(config)

    return build


BERT: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32, "pad_token_id": 0, "bos_token_id": BEGIN, "eos_token_id": END,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": WORDS, "n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 32, "pad_token_id": 0, "bos_token_id": BEGIN,
    "eos_token_id": END,
}  # fmt: skip
DISTIL: dict[str, Any] = {
    "vocab_size": WORDS,
    "dim": 32,
    "n_layers": 3,
    "n_heads": 2,
    "hidden_dim": 64,
    "max_position_embeddings": 32,
}
T5: dict[str, Any] = {
    "vocab_size": WORDS, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2, "pad_token_id": 0,
    "eos_token_id": END, "decoder_start_token_id": 0,
}  # fmt: skip
VILT: dict[str, Any] = {**BERT, "image_size": 32, "patch_size": 8}
DECODER: dict[str, Any] = {**BERT, "num_key_value_heads": 2}
STAGES: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 2, 1]}
WINDOWS: dict[str, Any] = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
}  # fmt: skip


def of_timm(name: str, **settings: Any) -> Callable[[], nn.Module]:
    return lambda: timm().create_model(name, num_classes=CLASSES, **settings)


def of_torchvision(name: str, numbers: int = CLASSES) -> Callable[[], nn.Module]:
    return lambda: getattr(torchvision().models, name)(num_classes=numbers)


CASES = [
    Case("BERT", "transformers", transformer("Bert", **BERT), text()),
    Case("RoBERTa", "transformers", transformer("Roberta", **{**BERT, "pad_token_id": 1}), text(pad=1)),
    Case("DistilBERT", "transformers", transformer("DistilBert", **DISTIL), text()),
    Case("ELECTRA", "transformers", transformer("Electra", **BERT, embedding_size=16), text()),
    Case("ALBERT", "transformers", transformer("Albert", **BERT, embedding_size=16), text()),
    Case("DeBERTa-v2", "transformers", transformer("DebertaV2", **BERT), text()),
    Case("ModernBERT", "transformers", transformer("ModernBert", **BERT, cls_token_id=BEGIN, sep_token_id=END), text()),
    Case("GPT-2", "transformers", transformer("GPT2", **GPT), text()),
    Case("Llama", "transformers", transformer("Llama", **BERT, num_key_value_heads=2), text()),
    Case("T5", "transformers", transformer("T5", **T5), text()),
    Case("XLNet", "transformers", transformer("XLNet", vocab_size=WORDS, d_model=32, n_layer=3, n_head=2, d_inner=64, pad_token_id=0), text()),
    Case("XLM", "transformers", transformer("XLM", vocab_size=WORDS, emb_dim=32, n_layers=3, n_heads=2, pad_index=0), text()),
    Case("MPNet", "transformers", transformer("MPNet", **{**BERT, "pad_token_id": 1}), text(pad=1)),
    Case("Longformer", "transformers", transformer("Longformer", **BERT, attention_window=4), text()),
    Case("ConvBERT", "transformers", transformer("ConvBert", **BERT, embedding_size=32), text()),
    Case("FNet", "transformers", transformer("FNet", **BERT), text()),
    Case("RoFormer", "transformers", transformer("RoFormer", **BERT), text()),
    Case("SqueezeBERT", "transformers", transformer("SqueezeBert", **BERT, embedding_size=32), text()),
    Case("MobileBERT", "transformers", transformer("MobileBert", **BERT, embedding_size=16, intra_bottleneck_size=32), text()),
    Case("Bloom", "transformers", transformer("Bloom", **GPT, hidden_size=32), text()),
    Case("Falcon", "transformers", transformer("Falcon", **BERT), text()),
    Case("OPT", "transformers", transformer("OPT", **BERT, ffn_dim=64, word_embed_proj_dim=32), text()),
    Case("Qwen3", "transformers", transformer("Qwen3", **DECODER, head_dim=16), text()),
    Case("Gemma", "transformers", transformer("Gemma", **DECODER, head_dim=16), text()),
    Case("resnet10t", "timm", of_timm("resnet10t"), images(32)),
    Case("tinynet_e", "timm", of_timm("tinynet_e"), images(32)),
    Case("lcnet_035", "timm", of_timm("lcnet_035"), images(32)),
    Case("mobilenetv3_small_050", "timm", of_timm("mobilenetv3_small_050"), images(32)),
    Case("convnext_atto", "timm", of_timm("convnext_atto"), images(32)),
    Case("edgenext_xx_small", "timm", of_timm("edgenext_xx_small"), images(64)),
    Case("ghostnet_050", "timm", of_timm("ghostnet_050"), images(32)),
    Case("regnetx_002", "timm", of_timm("regnetx_002"), images(32)),
    Case("mobilevit_xxs", "timm", of_timm("mobilevit_xxs"), images(64)),
    Case(
        "vit_tiny_patch16_224, 3 layers", "timm", of_timm("vit_tiny_patch16_224", img_size=32, patch_size=8, depth=3), images(32)
    ),
    Case("coat_tiny", "timm", of_timm("coat_tiny", img_size=64, embed_dims=(16, 32, 32, 32)), images(64)),
    Case("efficientformerv2_s0", "timm", of_timm("efficientformerv2_s0", img_size=64), images(64)),
    Case("fastvit_t8", "timm", of_timm("fastvit_t8"), images(64)),
    Case("swiftformer_xs", "timm", of_timm("swiftformer_xs"), images(64)),
    Case("pvt_v2_b0", "timm", of_timm("pvt_v2_b0"), images(64)),
    Case("efficientvit_b0", "timm", of_timm("efficientvit_b0"), images(64)),
    Case("repghostnet_050", "timm", of_timm("repghostnet_050"), images(32)),
    Case("test_nfnet", "timm", of_timm("test_nfnet"), images(32)),
    Case("test_mambaout", "timm", of_timm("test_mambaout"), images(32)),
    Case("gmlp_ti16_224", "timm", of_timm("gmlp_ti16_224", img_size=64), images(64)),
    Case("ViT", "transformers", transformer("ViT", "ImageClassification", **VILT), images(32, "pixel_values")),
    Case("BEiT", "transformers", transformer("Beit", "ImageClassification", **VILT), images(32, "pixel_values")),
    Case("DINOv2", "transformers", transformer("Dinov2", "ImageClassification", **VILT), images(32, "pixel_values")),
    Case("Swin v2", "transformers", transformer("Swinv2", "ImageClassification", **WINDOWS), images(32, "pixel_values")),
    Case("ConvNeXt v2", "transformers", transformer("ConvNextV2", "ImageClassification", **STAGES), images(32, "pixel_values")),
    Case("PoolFormer", "transformers", transformer("PoolFormer", "ImageClassification", **STAGES), images(32, "pixel_values")),
    Case("SegFormer", "transformers", transformer("Segformer", "ImageClassification", **STAGES, num_attention_heads=[1, 2, 2, 2]), images(32, "pixel_values")),
    Case("VisualBERT, an image and a sentence", "transformers", transformer("VisualBert", "VisualReasoning", **BERT, visual_embedding_dim=12), image_and_text),
    Case("LayoutLM, words and boxes", "transformers", transformer("LayoutLM", **BERT, max_2d_position_embeddings=128), text(boxes=True)),
    Case("LSTM, 2 layers", "torch", lambda: Recurrent(nn.LSTM(8, 16, 2, batch_first=True), True), signals(True)),
    Case("GRU", "torch", lambda: Recurrent(nn.GRU(5, 16, batch_first=True), False), signals(False)),
    Case("resnet18", "torchvision", of_torchvision("resnet18"), images(32, task="multilabel"), "multilabel"),
    Case("BERT, several labels", "transformers", transformer("Bert", **BERT), text(task="multilabel"), "multilabel"),
    Case("squeezenet1_1", "torchvision", of_torchvision("squeezenet1_1"), images(64)),
    Case("shufflenet_v2_x0_5", "torchvision", of_torchvision("shufflenet_v2_x0_5", 1), images(32, task="regression", numbers=1), "regression"),
    Case("DistilBERT, one number", "transformers", transformer("DistilBert", **{**DISTIL, "num_labels": 1}), text(task="regression", numbers=1), "regression"),
]  # fmt: skip
BY_NAME = {case.name: case for case in CASES}
