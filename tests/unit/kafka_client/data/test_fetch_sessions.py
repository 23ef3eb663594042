"""Partitions that a fetch session sends: all at first, then the changes (KIP-227)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.data.fetch import FetchLimits, FetchSessionHandler, WantedRecords

if TYPE_CHECKING:
    from klamm.protocol.messages.fetch import FetchRequest

LIMITS = FetchLimits(100, 50, 1, 250)
ORDERS = uuid.UUID(int=7)


def wanted_records(partition: int, offset: int) -> WantedRecords:
    return WantedRecords("orders", ORDERS, partition, offset)


def sent(request: FetchRequest) -> tuple[int, int, dict[int, int], list[int]]:
    """Session id, epoch, offsets by partition, forgotten partitions."""
    return (
        request.session_id,
        request.session_epoch,
        {each.partition: each.fetch_offset for topic in request.topics for each in topic.partitions},
        [number for topic in request.forgotten_topics_data for number in topic.partitions],
    )


@pytest.fixture
def session() -> FetchSessionHandler:
    """A session with two partitions that the broker has answered once, as session 9."""
    session = FetchSessionHandler()
    session.want(wanted_records(0, 10))
    session.want(wanted_records(1, 20))
    assert sent(session.request(LIMITS, read_committed=False)) == (0, 0, {0: 10, 1: 20}, [])
    session.answered(9)
    return session


def test_unchanged_partitions_are_omitted(session: FetchSessionHandler) -> None:
    session.want(wanted_records(0, 10))
    assert sent(session.request(LIMITS, read_committed=False)) == (9, 1, {}, [])


def test_changed_partitions_are_sent_once(session: FetchSessionHandler) -> None:
    session.want(wanted_records(1, 25))
    session.forget(("orders", 0))
    assert sent(session.request(LIMITS, read_committed=False)) == (9, 1, {1: 25}, [0])
    session.answered(9)
    assert sent(session.request(LIMITS, read_committed=False)) == (9, 2, {}, [])


def test_forgotten_partition_can_be_added_before_the_next_request(session: FetchSessionHandler) -> None:
    session.forget(("orders", 0))
    session.want(wanted_records(0, 10))
    assert sent(session.request(LIMITS, read_committed=False)) == (9, 1, {0: 10}, [])


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_partition_of_a_topic_that_was_created_again_begins_a_new_session(
    session: FetchSessionHandler, is_forgotten: bool
) -> None:
    if is_forgotten:
        session.forget(("orders", 0))
    session.want(WantedRecords("orders", uuid.UUID(int=8), 0, 0))
    assert sent(session.request(LIMITS, read_committed=False)) == (0, 0, {0: 0, 1: 20}, [])


def test_reset_session_sends_all_partitions_again(session: FetchSessionHandler) -> None:
    session.forget(("orders", 0))
    session.reset()
    assert sent(session.request(LIMITS, read_committed=False)) == (0, 0, {1: 20}, [])


def test_sessionless_broker_gets_all_partitions_each_time(session: FetchSessionHandler) -> None:
    session.reset()
    for _ in range(2):
        assert sent(session.request(LIMITS, read_committed=False)) == (0, 0, {0: 10, 1: 20}, [])
        session.answered(0)


def test_epoch_sent_by_client_wraps_to_one() -> None:
    """Kafka's FetchMetadata.nextEpoch: 0 would begin a new session."""
    session = FetchSessionHandler()
    session.want(wanted_records(0, 0))
    session.request(LIMITS, read_committed=False)
    session.answered(9)
    session._epoch = 0x7FFFFFFF
    session.answered(9)
    assert sent(session.request(LIMITS, read_committed=False))[1] == 1
