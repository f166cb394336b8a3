"""What a network's output means: one file per task."""

from abnn.tasks.base import TASKS, Task, make_task
from abnn.tasks.classification import Classification

__all__ = ["TASKS", "Classification", "Task", "make_task"]
