"""Batches of records for internal topics on a broker that checks sizes and sequence numbers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

import klamm
from klamm.kafka_client import internal_topic
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.records import RecordsRejectedError
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kafka_client.internal_topic import PartitionWriter
from klamm.mirror.records.internal_topic import ControlConnection
from klamm.protocol.errors import ErrorCode
from klamm.protocol.records import Record, RecordBatch, decode_records, encode_batch
from tests.support.mirror import create_topic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.kafka_client.data.cluster import Cluster

CLUSTER = cast("Cluster", None)
A_MEGABYTE = 1_048_588
"""``max.message.bytes`` where nobody has set it."""


class Target:
    """Topic in memory. The connection breaks where a test requires it, after the records were appended."""

    def __init__(self, most_bytes: int = A_MEGABYTE) -> None:
        self.most_bytes = most_bytes
        self.values: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []
        self.last: dict[int, tuple[int, int]] = {}
        self.breaks_at = -1
        self.requests = 0
        self.sequences: dict[int, int] = {}

    def write(self, _: object, topic: str, batches: Mapping[int, bytes], **_about: Any) -> None:
        assert topic == "own"
        self.requests += 1
        rejected = {code for number, data in batches.items() if (code := self.take(number, data)) != ErrorCode.NONE}
        if self.requests == self.breaks_at:
            raise ConnectionLostError("gone")
        if rejected:
            raise RecordsRejectedError(topic, rejected)

    def take(self, number: int, data: bytes) -> ErrorCode:
        if len(data) > self.most_bytes:
            return ErrorCode.MESSAGE_TOO_LARGE
        batch = RecordBatch(memoryview(data))
        records = decode_records(batch)
        ends = (batch.base_sequence, batch.base_sequence + len(records))
        if batch.base_sequence >= 0 and self.last.get(number) == ends:
            return ErrorCode.NONE
        if batch.base_sequence >= 0 and batch.base_sequence != self.last.get(number, (0, 0))[1]:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert [record.offset for record in records] == list(range(len(records)))
        self.last[number] = ends
        self.sizes.append(len(data))
        self.values.setdefault(number, []).extend(bytes(record.value or b"") for record in records)
        return ErrorCode.NONE

    def numbered(self, records: Mapping[int, Sequence[Record]]) -> PartitionWriter:
        """Records with sequence numbers."""

        def count(number: int, taken: int) -> None:
            self.sequences[number] = self.sequences.get(number, 0) + taken

        return PartitionWriter(
            records,
            lambda number, some: encode_batch(some, producer_id=7, base_sequence=self.sequences.get(number, 0)),
            count,
        )


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    made = Target()
    monkeypatch.setattr(internal_topic, "write_batches", made.write)
    return made


def values(count: int, size: int = 100) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]


def records(some: Sequence[bytes]) -> list[Record]:
    return [Record(key=b"k", value=value, timestamp=7) for value in some]


def test_records_are_split_into_batches_below_the_topic_limit(target: Target) -> None:
    wanted = {0: values(20_000), 3: values(5, 200_000), 7: values(1)}
    internal_topic.write_records(CLUSTER, "own", {at: records(some) for at, some in wanted.items()}, timeout_s=1.0)
    assert target.values == wanted
    assert target.requests == 20, "all partitions in each"
    assert max(target.sizes) < A_MEGABYTE / 2


def test_topic_with_lower_limit_gets_smaller_batches(target: Target) -> None:
    target.most_bytes = 2_000
    wanted = {0: values(500), 1: values(10), 2: values(3)}
    internal_topic.write_records(CLUSTER, "own", {0: records(wanted[0])}, timeout_s=1.0)
    assert target.values == {0: wanted[0]}
    assert target.requests < 120, "not one of each record"


def test_numbered_batches_are_written_once_despite_rejections_and_losses() -> None:
    """The error does not name the partition whose batch was too large; the others are resent unchanged."""
    wanted = {0: values(40), 1: values(3), 2: values(40)}
    for breaks_at in range(60):
        with pytest.MonkeyPatch.context() as patch:
            target = Target(most_bytes=600)
            patch.setattr(internal_topic, "write_batches", target.write)
            target.breaks_at = breaks_at
            own = target.numbered({at: records(some) for at, some in wanted.items()})
            # when
            try:
                own.write(CLUSTER, "own", timeout_s=1.0)
            except ConnectionLostError:
                own.write(CLUSTER, "own", timeout_s=1.0)
            # then
            assert target.values == wanted, breaks_at
            assert target.sequences == {0: 40, 1: 3, 2: 40}
            assert not own.partitions


def test_oversized_record_and_other_rejections_are_reported(target: Target) -> None:
    target.most_bytes = 500
    own = target.numbered({0: records([b"small", bytes(500), b"behind it"])})
    with pytest.raises(RecordsRejectedError, match="MESSAGE_TOO_LARGE"):
        own.write(CLUSTER, "own", timeout_s=1.0)
    assert target.values == {0: [b"small"]}
    assert own.partitions == {0}
    target.sequences = {0: 5}
    with pytest.raises(RecordsRejectedError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        target.numbered({0: records([b"small"])}).write(CLUSTER, "own", timeout_s=1.0)


@pytest.mark.process
def test_records_above_max_message_bytes_are_written_in_several_batches() -> None:
    """The driver writes its records through the same door."""
    with klamm.Broker() as broker:
        # given
        create_topic(broker.bootstrap_servers, "own", 1, {"max.message.bytes": "20000"})
        settings = ConnectionSettings.of((broker.bootstrap_servers,), {}, "test")
        some = values(12_000)
        with contextlib.closing(ControlConnection(settings)) as connection:
            # when
            connection.write("own", records(some))
            # then
            assert [record.value for record in connection.read("own", 0)[0]] == some


def test_partition_hiding_records_ends_waiting_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    partitions: list[int] = []

    def nothing(_: object, __: str, partition: int, at: int, **___: object) -> tuple[list[Record], int]:
        partitions.append(partition)
        return [], at

    monkeypatch.setattr(internal_topic, "read_records", nothing)
    cluster = Mock()
    cluster.topics = {"t": Mock(partitions=(0, 1, 2))}
    cluster.log_bounds = lambda where: dict.fromkeys(where, range(1))
    # when
    newest = internal_topic.read_newest(cluster, "t", attempts=3)
    # then
    assert (newest.records, newest.hidden) == ({}, "t-0")
    assert partitions == [0, 0, 0, 1, 2]
