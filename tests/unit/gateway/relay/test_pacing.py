"""Pauses of the event loop under load, and connections for which it does not pause."""

from __future__ import annotations

import asyncio
import math

import pytest

from klamm.gateway.relay.pacing import BUSY_PER_S, CALM_PER_S, PAUSE_S, RENEWED_S, RETRIED_S, SAMPLE, Pacer
from klamm.server.time_slice import Turns
from tests.support.relay_rig import RelayRig, request, response, shared_objects

PIECE = 16_384


class Load:
    """Reads of a pacer, at a rate and with numbers of bytes that tests set, and the pauses that it made."""

    def __init__(self) -> None:
        self.now = 0.0
        self.per_second = BUSY_PER_S * 2.0
        self.unpaused_bytes = PIECE
        self.paused_bytes = PIECE * 4
        self.pauses: list[float] = []
        self.pacer = Pacer(clock=lambda: self.now, pause=self.pauses.append)

    async def sample(self) -> bool:
        """Play one sample, and return whether the loop pauses after it."""
        for _ in range(SAMPLE):
            count = self.paused_bytes if self.pauses else self.unpaused_bytes
            self.now += 1 / self.per_second
            self.pauses.clear()
            self.pacer.on_read(count, asyncio.get_running_loop())
            await asyncio.sleep(0)
        assert set(self.pauses) <= {PAUSE_S}
        return bool(self.pauses)

    async def samples(self, count: int) -> list[bool]:
        return [await self.sample() for _ in range(count)]

    async def play(self, seconds: float) -> list[bool]:
        """Play samples for some time."""
        return await self.samples(int(seconds * self.per_second / SAMPLE) + 2)


@pytest.mark.parametrize("per_second", [BUSY_PER_S / 2, BUSY_PER_S * 2], ids=["below", "above"])
async def test_event_loop_pauses_only_above_a_rate_of_reads(per_second: float) -> None:
    load = Load()
    load.per_second = per_second
    assert set(await load.samples(3)) == {per_second > BUSY_PER_S}


async def test_several_reads_of_one_turn_of_the_loop_make_one_pause() -> None:
    load = Load()
    for _ in range(SAMPLE + 10):
        load.pacer.on_read(PIECE, asyncio.get_running_loop())
    await asyncio.sleep(0)
    assert load.pauses == [PAUSE_S]


async def test_pauses_end_below_their_start_rate() -> None:
    load = Load()
    paused = []
    between = (CALM_PER_S + BUSY_PER_S) / 2
    for load.per_second in (BUSY_PER_S * 2, between, CALM_PER_S / 2, between):
        paused.append(await load.sample())
    assert paused == [True, True, False, False]


async def test_useless_pauses_end_until_a_later_trial() -> None:
    load = Load()
    load.paused_bytes = PIECE
    assert await load.samples(3) == [True, False, False]
    assert (await load.play(RETRIED_S)).count(True) == 1


async def test_pauses_start_at_once_when_reads_are_small() -> None:
    load = Load()
    load.unpaused_bytes = load.paused_bytes
    assert await load.samples(3) == [True, False, False]
    load.unpaused_bytes = PIECE
    assert await load.samples(2) == [True, True]


async def test_pauses_end_when_a_sample_shows_no_gain() -> None:
    load = Load()
    await load.samples(2)
    assert (await load.play(RENEWED_S)).count(False) == 1
    load.unpaused_bytes = load.paused_bytes
    assert not any((await load.play(RENEWED_S + 2 * SAMPLE / load.per_second))[-2:])


class OverTurns(Turns):
    """Turns that are over at once, as on a busy machine: a request waits until the connection has its turn again."""

    def ends_at(self) -> float:
        return 0.0

    def take(self) -> float:
        super().take()
        return math.inf


@pytest.mark.parametrize("turns", [Turns, OverTurns])
@pytest.mark.parametrize("in_flight", [1, 2])
async def test_only_pipelining_clients_make_the_loop_pause(in_flight: int, turns: type[Turns]) -> None:
    load = Load()
    with RelayRig(shared_objects(pacer=load.pacer, turns=turns())) as rig:
        heartbeat = request(12, 0, b"body")
        for _ in range(40):
            await rig.client.send(heartbeat * in_flight)
            for _ in range(in_flight):
                await rig.upstream.read(len(heartbeat))
            await rig.upstream.send(response(1) * in_flight)
            for _ in range(in_flight):
                await rig.client.read_frame()
    assert bool(load.pauses) == (in_flight > 1)
