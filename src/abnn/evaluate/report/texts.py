"""Each number of the page in plain words: what it is called, what it says, and which direction is good."""

from __future__ import annotations

from dataclasses import dataclass

TIER_WORDS = {
    "id": "the kind of input the network was trained on (in-distribution)",
    "semi": "different in style, but with content that can still be recognised (semi out-of-distribution)",
    "full": "something else altogether, for which no answer is right (fully out-of-distribution)",
}
VERDICTS = ("accept", "notice", "reject")
VERDICT_WORDS = {
    "accept": "trust the prediction",
    "notice": "use the prediction with a warning",
    "reject": "refuse to predict",
}


@dataclass(frozen=True)
class Metric:
    """How one number is shown. ``percent`` numbers are fractions; ``higher`` says whether more of it is better."""

    title: str
    says: str
    higher: bool = True
    percent: bool = True


def accuracy_of(what: str) -> Metric:
    return Metric(f"Accuracy on {what}", "Share of inputs whose predicted class is right. 100 % is perfect.")


_PAIRS = "100 % means always, 50 % is a coin toss, below 50 % the order is upside down."

METRICS = {
    "accuracy_id": Metric("Accuracy on id", "Share of ordinary inputs that are read right. 100 % is perfect."),
    "auroc_id_semi": Metric(
        "AUROC id / semi",
        f"Take one id and one semi input: how often does the semi input get the higher uncertainty? {_PAIRS}",
    ),
    "auroc_semi_full": Metric(
        "AUROC semi / full",
        f"Take one semi and one full input: how often does the full input get the higher uncertainty? {_PAIRS}",
    ),
    "auroc_id_full": Metric(
        "AUROC id / full",
        f"Take one id and one full input: how often does the full input get the higher uncertainty? {_PAIRS}",
    ),
    "ordered_triples": Metric(
        "Right order of all three",
        "Take one input of each tier: how often is id the least and full the most uncertain? Pure chance gives 16.7 %.",
    ),
    "accuracy_semi": Metric(
        "Accuracy on semi",
        "Share of semi inputs that are still read right. There is no line to reach; more is better.",
    ),
    "auroc": Metric("AUROC", f"Share of (id, outlier) pairs in which the outlier is the more uncertain one. {_PAIRS}"),
    "tnr_at_tpr95_id_positive": Metric(
        "Outliers refused at 95 % kept",
        "If the limit is set so that 95 % of id inputs pass, this share of outliers is refused. "
        "(TNR at 95 % TPR, id positive)",
    ),
    "fpr_at_tpr95_ood_positive": Metric(
        "False alarms at 95 % caught",
        "If the limit is set so that 95 % of outliers are caught, this share of id inputs is refused with them. "
        "(FPR at 95 % TPR, outliers positive)",
        higher=False,
    ),
    "detection_accuracy": Metric(
        "Detection accuracy",
        "Share of right accept-or-refuse decisions at the best possible limit, both sides counted equally. "
        "50 % is chance.",
    ),
    "aupr_in": Metric(
        "AUPR, id positive",
        "Average precision in finding id inputs. What chance gives depends on the sizes of the sets, so compare it only "
        "on the same sets.",
    ),
    "aupr_out": Metric(
        "AUPR, outliers positive",
        "Average precision in finding outliers. What chance gives depends on the sizes of the sets, so compare it only "
        "on the same sets.",
    ),
    "misclassification_auroc": Metric(
        "AUROC right / wrong",
        "Take one right and one wrong prediction on id inputs: how often is the wrong one more uncertain? 50 % is a coin "
        "toss. Each model is tested on its own mistakes, so compare only models of similar accuracy.",
    ),
    "fpr_at_tpr95_error_positive": Metric(
        "False alarms at 95 % of mistakes caught",
        "If the limit is set so that 95 % of wrong predictions are caught, this share of right ones is refused with them.",
        higher=False,
    ),
    "aupr_error": Metric(
        "AUPR, mistakes positive",
        "Average precision in finding wrong predictions. A useless score reaches the share of wrong predictions.",
    ),
    "error_rate": Metric("Error rate", "Share of wrong predictions when every input is answered.", higher=False),
    "aurc": Metric(
        "AURC",
        "Answer the most certain inputs first: the share of wrong answers, averaged over how many are answered. "
        "0 % is perfect.",
        higher=False,
    ),
    "excess_aurc": Metric(
        "Excess AURC",
        "AURC minus what a perfect order of the same predictions would give: what the score alone is to blame for.",
        higher=False,
    ),
    "augrc": Metric(
        "AUGRC",
        "The share of inputs that are answered and wrong, averaged over how many are answered. 0 % is perfect.",
        higher=False,
    ),
    "ece": Metric(
        "Calibration error (ECE)",
        "Mean gap between the stated probability and how often it comes true. At 0 %, answers given with "
        "80 % probability are right 80 % of the time.",
        higher=False,
    ),
    "adaptive_ece": Metric(
        "Calibration error, equal counts",
        "The same gap with bins that hold equally many inputs, which looks closer where most inputs are.",
        higher=False,
    ),
    "brier": Metric(
        "Brier score",
        "Squared distance between the probabilities and the truth: 0 is perfect, 2 the worst.",
        higher=False,
        percent=False,
    ),
    "nll": Metric(
        "Negative log-likelihood",
        "Mean surprise at the true class in nats: 0 is perfect, and sure but wrong predictions cost most.",
        higher=False,
        percent=False,
    ),
}
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
