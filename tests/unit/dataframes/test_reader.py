"""Reading ranges of topics from a running broker, without Spark."""

from __future__ import annotations

import struct
import threading
import time
import zlib
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kafka
import pytest

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.dataframes import reader as reading
from klamm.dataframes.columns import columns_of
from klamm.dataframes.errors import DataLossError, ReadingError
from klamm.dataframes.options import read_options
from klamm.dataframes.positions import EARLIEST, LATEST, OffsetRange, Timestamps
from klamm.dataframes.reader import TopicReader, as_json, from_json
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.records import Codec, Record, compress, encode_batch
from tests.support.stub_broker import CLOSE, REPLICA_ID, StubBroker, redirect_fetches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.process

RECORDS = 50
HASTY = {"kafka.default.api.timeout.ms": "1000"}
"""For tests in which this time passes."""


@pytest.fixture(scope="module")
def servers() -> Iterator[str]:
    """Broker with a topic of 50 records. The first ten were deleted."""
    with klamm.Broker() as broker:
        _fill(broker.bootstrap_servers)
        yield broker.bootstrap_servers


def _fill(address: str) -> None:
    with AdminClient(address) as admin:
        admin.create_topics([NewTopic(name="t", num_partitions=1, replication_factor=1)]).all().result()
        producer = kafka.KafkaProducer(bootstrap_servers=address, batch_size=200)
        for number in range(RECORDS):
            producer.send("t", value=b"v%d" % number)
        producer.close()
    deleting = kafka.KafkaAdminClient(bootstrap_servers=address)
    deleting.delete_records({kafka.TopicPartition("t", 0): 10})
    deleting.close()


@pytest.fixture
def readers(servers: str) -> Iterator[list[TopicReader]]:
    opened: list[TopicReader] = []
    yield opened
    for reader in opened:
        reader.close()


def open_reader(readers: list[TopicReader], servers: str, **options: str) -> TopicReader:
    properties = {
        "kafka.bootstrap.servers": servers,
        "subscribe": "t",
        "kafka.default.api.timeout.ms": "30000",
    } | options
    if "subscribePattern" in options:
        del properties["subscribe"]
    readers.append(TopicReader(read_options(properties, streaming=False)))
    return readers[-1]


def offsets_of(reader: TopicReader, start: int, end: int) -> list[int]:
    wanted = OffsetRange(topic="t", partition=0, start=start, end=end)
    return [
        int(offset)
        for batches in reader.read(wanted)
        for columns in columns_of(batches, wanted)
        for offset in columns.offsets
    ]


def test_range_is_read_completely(servers: str, readers: list[TopicReader]) -> None:
    reader = open_reader(readers, servers)
    assert offsets_of(reader, 13, 37) == list(range(13, 37))


def test_offsets_resolve_to_log_start_and_end(servers: str, readers: list[TopicReader]) -> None:
    reader = open_reader(readers, servers)
    partitions = reader.partitions()
    assert reader.offsets(partitions, EARLIEST) == {("t", 0): 10}
    assert reader.resolve({"t": {0: LATEST}}, partitions) == {("t", 0): RECORDS}


def test_missing_topic_fails_unless_allowed(servers: str, readers: list[TopicReader]) -> None:
    with pytest.raises(ReadingError, match="nowhere: not a topic on"):
        open_reader(readers, servers, subscribe="t,nowhere").partitions()
    lenient = open_reader(readers, servers, subscribe="t,nowhere", failOnMissingTopic="false")
    assert lenient.partitions() == [("t", 0)]


