"""Metrics that only the paper's tables need, and the numbers of run records with them."""

from research.metrics.clustering import paper_trimmed_clustering, paper_trimmed_clustering_cat_dog
from research.metrics.grid import paper_grid_detection, paper_grid_misclassification
from research.metrics.ranks import paired_test, severity_correlation
from research.metrics.summary import summarise

__all__ = [
    "paired_test",
    "paper_grid_detection",
    "paper_grid_misclassification",
    "paper_trimmed_clustering",
    "paper_trimmed_clustering_cat_dog",
    "severity_correlation",
    "summarise",
]
