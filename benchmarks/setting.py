"""Where and how large: the sizes of all measurements, and the run that they belong to."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import peers
import torch
import work
from timing import Plan, Work, interleaved
from torch import Tensor

from abnn.model.calls import summary


@dataclass(frozen=True)
class Sizes:
    batch: int = 128
    pixels: int = 28
    classes: int = 10
    width: int = 64
    blocks: int = 6
    draws: int = 10
    members: int = 5
    seeds: int = 5
    pictures: int = 60_000
    workers: int = 1
    compiled: bool = True  # whether there are rows of compiled networks; each takes up to a minute before it runs
    bf16_channels_last: bool = True  # how networks in bf16 that are compiled lie in memory, in group prediction
    resnet: str = "resnet50"
    resnet_batch: int = 32
    resnet_pixels: int = 224
    resnet_bf16: bool = True
    resnet_channels_last: bool = True
    memory_draws: tuple[int, ...] = (10, 100)
    curve_batch: int = 128
    curve_draws: tuple[int, ...] = (1, 3, 10, 30, 100)
    curve_batches: tuple[int, ...] = (1, 8, 32, 128, 512)
    curve_widths: tuple[int, ...] = (32, 64, 128)
    curve_blocks: tuple[int, ...] = (3, 6, 12)
    curve_last: tuple[int, ...] = (1, 2, 3, 6)
    plan: Plan = field(default_factory=Plan)
    curve_plan: Plan = field(default_factory=lambda: Plan(rounds=5))


ON_CUDA = Sizes()
ON_CPU = Sizes(
    bf16_channels_last=False,
    resnet_batch=2,
    resnet_bf16=False,
    curve_batch=32,
    plan=Plan(rounds=5, warm_up=1, budget=45),
    curve_plan=Plan(rounds=3, warm_up=1),
)
TINY = Sizes(
    batch=4,
    pixels=12,
    width=8,
    blocks=2,
    draws=3,
    members=2,
    seeds=2,
    pictures=16,
    workers=0,
    compiled=False,
    resnet="timm/resnet10t",
    resnet_batch=2,
    resnet_pixels=32,
    resnet_bf16=False,
    memory_draws=(1, 2),
    curve_batch=2,
    curve_draws=(1, 3),
    curve_batches=(2,),
    curve_widths=(8,),
    curve_blocks=(2,),
    curve_last=(1,),
    plan=Plan(rounds=2, warm_up=2, least=0.0),
    curve_plan=Plan(rounds=1, warm_up=1, least=0.0),
)


@dataclass
class Run:
    """Where and how large; and what could not be done."""

    device: torch.device
    sizes: Sizes
    peers: Mapping[str, peers.Peer] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def on_cuda(self) -> bool:
        return self.device.type == "cuda"

    def network(self) -> Any:
        return work.paper_network(self.sizes.width, self.sizes.blocks, self.sizes.classes, self.device)

    def images(self, batch: int, channels: int = 1, pixels: int | None = None) -> Tensor:
        shape = (batch, channels, *(pixels or self.sizes.pixels,) * 2)
        return torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(self.device)

    def measure(self, makers: Mapping[str, Callable[[], Work]], plan: Plan | None = None) -> dict[str, Any]:
        """Rows of all pieces of work that can be made and called; the others are named with their error."""
        ready: dict[str, Work] = {}
        for name, make in makers.items():
            try:
                ready[name] = make()
                ready[name]()
            except Exception as error:  # noqa: BLE001 - one piece that fails must not cost the run
                ready.pop(name, None)
                self.fail(name, error)
        return interleaved(ready, self.device, plan or self.sizes.plan)

    def fail(self, name: str, error: Exception) -> None:
        traceback.print_exception(error, file=sys.stderr)
        self.failed[name] = summary(error)
