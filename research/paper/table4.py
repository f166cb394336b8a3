"""Table 4: out-of-distribution detection on four pairs.

Nine methods, trained on MNIST and tested against SEMEION and SVHN, or trained on SVHN and tested against CIFAR-10 and
CIFAR-100. The attachments are said to be about as good as methods made for this, and best among the Bayesian ones.

What is known about the printed numbers of the attachments: the detection accuracy of 99.5 against SVHN is 97.2 in table
3 and 97.0 in the logs; AUPR in against SEMEION is 99.9 in the logs and misprinted as 99.0; the means on SVHN against
CIFAR-10 are those of the best of five runs, whose mean TNR is 69.0 instead of 72.8, about that of a plain network; for
SVHN against CIFAR-100 there is no log. Of the others: WOODS on MNIST classifies 98.2 % right in its logs and 99.3 in
print, VBOE against SEMEION is 3 points better in its log than in print and better than the attachments, and for
DeepEnsemble, p-SGLD, BBP, and SDE-Net on SVHN and on SEMEION there is no run at all. A stray "z" in the TNR of WOODS
against SVHN is left out.

`python -m research reproduce table4` trains all nine: Threshold, SDE-Net, OE, WOODS, VBOE and ABNN with the authors' settings; DeepEnsemble, BBP
and p-SGLD, for which there are none to follow, with their references'. Two rows more are MC dropout and OE with its own
authors' loss, on made-up outliers without content (noise, patches, blobs, backgrounds) in the place of their real ones.
Scores for networks that are trained already ("post-hoc") use the networks of Threshold.
Lines of logs have exact metrics; "scanned" ones, like the paper's, come from 200,000 thresholds and have a TNR about
two points lower.
"""

from __future__ import annotations

from research.paper.columns import accuracy, detection
from research.paper.rows import methods, posthoc
from research.paper.table import Row, Section, Table

MNIST = {cell.name: cell for cell in methods("mnist")}
SVHN = {cell.name: cell for cell in methods("svhn")}

