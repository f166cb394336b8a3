"""What a network's output means: one file per task."""

from abnn.tasks.base import TASKS, Task, make_task
from abnn.tasks.classification import Classification
from abnn.tasks.multilabel import Multilabel
from abnn.tasks.regression import Regression

__all__ = ["TASKS", "Classification", "Multilabel", "Regression", "Task", "make_task"]
