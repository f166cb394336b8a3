"""The paper's theorems and the losses around them, checked with numbers; what they mean is in docs/theory.md.

Every check is a pure function that computes both sides of a statement in the settings that it is about and returns a `Check`:
in which of them it held, and the numbers. ``python -m research.theory`` runs all of them within a minute.
"""

from research.theory.check import Check
from research.theory.losses import LOSS_CHECKS
from research.theory.theorems import THEOREM_CHECKS

CHECKS = {**THEOREM_CHECKS, **LOSS_CHECKS}

__all__ = ["CHECKS", "Check"]
