from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from klamm.mirror.groups.stores import CheckpointStore, SyncStore
from klamm.mirror.records.formats import Checkpoint, OffsetSync
from klamm.mirror.records.internal_topic import ControlConnection, TopicGoneError
from klamm.mirror.records.offset_translation import Translation
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence


class Topic(ControlConnection):
    """A topic of one partition that can be created again."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.asked: list[int] = []

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        self.asked.append(from_offset)
        if from_offset > len(self.records):
            raise TopicGoneError(f"{topic} ends at {len(self.records)}")
        return self.records[from_offset:], len(self.records)

    def write(self, topic: str, records: Sequence[Record]) -> None:
        assert topic == "checkpoints"
        self.records += records

    def sync(self, upstream: int, downstream: int) -> None:
        sync = OffsetSync(topic="orders", partition=3, upstream_offset=upstream, downstream_offset=downstream)
        self.records.append(Record(key=sync.key(), value=sync.value()))


def checkpoint(group: str, downstream: int) -> Checkpoint:
    return Checkpoint(group=group, topic="A.orders", partition=3, upstream_offset=9, downstream_offset=downstream)


def test_sync_store_reads_only_new_records() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    topic = Topic()
    topic.sync(100, 50)
    store = SyncStore(topic, "syncs")
    store.refresh()
    topic.sync(200, 150)
    store.refresh()
    assert topic.asked == [0, 1]
    assert store.knows("orders", 3)
    assert not store.knows("orders", 4)
    assert store.translate("orders", 3, 200) == Translation(150, 0)
    assert store.translate("orders", 4, 200) is None


def test_recreated_offset_syncs_topic_is_read_again() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    topic = Topic()
    for number in range(3):
        topic.sync(number, number)
    store = SyncStore(topic, "syncs")
    store.refresh()
    topic.records.clear()
    topic.sync(700, 7)
    with pytest.raises(TopicGoneError):
        store.refresh()
    assert not store.knows("orders", 3), "what was known is of another topic"
    store.refresh()
    assert store.translate("orders", 3, 700) == Translation(7, 0)


def test_foreign_records_are_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    topic = Topic()
    topic.records = [Record(key=b"?", value=b"?", offset=0), Record(key=None, value=None, offset=1)]
    topic.sync(5, 5)
    store = SyncStore(topic, "syncs")
    with caplog.at_level(logging.WARNING):
        store.refresh()
    assert store.knows("orders", 3)
    assert [record.getMessage()[:38] for record in caplog.records] == [
        "syncs: ignored the record at offset 0:",
        "syncs: ignored the record at offset 1:",
    ]
    assert store.damaged.count == 2
    assert store.damaged.latest == caplog.records[-1].getMessage()


def test_checkpoints_of_unselected_groups_are_dropped() -> None:
    """K894-42: A checkpoint is emitted only if first, or upstream offset went back, or downstream advanced; never for
    untranslatable (-1) or unknown offsets.
    """
    topic = Topic()
    writer = CheckpointStore(topic, topic, "checkpoints")
    writer.write([checkpoint("mine", 1), checkpoint("other", 2), checkpoint("mine", 3)], now_ms=5)
    writer.write([], now_ms=6)
    topic.records.append(Record(key=checkpoint("mine", 4).key(), value=None))
    reader = CheckpointStore(topic, topic, "checkpoints", wanted=lambda group: group == "mine")
    reader.load()
    assert reader.newest("mine", "A.orders", 3) == checkpoint("mine", 3)
    assert reader.of_group("other") == []
    assert [record.timestamp for record in topic.records[:3]] == [5, 5, 5]


def test_failing_group_filter_keeps_checkpoints_of_all_groups() -> None:
    topic = Topic()
    wanted = {"other": True}
    written = CheckpointStore(topic, topic, "checkpoints")
    written.write([checkpoint("known", 5), checkpoint("other", 7)], 0)
    store = CheckpointStore(topic, topic, "checkpoints", wanted=lambda group: wanted[group])
    store.load()
    assert store.of_group("other") == [checkpoint("other", 7)]
    assert store.of_group("known") == [checkpoint("known", 5)]
