"""What the measurements are held against: rows of a group by name, and bounds for the ratio of two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from timing import ratio

OURS = "abnn"
OURS_BF16 = "abnn, bf16"
OURS_COMPILED_32 = "abnn, compiled"
OURS_COMPILED = "abnn, bf16, compiled"
OURS_FRESH = "abnn, fresh draws"
OURS_DEFAULT = "abnn, default preset"
OURS_DEFAULT_COMPILED = "abnn, default preset, compiled"
OURS_DEFAULT_DRAWS = "abnn, default preset, with draws"
LOOP = "loop over draws"
PLAIN = "plain network"
PLAIN_GRAPH = "plain network, CUDA graph"
PLAIN_COMPILED = "plain network, compiled"
PLAIN_COMPILED_GRAPH = "plain network, compiled, CUDA graph"
DROPOUT = "MC dropout"
ENSEMBLE = "ensemble"
ONE_SEED = "one seed"
IN_TURN = "seeds one after another"
AT_ONCE = "seeds at once"


@dataclass(frozen=True)
class Bar:
    """``above`` / ``below`` of one group, and the bound that holds on one kind of device."""

    group: str
    device: str
    above: str
    below: str
    least: float | None = None
    most: float | None = None

    def judge(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        measured = ratio(rows[self.above], rows[self.below])
        met = (self.least is None or measured["ratio"] >= self.least) and (
            self.most is None or measured["ratio"] <= self.most
        )
        bounds = {"least": self.least, "most": self.most}
        return {"above": self.above, "below": self.below, **measured, **bounds, "met": met}


BARS = (
    Bar("training", "cuda", "blitz", OURS_COMPILED, least=40),
    Bar("prediction", "cuda", "blitz", OURS, least=60),
    Bar("prediction", "cuda", OURS, PLAIN_GRAPH, most=4.5),
    Bar("prediction", "cuda", "blitz", OURS_COMPILED_32, least=60),
    Bar("prediction", "cuda", OURS_COMPILED_32, PLAIN_GRAPH, most=4.5),
    Bar("prediction", "cuda", OURS_COMPILED_32, PLAIN_COMPILED_GRAPH, most=4.5),
    Bar("seeds", "cuda", AT_ONCE, ONE_SEED, most=2),
    *(
        Bar(group, "cuda", ours, plain, most=1.3)
        for group in ("prediction", "resnet50")
        for ours, plain in (
            (OURS_DEFAULT, PLAIN),
            (OURS_DEFAULT, PLAIN_GRAPH),
            (OURS_DEFAULT_COMPILED, PLAIN_COMPILED_GRAPH),
        )
    ),
    Bar("resnet50", "cuda", LOOP, OURS_DEFAULT_DRAWS, least=4),
    Bar("memory", "cuda", "100 draws", "10 draws", most=1.5),
    Bar("training", "cpu", "blitz", OURS, least=3),
    Bar("training", "cpu", "blitz", OURS_COMPILED, least=3),
    *(
        Bar("prediction", "cpu", peer, ours, least=2)
        for ours in (OURS, OURS_COMPILED_32, OURS_COMPILED)
        for peer in ("blitz", "bayesian-torch", "torch-uncertainty")
    ),
    *(
        Bar(group, "cpu", ours, plain, most=1.3)
        for group in ("prediction", "resnet50")
        for ours, plain in ((OURS_DEFAULT, PLAIN), (OURS_DEFAULT_COMPILED, PLAIN_COMPILED))
    ),
    Bar("memory", "cpu", "100 draws", "10 draws", most=1.5),
)


def judge(group: str, device: str, rows: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All bars of a group whose two rows were measured."""
    wanted = [bar for bar in BARS if (bar.group, bar.device) == (group, device)]
    return [bar.judge(rows) for bar in wanted if bar.above in rows and bar.below in rows]
