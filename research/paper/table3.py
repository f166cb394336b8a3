"""Table 3: what each part of the method is worth; MNIST against SVHN.

The paper leaves out one part at a time: (b) the outliers, (c) the attachments, (d) the constant target of outliers, (e)
the maximisation, (f) the made-up outliers in favour of CIFAR-10; (a) is the whole method.

What is known about the printed numbers: (b), (d) and (f) agree with the authors' logs, (e) does but for a lost run. The
accuracy of (c) is printed as 99.3 and used as an argument; the logs say 99.56, no less than with attachments. One of
the five runs of (b) had other attachments. Of (f), a sixth run with a TNR of 2.2 was overwritten by another try; one of
ours ends like it. (d) also maximises, which its row does not say.

`python -m research reproduce table3` trains all six with the authors' settings. The lines of the logs have the exact definitions of all metrics,
those of the paper come from a scan of 200,000 thresholds, whose TNR is about two points lower.
"""

from __future__ import annotations

from research.paper.columns import accuracy, detection
from research.paper.rows import ablation, ours
from research.paper.table import Row, Section, Table

CELLS = {cell.name: cell for cell in ablation("mnist")}

# accuracy, TNR, AUROC, detection accuracy, AUPR in, AUPR out
ROWS = (
    Row(
        "(a) ABNN",
        CELLS["abnn (authors)"],
        "99.5±0.0 98.3±1.2 99.4±0.4 97.2±0.9 98.7±0.7 99.7±0.2",
        "99.52±0.04 98.18±0.51 99.27±0.28 97.00±0.20 98.19±0.68 99.65±0.22",
        "5 runs",
    ),
    Row(
        "(b) no outliers",
        CELLS["(b) no outliers"],
        "99.4±0.0 91.7±2.3 97.6±0.6 94.0±1.1 94.8±2.6 98.8±0.1",
        "99.45±0.05 92.30±2.35 97.59±0.54 94.04±1.11 94.78±2.55 98.82±0.10",
        "5 runs",
    ),
    Row(
        "(c) no attachments",
        CELLS["(c) no attachments"],
        "99.3±0.0 91.6±1.0 97.0±0.5 93.5±0.5 92.4±1.2 99.0±0.1",
        "99.56±0.04 91.84±0.99 97.52±0.32 93.47±0.48 93.61±0.95 98.96±0.15",
        "5 runs",
    ),
    Row(
        "(d) random labels",
        CELLS["(d) random labels"],
        "99.5±0.1 55.9±20.4 94.2±2.2 92.3±2.5 91.6±2.5 96.7±1.3",
        "99.51±0.06 57.51±20.95 94.28±2.16 92.28±2.49 91.47±2.49 96.67±1.28",
        "5 runs",
    ),
    Row(
        "(e) minimise",
        CELLS["(e) minimise"],
        "99.5±0.0 96.1±1.1 98.9±0.2 95.8±0.6 97.2±0.7 99.6±0.1",
        "99.54±0.06 96.09±1.09 98.88±0.24 95.69±0.60 97.04±0.69 99.57±0.09",
        "4 runs",
    ),
    Row(
        "(f) CIFAR-10 as outliers",
        CELLS["(f) CIFAR-10 as outliers"],
        "99.5±0.0 100.0±0.0 98.7±0.6 99.2±0.3 99.1±0.4 97.6±1.0",
        "99.45±0.04 99.99±0.01 98.73±0.59 99.23±0.33 99.06±0.44 97.58±1.02",
        "5 runs",
    ),
    Row("**abnn**, our default", ours("mnist")),
)

TABLE = Table(__doc__ or "", (Section("MNIST against SVHN", (accuracy("MNIST"), *detection("SVHN")), ROWS),))