def test_denied_topic_fails_even_if_missing_topics_are_allowed(readers: list[TopicReader]) -> None:
    denied = MetadataResponse.MetadataResponseTopic(name="t", error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with StubBroker() as broker:
        broker.answer(3, lambda _: MetadataResponse(topics=[denied]))
        lenient = open_reader(readers, broker.bootstrap_servers, failOnMissingTopic="false")
        with pytest.raises(ReadingError, match=r"t \(TOPIC_AUTHORIZATION_FAILED\): not described"):
            lenient.partitions()
        lenient.close()


def test_pattern_selects_topics_created_later(servers: str, readers: list[TopicReader]) -> None:
    properties = {"kafka.bootstrap.servers": servers, "subscribePattern": "(?i)^LAT.r-|_offsets"}
    reader = TopicReader(read_options(properties, streaming=True))
    readers.append(reader)
    assert reader.partitions() == []
    with AdminClient(servers) as admin:
        for name, count in (("later-1", 2), ("too-later-1", 1)):
            admin.create_topics([NewTopic(name=name, num_partitions=count)]).all().result()
        assert reader.partitions() == [("later-1", 0), ("later-1", 1)]
        admin.delete_topics(["later-1", "too-later-1"]).all().result()
    assert reader.partitions() == []
    with pytest.raises(ReadingError, match="later-1-1 does not exist any more: the records from 7 on are gone"):
        reader.checked({("later-1", 1): 7}, {})


def test_assign_reads_single_partitions(servers: str, readers: list[TopicReader]) -> None:
    def opened(assign: str, **more: str) -> TopicReader:
        properties = {"kafka.bootstrap.servers": servers, "assign": assign} | more
        readers.append(TopicReader(read_options(properties, streaming=False)))
        return readers[-1]

    assert opened('{"t":[0]}').partitions() == [("t", 0)]
    with pytest.raises(ReadingError, match="assign: t-3: not a partition on"):
        opened('{"t":[0,3]}').partitions()
    with pytest.raises(ReadingError, match="nowhere: not a topic on"):
        opened('{"t":[0],"nowhere":[0]}').partitions()
    assert opened('{"t":[0],"nowhere":[0]}', failOnMissingTopic="false").partitions() == [("t", 0)]


def test_timestamps_resolve_to_the_first_record_at_or_after(servers: str, readers: list[TopicReader]) -> None:
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name="timed", num_partitions=2)]).all().result()
    producer = kafka.KafkaProducer(bootstrap_servers=servers)
    for number in range(10):
        producer.send("timed", partition=0, value=b"v", timestamp_ms=1_000 + 10 * number)
    producer.close()
    reader = open_reader(readers, servers, subscribe="timed")
    partitions = reader.partitions()

    def resolved(at: Any, *, is_latest_allowed: bool = True) -> list[int]:
        offsets = reader.resolve(Timestamps(at, is_latest_allowed), partitions)
        return [offsets[where] for where in partitions]

    assert resolved(1_025) == [3, 0]
    assert resolved({"timed": {0: 1_090, 1: 5}}) == [9, 0]
    assert resolved(2_000) == [10, 0]
    with pytest.raises(ReadingError, match="timed-1: no record has a timestamp of 1025 or later"):
        resolved(1_025, is_latest_allowed=False)
    with pytest.raises(ReadingError, match=r"must name all partitions .* these differ: timed-1"):
        resolved({"timed": {0: 1_000}})


def test_offsets_must_name_existing_partitions(servers: str, readers: list[TopicReader]) -> None:
    reader = open_reader(readers, servers)
    with pytest.raises(ReadingError, match="these differ: t-9"):
        reader.resolve({"t": {0: 1, 9: 1}}, reader.partitions())


def test_deleted_records_fail_unless_data_loss_is_allowed(servers: str, readers: list[TopicReader]) -> None:
    # given
    strict, lenient = open_reader(readers, servers), open_reader(readers, servers, failOnDataLoss="false")
    for reader in (strict, lenient):
        reader.partitions()
    # then
    with pytest.raises(DataLossError, match="begins at 10: the records from 3 on are gone"):
        strict.checked({("t", 0): 3}, {("t", 0): 20})
    with pytest.raises(DataLossError, match="was the topic created again"):
        strict.checked({("t", 0): 70}, {("t", 0): 20})
    with pytest.raises(DataLossError, match="offset 3 is not there any more, it begins at 10"):
        offsets_of(strict, 3, 20)
    assert lenient.checked({("t", 0): 3}, {("t", 0): 20}) == {("t", 0): (10, 20)}
    # A batch that holds the new beginning comes whole.
    assert offsets_of(lenient, 3, 20)[-10:] == list(range(10, 20))


def test_deleted_records_of_new_partition_fail_unless_data_loss_is_allowed(
    servers: str, readers: list[TopicReader]
) -> None:
    # given: a checkpoint from before the topic was created, and a retention that has removed its first records since
    strict, lenient = open_reader(readers, servers), open_reader(readers, servers, failOnDataLoss="false")
    for reader in (strict, lenient):
        reader.partitions()
    # then
    with pytest.raises(DataLossError, match="t-0 begins at 10: the records from 0 on are gone"):
        strict.checked({}, {("t", 0): 20})
    assert lenient.checked({}, {("t", 0): 20}) == {("t", 0): (10, 20)}
    # and for a micro-batch that had been planned before they were removed
    assert lenient.checked({}, {("t", 0): 5}) == {("t", 0): (5, 5)}


def test_records_that_never_arrive_time_out(servers: str, readers: list[TopicReader]) -> None:
    with pytest.raises(ReadingError, match=r"nothing from offset 50 up to 99 for 1 s"):
        offsets_of(open_reader(readers, servers, **HASTY), 40, 99)


def test_missing_end_of_range_is_skipped_if_data_loss_is_allowed(servers: str, readers: list[TopicReader]) -> None:
    """As after the topic was created again, with fewer records, between planning and reading."""
    lenient = open_reader(readers, servers, failOnDataLoss="false", **HASTY)
    assert offsets_of(lenient, 40, 99) == list(range(40, 50))


