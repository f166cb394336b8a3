"""A model as one artefact that runs without torch: written by :meth:`abnn.Attached.export`, read by :class:`Exported`."""

from abnn.export.artefact import Answers, Exported

__all__ = ["Answers", "Exported"]
