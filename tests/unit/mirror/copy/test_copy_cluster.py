"""Pauses between attempts of a copier to reach the same broker. No network: the test opens the connections."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.copy_cluster import CopyCluster
from klamm.protocol.messages.metadata import MetadataResponse

if TYPE_CHECKING:
    from collections.abc import Callable

LOST, OTHER = 1, 2
BROKER = MetadataResponse.MetadataResponseBroker


class Rig:
    """A cluster of two brokers and the bootstrap server ``h0``, with a clock of the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.blocks_s: float | None = 5.0
        """Seconds after which an attempt to reach node 1 fails. None: it succeeds."""
        self.attempts: list[str] = []
        self.is_deferred = False
        """Whether attempts in another thread wait until the test runs them."""
        self.opened: list[Mock] = []
        self.threads: list[Callable[[], None]] = []
        monkeypatch.setattr("klamm.kafka_client.data.cluster.open_connection", self.open)
        settings = ConnectionSettings(bootstrap_servers=("h0:1",), client_id="copier")
        self.cluster = CopyCluster(settings, BufferPool(max_free_bytes=0), lambda: self.now, self.start)
        self.cluster.refresh(["t"])
        self.attempts.clear()

    def open(self, host: str, *_: object) -> Any:
        self.attempts.append(host)
        if host == "h1" and self.blocks_s is not None:
            self.now += self.blocks_s
            raise ConnectionLostError(f"{host}: timed out")
        brokers = [BROKER(node_id=node, host=f"h{node}", port=1) for node in (LOST, OTHER)]
        response = MetadataResponse(brokers=brokers, topics=[])
        self.opened.append(
            connection := Mock(
                closed=False, login_due_at=math.inf, round_trip_s=0.001, call=Mock(return_value=response)
            )
        )
        return connection

    def start(self, work: Callable[[], None]) -> None:
        self.threads.append(work)
        if not self.is_deferred:
            work()

    def attempt(self, lane: int = 0) -> None:
        """Fail to reach the broker that does not respond, at once or after a while."""
        with pytest.raises(ConnectionLostError, match="h1: timed out"):
            self.cluster.connection(LOST, lane)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    return Rig(monkeypatch)


def test_refresh_leaves_out_an_unreachable_broker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refreshes take turns between the brokers, and the attempt would block the partitions of all others."""
    # given
    rig.attempt()
    monkeypatch.setattr(rig.cluster, "_turn_at", 0.0)
    # when
    rig.cluster.refresh(["t"])
    # then
    assert rig.attempts == ["h1", "h2"]


def test_unreachable_broker_blocks_only_one_of_its_lanes(rig: Rig) -> None:
    # when
    rig.attempt(lane=0)
    rig.attempt(lane=1)
    rig.attempt(lane=2)
    # then
    assert (rig.attempts, rig.now) == (["h1"], 1005.0)
    rig.cluster.connection(OTHER)
    assert rig.attempts == ["h1", "h2"]


def test_pause_after_unreachable_broker_starts_after_the_attempt_and_grows(rig: Rig) -> None:
    # given
    rig.attempt()
    pauses_s = []
    # when
    for count in range(2, 7):
        failed_at = rig.now
        while len(rig.attempts) < count:
            rig.now += 1.0
            rig.attempt()
        pauses_s.append(rig.now - failed_at - 5.0)
    # then
    assert pauses_s == [5.0, 10.0, 20.0, 30.0, 30.0]


def test_broker_that_rejects_connections_is_hardly_paused(rig: Rig) -> None:
    # given
    rig.blocks_s = 0.001
    # when
    for _ in range(20):
        rig.attempt()
        rig.now += 0.2
    # then
    assert len(rig.attempts) == 20


def test_reachable_broker_is_forgotten_as_unreachable(rig: Rig) -> None:
    # given
    rig.attempt()
    rig.now += 5.0
    rig.blocks_s = None
    # when
    opened = rig.cluster.connection(LOST)
    # then
    assert rig.cluster.connection(LOST) is opened
    assert rig.attempts == ["h1", "h1"]


def test_unreachable_broker_is_tried_again_without_blocking(rig: Rig) -> None:
    # given
    rig.attempt()
    rig.now += 5.0
    rig.is_deferred = True
    # when
    rig.attempt()
    rig.attempt(lane=1)
    # then
    assert (rig.now, len(rig.threads)) == (1010.0, 1), "one attempt, in another thread"
    rig.cluster.connection(OTHER)
    # when it is reached
    rig.blocks_s = None
    rig.threads[0]()
    # then
    assert rig.cluster.connection(LOST, 1) is rig.cluster.connection(LOST, 1)
    assert rig.attempts == ["h1", "h2", "h1"]


def test_broker_is_tried_again_after_no_thread_could_be_started(rig: Rig) -> None:
    # given
    def no_thread(_: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    rig.attempt()
    rig.now += 5.0
    start, rig.cluster._start = rig.cluster._start, no_thread
    # when
    with pytest.raises(ConnectionLostError, match="can't start new thread"):
        rig.cluster.connection(LOST)
    rig.cluster._start, rig.blocks_s = start, None
    # then
    rig.cluster.connection(LOST)


def test_pause_after_an_attempt_in_another_thread_grows(rig: Rig) -> None:
    # given
    rig.attempt()
    rig.now += 5.0
    rig.is_deferred = True
    rig.attempt()
    # when
    rig.threads[0]()
    rig.attempt()
    rig.now += 9.0
    rig.attempt()
    # then
    assert len(rig.threads) == 1
    rig.now += 1.0
    rig.attempt()
    assert len(rig.threads) == 2


@pytest.mark.parametrize("is_late", [True, False])
def test_closed_cluster_closes_connection_of_attempt_in_progress(rig: Rig, is_late: bool) -> None:
    # given
    rig.attempt()
    rig.now += 5.0
    rig.blocks_s, rig.is_deferred = None, True
    rig.attempt()
    # when
    steps = [rig.threads[0], rig.cluster.close]
    for step in reversed(steps) if is_late else steps:
        step()
    # then
    rig.opened[-1].close.assert_called_once_with()