# accuracy, TNR, AUROC, detection accuracy, AUPR in, AUPR out
MNIST_SEMEION = (
    Row("Threshold", MNIST["threshold"], "99.5±0.0 94.0±1.4 98.3±0.3 94.8±0.7 99.7±0.1 89.4±1.1"),
    Row("DeepEnsemble", MNIST["deep-ensemble"], "99.6±NA 96.0±NA 98.8±NA 95.8±NA 99.8±NA 91.3±NA"),
    Row(
        "OE",
        MNIST["oe (authors)"],
        "99.5±0.1 96.3±0.5 98.7±0.1 95.9±0.2 99.8±0.0 90.8±0.5",
        "99.49 96.74 98.73 95.95 99.80 91.41",
        "1 run",
    ),
    Row(
        "WOODS",
        MNIST["woods (authors)"],
        "99.3±0.0 86.4±0.4 97.4±0.1 95.2±0.2 99.6±0.0 87.7±0.7",
        "98.20 85.87 97.41 93.16 99.60 83.33",
        "1 run",
    ),
    Row("SDE-Net", MNIST["sde-net"], "99.4±0.1 99.6±0.2 99.9±0.1 98.6±0.5 100.0±0.0 99.5±0.3"),
    Row("BBP", MNIST["bbp"], "99.2±0.3 75.0±3.4 94.8±1.2 90.4±2.2 99.2±0.3 76.0±4.2"),
    Row("p-SGLD", MNIST["p-sgld"], "99.3±0.2 85.3±2.3 89.1±1.6 90.5±1.3 93.6±1.0 82.8±2.2"),
    Row(
        "VBOE",
        MNIST["vboe (authors)"],
        "99.5±0.2 96.0±0.2 99.0±0.0 95.4±0.2 99.9±0.0 93.6±0.3",
        "99.46 99.09 99.26 97.44 99.89 94.05",
        "1 run",
    ),
    Row(
        "ABNN",
        MNIST["abnn (authors)"],
        "99.5±0.0 97.9±0.7 99.2±0.1 96.9±0.5 99.0±0.0 95.0±1.2",
        "99.52±0.04 98.09±0.62 99.17±0.13 96.86±0.54 99.86±0.03 94.98±1.22",
        "5 runs",
    ),
    Row("MC dropout", MNIST["mc-dropout"]),
)
MNIST_SVHN = (
    Row(
        "Threshold",
        MNIST["threshold"],
        "99.5±0.0 90.1±2.3 96.8±0.9 92.9±1.1 90.0±3.3 98.7±0.3",
        "99.52 90.70±0.36 96.68±0.24 92.91±0.23 89.94±1.04 98.72±0.06",
        "2 runs",
    ),
    Row("DeepEnsemble", MNIST["deep-ensemble"], "99.6±NA 92.7±NA 98.0±NA 94.1±NA 94.5±NA 99.1±NA"),
    Row(
        "OE",
        MNIST["oe (authors)"],
        "99.5±0.1 92.1±1.2 97.5±0.4 93.7±0.6 93.1±1.3 99.0±0.2",
        "99.58 93.95 98.08 94.55 94.59 99.26",
        "1 run",
    ),
    Row(
        "WOODS",
        MNIST["woods (authors)"],
        "99.3±0.0 94.2±1.6 98.0±0.2 96.0±0.2 97.6±0.2 98.6±0.2",
        "98.21 94.43 97.78 95.79 97.40 98.47",
        "1 run",
    ),
    Row(
        "SDE-Net",
        MNIST["sde-net"],
        "99.4±0.1 97.8±1.1 99.5±0.2 97.0±0.2 98.6±0.6 99.8±0.1",
        "99.41 98.92 99.71 98.24 98.95 99.90",
        "1 run",
    ),
    Row("BBP", MNIST["bbp"], "99.2±0.3 80.5±3.2 96.0±1.1 91.9±0.9 92.6±2.4 98.3±0.4"),
    Row("p-SGLD", MNIST["p-sgld"], "99.3±0.2 94.5±2.1 95.7±1.3 95.0±1.2 75.6±5.2 98.7±0.2"),
    Row(
        "VBOE",
        MNIST["vboe (authors)"],
        "99.5±0.0 98.1±0.2 99.5±0.1 97.6±0.2 98.0±0.1 99.8±0.0",
        "99.49 98.62 99.43 97.32 98.85 99.74",
        "1 run",
    ),
    Row(
        "ABNN",
        MNIST["abnn (authors)"],
        "99.5±0.0 98.3±1.2 99.4±0.4 99.5±0.2 98.7±0.7 99.7±0.2",
        "99.52±0.04 98.18±0.51 99.27±0.28 97.00±0.20 98.19±0.68 99.65±0.22",
        "5 runs",
    ),
    Row("MC dropout", MNIST["mc-dropout"], "", "99.54 86.8 94.9 91.4 84.3 98.0", "1 run, scanned"),
)
SVHN_CIFAR10 = (
    Row(
        "Threshold",
        SVHN["threshold"],
        "95.2±0.1 66.1±1.9 94.4±0.4 89.8±0.5 96.7±0.2 84.6±0.8",
        "95.33 69.48 95.04 90.41 98.07 85.50",
        "1 run",
    ),
    Row("DeepEnsemble", SVHN["deep-ensemble"], "95.4±NA 66.5±NA 94.6±NA 90.1±NA 97.8±NA 84.8±NA"),
    Row(
        "OE",
        SVHN["oe (authors)"],
        "95.2±0.0 67.8±2.8 94.9±0.5 90.2±0.5 98.0±0.2 85.8±1.3",
        "95.37 65.6 94.6 89.9 97.9 84.7",
        "1 run, scanned",
    ),
    Row(
        "WOODS",
        SVHN["woods (authors)"],
        "94.3±0.1 57.9±1.5 94.1±0.2 88.6±0.2 97.8±0.1 82.7±0.4",
        "59.1 13.2 65.9 62.2 84.9 41.5",
        "1 failed run, scanned",
        reference="paper",
    ),
    Row("SDE-Net", SVHN["sde-net"], "94.2±0.2 87.5±2.8 97.8±0.4 92.7±0.7 99.2±0.2 93.7±0.9"),
    Row("BBP", SVHN["bbp"], "93.3±0.6 42.2±1.2 90.4±0.3 83.9±0.4 96.4±0.2 73.9±0.5"),
    Row("p-SGLD", SVHN["p-sgld"], "94.1±0.5 63.5±0.9 94.3±0.4 87.8±1.2 97.9±0.2 83.9±0.7"),
    Row(
        "VBOE",
        SVHN["vboe (authors)"],
        "95.1±0.2 61.8±1.1 93.7±0.3 88.7±0.4 97.3±0.2 83.0±0.6",
        "95.12 59.0 92.8 87.5 97.0 81.4",
        "1 run, scanned",
    ),
    Row(
        "ABNN",
        SVHN["abnn (authors)"],
        "95.3±0.3 72.8±2.4 96.0±0.4 90.7±0.5 98.5±0.1 88.5±1.1",
        "95.06±0.26 69.02±3.31 95.46±0.39 90.03±0.45 98.32±0.15 86.95±1.12",
        "5 runs",
    ),
    Row("MC dropout", SVHN["mc-dropout"]),
)
SVHN_CIFAR100 = (
    Row("Threshold", SVHN["threshold"], "95.2±0.1 64.6±1.9 93.8±0.4 88.3±0.4 97.0±0.2 83.7±0.8"),
    Row("DeepEnsemble", SVHN["deep-ensemble"], "95.4±NA 64.4±NA 93.9±NA 89.4±NA 97.4±NA 84.8±NA"),
    Row(
        "OE",
        SVHN["oe (authors)"],
        "95.2±0.0 65.3±2.7 94.4±0.5 89.6±0.4 97.7±0.3 84.8±1.2",
        "95.27 64.92 93.94 89.16 97.41 83.71",
        "1 run",
    ),
    Row(
        "WOODS",
        SVHN["woods (authors)"],
        "94.3±0.1 58.8±1.5 93.6±0.2 88.0±0.1 97.6±0.1 81.9±0.5",
        "94.17 57.88 93.71 88.02 97.61 82.06",
        "1 run",
    ),
    Row("SDE-Net", SVHN["sde-net"], "94.2±0.2 83.4±3.6 97.0±0.4 91.6±0.7 98.8±0.1 92.3±1.1"),
    Row("BBP", SVHN["bbp"], "93.3±0.6 42.4±0.3 90.6±0.2 84.3±0.3 96.5±0.1 75.2±0.9"),
    Row("p-SGLD", SVHN["p-sgld"], "94.1±0.5 62.0±0.5 91.3±1.2 86.0±0.2 93.1±0.8 81.9±1.3"),
    Row(
        "VBOE",
        SVHN["vboe (authors)"],
        "95.1±0.2 60.4±1.1 93.3±0.3 88.2±0.4 97.1±0.2 82.3±0.6",
        "94.86 61.43 93.65 88.42 97.34 82.67",
        "1 run",
    ),
    Row("ABNN", SVHN["abnn (authors)"], "95.3±0.3 70.1±0.6 95.2±0.3 91.1±0.3 99.0±0.2 89.2±0.8"),
    Row("MC dropout", SVHN["mc-dropout"]),
)


def _section(task: str, known: str, other: str, rows: tuple[Row, ...]) -> Section:
    own = MNIST if task == "mnist" else SVHN
    more = (
        Row("OE, its own authors' loss", own["oe"]),
        Row("**abnn**, our default", own["abnn"]),
        *(Row(cell.name, cell) for cell in posthoc(task)),
    )
    return Section(f"{known} against {other}", (accuracy(known), *detection(other)), (*rows, *more))


TABLE = Table(
    __doc__ or "",
    (
        _section("mnist", "MNIST", "SEMEION", MNIST_SEMEION),
        _section("mnist", "MNIST", "SVHN", MNIST_SVHN),
        _section("svhn", "SVHN", "CIFAR-10", SVHN_CIFAR10),
        _section("svhn", "SVHN", "CIFAR-100", SVHN_CIFAR100),
    ),
)
