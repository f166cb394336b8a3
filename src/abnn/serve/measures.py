"""What Prometheus may ask for. Each application has a registry of its own, so several can live in one process."""

from __future__ import annotations

from typing import Any, get_args

from fastapi import Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from abnn.serve.batcher import Batcher
from abnn.serve.schema import Verdict

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRIFT = {
    "alarmed": ("abnn_drift_alarm", "1 once drift was noticed."),
    "p_value": ("abnn_drift_p_value", 'Of "nothing drifts", valid however often one looks.'),
    "seen": ("abnn_drift_images", "Images that were looked at for drift."),
    "alarm": ("abnn_drift_false_alarm_rate", "The probability of ever an alarm if nothing drifts is at most this."),
}
"""Gauges by the monitor's attributes."""


class Measures:
    """Counters and histograms; labels take a fixed set of values, so that nobody can make them grow."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        own: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("abnn_requests", "Requests by route and status.", ["route", "status"], **own)
        self.seconds = Histogram(
            "abnn_request_seconds", "From a request to its answer.", ["route"], buckets=SECONDS, **own
        )
        self.verdicts = Counter("abnn_verdicts", "Images by verdict.", ["verdict"], **own)
        self.batch_size = Histogram("abnn_batch_size", "Images in one batch of the model.", buckets=SIZES, **own)
        self.batch_seconds = Histogram("abnn_batch_seconds", "One batch of the model.", buckets=SECONDS, **own)
        for verdict in get_args(Verdict):
            self.verdicts.labels(verdict)

    def count_batch(self, size: int, seconds: float) -> None:
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def follow(self, batcher: Batcher, monitor: Any) -> None:
        """Read gauges off the queue and, where the model keeps what is needed to tell, off the drift monitor."""
        self._gauge("abnn_queue_length", "Images that wait for the model.", batcher, "waiting")
        self._gauge("abnn_requests_under_way", "Requests that were taken and not answered yet.", batcher, "under_way")
        self._gauge("abnn_model_failures", "Batches on which the model failed.", batcher, "failures")
        for attribute, (name, help_text) in DRIFT.items() if monitor is not None else ():
            self._gauge(name, help_text, monitor, attribute)

    def _gauge(self, name: str, help_text: str, owner: Any, attribute: str) -> None:
        Gauge(name, help_text, registry=self.registry).set_function(lambda: getattr(owner, attribute))

    def response(self) -> Response:
        """Return what GET /metrics says."""
        return Response(generate_latest(self.registry), media_type="text/plain; version=0.0.4")
