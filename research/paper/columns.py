"""The columns that tables share, by the names that metrics have in records (:mod:`abnn.evaluate.summary`)."""

from __future__ import annotations

from research.tables import Column

TIERS = ("id", "semi", "full")


def accuracy(name: str, header: str = "accuracy") -> Column:
    return Column(header, f"accuracy.{name}", digits=2)


def detection(name: str) -> tuple[Column, ...]:
    """One set against the in-distribution test data, exact."""
    return (
        Column("TNR at TPR 95 %", f"detection.{name}.tnr_at_tpr95_id_positive"),
        Column("AUROC", f"detection.{name}.auroc", digits=2),
        Column("detection accuracy", f"detection.{name}.detection_accuracy"),
        Column("AUPR in", f"detection.{name}.aupr_in", digits=2),
        Column("AUPR out", f"detection.{name}.aupr_out"),
    )


def misclassification(name: str) -> tuple[Column, ...]:
    """Right against wrong predictions on one set, exact."""
    return (
        Column("TNR at TPR 95 %", f"misclassification.{name}.tnr_at_tpr95_success_positive"),
        Column("AUROC", f"misclassification.{name}.auroc", digits=2),
        Column("detection accuracy", f"misclassification.{name}.detection_accuracy"),
        Column("AUPR succ", f"misclassification.{name}.aupr_success", digits=2),
        Column("AUPR err", f"misclassification.{name}.aupr_error"),
    )


def auroc(name: str) -> Column:
    """One set against the in-distribution test data, in one number."""
    return Column(f"AUROC {name}", f"detection.{name}.auroc", digits=2)


def order(pair: str) -> Column:
    """How often the semi set of a pair is less uncertain than its full set."""
    return Column(pair, f"pairs.{pair}.auroc_semi_below_full")


def errors(name: str, where: str = "") -> tuple[Column, Column]:
    """How well errors are told, and what of them is accepted; ``where``: the end of the headers."""
    return (
        Column(f"errors AUROC{where}", f"misclassification.{name}.auroc", digits=2),
        Column(f"AUGRC{where}", f"selective.{name}.augrc", digits=3, better="lower"),
    )


def selective(name: str) -> tuple[Column, ...]:
    """What slips through on one set when the most uncertain inputs are refused, over all shares that may be refused."""
    return (accuracy(name), *errors(name), Column("AURC", f"selective.{name}.aurc", digits=3, better="lower"))


def clustering(pair: str, procedure: str) -> tuple[Column, ...]:
    """The paper's clustering of selected inputs, and the same after the scores were dealt out at random."""
    return (
        Column("paper's clustering", f"pairs.{pair}.{procedure}.accuracy"),
        Column("the same, shuffled", f"pairs.{pair}.{procedure}.shuffled_accuracy", better="neither"),
    )


def tiers(pair: str) -> tuple[Column, ...]:
    """All inputs of three sets: three clusters, and AUROCs of "the first is less uncertain than the second"."""
    return (
        Column("clusters, all inputs", f"pairs.{pair}.cluster_balanced_accuracy"),
        Column("AUROC id/semi", f"pairs.{pair}.auroc_id_below_semi"),
        Column("AUROC semi/full", f"pairs.{pair}.auroc_semi_below_full"),
        Column("AUROC id/full", f"pairs.{pair}.auroc_id_below_full"),
    )


def confusion(pair: str, procedure: str) -> tuple[Column, ...]:
    """How many inputs of each tier (first) the paper's clustering takes for each tier (second)."""
    return tuple(
        Column(f"{true}→{taken}", f"pairs.{pair}.{procedure}.matrix.{i}.{j}", scale=1, digits=0, better="neither")
        for i, true in enumerate(TIERS)
        for j, taken in enumerate(TIERS)
    )
