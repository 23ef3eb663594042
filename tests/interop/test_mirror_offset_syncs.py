"""Offset syncs of whole batches, read by MirrorMaker's own ``OffsetSyncStore`` beside those of single records."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.mirror.copy.batch import Outgoing
from klamm.mirror.copy.offset_sync_writer import SyncSettings, SyncWriter
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.records.formats import OffsetSync
from klamm.mirror.records.offset_translation import SyncPair, SyncRule
from tests.support.mirrormaker import java_virtual_machine

if TYPE_CHECKING:
    from collections.abc import Iterable

pytestmark = pytest.mark.long

LAG_MAX = 100
TOPIC = PartitionId("orders", 0, "A.orders")
BATCHES = (5_000, 1, 99, 2_500, 101, 4_096, 203)
"""Records of batches without gaps between them, as they are joined of small ones."""
FLUSH_AFTER = {1, 4}
"""Batches after which the interval is over."""


class Store:
    """MirrorMaker's ``OffsetSyncStore`` in a JVM, which is not public but for translating."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        store_class = jvm.Class.forName("org.apache.kafka.connect.mirror.OffsetSyncStore")
        (constructor,) = [one for one in store_class.getDeclaredConstructors() if one.getParameterCount() == 0]
        constructor.setAccessible(True)
        self._store = constructor.newInstance(self._array())
        read_to_end = store_class.getDeclaredField("readToEnd")
        read_to_end.setAccessible(True)
        read_to_end.setBoolean(self._store, True)
        (self._handle,) = [one for one in store_class.getDeclaredMethods() if one.getName() == "handleRecord"]
        self._handle.setAccessible(True)
        self._partition = jvm.org.apache.kafka.common.TopicPartition(TOPIC.topic, TOPIC.partition)

    def _array(self, *values: Any) -> Any:
        array = self._jvm.java.lang.reflect.Array.newInstance(self._jvm.Class.forName("java.lang.Object"), len(values))
        for at, value in enumerate(values):
            array[at] = value
        return array

    def take(self, sync: OffsetSync) -> None:
        record = self._jvm.org.apache.kafka.clients.consumer.ConsumerRecord("syncs", 0, 0, sync.key(), sync.value())
        self._handle.invoke(self._store, self._array(record))

    def translate(self, upstream: int) -> int:
        found = self._store.translateDownstream("readers", self._partition, upstream)
        assert found.isPresent()
        return int(found.getAsLong())


def of_batches() -> Iterable[OffsetSync]:
    """Yield the syncs that klamm writes."""
    connection = ConnectionSettings(bootstrap_servers=("h:1",), client_id="c")
    settings = SyncSettings(topic="syncs", connection=connection, lag_max=LAG_MAX)
    writer = SyncWriter(settings, BufferPool(max_free_bytes=0), flow="A->B")
    at = 0
    for number, count in enumerate(BATCHES):
        batch = Outgoing(memoryview(b""), count, at + count, 0, None, last_offset=at + count - 1, is_dense=True)
        writer.acknowledged(TOPIC, batch, at)
        at += count
        if number in FLUSH_AFTER or number == len(BATCHES) - 1:
            for record in writer.take():
                yield OffsetSync.parse(bytes(record.key or b""), bytes(record.value or b""))
            writer.settle(None)


def of_records() -> Iterable[OffsetSync]:
    """Yield the syncs that MirrorMaker writes, one record at a time."""
    rule = SyncRule(LAG_MAX)
    at = 0
    for number, count in enumerate(BATCHES):
        pairs = [SyncPair(offset, offset) for offset in range(at, at + count)]
        due = [pair for pair in pairs if rule.note(pair)]
        at += count
        if number in FLUSH_AFTER or number == len(BATCHES) - 1:
            due += [pair for pair in [rule.flush()] if pair is not None]
        for upstream, downstream in due:
            yield OffsetSync(topic=TOPIC.topic, partition=0, upstream_offset=upstream, downstream_offset=downstream)


def test_batch_syncs_translate_as_precisely_as_record_syncs(java: None) -> None:
    """K894-40: the first record is a sync, and none is further from the next one than ``offset.lag.max``."""
    # given
    ours, theirs = list(of_batches()), list(of_records())
    assert (ours[0].upstream_offset, ours[0].downstream_offset) == (0, 0)
    offsets = [sync.upstream_offset for sync in ours]
    assert max(later - earlier for earlier, later in pairwise(offsets)) <= LAG_MAX + 1
    with java_virtual_machine() as jvm:
        by_batches, by_records = Store(jvm), Store(jvm)
        # when
        for sync in ours:
            by_batches.take(sync)
        for sync in theirs:
            by_records.take(sync)
        # then
        for upstream in {*range(0, sum(BATCHES), 37), *offsets, sum(BATCHES)}:
            translated = by_batches.translate(upstream)
            assert by_records.translate(upstream) <= translated <= upstream, upstream
