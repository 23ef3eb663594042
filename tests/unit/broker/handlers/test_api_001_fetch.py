"""Fetch from bytes to bytes: limits, waiting, sessions, leaders."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from klamm.broker.fetch import sessions
from klamm.broker.fetch.sessions import EVICTION_MS, named_partitions
from klamm.broker.handlers.api_001_fetch import ROUTE, handle
from klamm.broker.requests.fetch_lookup import FetchLookup
from klamm.configs.names import MAX_TOPIC_NAME_LENGTH
from klamm.configs.quotas import QuotaLimit
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.server.fetch_response import FetchedBody, PartitionRead
from klamm.server.quotas.throttles import Throttles
from klamm.server.time_slice import TimeSlice
from klamm.storage.log import LogRange
from klamm.storage.log.cleaner import compact
from tests.support.data_path import ELSEWHERE, HERE, DataPath, joined, opened
from tests.support.logs import batch, records_in

broker = pytest.fixture(opened)

Wanted = FetchRequest.FetchPartition


def request(*wanted: FetchRequest.FetchPartition, topic: str = "t", topic_id: int = 100, **fields: int) -> FetchRequest:
    topics = [FetchRequest.FetchTopic(topic=topic, topic_id=UUID(int=topic_id), partitions=list(wanted))]
    return FetchRequest(
        max_wait_ms=fields.pop("max_wait_ms", 0),
        min_bytes=fields.pop("min_bytes", 1),
        max_bytes=fields.pop("max_bytes", 1 << 20),
        topics=topics if wanted else [],
        **fields,  # type: ignore[arg-type]  # the rest are numbers too
    )


def partition(
    index: int = 0, offset: int = 0, max_bytes: int = 1 << 20, epoch: int = -1
) -> FetchRequest.FetchPartition:
    return Wanted(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, current_leader_epoch=epoch)


def fetch(broker: DataPath, message: FetchRequest, version: int = 18, node_id: int = HERE) -> FetchResponse:
    return broker.ask(ROUTE, message, FetchResponse, version, node_id=node_id)


def returned_records(response: FetchResponse) -> list[tuple[int, int]]:
    """Partition and offset of every record, in order."""
    return [
        (item.partition_index, record.offset)
        for topic in response.responses
        for item in topic.partitions
        for record in records_in(bytes(item.records or b""))
    ]


@pytest.mark.parametrize("version", range(4, 19))
def test_records_are_fetched_in_every_version(broker: DataPath, version: int) -> None:
    broker.log().append(batch("a", "b"))

    response = fetch(broker, request(partition(), partition(1)), version)

    (topic,) = response.responses
    first, second = sorted(topic.partitions, key=lambda item: item.partition_index)
    assert returned_records(response) == [(0, 0), (0, 1)]
    assert (first.error_code, first.high_watermark, first.last_stable_offset) == (0, 2, 2)
    assert (topic.topic, topic.topic_id) == (("t", UUID(int=0)) if version < 13 else ("", UUID(int=100)))
    assert first.log_start_offset == (0 if version >= 5 else -1)
    assert (first.preferred_read_replica, first.aborted_transactions) == (-1, [])
    assert (second.partition_index, second.high_watermark) == (1, 0)
    assert second.records is not None
    assert bytes(second.records) == b""


@pytest.mark.parametrize("version", range(4, 19))
def test_body_equals_the_encoding_of_the_codec(version: int) -> None:
    body = FetchedBody(
        error_code=ErrorCode.NONE,
        session_id=77,
        partitions=[
            PartitionRead(topic="a", topic_id=UUID(int=1), partition=3, high_watermark=9, records=b"x" * 200),
            PartitionRead(topic="b", topic_id=UUID(int=2), partition=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
            PartitionRead(topic="a", topic_id=UUID(int=1), partition=4, log_start_offset=5),
        ],
    )
    if version >= 12:
        body.partitions[1].current_leader = (4, 5)
        body.partitions[2].diverging_epoch = (6, 7)
    if version >= 16:
        body.node_endpoints = [FetchResponse.NodeEndpoint(node_id=4, host="h", port=5, rack=None)]

    written = joined(body.buffers(version))

    assert body.is_flexible(version) == FetchResponse.is_flexible(version)
    assert encode(decode(FetchResponse, version, written), version) == written


def test_byte_limits_apply_except_to_the_first_batch(broker: DataPath) -> None:
    size = len(batch("x" * 100))
    for index in (0, 1):
        for _ in range(3):
            broker.log("t", index).append(batch("x" * 100))

    per_partition = fetch(broker, request(partition(max_bytes=2 * size), partition(1, max_bytes=1)))
    in_all = fetch(broker, request(partition(), partition(1), max_bytes=4 * size))
    tiny = fetch(broker, request(partition(), partition(1), max_bytes=1))

    assert sorted(returned_records(per_partition)) in ([(0, 0), (0, 1)], [(0, 0), (0, 1), (1, 0)])
    assert len(returned_records(in_all)) == 4
    assert len(returned_records(tiny)) == 1


def test_fetch_max_bytes_of_the_broker_is_a_limit_for_all_partitions_together(broker: DataPath) -> None:
    size = len(batch("x" * 100))
    broker.broker_configs["fetch.max.bytes"] = 4 * size
    for index in (0, 1):
        for _ in range(3):
            broker.log("t", index).append(batch("x" * 100))

    assert len(returned_records(fetch(broker, request(partition(), partition(1))))) == 4


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_rest_of_large_response_is_read_when_it_is_sent(broker: DataPath, isolation_level: int) -> None:
    for index in (0, 1):
        for _ in range(8):
            broker.log("t", index).append(batch("x" * 100_000))
    message = request(
        partition(max_bytes=1 << 30),
        partition(1, max_bytes=450_000),
        max_bytes=1 << 30,
        isolation_level=isolation_level,
    )

    body = asyncio.run(handle(message, broker.context(12)))

    kinds = {item.partition: (type(item.records), len(item.records)) for item in body.partitions}
    size = len(batch("x" * 100_000))
    assert kinds == {0: (LogRange, 8 * size), 1: (bytes, 4 * size)}
    answer = decode(FetchResponse, 12, joined(body.buffers(12)))
    assert len(returned_records(answer)) == 12


async def test_records_found_before_a_compaction_are_returned_after_it(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of many partitions pauses between its lookup and its reads."""
    # given
    broker.configs.update({"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    log = broker.log()
    for value in ("old", "new"):
        log.append(batch(value))
        log.roll()
    find = FetchLookup.find

    async def find_and_pause(lookup: FetchLookup) -> None:
        await find(lookup)
        assert await compact(log, broker.clock.now_ms) > 0

    monkeypatch.setattr(FetchLookup, "find", find_and_pause)
    # when
    response = await broker.call(ROUTE, request(partition()), FetchResponse, 18)
    # then
    assert response is not None
    assert [item.error_code for item in response.responses[0].partitions] == [ErrorCode.NONE]
    assert returned_records(response)[0] == (0, 0)


def test_partitions_rotate_under_a_small_limit(broker: DataPath) -> None:
    for index in (0, 1):
        broker.log("t", index).append(batch("x"))

    firsts = {returned_records(fetch(broker, request(partition(), partition(1), max_bytes=1)))[0][0] for _ in range(4)}

    assert firsts == {0, 1}


@pytest.mark.parametrize("offset", [-1, 3])
def test_out_of_range_offset_is_reported(broker: DataPath, offset: int) -> None:
    broker.log().append(batch("a", "b"))

    response = fetch(broker, request(partition(offset=offset), max_wait_ms=10_000))

    assert response.responses[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_leader_epochs_are_compared(broker: DataPath) -> None:
    """KIP-320."""
    broker.log().leader_epoch = 3

    codes = [
        fetch(broker, request(partition(epoch=epoch))).responses[0].partitions[0].error_code for epoch in (-1, 2, 3, 4)
    ]

    assert codes == [0, ErrorCode.FENCED_LEADER_EPOCH, 0, ErrorCode.UNKNOWN_LEADER_EPOCH]


def test_request_to_another_broker_returns_the_current_leader(broker: DataPath) -> None:
    """KIP-951."""
    response = fetch(broker, request(partition()), node_id=ELSEWHERE)

    (item,) = response.responses[0].partitions
    assert item.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (item.current_leader.leader_id, item.current_leader.leader_epoch) == (HERE, 0)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(HERE, "a", 1)]


def test_older_leader_epoch_returns_the_current_leader(broker: DataPath) -> None:
    """KIP-951: so the client need not ask for metadata."""
    broker.start_epoch(3)

    response = fetch(broker, request(partition(epoch=2)))

    (item,) = response.responses[0].partitions
    assert item.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (item.current_leader.leader_id, item.current_leader.leader_epoch) == (HERE, 3)
    assert [(node.node_id, node.host, node.port) for node in response.node_endpoints] == [(HERE, "a", 1)]


def test_successful_fetch_omits_current_leader(broker: DataPath) -> None:
    item = fetch(broker, request(partition())).responses[0].partitions[0]

    assert (item.current_leader.leader_id, item.current_leader.leader_epoch) == (-1, -1)


@pytest.mark.parametrize(
    ("version", "code"), [(12, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)]
)
def test_unknown_topic_is_reported_by_name_or_id(broker: DataPath, version: int, code: ErrorCode) -> None:
    response = fetch(broker, request(partition(), topic="other", topic_id=12345), version)

    (topic,) = response.responses
    assert topic.partitions[0].error_code == code
    assert topic.topic_id == (UUID(int=12345) if version >= 13 else UUID(int=0))


def test_id_of_deleted_topic_is_rejected_after_recreation(broker: DataPath) -> None:
    broker.log().append(batch("old"))
    broker.replace_topic("t")

    assert fetch(broker, request(partition())).responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_diverging_epoch_is_returned(broker: DataPath) -> None:
    """KIP-595's diverging epoch."""
    log = broker.log()
    log.append(batch("a"))
    log.leader_epoch = 2
    log.append(batch("b"))
    wanted = partition(offset=2)
    wanted.last_fetched_epoch = 1

    (item,) = fetch(broker, request(wanted)).responses[0].partitions

    assert (item.diverging_epoch.epoch, item.diverging_epoch.end_offset) == (0, 1)


# -- waiting


async def test_fetch_waits_for_min_bytes(broker: DataPath) -> None:
    size = len(batch("x"))

    message = request(partition(), partition(1), max_wait_ms=60_000, min_bytes=2 * size)
    task = asyncio.create_task(broker.call(ROUTE, message, FetchResponse, 18))
    for index in (0, 1):
        await asyncio.sleep(0.01)
        assert not task.done()
        broker.log("t", index).append(batch("x"))
    response = await asyncio.wait_for(task, 30)

    assert response is not None
    assert sorted(returned_records(response)) == [(0, 0), (1, 0)]
    assert not broker.log().waiters


def test_fetch_ends_after_max_wait(broker: DataPath) -> None:
    started = time.monotonic()

    response = fetch(broker, request(partition(), max_wait_ms=50))

    assert 0.045 <= time.monotonic() - started < 30
    assert response.responses[0].partitions[0].high_watermark == 0


async def test_cancelled_fetch_leaves_no_waiter(broker: DataPath) -> None:
    task = asyncio.create_task(broker.call(ROUTE, request(partition(), max_wait_ms=10_000), FetchResponse, 18))
    async with asyncio.timeout(20):
        while not broker.log().waiters:  # noqa: ASYNC110 -- nobody tells
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not broker.log().waiters


async def test_topic_deletion_ends_waiting_fetch(broker: DataPath) -> None:
    message = request(partition(), max_wait_ms=60_000)
    task = asyncio.create_task(broker.call(ROUTE, message, FetchResponse, 18))
    await asyncio.sleep(0.01)
    broker.replace_topic("t")
    response = await asyncio.wait_for(task, 30)

    assert response is not None
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# -- quotas (KIP-13, KIP-219)

RATE = 200


class ThrottledBroker:
    """Broker with batches of given sizes, whose clients share a quota of ``rate`` bytes per second."""

    def __init__(self, broker: DataPath, *sizes: int, rate: float = RATE) -> None:
        self.now_s = 100.0
        self._broker = broker
        quotas = SimpleNamespace(is_empty=False, limit=lambda *_: QuotaLimit(rate, (None, None)))
        self._throttles = Throttles(cast("Any", quotas), lambda _: None, now_s=lambda: self.now_s)
        for size in sizes:
            broker.log().append(stored := batch("x" * (size - len(batch("x" * 500)) + 500)))
            assert len(stored) == size

    def fetch(self, message: FetchRequest) -> FetchResponse:
        """Fetch over a new connection."""
        context = replace(self._broker.context(18), throttles=self._throttles)
        body = asyncio.run(asyncio.wait_for(handle(message, context), 20))
        return decode(FetchResponse, 18, joined(body.buffers(18)))


def test_fetch_beyond_the_quota_returns_no_records_and_is_not_charged(broker: DataPath) -> None:
    throttled = ThrottledBroker(broker, *[6 * RATE] * 2)
    first = throttled.fetch(request(partition(max_bytes=6 * RATE)))
    assert (returned_records(first), first.throttle_time_ms) == ([(0, 0)], 0)
    for _ in range(20):  # connections do not matter
        again = throttled.fetch(request(partition(offset=1)))
        assert (again.error_code, again.session_id, again.responses, again.throttle_time_ms) == (0, 0, [], 2_000)
    assert throttled.fetch(request(partition(offset=2))).responses[0].partitions[0].high_watermark == 2
    throttled.now_s += 11
    later = throttled.fetch(request(partition(offset=1)))
    assert (returned_records(later), later.throttle_time_ms) == ([(0, 1)], 0)


def test_fetch_with_tiny_quota_is_answered_with_maximum_throttle_time(broker: DataPath) -> None:
    # given
    throttled = ThrottledBroker(broker, 600, 600, rate=5e-324)
    throttled.fetch(request(partition()))
    # when
    response = throttled.fetch(request(partition(offset=1)))
    # then
    assert (response.responses, response.throttle_time_ms) == ([], 2**31 - 1)


def test_fetch_returns_no_more_than_one_second_of_the_quota(broker: DataPath) -> None:
    throttled = ThrottledBroker(broker, *[RATE] * 12)
    for offset in range(11):  # ten seconds at once, and one because the window is eleven seconds long
        response = throttled.fetch(request(partition(offset=offset), min_bytes=20 * RATE, max_wait_ms=60_000))
        assert (returned_records(response), response.throttle_time_ms) == ([(0, offset)], 0)
    response = throttled.fetch(request(partition(offset=11)))
    assert (response.responses, response.throttle_time_ms) == ([], 1_000)


def test_batch_larger_than_the_quota_is_returned_to_an_idle_client(broker: DataPath) -> None:
    throttled = ThrottledBroker(broker, 20 * RATE, 20 * RATE)
    assert returned_records(throttled.fetch(request(partition()))) == [(0, 0)]
    assert throttled.fetch(request(partition(offset=1))).throttle_time_ms == 30_000
    throttled.now_s += 11
    assert returned_records(throttled.fetch(request(partition(offset=1)))) == [(0, 1)]


def test_throttled_full_fetch_opens_no_session(broker: DataPath) -> None:
    throttled = ThrottledBroker(broker, *[10 * RATE] * 2)
    opened_id = throttled.fetch(request(partition(), session_epoch=0)).session_id
    assert opened_id > 0
    assert throttled.fetch(request(partition(offset=1), session_epoch=0)).session_id == 0
    assert len(broker.sessions) == 1
    # and an incremental one keeps its session, which still has the records to return
    message = request(partition(offset=1), session_id=opened_id, session_epoch=1)
    again = throttled.fetch(message)
    assert (again.error_code, again.session_id, again.responses, again.throttle_time_ms) == (0, opened_id, [], 10_000)
    throttled.now_s += 11
    later = throttled.fetch(request(session_id=opened_id, session_epoch=2))
    assert returned_records(later) == [(0, 1)]


# -- sessions (KIP-227)


def open_session(broker: DataPath, *wanted: FetchRequest.FetchPartition) -> int:
    response = fetch(broker, request(*wanted, session_epoch=0))
    assert response.session_id > 0
    return response.session_id


def next_fetch(
    broker: DataPath, session_id: int, epoch: int, *wanted: FetchRequest.FetchPartition, version: int = 18
) -> FetchResponse:
    return fetch(broker, request(*wanted, session_id=session_id, session_epoch=epoch), version)


def returned_partitions(response: FetchResponse) -> list[int]:
    return [item.partition_index for topic in response.responses for item in topic.partitions]


def test_fetch_session_returns_only_changed_partitions(broker: DataPath) -> None:
    session = open_session(broker, partition(), partition(1))

    unchanged = next_fetch(broker, session, 1)
    broker.log("t", 1).append(batch("x"))
    something = next_fetch(broker, session, 2)

    assert (unchanged.error_code, unchanged.session_id, returned_partitions(unchanged)) == (0, session, [])
    assert (returned_partitions(something), returned_records(something)) == ([1], [(1, 0)])


def test_fetch_session_keeps_fetch_offsets(broker: DataPath) -> None:
    broker.log().append(batch("a"))
    session = open_session(broker, partition())
    moved = next_fetch(broker, session, 1, partition(offset=1))
    broker.log().append(batch("b"))

    assert returned_partitions(moved) == []
    assert returned_records(next_fetch(broker, session, 2)) == [(0, 1)]


def test_fetch_session_adds_and_forgets_partitions(broker: DataPath) -> None:
    session = open_session(broker, partition())
    message = request(partition(1), session_id=session, session_epoch=1)
    message.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic_id=UUID(int=100), partitions=[0])]

    assert returned_partitions(fetch(broker, message)) == [1]
    for index in (0, 1):
        broker.log("t", index).append(batch("x"))
    assert returned_partitions(next_fetch(broker, session, 2)) == [1]


