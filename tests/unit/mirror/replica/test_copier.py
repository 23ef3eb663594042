"""Pace of the promotions of a copier that is connected to nothing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.image import BrokerEndpoint
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import StoredPromotion
from klamm.mirror.replica.copier import ReplicaCopier
from klamm.mirror.replica.leader_partition import FIRST_FETCH_S, LeaderPartition, Leadership
from klamm.mirror.replica.promotion import PromotionError, PromotionWaitsError
from klamm.server.listeners import Address
from tests.support.copiers import copy_settings
from tests.support.replicas import FakeMember, image_of

if TYPE_CHECKING:
    from collections.abc import Iterator

KLAMM = 9
_NOWHERE = "127.0.0.1:1"


class Clock:
    """Time of the copier."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def copier(clock: Clock) -> Iterator[ReplicaCopier]:
    endpoint = BrokerEndpoint(name="PLAINTEXT", host="127.0.0.1", port=1, security_protocol="PLAINTEXT")
    replica = ReplicaSettings(
        node_id=KLAMM,
        controllers=ConnectionSettings(bootstrap_servers=(), client_id="replica"),
        listeners=(endpoint,),
        bind=(Address(host="127.0.0.1", port=1),),
    )
    member = FakeMember(image_of("A.orders", UUID(int=7), KLAMM, (1, 2, 3)), KLAMM)
    partitions = [PartitionId("orders", 0, "A.orders")]
    settings = copy_settings(_NOWHERE, _NOWHERE, alias="A")
    copier = ReplicaCopier(settings, replica, partitions, new_member=lambda: member, clock=clock)
    copier.node._member = member
    copier.promoted = {"orders": "FAILED_OVER"}
    yield copier
    copier.close()


def attempts(copier: ReplicaCopier, clock: Clock, error: Exception, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the times in seconds at which a copier tries to hand a topic over in a minute, which fails."""
    begin, times = clock.now, list[float]()

    def hand_over(*_: object, **__: object) -> None:
        times.append(clock.now - begin)
        raise error

    monkeypatch.setattr(copier._promotion, "hand_over", hand_over)
    monkeypatch.setattr(copier._store, "read", StoredSourceOffsets)
    while clock.now < begin + 60:
        copier._change_leaders(clock.now)
        clock.now += 0.5
    return times


def test_failed_promotion_is_tried_again_after_longer_and_longer_pauses(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = attempts(copier, clock, PromotionError("replica 2 is slow"), monkeypatch)

    assert times == [0, 0.5, 1.5, 3.5, 7.5, 15.5, 31.5]
    copier.promoted = {}
    copier._change_leaders(clock.now)
    copier.promoted = {"orders": "FAILED_OVER"}
    assert attempts(copier, clock, PromotionError("replica 2 is slow"), monkeypatch)[:2] == [0.5, 1.0]


def test_promotion_that_seals_nothing_is_tried_again_soon(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = attempts(copier, clock, PromotionWaitsError("replica 2 is not live"), monkeypatch)

    assert len(times) == 120


@pytest.mark.parametrize("is_finished", [True, False])
@pytest.mark.parametrize("topic_id", [UUID(int=7), UUID(int=8)])
def test_finished_promotion_and_one_of_another_topic_id_are_not_repeated(
    copier: ReplicaCopier,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    topic_id: UUID,
    *,
    is_finished: bool,
) -> None:
    aborts = list[object]()

    def end_transactions(ends: object) -> None:
        aborts.append(ends)
        raise PromotionError("broker 1 is away")

    stored = StoredSourceOffsets(
        offsets={("orders", 0): 2}, promotions={"orders": StoredPromotion(topic_id, is_finished)}
    )
    monkeypatch.setattr(copier._store, "read", lambda: stored)
    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: True)
    monkeypatch.setattr(copier._promotion, "end_transactions", end_transactions)
    copier.node._by_name["A.orders", 0] = LeaderPartition("A.orders", UUID(int=7), 0)

    copier._change_leaders(clock.now)

    is_left_alone = is_finished or topic_id != UUID(int=7)
    assert aborts == ([] if is_left_alone else [{("A.orders", 0): 3}])
    (row,) = copier.progress()
    assert (row.state is CopyState.PROMOTED) == is_left_alone
    assert ("created again" in row.reason) == (topic_id != UUID(int=7))


def test_replicas_that_klamm_may_have_rejected_are_named(copier: ReplicaCopier) -> None:
    nodes, leader = frozenset({1, 2}), LeaderPartition("A.orders", UUID(int=7), 0)
    led_since = time.monotonic() - FIRST_FETCH_S - 1
    leader.lead(Leadership(leader_epoch=0, partition_epoch=0, replicas=nodes, live=nodes), led_since)
    assert copier._missing_replicas(leader) == ""

    copier.node.access.on_rejected("10.0.0.2", "its TLS handshake failed: certificate unknown")

    expected = "replicas 1, 2 do not fetch; klamm rejected 10.0.0.2: its TLS handshake failed: certificate unknown"
    assert copier._missing_replicas(leader) == expected
    leader.lead(Leadership(leader_epoch=1, partition_epoch=1, replicas=nodes, live=nodes), time.monotonic())
    assert copier._missing_replicas(leader) == ""


def test_topics_that_wait_for_the_source_try_to_reach_it_once_for_all(
    copier: ReplicaCopier, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshed: list[tuple[float, str]] = []

    def refresh(topics: list[str]) -> None:
        refreshed.append((clock.now - 100, topics[0]))
        raise ConnectionLostError("the source is away")

    for topic in ("orders", "users"):
        copier._keys[f"A.{topic}", 0] = topic, 0
    copier.promoted = {"orders": "PROMOTED", "users": "PROMOTED"}
    monkeypatch.setattr(copier._promotion, "is_handed_over", lambda _: False)
    monkeypatch.setattr(copier._source, "refresh", refresh)

    for _ in range(60):
        copier._change_leaders(clock.now)
        clock.now += 0.5

    assert [time for time, _ in refreshed] == [0, 0.5, 1.5, 3.5, 7.5, 15.5]
    assert copier._waiting == dict.fromkeys(("orders", "users"), "the source is away")
