"""From score to decision: two thresholds, three verdicts, and what they promise.

accept   score <= notice              use the prediction
notice   notice < score <= reject     use it with a warning
reject   score > reject, or NaN       do not use it
"""

from abnn.decisions import VERDICTS, Costs, TriageConfig
from abnn.triage.triage import Triage, Verdicts

try:
    from abnn.triage.calibrate import calibrate
    from abnn.triage.report import check_guarantee, report
except ModuleNotFoundError as error:
    if error.name != "torch":  # without which exported models run; they have thresholds and need no more
        raise

__all__ = ["VERDICTS", "Costs", "Triage", "TriageConfig", "Verdicts", "calibrate", "check_guarantee", "report"]
