"""Comparison of the last batches of both sides."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from unittest.mock import create_autospec

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.batches import walk
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.replay import tails
from klamm.mirror.replay.tails import CheckedPartition, TailCheck, TailReader, differing_offset, foreign_offset, tail_of
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.records import Codec, ControlType, Record, encode_batch, encode_marker, patch_header
from tests.support.stub_broker import NODE_ID, StubBroker

if TYPE_CHECKING:
    from klamm.kafka_client.data.batches import FetchedBatch

RESERVED = 1 << 62


def batch(first: int, *values: bytes, producer_id: int = RESERVED, codec: Codec = Codec.NONE) -> bytes:
    records = [
        Record(key=None, value=value, timestamp=1000, offset=offset) for offset, value in enumerate(values, first)
    ]
    return bytes(encode_batch(records, codec=codec, producer_id=producer_id, producer_epoch=0, base_sequence=0))


def marker(offset: int, *, producer_id: int = RESERVED) -> bytes:
    data = encode_marker(ControlType.ABORT, producer_id=producer_id, producer_epoch=0, coordinator_epoch=0, timestamp=0)
    patch_header(data, base_offset=offset)
    return bytes(data)


def log(*batches: bytes) -> list[FetchedBatch]:
    return list(walk(memoryview(b"".join(batches)), 0))


def test_joined_batch_with_other_record_names_its_offset() -> None:
    ours = log(batch(10, b"a", b"b", b"c"), marker(13), batch(14, b"d"))

    assert differing_offset(ours, log(batch(10, b"a"), batch(11, b"b", b"c"), batch(14, b"d")), range(10, 15)) is None
    assert differing_offset(ours, log(batch(10, b"a"), batch(11, b"x", b"c"), batch(14, b"d")), range(10, 15)) == 11
    assert differing_offset(ours, log(batch(10, b"a"), batch(11, b"x", b"c"), batch(14, b"e")), range(12, 15)) == 14


def test_offset_without_a_source_record_does_not_differ() -> None:
    assert differing_offset(log(batch(10, b"a", b"b")), log(batch(11, b"b")), range(10, 12)) is None


def test_equal_batches_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(_batch: object) -> list[Record]:
        raise AssertionError("decoded")

    monkeypatch.setattr(tails, "decode_records", decode)
    here = log(batch(10, b"a", b"b", codec=Codec.ZSTD), marker(12))
    there = log(batch(10, b"a", b"b", codec=Codec.ZSTD, producer_id=8), marker(12, producer_id=8))

    assert differing_offset(here, there, range(10, 13)) is None
    with pytest.raises(AssertionError, match="decoded"):
        differing_offset(here, log(batch(10, b"a", b"x", codec=Codec.ZSTD)), range(10, 13))


def test_batch_or_marker_of_another_producer_is_foreign() -> None:
    ours = log(batch(10, b"a", b"b"), marker(12))

    assert foreign_offset(ours, range(10, 13), RESERVED) is None
    assert foreign_offset([*ours, *log(marker(13, producer_id=5))], range(10, 14), RESERVED) == 13
    assert foreign_offset(log(batch(10, b"a", b"b", producer_id=-1)), range(11, 12), RESERVED) == 11
    assert foreign_offset(log(batch(10, b"a", b"b", producer_id=-1)), range(12, 13), RESERVED) is None


def test_tail_begins_at_the_log_start_of_a_short_log() -> None:
    assert tail_of(range(700, 800)) == range(700, 800)
    assert tail_of(range(700, 2000)) == range(1500, 2000)


def read_tails(*answers: FetchResponse) -> tuple[dict[int, int], dict[tuple[str, int], str]]:
    """Read offsets 0 to 9 of a partition. Return the ends of its batches by base offset, and the errors."""
    left = iter(answers)
    with StubBroker(versions={FetchRequest.API_KEY: (4, 11)}) as broker:
        broker.answer(FetchRequest.API_KEY, lambda _: next(left))
        settings = ConnectionSettings(bootstrap_servers=(broker.bootstrap_servers,), client_id="test")
        with contextlib.closing(Cluster(settings, BufferPool(max_free_bytes=0))) as cluster:
            cluster.refresh(["stub"])
            reader = TailReader(cluster, {("stub", 0): range(10)})
            ends = {
                each.batch.base_offset: each.next_offset for fetched in reader.read() for each in fetched["stub", 0]
            }
    assert not list(left)
    return ends, reader.errors


def found(data: bytes) -> FetchResponse:
    partition = FetchResponse.PartitionData(partition_index=0, high_watermark=10, records=data)
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="stub", partitions=[partition])])


def test_tail_is_read_after_a_throttled_response() -> None:
    throttled = FetchResponse(throttle_time_ms=1)
    first, second = (batch(at, *[b"v"] * 5) for at in (0, 5))
    assert read_tails(throttled, found(first), throttled, found(second)) == ({0: 5, 5: 10}, {})


def test_tail_is_read_from_the_preferred_read_replica() -> None:
    """The source of a flow may be the target of another one, whose klamm leads its partitions."""
    redirected = found(b"")
    redirected.responses[0].partitions[0].preferred_read_replica = NODE_ID
    assert read_tails(redirected, found(batch(0, *[b"v"] * 10))) == ({0: 10}, {})


def test_response_without_an_entry_for_a_partition_is_not_its_end() -> None:
    ends, errors = read_tails(found(batch(0, b"v")), FetchResponse())
    assert ends == {0: 1}
    assert errors == {("stub", 0): "the end of stub-0: the response has no entry for it"}
    assert read_tails(found(batch(0, b"v")), found(b"")) == ({0: 1}, {}), "the end"


def checked(end: int, source: bytes, monkeypatch: pytest.MonkeyPatch) -> TailCheck:
    """Return the check of a target partition that ends at an offset and holds what a source partition holds."""
    monkeypatch.setattr(TailReader, "read", lambda self: [{partition: log(source) for partition in self._left}])
    cluster = create_autospec(Cluster, instance=True)
    check = TailCheck(cluster, cluster)
    check.run({("A.stub", 0): CheckedPartition(("stub", 0), 0, range(end), RESERVED)})
    assert not check.differing
    return check


def test_source_epoch_is_read_at_log_end_of_target(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = bytearray(batch(0, b"a", b"b")), bytearray(batch(2, b"c", b"d"))
    patch_header(first, base_offset=0, partition_leader_epoch=4)
    patch_header(second, base_offset=2, partition_leader_epoch=5)

    assert checked(2, bytes(first + second), monkeypatch).source_epochs == {("A.stub", 0): 4}
    assert checked(4, bytes(first + second), monkeypatch).source_epochs == {("A.stub", 0): 5}
    assert checked(5, bytes(first + second), monkeypatch).source_epochs == {}, "the last records are not read"
