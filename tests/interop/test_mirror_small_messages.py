"""The mirror's internal topics with a small max.message.bytes, as with many partitions."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import pytest

from klamm.mirror.copy.offset_sync_writer import SyncSettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.formats import OffsetSync
from tests.support.copiers import copy_all, copy_settings
from tests.support.long_tests import long_only
from tests.support.mirror import Seen, create_topic, produce, read
from tests.support.record_times import RECENT_MS

PARTITIONS = 60
TAKES = {"cleanup.policy": "compact", "max.message.bytes": "1500"}
"""About ten positions."""


@pytest.mark.parametrize("shards", [0, *long_only(1)])
def test_first_source_offsets_are_split_into_batches(address: str, shards: int) -> None:
    """K894-38: ``offset.storage.partitions = 1`` brings all of them into one partition; syncs have only one."""
    # given
    topic = f"small-{uuid4().hex[:6]}"
    alias = f"A{topic}"
    remote, positions, syncs = f"{alias}.{topic}", f"mm2-offsets.{alias}.internal", f"mm2-offset-syncs.{alias}.internal"
    for name, count, configs in (
        (topic, PARTITIONS, {}),
        (remote, PARTITIONS, {}),
        (positions, 1, TAKES),
        (syncs, 1, TAKES),
    ):
        create_topic(address, name, count, {"retention.ms": "-1", **configs})
    produce(address, topic, [(at, Seen(None, b"%d" % at, (), RECENT_MS)) for at in range(PARTITIONS)])
    settings = copy_settings(address, address, alias=alias, shards=shards)
    settings = replace(settings, syncs=SyncSettings(topic=syncs, connection=settings.target, lag_max=100))
    partitions = [PartitionId(topic, at, remote) for at in range(PARTITIONS)]
    # when
    first = copy_all(settings, *partitions)
    # then
    assert {row.state for row in first} == {CopyState.COPYING}
    one_each = dict.fromkeys(range(PARTITIONS), 1)
    assert {at: seen.value for at, (seen,) in read(address, remote, one_each).items()} == {
        at: b"%d" % at for at in range(PARTITIONS)
    }
    written = read(address, syncs, {0: PARTITIONS})[0]
    told = {OffsetSync.parse(sync.key or b"", sync.value or b"").partition for sync in written}
    assert told == set(range(PARTITIONS))
    again = copy_all(settings, *partitions)
    assert [(row.next_offset, row.records) for row in again] == [(1, 0)] * PARTITIONS
