"""Metrics that only the paper's tables need, and the numbers of run records with them."""

from research.metrics.clustering import paper_trimmed_clustering, paper_trimmed_clustering_cat_dog
from research.metrics.grid import paper_grid_detection, paper_grid_misclassification
from research.metrics.paired import PairedTest, paired_test
from research.metrics.severity import severity_correlation
from research.metrics.summary import summarise

__all__ = [
    "PairedTest",
    "paired_test",
    "paper_grid_detection",
    "paper_grid_misclassification",
    "paper_trimmed_clustering",
    "paper_trimmed_clustering_cat_dog",
    "severity_correlation",
    "summarise",
]
