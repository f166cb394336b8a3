"""From score to decision: two thresholds, three verdicts, and what they promise.

accept   score <= notice              use the prediction
notice   notice < score <= reject     use it with a warning
reject   score > reject, or NaN       do not use it
"""

from abnn.config import Costs, TriageConfig
from abnn.predict.verdicts import VERDICTS
from abnn.triage.calibrate import calibrate
from abnn.triage.report import check_guarantee, report
from abnn.triage.triage import Triage, Verdicts

__all__ = ["VERDICTS", "Costs", "Triage", "TriageConfig", "Verdicts", "calibrate", "check_guarantee", "report"]
