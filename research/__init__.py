"""One file for each experiment: trains, evaluates and returns evaluations; records and pages are written by the caller."""
