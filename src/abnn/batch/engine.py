"""Ray: a cluster that is there, or one on this machine for the time of a sweep, and workers on it that start anew if they die."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from abnn.batch.processes import cores
from abnn.batch.worker import Scorer, Work
from abnn.errors import AbnnError, InputError, explain, import_extra

MOST_TASKS = 4096  # numbers of shards are handed out in so many pieces at most
STORE = 80 * 2**20  # bytes of shared memory of a local cluster: only numbers pass through it
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # which would open a connection
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "MALLOC_ARENA_MAX": "1",  # of workers: else each of their threads keeps memory of its own
    "RAY_BACKEND_LOG_LEVEL": "fatal",  # it goes to standard error; Ray's own files have it all
}
CALM = {
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
    "RAY_event_stats": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_raylet_report_resources_period_milliseconds": "1000",
    "RAY_memory_monitor_refresh_ms": "1000",
}
"""Of a local cluster: nobody looks at its metrics and events, and their collection takes processor time from the model."""


@contextmanager
def connected(address: str | None, workers: int | None = None) -> Iterator[Any]:
    """Connect to a cluster, or start one with room for so many workers, and yield the module ``ray``; afterwards let go of it."""
    os.environ.update({**QUIET, **(CALM if address is None else {}), **os.environ})
    ray = import_extra("ray", "scale")
    if ray.is_initialized():  # by the caller, whose cluster it stays
        yield ray
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    local: dict[str, Any] = {"num_cpus": workers or cores(), "include_dashboard": False, "object_store_memory": STORE}
    try:
        ray.init(address=address or "local", **quiet, **({} if address else local))
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address is None:
            raise
        raise InputError(explain("--ray", f"{address} ({error})", "the address of a Ray cluster that runs")) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def run_on_ray(work: Work, shards: Sequence[int], address: str, workers: int | None) -> Generator[int, None, None]:
    """Yield numbers of shards as they are done, in any order."""
    with connected(address, workers) as ray:
        from ray import data

        logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what fails is said by our own errors
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        resources = ray.cluster_resources()
        gpus = 0 if work.device == "cpu" else int(resources.get("GPU", 0))
        count = min(len(shards), workers or gpus or int(resources.get("CPU", 1)))
        threads = max(1, int(resources.get("CPU", 1)) // gpus) if gpus else 1
        numbers = data.from_items(list(shards), override_num_blocks=min(len(shards), MOST_TASKS))
        done = numbers.map_batches(
            Scorer,
            batch_size=1,
            fn_constructor_args=(replace(work, threads=threads),),
            compute=data.ActorPoolStrategy(size=max(1, count)),
            num_cpus=threads,
            num_gpus=min(1.0, gpus),
        )
        try:
            for batch in done.iter_batches(batch_size=None):
                for number, error in zip(batch["shard"], batch["error"]):
                    if error:
                        raise AbnnError(f"{error} What is scored stays: start the same command again to go on.")
                    yield int(number)
        except ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            raise AbnnError(f"Ray gave up ({last}). Start the same command again to go on.") from error