def test_fetch_session_repeats_errors_until_resolved(broker: DataPath) -> None:
    session = open_session(broker, partition(offset=5))

    assert [returned_partitions(next_fetch(broker, session, epoch)) for epoch in (1, 2)] == [[0], [0]]
    broker.log().append(batch(*"abcde"))
    assert returned_partitions(next_fetch(broker, session, 3)) == [0]
    assert returned_partitions(next_fetch(broker, session, 4)) == []


def test_fetch_session_reports_changed_log_start_offset(broker: DataPath) -> None:
    broker.log().append(batch("a"))
    session = open_session(broker, partition(offset=1))
    broker.log().log_start_offset = 1

    assert returned_partitions(next_fetch(broker, session, 1)) == [0]
    assert returned_partitions(next_fetch(broker, session, 2)) == []


def test_partitions_of_a_fetch_session_rotate(broker: DataPath) -> None:
    for index in (0, 1):
        for _ in range(2):
            broker.log("t", index).append(batch("x"))
    session = fetch(broker, request(partition(), partition(1), session_epoch=0, max_bytes=1)).session_id

    second = fetch(broker, request(partition(offset=1), session_id=session, session_epoch=1, max_bytes=1))

    assert returned_records(second) == [(1, 0)]


def test_unknown_fetch_session_or_wrong_epoch_is_rejected(broker: DataPath) -> None:
    session = open_session(broker, partition())

    assert next_fetch(broker, session + 1, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert next_fetch(broker, session, 2).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert next_fetch(broker, session, 1, version=12).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert next_fetch(broker, session, 1).error_code == 0


def test_final_epoch_closes_the_fetch_session(broker: DataPath) -> None:
    session = open_session(broker, partition())

    last = next_fetch(broker, session, -1, partition())

    assert (last.session_id, returned_partitions(last), len(broker.sessions)) == (0, [0], 0)
    assert next_fetch(broker, session, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_fetch_session_without_partitions_is_closed(broker: DataPath) -> None:
    session = open_session(broker, partition())
    message = request(session_id=session, session_epoch=1)
    message.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic_id=UUID(int=100), partitions=[0])]

    assert fetch(broker, message).session_id == 0
    assert len(broker.sessions) == 0