def test_deleted_partitions_fail_unless_data_loss_is_allowed(servers: str, readers: list[TopicReader]) -> None:
    # given: a checkpoint from before the topic was created again with fewer partitions
    before, after, all_of_it = {("t", 0): 10, ("t", 1): 7}, {("t", 0): 20}, {("t", 0): (10, 20)}
    strict = open_reader(readers, servers, **HASTY)
    lenient = open_reader(readers, servers, failOnDataLoss="false", **HASTY)
    for reader in (strict, lenient):
        reader.partitions()
    # then
    with pytest.raises(ReadingError, match="t-1 does not exist any more: the records from 7 on are gone"):
        strict.checked(before, after)
    assert lenient.checked(before, after) == all_of_it
    # and for a micro-batch that had been planned before
    with pytest.raises(ReadingError, match="t-1 does not exist any more: the records up to 9 are gone"):
        strict.checked(before, after | {("t", 1): 9})
    assert lenient.checked(before, after | {("t", 1): 9}) == all_of_it
    # and for a topic that was taken out of subscribe
    assert strict.checked({("t", 0): 10, ("never-subscribed", 0): 5}, after) == all_of_it


@pytest.mark.parametrize("option", [{"subscribe": "t,x"}, {"subscribePattern": "t|x"}], ids=["names", "pattern"])
def test_micro_batch_of_deleted_topic_is_skipped_if_allowed(
    servers: str, readers: list[TopicReader], option: dict[str, str]
) -> None:
    options = {"failOnMissingTopic": "false", "failOnDataLoss": "false", **option, **HASTY}
    reader = open_reader(readers, servers, **options)
    reader.partitions()
    assert reader.checked({("x", 0): 1, ("t", 0): 10}, {("x", 0): 9, ("t", 0): 20}) == {("t", 0): (10, 20)}


def test_micro_batch_planned_before_its_topic_was_unsubscribed_is_read(
    servers: str, readers: list[TopicReader]
) -> None:
    # given
    with AdminClient(servers) as admin:
        admin.create_topics([NewTopic(name="unsubscribed", num_partitions=1)]).all().result()
    strict = open_reader(readers, servers)
    strict.partitions()
    # when
    planned = strict.checked({("t", 0): 10}, {("t", 0): 20, ("unsubscribed", 0): 0})
    strict.partitions()
    following = strict.checked({("t", 0): 20, ("unsubscribed", 0): 0}, {("t", 0): 30})
    # then
    assert planned == {("t", 0): (10, 20), ("unsubscribed", 0): (0, 0)}
    assert following == {("t", 0): (20, 30)}


def test_reader_waits_for_a_restarting_broker(tmp_path: Path, readers: list[TopicReader]) -> None:
    with klamm.Broker(data_dir=tmp_path) as broker:
        address = broker.bootstrap_servers
        _fill(address)
        reader = open_reader(readers, address)
        reader.partitions()
    again = klamm.Broker(data_dir=tmp_path, listen=address)
    starting = threading.Timer(0.5, again.start)
    starting.start()
    try:
        assert reader.partitions() == [("t", 0)]
        reader.close()
    finally:
        starting.join()
        again.stop()


def test_unreachable_cluster_fails_without_waiting(readers: list[TopicReader]) -> None:
    begun = time.monotonic()
    with pytest.raises(ConnectionLostError):
        open_reader(readers, "127.0.0.1:1").partitions()
    assert time.monotonic() - begun < 15


def test_slow_query_leaves_time_to_fetch_the_next_records(readers: list[TopicReader]) -> None:
    # given: a broker that closes the connection while the first records are processed
    batches = [encode_batch([Record(None, b"v", (), 5, at)]) for at in (0, 1)]
    answers: deque[Any] = deque([batches[0], CLOSE, batches[1]])

    def answer(_: object) -> Any:
        records = answers.popleft()
        if records is CLOSE:
            return CLOSE
        partition = FetchResponse.PartitionData(partition_index=0, high_watermark=2, records=records)
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])

    wanted = OffsetRange(topic="t", partition=0, start=0, end=2)
    with StubBroker(topic="t", versions={1: (4, 11)}) as broker:
        broker.answer(1, answer)
        reader = open_reader(readers, broker.bootstrap_servers, **{"kafka.default.api.timeout.ms": "3000"})
        # when
        offsets = []
        for some in reader.read(wanted):
            offsets += [batch.base_offset for batch in some]
            time.sleep(3.1)  # longer than default.api.timeout.ms
        reader.close()
    # then
    assert offsets == [0, 1]


def fetched(**partition: Any) -> FetchResponse:
    entry = FetchResponse.PartitionData(partition_index=0, high_watermark=2, **partition)
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[entry])])


