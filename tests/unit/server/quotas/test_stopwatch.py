"""The stopwatch measures the computation of a request, but not its waiting."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref

import pytest

from klamm.configs.quotas import QuotaLimit
from klamm.server.quotas.throttles import Stopwatch, timed

BUSY_S = 0.02


def stopwatch() -> Stopwatch:
    return Stopwatch(QuotaLimit(1.0, (None, None)))


def be_busy() -> None:
    ends_at = time.perf_counter() + BUSY_S
    while time.perf_counter() < ends_at:
        pass


async def work() -> str:
    loop = asyncio.get_running_loop()
    waits_for: asyncio.Future[str] = loop.create_future()
    be_busy()
    loop.call_later(20 * BUSY_S, waits_for.set_result, "done")
    result = await waits_for
    be_busy()
    return result


async def test_computation_is_measured_and_waiting_is_not() -> None:
    watch = stopwatch()
    began = time.perf_counter()
    result = await timed(work(), watch)
    measured_s, passed_s = watch.seconds, time.perf_counter() - began
    assert result == "done"
    assert measured_s >= 2 * BUSY_S
    assert passed_s - measured_s >= 10 * BUSY_S


async def test_errors_pass_through_in_both_directions() -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    async def catches(waits_for: asyncio.Future[None]) -> str:
        try:
            await waits_for
        except ValueError as error:
            return f"caught {error}"
        return "nothing to catch"

    waits_for: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waits_for.set_exception(ValueError("it"))
    assert await timed(catches(waits_for), stopwatch()) == "caught it"
    with pytest.raises(ValueError, match="no"):
        await timed(fails(), stopwatch())


async def test_request_of_disconnected_client_is_canceled() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(True)

    async def serve() -> None:
        await timed(waits(), stopwatch())

    task = asyncio.create_task(serve())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]


def test_passing_error_needs_no_garbage_collection() -> None:
    class PassingError(Exception):
        pass

    async def waits() -> None:
        await asyncio.sleep(0)

    def pass_through() -> weakref.ref[PassingError]:
        steps = timed(waits(), stopwatch()).__await__()
        next(steps)
        error = PassingError()
        with contextlib.suppress(PassingError):
            steps.throw(error)
        watched = weakref.ref(error)
        del error  # its trace knows this frame, too
        return watched

    gc.disable()
    try:
        assert pass_through()() is None
    finally:
        gc.enable()


async def test_work_in_a_thread_is_measured() -> None:
    watch = stopwatch()
    await asyncio.get_running_loop().run_in_executor(None, watch.call, be_busy)
    assert (watch.read_out() if watch.seconds else 0.0) >= BUSY_S


def test_awaitable_is_unchanged_without_stopwatch() -> None:
    coroutine = asyncio.sleep(0)
    assert timed(coroutine, None) is coroutine
    coroutine.close()
