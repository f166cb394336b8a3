"""The queue in front of the model: what is taken is answered, in order, together, and in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import torch
from torch import Tensor

from abnn.serve.batcher import Batcher
from abnn.serve.problems import Problem
from abnn.serve.settings import Settings

FOREVER, NEVER = 1e6, 1e9
"""Seconds, and a deadline; whoever waits for so long hangs, and nobody measures time."""


class Model:
    """Answers x with x once it may go on, and remembers the sizes of batches and the threads it ran in."""

    def __init__(self, held: bool = False) -> None:
        self.go_on, self.entered = threading.Event(), threading.Event()
        self.sizes: list[int] = []
        self.threads: set[int] = set()
        if not held:
            self.go_on.set()

    def __call__(self, x: Tensor) -> list[dict[str, Any]]:
        if (x != 0).any():  # not to warm up
            self.entered.set()
            self.go_on.wait()
        self.sizes.append(len(x))
        self.threads.add(threading.get_ident())
        return [{"value": value} for value in x[:, 0].tolist()]


def run(
    model: Callable[[Tensor], Any], play: Callable[[Batcher], Coroutine[Any, Any, Any]], **settings: Any
) -> tuple[Any, Batcher]:
    async def whole() -> Any:
        async with batcher.running(torch.zeros(1, 1)):
            return await play(batcher)

    batcher = Batcher(model, Settings(**{"queue": 64, "max_images": 8, "timeout": 2 * FOREVER, **settings}))
    return asyncio.run(whole()), batcher


async def one(batcher: Batcher, *values: float) -> Any:
    with batcher.admit():
        return await batcher.submit([torch.tensor([value]) for value in values], NEVER)


def begin(batcher: Batcher, *requests: tuple[float, ...]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(one(batcher, *values)) for values in requests]


async def occupy(model: Model, batcher: Batcher) -> asyncio.Future[Any]:
    """A request that the model works on until it may go on."""
    (busy,) = begin(batcher, (9.0,))
    await asyncio.to_thread(model.entered.wait)
    return busy


def test_concurrent_requests_share_batches_and_get_their_own_answers() -> None:
    model = Model()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(1, 41)))

    answers, _ = run(model, play, max_batch=16)
    assert answers == [[{"value": float(number)}] for number in range(1, 41)]
    assert model.sizes == [1, 16, 16, 8]  # one to warm up
    assert len(model.threads) == 1 and threading.get_ident() not in model.threads


def test_max_batch_of_one_takes_one_by_one() -> None:
    model = Model()

    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(5)))

    run(model, play, max_batch=1)
    assert model.sizes == [1] * 6


def test_a_lone_request_does_not_wait_for_others() -> None:
    answer, _ = run(Model(), lambda batcher: one(batcher, 1.0), wait=FOREVER)
    assert answer == [{"value": 1.0}]


def test_requests_on_their_way_are_waited_for_up_to_the_limit() -> None:
    model = Model()

    async def play(batcher: Batcher) -> None:
        with batcher.admit():
            (first,) = begin(batcher, (1.0,))
            if batcher._settings.wait == 0:
                await first
            else:
                for _ in range(10):
                    await asyncio.sleep(0)  # the worker has its turns, and waits
                assert not first.done()
            await batcher.submit([torch.tensor([2.0])], NEVER)
            await first

    run(model, play, wait=FOREVER)
    assert model.sizes == [1, 2]
    model.sizes.clear()
    run(model, play, wait=0.0)
    assert model.sizes == [1, 1, 1]


def test_a_request_that_fails_on_its_way_is_not_waited_for() -> None:
    async def play(batcher: Batcher) -> Any:
        with pytest.raises(Problem), batcher.admit():
            (first,) = begin(batcher, (1.0,))
            await asyncio.sleep(0)
            raise Problem(422, "damaged-image", "no")
        return await first

    answer, batcher = run(Model(), play, wait=FOREVER)
    assert answer == [{"value": 1.0}] and batcher.under_way == 0


def test_what_does_not_fit_is_refused_and_what_was_taken_is_answered() -> None:
    async def play(batcher: Batcher) -> Any:
        return await asyncio.gather(*(one(batcher, float(number)) for number in range(30)), return_exceptions=True)

    answers, batcher = run(Model(), play, queue=8, max_batch=4)
    refused = [each for each in answers if isinstance(each, Problem)]
    assert len(refused) == 22 and answers[:8] == [[{"value": float(number)}] for number in range(8)]
    assert all(each.status == 503 and int(each.headers["Retry-After"]) >= 1 for each in refused)
    assert batcher.under_way == 0 and batcher.waiting == 0


def test_what_would_be_answered_late_is_refused_at_once() -> None:
    """The queue has places, but what is in it takes too long already."""
    model = Model(held=True)

    async def play(batcher: Batcher) -> Any:
        working = await occupy(model, batcher)
        waiting = begin(batcher, (1.0, 2.0, 3.0))
        await asyncio.sleep(0)
        batcher._seconds_per_image = batcher._settings.timeout / 10
        with pytest.raises(Problem) as refused:
            batcher.check_place()
        model.go_on.set()
        await asyncio.gather(working, *waiting)
        batcher.check_place()  # nobody waits any more
        return refused.value

    problem, batcher = run(model, play)
    assert problem.status == 503 and int(problem.headers["Retry-After"]) == 0.3 * batcher._settings.timeout


def test_images_of_one_request_are_taken_all_or_none() -> None:
    model = Model(held=True)

    async def play(batcher: Batcher) -> Any:
        busy = await occupy(model, batcher)
        requests = begin(batcher, (1.0, 2.0, 3.0), (4.0, 5.0, 6.0), (7.0,))
        await asyncio.sleep(0)
        model.go_on.set()
        return await asyncio.gather(*requests, busy, return_exceptions=True)

    (first, second, third, _), _ = run(model, play, queue=5, max_images=5, max_batch=2)
    assert [each["value"] for each in first] == [1.0, 2.0, 3.0]
    assert isinstance(second, Problem) and second.status == 503
    assert third == [{"value": 7.0}]


def test_a_request_that_takes_too_long_gets_503_and_the_model_skips_it() -> None:
    model = Model(held=True)

    async def late(batcher: Batcher) -> Any:
        with batcher.admit():
            return await batcher.submit([torch.tensor([1.0])], 0.0)  # long ago

    async def play(batcher: Batcher) -> Any:
        busy = await occupy(model, batcher)
        answers = await asyncio.gather(*(late(batcher) for _ in range(3)), return_exceptions=True)
        model.go_on.set()
        return await busy, answers

    (first, others), _ = run(model, play, max_batch=1)
    assert first == [{"value": 9.0}]
    assert all(isinstance(each, Problem) and each.status == 503 for each in others)
    assert model.sizes == [1, 1]  # the others were never computed


def test_stopping_answers_everything_that_was_taken() -> None:
    model = Model(held=True)

    async def play() -> Any:
        async with batcher.running(torch.zeros(1, 1)):
            requests = [await occupy(model, batcher), *begin(batcher, *((float(number),) for number in range(20)))]
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(model.go_on.set)
        with pytest.raises(Problem, match="stopping"):
            await one(batcher, 1.0)
        assert not batcher.ready
        return await asyncio.gather(*requests)

    batcher = Batcher(model, Settings(max_batch=4))
    answers = asyncio.run(play())
    assert [each[0]["value"] for each in answers] == [9.0, *(float(number) for number in range(20))]


def test_one_batcher_runs_once_at_a_time() -> None:
    async def play(batcher: Batcher) -> None:
        with pytest.raises(RuntimeError, match="running already"):
            async with batcher.running(torch.zeros(1, 1)):
                pytest.fail("it started twice")
        assert await one(batcher, 1.0) == [{"value": 1.0}]

    run(Model(), play)


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

    async def start() -> None:
        async with batcher.running(torch.zeros(1, 1)):
            pytest.fail("it started")

    with pytest.raises(RuntimeError, match="does not fit"):
        asyncio.run(start())
    with pytest.raises(Problem, match="starting"), batcher.admit():
        pass