def test_fetch_sessions_are_limited_and_stale_ones_evicted(broker: DataPath) -> None:
    first, second = open_session(broker, partition()), open_session(broker, partition())

    assert fetch(broker, request(partition(), session_epoch=0)).session_id == 0
    broker.clock.now_ms += EVICTION_MS + 1
    assert next_fetch(broker, first, 1).error_code == 0
    third = open_session(broker, partition())

    assert next_fetch(broker, second, 1).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert {next_fetch(broker, first, 2).error_code, next_fetch(broker, third, 1).error_code} == {0}


def test_fetch_of_too_many_partitions_is_served_without_a_session(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSION_PARTITIONS", 1)

    response = fetch(broker, request(partition(), partition(1), session_epoch=0))

    assert (response.session_id, sorted(returned_partitions(response)), len(broker.sessions)) == (0, [0, 1], 0)


def test_fetch_session_that_grows_beyond_the_limit_is_closed(broker: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSION_PARTITIONS", 2)
    session = open_session(broker, partition())

    assert next_fetch(broker, session, 1, partition(), partition(1)).error_code == 0
    assert next_fetch(broker, session, 2, partition(2)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(broker.sessions) == 0


def test_fetch_sessions_together_are_limited(broker: DataPath, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_PARTITIONS", 3)
    first = open_session(broker, partition(), partition(1))

    assert fetch(broker, request(partition(), partition(1), session_epoch=0)).session_id == 0
    second = open_session(broker, partition())
    assert next_fetch(broker, second, 1, partition(1)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert next_fetch(broker, first, 1, partition(), partition(1)).error_code == 0
    broker.clock.now_ms += EVICTION_MS + 1
    open_session(broker, partition(), partition(1))
    assert next_fetch(broker, first, 2).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("forgets", [False, True])
def test_fetch_session_rejects_too_long_topic_name(broker: DataPath, forgets: bool) -> None:
    long_name = "t" * (MAX_TOPIC_NAME_LENGTH + 1)
    opening = request(partition(), session_epoch=0, topic="t", topic_id=0)
    session = fetch(broker, opening, version=12).session_id
    growing = request(partition(), session_id=session, session_epoch=1, topic=long_name, topic_id=0)
    growing.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic="t", partitions=[0] * forgets)]

    assert fetch(broker, growing, version=12).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    growing.session_epoch = 0
    response = fetch(broker, growing, version=12)
    assert (response.session_id, returned_partitions(response), len(broker.sessions)) == (0, [0], 0)


async def test_fetch_session_is_read_and_updated_in_time_slices(broker: DataPath) -> None:
    wanted = [partition(index) for index in range(10)]

    async def pauses_of(session_id: int, epoch: int, forgotten: int = 0) -> int:
        message = request(*wanted, session_id=session_id, session_epoch=epoch)
        message.forgotten_topics_data = [
            FetchRequest.ForgottenTopic(topic_id=UUID(int=100), partitions=list(range(forgotten)))
        ]
        time_slice = TimeSlice(0)
        plan = await broker.sessions.plan(message, 18, list(named_partitions(message)), time_slice)
        assert plan.session is not None
        assert (plan.session.epoch, len(plan.partitions)) == (epoch + 1, 10 - forgotten)
        return time_slice.pauses

    assert await pauses_of(0, 0) >= 10
    (session_id,) = broker.sessions._sessions
    assert await pauses_of(session_id, 1, forgotten=5) >= 15


async def test_fetch_session_is_continued_by_one_request_at_a_time(broker: DataPath) -> None:
    opening = request(partition(), session_epoch=0)
    plan = await broker.sessions.plan(opening, 18, list(named_partitions(opening)), TimeSlice())
    assert plan.session is not None
    message = request(partition(offset=1), session_id=plan.session.session_id, session_epoch=1)

    plans = await asyncio.gather(
        *(broker.sessions.plan(message, 18, list(named_partitions(message)), TimeSlice(0)) for _ in range(2))
    )

    assert [plan.error_code for plan in plans] == [ErrorCode.NONE, ErrorCode.INVALID_FETCH_SESSION_EPOCH]


def test_fetch_session_epoch_wraps_to_one(broker: DataPath) -> None:
    session = open_session(broker, partition())
    cached = broker.sessions.get(session)
    assert cached is not None
    cached.epoch = 2**31 - 1

    assert next_fetch(broker, session, 2**31 - 1).error_code == 0
    assert next_fetch(broker, session, 1).error_code == 0


def test_sessionless_fetch_returns_all_partitions(broker: DataPath) -> None:
    for _ in range(2):
        response = fetch(broker, request(partition(), partition(1)))
        assert (response.session_id, sorted(returned_partitions(response))) == (0, [0, 1])
