"""Clip small Bayesian modules onto a trained network and learn when to trust its predictions."""

from abnn._version import __version__

__all__ = ["__version__"]
