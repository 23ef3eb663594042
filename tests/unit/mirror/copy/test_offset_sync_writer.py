from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy import offset_sync_writer
from klamm.mirror.copy.batch import Outgoing
from klamm.mirror.copy.offset_sync_writer import SyncSettings, SyncWriter
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.records.formats import OffsetSync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.protocol.records import Record

ORDERS = PartitionId("orders", 3, "A.orders")


class Written:
    """Stands for the topic of offset syncs."""

    def __init__(self) -> None:
        self.syncs: list[tuple[int, int]] = []
        self.away = False

    def __call__(
        self, cluster: object, topic: str, records: Mapping[int, Sequence[Record]], *, timeout_s: float
    ) -> None:
        assert (topic, list(records)) == ("syncs", [0])
        if self.away:
            raise ConnectionLostError("nobody answers")
        for record in records[0]:
            sync = OffsetSync.parse(bytes(record.key or b""), bytes(record.value or b""))
            assert (sync.topic, sync.partition) == ("orders", 3)
            self.syncs.append((sync.upstream_offset, sync.downstream_offset))


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Written:
    made = Written()
    monkeypatch.setattr(offset_sync_writer, "write_records", made)
    return made


@pytest.fixture
def writer() -> SyncWriter:
    connection = ConnectionSettings(bootstrap_servers=("h:1",), client_id="c")
    settings = SyncSettings(topic="syncs", connection=connection, lag_max=100)
    return SyncWriter(settings, BufferPool(max_free_bytes=0), flow="A->B")


def write(writer: SyncWriter) -> None:
    """Write what is due, as it is done beside the copying."""
    if records := writer.take():
        error: Exception | None = None
        try:
            writer.send(records)
        except ConnectionLostError as failure:
            error = failure
        writer.settle(error)


def batch(last_offset: int, count: int, *, is_dense: bool = True) -> Outgoing:
    return Outgoing(memoryview(b""), count, last_offset + 1, 0, None, last_offset=last_offset, is_dense=is_dense)


def test_batch_syncs_first_and_last_record(writer: SyncWriter, written: Written) -> None:
    """K894-40: Offset syncs: as 3.5."""
    writer.acknowledged(ORDERS, batch(1009, 10), 500)
    write(writer)
    assert written.syncs == [(1000, 500), (1009, 509)]
    write(writer)
    assert written.syncs == [(1000, 500), (1009, 509)], "nothing new"


def test_syncs_in_large_batch_keep_offset_lag_max(writer: SyncWriter, written: Written) -> None:
    """K894-40: the very first record is the first sync, as MirrorMaker's."""
    writer.acknowledged(ORDERS, batch(999, 1000), 0)
    write(writer)
    assert written.syncs == [*((at, at) for at in range(0, 1000, 101)), (999, 999)]


def test_record_after_offset_gap_gets_sync(writer: SyncWriter, written: Written) -> None:
    """K894-40: Offset syncs: as 3.5."""
    compacted = replace(batch(1010, 5, is_dense=False), offsets=(1000, 1001, 1005, 1006, 1010))
    writer.acknowledged(ORDERS, compacted, 500)
    write(writer)
    assert written.syncs == [(1000, 500), (1005, 502), (1010, 504)]


def test_many_syncs_are_due_early_and_thinned_out(writer: SyncWriter, written: Written) -> None:
    writer.acknowledged(ORDERS, batch(49_999, 50_000), 0)
    assert not writer.is_full
    writer.acknowledged(ORDERS, batch(199_999, 150_000), 50_000)
    assert writer.is_full
    write(writer)
    assert not writer.is_full
    assert written.syncs[0] == (0, 0)
    assert written.syncs[-1] == (199_999, 199_999)
    assert written.syncs == sorted(written.syncs)
    assert 500 < len(written.syncs) <= 1_001


def test_batch_with_gaps_syncs_last_record(writer: SyncWriter, written: Written) -> None:
    """K894-40: Offset syncs: as 3.5."""
    writer.acknowledged(ORDERS, batch(1009, 3, is_dense=False), 500)
    write(writer)
    assert written.syncs == [(1009, 502)]


def test_batch_with_unknown_target_offset_has_no_sync(writer: SyncWriter, written: Written) -> None:
    writer.acknowledged(ORDERS, batch(9, 10), -1)
    writer.acknowledged(ORDERS, batch(-1, 10), 10)
    write(writer)
    assert written.syncs == []


def test_failed_syncs_are_retried_and_logged_once(
    writer: SyncWriter, written: Written, caplog: pytest.LogCaptureFixture
) -> None:
    written.away = True
    writer.acknowledged(ORDERS, batch(9, 10), 0)
    write(writer)
    write(writer)
    assert [record.getMessage() for record in caplog.records] == [
        "A->B: offset syncs could not be written: nobody answers"
    ]
    written.away = False
    writer.acknowledged(ORDERS, batch(19, 10), 10)
    write(writer)
    assert written.syncs == [(0, 0), (9, 9), (19, 19)]


def test_syncs_noted_during_write_are_kept(writer: SyncWriter, written: Written) -> None:
    """K894-40: Offset syncs: as 3.5."""
    # given
    writer.acknowledged(ORDERS, batch(9, 10), 0)
    records = writer.take()
    writer.acknowledged(ORDERS, batch(19, 10), 10)
    # when
    writer.settle(ConnectionLostError("nobody answers"))
    write(writer)
    # then
    assert written.syncs == [(0, 0), (9, 9), (19, 19)]
    assert len(records) == 2


def test_unwritten_runs_precede_later_runs(writer: SyncWriter, written: Written) -> None:
    # given
    writer.acknowledged(ORDERS, batch(9, 10), 0)
    writer.take()
    writer.acknowledged(ORDERS, batch(119, 10), 50)
    # when
    writer.settle(ConnectionLostError("nobody answers"))
    write(writer)
    # then
    assert written.syncs == [(0, 0), (9, 9), (9, 9), (110, 50), (119, 59)]
