"""What a model says about sets of data; records of it; the report page."""

from abnn.evaluate.collect import evaluate_set
from abnn.evaluate.evaluation import Evaluation

__all__ = ["Evaluation", "evaluate_set"]
