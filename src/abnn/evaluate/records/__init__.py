"""Run records: one JSON per run with every number and where it came from, and beside it the arrays to recompute them.

``<directory>/<experiment>/<name>-seed<seed>.json`` holds configuration, seed, versions, commit, data hashes, device,
times and all metrics. The ``.npz`` beside it holds what the model said about every input; its name contains its hash, so
a record that is written again never shares a file with its predecessor, and a reader sees the old record or the new one.
The metrics of a record are computed from the arrays as stored, so that recomputing them gives the same numbers.
"""

from abnn.evaluate.records.arrays import SetEntry
from abnn.evaluate.records.paths import record_path, slug
from abnn.evaluate.records.record import NoArraysError, Record, find_records, read_record
from abnn.evaluate.records.write import write_record

__all__ = ["NoArraysError", "Record", "SetEntry", "find_records", "read_record", "record_path", "slug", "write_record"]