@pytest.mark.parametrize(
    ("failure", "waits"),
    [
        (fetched(error_code=int(ErrorCode.OFFSET_OUT_OF_RANGE)), 1),
        (fetched(error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER)), 1),
        (fetched(preferred_read_replica=REPLICA_ID), 1),
        (fetched(), 0),
        (CLOSE, 1),
    ],
    ids=["lagging", "moved", "redirecting", "empty", "disconnected"],
)
def test_range_is_read_from_the_preferred_read_replica_until_it_fails(
    readers: list[TopicReader], monkeypatch: pytest.MonkeyPatch, failure: Any, waits: int
) -> None:
    """KIP-392. The leader has no records, like a klamm that leads the partitions of a mirror."""
    first, *others = [fetched(records=bytes(encode_batch([Record(None, b"v", (), 5, at)]))) for at in range(3)]
    answers = deque([first, failure, *others])
    with (
        StubBroker(topic="t", versions={1: (4, 11)}) as leader,
        StubBroker(topic="t", versions={1: (4, 11)}) as replica,
    ):
        redirect_fetches(leader, replica, topic="t")
        replica.answer(1, lambda _: answers.popleft())
        reader = open_reader(readers, leader.bootstrap_servers)
        slept: list[float] = []
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=slept.append))
        # when
        offsets = offsets_of(reader, 0, 3)
        reader.close()
        # then
        assert offsets == [0, 1, 2]
        assert len(leader.requests(1)) == 2, "at the beginning, and after the failure"
        assert len(slept) == waits


def test_throttle_time_of_a_quota_is_waited_for_and_does_not_count(
    readers: list[TopicReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    asked_at: list[float] = []

    def sleep(seconds: float) -> None:
        now[0] += seconds

    def answer(_: object) -> FetchResponse:
        asked_at.append(now[0])
        if len(asked_at) <= 10:
            return FetchResponse(throttle_time_ms=11_000)
        partition = FetchResponse.PartitionData(
            partition_index=0, high_watermark=1, records=bytes(encode_batch([Record(None, b"v", (), 5)]))
        )
        return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])])

    with StubBroker(topic="t", versions={1: (4, 11)}) as broker:
        broker.answer(1, answer)
        reader = open_reader(readers, broker.bootstrap_servers)
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
        assert offsets_of(reader, 0, 1) == [0]
        reader.close()
    assert asked_at == [11.0 * number for number in range(11)], "longer than default.api.timeout.ms"


def test_quota_that_never_allows_records_is_reported(
    readers: list[TopicReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    with StubBroker(topic="t", versions={1: (4, 11)}) as broker:
        broker.answer(1, lambda _: FetchResponse(throttle_time_ms=11_000))
        reader = open_reader(readers, broker.bootstrap_servers)
        monkeypatch.setattr(reading, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
        with pytest.raises(ReadingError, match="t-0: the quota consumer_byte_rate has allowed no records for 308 s"):
            offsets_of(reader, 0, 1)
        reader.close()


def test_topic_deleted_before_it_is_read_is_reported(servers: str, readers: list[TopicReader]) -> None:
    reader = open_reader(readers, servers, subscribe="gone", failOnMissingTopic="false", **HASTY)
    with pytest.raises(
        ReadingError, match=r"gone-0: nothing from offset 3 up to 9 for 1 s: it does not exist any more"
    ):
        list(reader.read(OffsetRange(topic="gone", partition=0, start=3, end=9)))


def test_offsets_survive_a_checkpoint() -> None:
    offsets = {("a", 0): 5, ("a", 11): 1 << 40, ("b", 2): 0}
    assert from_json(as_json(offsets)) == offsets


def old_message(offset: int, value: bytes, *, codec: Codec = Codec.NONE) -> bytes:
    """A message of magic 1 without a key."""
    body = struct.pack(">bbqii", 1, codec, 55, -1, len(value)) + value
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


@pytest.mark.parametrize(("start", "end"), [(0, 3), (3, 6), (2, 4), (0, 10), (5, 6)])
def test_range_within_a_compressed_message_set_is_read(readers: list[TopicReader], start: int, end: int) -> None:
    """Logs from before Kafka 0.11 have such sets. Their offset is that of their last message."""
    sets = b"".join(
        old_message(last, compress(Codec.GZIP, b"".join(old_message(at, b"v") for at in range(5))), codec=Codec.GZIP)
        for last in (4, 9)
    )
    partition = FetchResponse.PartitionData(partition_index=0, high_watermark=10, records=sets)
    topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=[partition])
    with StubBroker(topic="t", versions={1: (4, 11)}) as broker:
        broker.answer(1, lambda _: FetchResponse(responses=[topic]))
        reader = open_reader(readers, broker.bootstrap_servers)
        assert offsets_of(reader, start, end) == list(range(start, end))
        reader.close()
