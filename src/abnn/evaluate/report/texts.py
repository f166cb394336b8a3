"""Each number of the page in plain words, from ``metrics.json``: its name, what it says, and which direction is good."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Metric:
    """How one number is shown. ``percent`` numbers are fractions; ``higher`` says whether more of it is better."""

    title: str
    says: str
    higher: bool = True
    percent: bool = True


def accuracy_of(what: str) -> Metric:
    return Metric(f"Accuracy on {what}", "Share of inputs whose predicted class is right. 100 % is perfect.")


_FILE = files("abnn.evaluate.report").joinpath("metrics.json")
METRICS = {name: Metric(**words) for name, words in json.loads(_FILE.read_text(encoding="utf-8")).items()}
HEADLINE = (
    *("accuracy_id", "auroc_id_semi", "auroc_semi_full", "auroc_id_full", "ordered_triples", "accuracy_semi"),
    *("misclassification_auroc", "ece"),
)
DETECTION = (
    *("auroc", "tnr_at_tpr95_id_positive", "fpr_at_tpr95_ood_positive", "detection_accuracy", "aupr_in", "aupr_out"),
)
MISTAKES = ("misclassification_auroc", "fpr_at_tpr95_error_positive", "aupr_error")
SELECTIVE = ("error_rate", "aurc", "excess_aurc", "augrc")
CALIBRATION = ("ece", "adaptive_ece", "brier", "nll")
