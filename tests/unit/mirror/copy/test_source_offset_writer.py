"""Source offsets and offset syncs are written in the background; the store is a list in memory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.source_offset_store import SourceOffsetWriter
from klamm.mirror.records.source_offsets import SourceOffset
from klamm.protocol.errors import UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.mirror.copy.offset_sync_writer import SyncWriter
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore

MOVED = {("orders", 0): SourceOffset(7)}
_PATIENCE_S = 10.0


class Store:
    """Stands for ``SourceOffsetStore``: takes positions when it is let, or fails."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.error: Exception | None = None
        self.written: list[Mapping[tuple[str, int], SourceOffset]] = []

    def write(self, moved: Mapping[tuple[str, int], SourceOffset]) -> None:
        assert self.may_go_on.wait(_PATIENCE_S)
        if self.error is not None:
            raise self.error
        self.written.append(moved)


class Syncs:
    """Stands for ``SyncWriter``."""

    def __init__(self) -> None:
        self.due: list[str] = []
        self.error: Exception | None = None
        self.sent: list[str] = []
        self.settled: list[Exception | None] = []

    def take(self) -> list[str]:
        taken, self.due = self.due, []
        return taken

    def send(self, records: list[str]) -> None:
        if self.error is not None:
            raise self.error
        self.sent += records

    def settle(self, error: Exception | None) -> None:
        self.settled.append(error)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def syncs() -> Syncs:
    return Syncs()


@pytest.fixture
def writer(store: Store, syncs: Syncs) -> Iterator[SourceOffsetWriter]:
    made = SourceOffsetWriter(cast("SourceOffsetStore", store), cast("SyncWriter", syncs), flow="A->B")
    yield made
    store.may_go_on.set()
    made.close()


def test_slow_store_does_not_block_copier(writer: SourceOffsetWriter, store: Store) -> None:
    # given
    store.may_go_on.clear()
    # when
    writer.begin(MOVED)
    # then
    assert writer.is_busy
    assert writer.collect() == {}
    store.may_go_on.set()
    assert writer.collect(wait=True) == MOVED
    assert not writer.is_busy
    assert writer.collect(wait=True) == {}, "they are told once"
    assert store.written == [MOVED]


def test_writer_without_due_records_writes_nothing(writer: SourceOffsetWriter, syncs: Syncs) -> None:
    writer.begin({})
    assert not writer.is_busy
    assert syncs.settled == []


def test_syncs_are_written_without_source_offsets(writer: SourceOffsetWriter, store: Store, syncs: Syncs) -> None:
    syncs.due = ["a", "b"]
    writer.begin({})
    assert writer.collect(wait=True) == {}
    assert (syncs.sent, syncs.settled, store.written) == (["a", "b"], [None], [])


@pytest.mark.parametrize("error", [ConnectionLostError("nobody answers"), UnsupportedVersionError("no Produce")])
def test_failed_write_is_logged_and_other_write_succeeds(
    writer: SourceOffsetWriter, store: Store, syncs: Syncs, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    # given
    syncs.due, syncs.error = ["a"], error
    # when
    writer.begin(MOVED)
    assert writer.collect(wait=True) == MOVED
    # then
    assert syncs.settled == [error]
    # given
    store.error, syncs.due, syncs.error = error, ["b"], None
    # when
    writer.begin(MOVED)
    assert writer.collect(wait=True) == {}
    # then
    assert [record.getMessage() for record in caplog.records] == [
        f"A->B: source offsets could not be committed: {error}"
    ]
    assert (syncs.sent, syncs.settled) == (["b"], [error, None])


def test_repeated_failure_is_logged_once(
    writer: SourceOffsetWriter, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for error in (ConnectionLostError("away"), ConnectionLostError("away"), None, ConnectionLostError("away")):
        store.error = error
        writer.begin(MOVED)
        writer.collect(wait=True)
    assert [record.getMessage() for record in caplog.records] == [
        "A->B: source offsets could not be committed: away"
    ] * 2


def test_close_waits_for_write_in_progress(store: Store, syncs: Syncs) -> None:
    writer = SourceOffsetWriter(cast("SourceOffsetStore", store), cast("SyncWriter", syncs), flow="A->B")
    syncs.due = ["a"]
    writer.begin(MOVED)
    writer.close()
    assert (syncs.settled, store.written) == ([None], [MOVED])


def test_unexpected_error_is_raised(writer: SourceOffsetWriter, store: Store) -> None:
    store.error = ZeroDivisionError()
    writer.begin(MOVED)
    with pytest.raises(ZeroDivisionError):
        writer.collect(wait=True)
