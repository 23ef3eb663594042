"""Pauses of the event loop under load, and connections for which it does not pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from klamm.gateway.pacing import BUSY_PER_S, CALM_PER_S, PAUSE_S, Pacer
from tests.support.relay_rig import RelayRig, request, response, shared_objects

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Watch:
    """Clock that tests move, and the pauses that a pacer made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def read(self) -> float:
        return self.now

    def pacer(self) -> Pacer:
        return Pacer(clock=self.read, pause=self.pauses.append)


def played(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await test()

    asyncio.run(limited())


@pytest.mark.parametrize("per_second", [BUSY_PER_S / 2, BUSY_PER_S * 2], ids=["below", "above"])
def test_the_event_loop_pauses_only_above_a_rate_of_events(per_second: float) -> None:
    async def test() -> None:
        watch = Watch()
        pacer = watch.pacer()
        for _ in range(100):
            watch.now += 1 / per_second
            pacer.on_event(asyncio.get_running_loop())
            await asyncio.sleep(0)
        assert set(watch.pauses) == ({PAUSE_S} if per_second > BUSY_PER_S else set())

    played(test)


def test_several_events_of_one_turn_of_the_loop_make_one_pause() -> None:
    async def test() -> None:
        watch = Watch()
        pacer = watch.pacer()
        for _ in range(100):
            pacer.on_event(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert watch.pauses == [PAUSE_S]

    played(test)


def test_pauses_end_at_a_lower_rate_than_that_at_which_they_start() -> None:
    async def test() -> None:
        watch = Watch()
        pacer = watch.pacer()
        paused = []
        for per_second in (
            BUSY_PER_S * 2,
            (CALM_PER_S + BUSY_PER_S) / 2,
            CALM_PER_S / 2,
            (CALM_PER_S + BUSY_PER_S) / 2,
        ):
            for _ in range(100):
                watch.now += 1 / per_second
                pacer.on_event(asyncio.get_running_loop())
                await asyncio.sleep(0)
            watch.pauses.clear()
            pacer.on_event(asyncio.get_running_loop())
            await asyncio.sleep(0)
            paused.append(bool(watch.pauses))
        assert paused == [True, True, False, False]

    played(test)


@pytest.mark.parametrize("in_flight", [1, 2])
def test_only_a_client_that_does_not_wait_for_responses_makes_the_loop_pause(in_flight: int) -> None:
    async def test() -> None:
        watch = Watch()
        with RelayRig(shared_objects(pacer=watch.pacer())) as rig:
            heartbeat = request(12, 0, b"body")
            for _ in range(40):
                await rig.client.send(heartbeat * in_flight)
                for _ in range(in_flight):
                    await rig.upstream.read(len(heartbeat))
                await rig.upstream.send(response(1) * in_flight)
                for _ in range(in_flight):
                    await rig.client.read_frame()
        assert bool(watch.pauses) == (in_flight > 1)

    played(test)
