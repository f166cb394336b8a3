"""Several runs at once in one process: on CUDA each has a lane of its own, a stream with random numbers of its own.

A step of a small network fills only a part of the chip. Runs that take turns on the host and overlap on the device give
what the single runs give, from the same kernels, in far less time together. On the CPU, where one run fills all cores,
they run one after another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator

import torch

from abnn.train.loop import Result, to_end, training_mode


def together(runs: Iterable[Generator[None, None, Result]], device: torch.device) -> list[Result]:
    """What all runs return; on CUDA they take turns, and the device works on all of them at once."""
    if device.type != "cuda":
        return [to_end(run) for run in runs]
    waiting = {number: (run, Lane(device)) for number, run in enumerate(runs)}
    results: dict[int, Result] = {}
    torch.cuda.synchronize(device)
    try:
        with training_mode():
            while waiting:
                for number, (run, lane) in list(waiting.items()):
                    with lane.active():
                        try:
                            next(run)
                        except StopIteration as stop:
                            results[number] = stop.value
                            del waiting[number]
    finally:
        for run, lane in waiting.values():  # after an error in one of them
            with lane.active():
                run.close()
        torch.cuda.synchronize(device)
    return [results[number] for number in sorted(results)]


class Lane:
    """A stream, and a state for the device's global generator, that belong to one run."""

    def __init__(self, device: torch.device) -> None:
        index = device.index if device.index is not None else torch.cuda.current_device()
        self.stream = torch.cuda.Stream(device)
        self.generator = torch.cuda.default_generators[index]
        self.state = self.generator.clone_state()

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Inside, work goes to this lane. A graph captured here keeps the lane's random state, wherever it is replayed."""
        before = self.generator.graphsafe_get_state()
        self.generator.graphsafe_set_state(self.state)
        try:
            with torch.cuda.stream(self.stream):
                yield
        finally:
            self.generator.graphsafe_set_state(before)
