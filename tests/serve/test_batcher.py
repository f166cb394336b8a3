"""The queue in front of the model: what is taken is answered, in order, together, and in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from torch import Tensor

from abnn.serve.batcher import Batcher
from abnn.serve.problems import Problem
from abnn.serve.settings import Settings


class Model:
    """Answers x with x, takes ``seconds`` for a batch, and remembers the sizes of batches and the threads it ran in."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.sizes: list[int] = []
        self.threads: set[int] = set()

    def __call__(self, x: Tensor) -> list[dict[str, Any]]:
        time.sleep(self.seconds)
        self.sizes.append(len(x))
        self.threads.add(threading.get_ident())
        return [{"value": value} for value in x[:, 0].tolist()]


def run(
    model: Callable[[Tensor], Any], play: Callable[[Batcher], Coroutine[Any, Any, Any]], **settings: Any
) -> tuple[Any, Batcher]:
    batcher = Batcher(model, Settings(**{"queue": 64, "max_images": 8, **settings}))
    batcher.start(torch.zeros(1, 1))
    try:
        return asyncio.run(play(batcher)), batcher
    finally:
        batcher.stop()


async def one(batcher: Batcher, *values: float) -> Any:
    with batcher.admit() as ticket:
        return await batcher.submit([torch.tensor([value]) for value in values], ticket)


def test_concurrent_requests_share_batches_and_get_their_own_answers() -> None:
    model = Model(seconds=0.02)

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(40)))

    answers, _ = run(model, play, max_batch=16)
    assert answers == [[{"value": float(number)}] for number in range(40)]
    assert sum(model.sizes) == 41  # and one to warm up
    assert max(model.sizes) == 16 and len(model.sizes) <= 6
    assert len(model.threads) == 1


def test_max_batch_of_one_takes_one_by_one() -> None:
    model = Model()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(5)))

    run(model, play, max_batch=1)
    assert model.sizes == [1] * 6


def test_a_lone_request_does_not_wait_for_others() -> None:
    async def play(batcher: Batcher) -> float:
        started = time.perf_counter()
        await one(batcher, 1.0)
        return time.perf_counter() - started

    seconds, _ = run(Model(), play, wait=5.0)
    assert seconds < 2.5


def test_requests_on_their_way_are_waited_for_up_to_the_limit() -> None:
    model = Model()

    async def play(batcher: Batcher) -> None:
        async def late() -> None:
            with batcher.admit() as ticket:
                await asyncio.sleep(0.05)
                await batcher.submit([torch.tensor([2.0])], ticket)

        await asyncio.gather(late(), one(batcher, 1.0))

    run(model, play, wait=5.0)
    assert model.sizes == [1, 2]
    model.sizes.clear()
    run(model, play, wait=0.0)
    assert model.sizes == [1, 1, 1]


def test_a_request_that_fails_on_its_way_is_not_waited_for() -> None:
    async def play(batcher: Batcher) -> float:
        async def broken() -> None:
            with batcher.admit():
                await asyncio.sleep(0.02)
                raise Problem(422, "damaged-image", "no")

        started = time.perf_counter()
        await asyncio.gather(broken(), one(batcher, 1.0), return_exceptions=True)
        return time.perf_counter() - started

    seconds, batcher = run(Model(), play, wait=5.0)
    assert seconds < 2.5 and batcher.under_way == 0


def test_what_does_not_fit_is_refused_and_what_was_taken_is_answered() -> None:
    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(30)), return_exceptions=True)

    answers, batcher = run(Model(seconds=0.02), play, queue=8, max_batch=4)
    refused = [each for each in answers if isinstance(each, Problem)]
    assert len(refused) == 22 and answers[:8] == [[{"value": float(number)}] for number in range(8)]
    assert all(each.status == 503 and int(each.headers["Retry-After"]) >= 1 for each in refused)
    assert batcher.under_way == 0 and len(batcher) == 0


