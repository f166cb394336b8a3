"""Data sets, one file per source."""

from abnn.data.digits import DigitsData, Labelled, load_digits

__all__ = ["DigitsData", "Labelled", "load_digits"]
