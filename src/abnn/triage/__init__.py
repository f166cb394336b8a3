"""From score to decision: two thresholds, three verdicts, and what they promise.

accept   score <= notice              use the prediction
notice   notice < score <= reject     use it with a warning
reject   score > reject, or NaN       do not use it
"""

from abnn.config import Costs, TriageConfig
from abnn.predict.verdicts import VERDICTS
from abnn.triage.calibrate import calibrate
from abnn.triage.report import Guarantee, Report, ThreeWayCurve, check_guarantee, report, three_way_curve
from abnn.triage.thresholds import best_split, cheapest_thresholds, conformal_quantile
from abnn.triage.triage import Triage, Verdicts

__all__ = [
    "VERDICTS",
    "Costs",
    "Guarantee",
    "Report",
    "ThreeWayCurve",
    "Triage",
    "TriageConfig",
    "Verdicts",
    "best_split",
    "calibrate",
    "cheapest_thresholds",
    "check_guarantee",
    "conformal_quantile",
    "report",
    "three_way_curve",
]