def test_images_of_one_request_are_taken_all_or_none() -> None:
    released = threading.Event()

    class Held(Model):
        def __call__(self, x: Tensor) -> list[dict[str, Any]]:
            if (x == 9).any():
                released.wait(30)
            return super().__call__(x)

    async def play(batcher: Batcher) -> Any:
        busy = asyncio.ensure_future(one(batcher, 9.0))
        while not batcher.under_way or len(batcher):  # until the model has it
            await asyncio.sleep(0.001)
        waiting = [
            asyncio.ensure_future(one(batcher, *values)) for values in ((1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0,))
        ]
        await asyncio.sleep(0)
        released.set()
        return await asyncio.gather(*waiting, busy, return_exceptions=True)

    (first, second, third, _), _ = run(Held(), play, queue=5, max_images=5, max_batch=2)
    assert [each["value"] for each in first] == [1.0, 2.0, 3.0]
    assert isinstance(second, Problem) and second.status == 503
    assert third == [{"value": 7.0}]


def test_a_request_that_takes_too_long_gets_503_and_the_model_skips_it() -> None:
    model = Model(seconds=0.6)

    async def play(batcher: Batcher) -> Any:
        answers = await asyncio.gather(*(one(batcher, float(number)) for number in range(4)), return_exceptions=True)
        await asyncio.sleep(0.7)
        return answers

    answers, _ = run(model, play, timeout=0.9, max_batch=1)
    assert answers[0] == [{"value": 0.0}]
    assert all(isinstance(each, Problem) and each.status == 503 for each in answers[1:])
    assert len(model.sizes) <= 3  # the last two were never computed


def test_stopping_answers_everything_that_was_taken() -> None:
    model = Model(seconds=0.02)

    async def play(batcher: Batcher) -> Any:
        waiting = [asyncio.ensure_future(one(batcher, float(number))) for number in range(20)]
        await asyncio.sleep(0)
        await asyncio.to_thread(batcher.stop)
        with pytest.raises(Problem, match="stopping"):
            await one(batcher, 1.0)
        assert not batcher.ready
        return await asyncio.gather(*waiting)

    answers, _ = run(model, play, max_batch=4)
    assert [each[0]["value"] for each in answers] == [float(number) for number in range(20)]


def test_small_batches_are_computed_with_one_thread() -> None:
    seen: dict[int, int] = {}

    def model(x: Tensor) -> list[dict[str, Any]]:
        seen[len(x)] = torch.get_num_threads()
        return [{}] * len(x)

    async def play(batcher: Batcher) -> None:
        await one(batcher, 1.0, 2.0, 3.0)
        await one(batcher, 1.0, 2.0, 3.0, 4.0)

    before = torch.get_num_threads()
    try:
        run(model, play, threads=2)
    finally:
        torch.set_num_threads(before)
    assert seen == {1: 1, 3: 1, 4: 2}


def test_a_failing_model_answers_500_and_goes_on() -> None:
    class Failing(Model):
        def __call__(self, x: Tensor) -> list[dict[str, Any]]:
            if (x < 0).any():
                raise RuntimeError("secret detail")
            return super().__call__(x)

    async def play(batcher: Batcher) -> Any:
        bad = await one(batcher, -1.0)
        return bad, await one(batcher, 1.0)

    (bad, good), batcher = run(Failing(), play)
    assert bad[0].status == 500 and "secret" not in bad[0].message
    assert good == [{"value": 1.0}] and batcher.failures == 1


def test_a_model_that_cannot_answer_at_all_does_not_start() -> None:
    def broken(x: Tensor) -> list[dict[str, Any]]:
        raise RuntimeError("does not fit")

    batcher = Batcher(broken, Settings())
    with pytest.raises(RuntimeError, match="does not fit"):
        batcher.start(torch.zeros(1, 1))
    with pytest.raises(Problem, match="starting"), batcher.admit():
        pass
