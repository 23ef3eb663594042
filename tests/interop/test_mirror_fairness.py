"""Partitions that share a copier and a leader do not wait for each other."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import SourceOffset
from tests.support.copiers import copy_all, copy_settings, is_done, run_until
from tests.support.klamm import KlammBroker
from tests.support.mirror import Seen, create_topic, produce

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

YEAR_2013 = 1_356_998_400_000
FOREVER = {"retention.ms": "-1"}
RECORDS = 24
RECORD_BYTES = 512 * 1024
LONG_WAIT_MS = 600_000


@pytest.fixture
def address() -> Iterator[str]:
    """One broker that is source and target."""
    with KlammBroker() as broker:
        create_topic(broker.bootstrap_servers, "mm2-offsets.A.internal", 5, {"cleanup.policy": "compact"})
        yield broker.bootstrap_servers


def test_lagging_partition_does_not_wait_for_caught_up_one(address: str) -> None:
    """The busy one has more than fits at a time, so there are moments when only the idle one is asked for.

    Both are even: they are fetched on one connection.
    """
    # given
    for name in ("uneven", "A.uneven"):
        create_topic(address, name, 3, FOREVER)
    produce(address, "uneven", [(2, Seen(None, bytes(RECORD_BYTES), (), YEAR_2013)) for _ in range(RECORDS)])
    settings = copy_settings(address, address, alias="A")
    limits = settings.fetch_limits._replace(partition_max_bytes=RECORD_BYTES, max_wait_ms=LONG_WAIT_MS)
    settings = replace(settings, fetch_limits=limits)
    # when
    partitions = [PartitionId("uneven", partition, "A.uneven") for partition in (0, 2)]
    rows = copy_all(settings, *partitions, timeout_s=LONG_WAIT_MS / 2000)
    # then
    assert {row.partition: (row.state, row.records) for row in rows} == {
        0: (CopyState.COPYING, 0),
        2: (CopyState.COPYING, RECORDS),
    }


def test_quiet_partitions_are_copied_before_busy_one_finishes(address: str) -> None:
    # given
    for name in ("hot", "A.hot"):
        create_topic(address, name, 12, FOREVER)
    produce(address, "hot", [(0, Seen(None, bytes(RECORD_BYTES), (), YEAR_2013)) for _ in range(2 * RECORDS)])
    produce(address, "hot", [(number, Seen(None, b"little", (), YEAR_2013)) for number in range(1, 12)])
    settings = copy_settings(address, address, alias="A")
    settings = replace(settings, fetch_limits=settings.fetch_limits._replace(partition_max_bytes=RECORD_BYTES))
    copier = Copier(settings, [PartitionId("hot", partition, "A.hot") for partition in range(12)])
    try:
        # when
        run_until(copier, lambda: all(is_done(row) for row in copier.progress() if row.partition))
        # then
        (hot,) = (row for row in copier.progress() if row.partition == 0)
        assert hot.records < RECORDS
    finally:
        copier.close()


def test_slow_offsets_topic_does_not_delay_records(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of positions may be another than that of the data."""
    # given
    for name in ("slowly", "A.slowly"):
        create_topic(address, name, 1, FOREVER)
    few = [(0, Seen(None, b"few", (), YEAR_2013))] * 5
    produce(address, "slowly", few)
    settings, partition = copy_settings(address, address, alias="A"), PartitionId("slowly", 0, "A.slowly")
    has_begun, has_more, may_go_on = threading.Event(), threading.Event(), threading.Event()
    write = SourceOffsetStore.write

    def write_slowly(store: SourceOffsetStore, moved: Mapping[tuple[str, int], SourceOffset], *ids: Any) -> None:
        if moved.get(("slowly", 0), SourceOffset(0)).next_offset:
            has_begun.set()
            assert may_go_on.wait(30)
        write(store, moved, *ids)

    monkeypatch.setattr(SourceOffsetStore, "write", write_slowly)
    copier = Copier(settings, [partition])

    def is_copied_meanwhile() -> bool:
        (row,) = copier.progress()
        if has_begun.is_set() and not has_more.is_set():
            produce(address, "slowly", few)
            has_more.set()
        if row.records == 2 * len(few):
            may_go_on.set()
        return may_go_on.is_set()

    try:
        # when
        run_until(copier, is_copied_meanwhile)
    finally:
        may_go_on.set()
        copier.close()
    # then
    (row,) = copy_all(settings, partition)
    assert (row.next_offset, row.records) == (2 * len(few), 0), "its position is written at the end"
