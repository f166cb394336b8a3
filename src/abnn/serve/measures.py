"""What Prometheus may ask for. Each application has a registry of its own, so several can live in one process."""

from __future__ import annotations

from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from abnn.serve.batcher import Batcher
from abnn.serve.schema import Verdict
from abnn.serve.traffic import Traffic

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Measures:
    """Counters and histograms; labels take a fixed set of values, so that nobody can make them grow."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "abnn_requests", "Requests by route and status.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "abnn_request_seconds",
            "From a request to its answer.",
            ["route"],
            registry=self.registry,
            buckets=SECONDS,
        )
        self.verdicts = Counter("abnn_verdicts", "Images by verdict.", ["verdict"], registry=self.registry)
        self.batch_size = Histogram(
            "abnn_batch_size", "Images in one batch of the model.", registry=self.registry, buckets=SIZES
        )
        self.batch_seconds = Histogram(
            "abnn_batch_seconds", "One batch of the model.", registry=self.registry, buckets=SECONDS
        )
        for verdict in get_args(Verdict):
            self.verdicts.labels(verdict)

    def batch(self, size: int, seconds: float) -> None:
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def follow(self, batcher: Batcher) -> None:
        gauges = {
            "abnn_queue_length": ("Images that wait for the model.", lambda: len(batcher)),
            "abnn_requests_under_way": ("Requests that were taken and not answered yet.", lambda: batcher.under_way),
            "abnn_model_failures": ("Batches on which the model failed.", lambda: batcher.failures),
        }
        for name, (help_text, read) in gauges.items():
            Gauge(name, help_text, registry=self.registry).set_function(read)

    def watch(self, traffic: Traffic) -> None:
        """Drift, where the model keeps what is needed to tell."""
        monitor = traffic.monitor
        if monitor is None:
            return
        gauges = {
            "abnn_drift_alarm": ("1 once drift was noticed.", lambda: monitor.alarmed),
            "abnn_drift_p_value": ('Of "nothing drifts", valid however often one looks.', lambda: monitor.p_value),
            "abnn_drift_images": ("Images that were looked at for drift.", lambda: monitor.seen),
            "abnn_drift_false_alarm_rate": (
                "If nothing drifts, the probability that there is ever an alarm is at most this.",
                lambda: monitor.alarm,
            ),
        }
        for name, (help_text, read) in gauges.items():
            Gauge(name, help_text, registry=self.registry).set_function(read)

    def text(self) -> bytes:
        return generate_latest(self.registry)
