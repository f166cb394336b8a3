"""One self-contained HTML page for an evaluation, or for a comparison of several."""

from abnn.evaluate.report.page import write_report

__all__ = ["write_report"]
