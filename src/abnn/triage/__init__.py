"""From score to decision: two thresholds, three verdicts, and what they promise.

accept   score <= notice              use the prediction
notice   notice < score <= reject     use it with a warning
reject   score > reject, or NaN       do not use it
"""

from abnn.triage.report import Guarantee, Report, ThreeWayCurve, check_guarantee, report, three_way_curve
from abnn.triage.thresholds import Costs, best_split, cheapest_thresholds, conformal_quantile
from abnn.triage.verdicts import VERDICTS, Triage, Verdicts

__all__ = [
    "VERDICTS",
    "Costs",
    "Guarantee",
    "Report",
    "ThreeWayCurve",
    "Triage",
    "Verdicts",
    "best_split",
    "cheapest_thresholds",
    "check_guarantee",
    "conformal_quantile",
    "report",
    "three_way_curve",
]
