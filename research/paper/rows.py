"""The cells that tables are made of: every method and every post-hoc score on a task, and ours."""

from __future__ import annotations

from typing import Any

from research.paper.cells import Cell

FIT_EPOCHS = 5


def threshold(task: str) -> Cell:
    """The plain network; many other cells start from it."""
    return Cell("threshold", task)


def ours(task: str) -> Cell:
    """The default preset, on networks trained as those of "threshold"; docs/reproduction.md says whether they are the same."""
    return Cell("abnn", task, "abnn", options={"pretrain": 0.0}, epochs=FIT_EPOCHS, start=threshold(task))


def authors(task: str) -> Cell:
    """The method as the authors ran it."""
    return Cell("abnn (authors)", task, "abnn", "authors")


def methods(task: str) -> tuple[Cell, ...]:
    """All methods of the paper, the baselines as the authors ran them, and "oe" also as its own authors have it."""
    return (
        threshold(task),
        ours(task),
        Cell("deep-ensemble", task, start=threshold(task), ensemble=True),
        authors(task),
        Cell("oe (authors)", task, "oe", "authors"),
        Cell("sde-net", task, "sde-net", "authors"),
        Cell("woods (authors)", task, "woods", "authors"),
        Cell("vboe (authors)", task, "vboe", "authors"),
        Cell("bbp", task, "bbp"),
        Cell("p-sgld", task, "p-sgld"),
        Cell("mc-dropout", task, "mc-dropout"),
        Cell("oe", task, "oe"),
    )


def cells_by_name(task: str) -> dict[str, Cell]:
    """Every cell of a task that tables may name, without post-hoc scores."""
    groups = (methods(task), ablation(task), alphas(task), backbones(task))
    return {cell.name: cell for group in groups for cell in group}


POSTHOC = (
    "energy", "max-logit", "entropy", "gen", "knn", "mahalanobis", "relative-mahalanobis", "mahalanobis-blocks",
    "relative-mahalanobis-blocks", "vim", "odin", "ash", "react", "laplace",
)  # fmt: skip
"""The post-hoc scores of the tables; one more joins them when it has been run on every network."""


def posthoc(task: str) -> tuple[Cell, ...]:
    """Scores for networks that are trained already, on those of "threshold"."""
    return tuple(Cell(f"{name} (post-hoc)", task, start=threshold(task), posthoc=name) for name in POSTHOC)


def ablation(task: str) -> tuple[Cell, ...]:
    """Variants of the authors' method, by the letters of the paper's table 3."""
    base: dict[str, Any] = {"task": task, "method": "abnn", "variant": "authors"}
    return (
        authors(task),
        Cell("(b) no outliers", **base, options={"outliers": None}),
        Cell(
            "(c) no attachments",
            **base,
            options={"attach": {"kind": "replace", "share": None}, "objective": {"outliers_update": "all"}},
        ),
        Cell("(d) random labels", **base, options={"objective": {"target": "random"}}),
        Cell("(e) minimise", **base, options={"objective": {"maximise": False}}),
        Cell("(f) CIFAR-10 as outliers", **base, outliers="cifar10/train"),
    )


def alphas(task: str) -> tuple[Cell, ...]:
    """The authors' method with other weights of the outlier step."""
    return tuple(
        Cell(f"alpha {alpha}", task, "abnn", "authors", options={"objective": {"alpha": alpha}})
        for alpha in (0.5, 0.7, 0.9, 0.95)
    )


def backbones(task: str) -> tuple[Cell, ...]:
    """Other networks: plain, and with our attachments.

    SqueezeNet has no normalisation, and a ReLU after its last layer: large steps end whole classes there.
    """
    cells = []
    for name in ("resnet18", "mobilenet_v3_small", "efficientnet_v2_s", "squeezenet1_1"):
        recipe = {"name": name, "classes": 10, "in_channels": 1, "small": True}
        careful = {"optimizer": "adam", "lr": 3e-4, "schedule": "cycle"}
        options = careful if name == "squeezenet1_1" else {"lr": 0.05, "schedule": "cosine"}
        plain = Cell(f"{name}, plain", task, backbone=recipe, options=options, epochs=10)
        ours = {"pretrain": 0.0}
        attached = Cell(f"{name}, abnn", task, "abnn", options=ours, epochs=FIT_EPOCHS, start=plain, backbone=recipe)
        cells += [plain, attached]
    return tuple(cells)
