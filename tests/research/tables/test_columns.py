import pytest

from abnn.errors import InputError
from abnn.evaluate.records import Record
from research.tables import Column, column_for


def test_directions_and_units_follow_from_the_names(real: list[Record]):
    def how(path: str) -> tuple[float, str]:
        return column_for(path).scale, column_for(path).better

    assert how("accuracy.nll set") == how("detection.x.auroc") == (100, "higher")
    assert how("detection.x.tnr_at_tpr95_id_positive") == (100, "higher")
    assert how("detection.x.fpr_at_tpr95_ood_positive") == how("selective.x.excess_aurc") == (100, "lower")
    assert how("calibration.x.nll") == how("calibration.x.brier") == (1, "lower")
    assert how("calibration.x.mean_confidence") == how("verdicts.x.accept") == (100, "neither")
    assert how("tiers.clusters.matrix.0.1") == (1, "neither")
    assert how("tiers.clusters.thresholds.id_semi") == how("tiers.threshold.thresholds.semi_full") == (1, "neither")
    for path, number in real[0].numbers.items():
        assert column_for(path).scale == 1 or 0 <= number <= 1, path


def test_bad_directions_and_digits_are_refused():
    with pytest.raises(InputError, match="better"):
        Column("x", "x", better="bigger")
    with pytest.raises(InputError, match="digits"):
        Column("x", "x", digits=-1)
