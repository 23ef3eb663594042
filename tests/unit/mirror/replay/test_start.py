"""Start of a partition that keeps its offsets, with clusters that are mocks."""

from __future__ import annotations

from collections import defaultdict
from unittest.mock import create_autospec
from uuid import UUID

import pytest

from klamm.kafka_client.data.batches import ProducerStamp
from klamm.kafka_client.data.cluster import EARLIEST, Cluster
from klamm.mirror.copy.equal_offsets import ReplaySettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.source_offset_store import SourceOffsetStore, StoredSourceOffsets
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.replay import start as module
from klamm.mirror.replay.start import Incarnation, ReplayStart
from klamm.mirror.replay.tails import TailCheck
from klamm.mirror.replay.target_log import NextSequence
from tests.support.copiers import copy_settings

P = PartitionId("orders", 0, "A.orders")
KEY, REMOTE = ("orders", 0), ("A.orders", 0)
TOPIC_ID = UUID(int=7)


def start_at(
    leader_epoch: int, monkeypatch: pytest.MonkeyPatch, *, source_end: int = 900, mirrored: int = 999
) -> ReplayStart:
    """Return a start after records of leader epoch 7 were mirrored. The target ends at offset 1000.

    Args:
        leader_epoch: Leader epoch in the metadata of the source.
        monkeypatch: Fixture of the test.
        source_end: Log end of the source.
        mirrored: Stored source offset.
    """
    replay = ReplaySettings(id_prefix="A-mm2-klamm-A", barrier_s=1.0)
    source, target = create_autospec(Cluster, instance=True), create_autospec(Cluster, instance=True)
    source.topic_id.return_value, source.leader_epoch.return_value = TOPIC_ID, leader_epoch
    source.log_bounds.return_value = {KEY: range(source_end)}
    target.list_offsets.side_effect = lambda _, where, **__: {REMOTE: 0 if where == EARLIEST else 1000}
    store = create_autospec(SourceOffsetStore, instance=True)
    store.read.return_value = StoredSourceOffsets(
        offsets={KEY: mirrored}, leader_epochs={KEY: 7}, topic_ids={KEY: TOPIC_ID}
    )
    monkeypatch.setattr(module, "topics_with_log_append_time", lambda *_: frozenset())
    monkeypatch.setattr(module, "init_all", lambda _, ids, **__: dict.fromkeys(ids, ProducerStamp(3, 5)))
    monkeypatch.setattr(module, "producer_states", lambda _, wanted: dict.fromkeys(wanted, NextSequence(0, 4)))
    return ReplayStart(
        copy_settings("a:1", "b:1", alias="A"),
        source,
        target,
        store,
        replay=replay,
        incarnations=defaultdict(Incarnation),
    )


def test_partition_waits_while_source_names_former_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log ends before the records that were mirrored, but the source has not lost them."""
    # given
    start = start_at(5, monkeypatch)
    # when
    copies = start.copies([P])
    # then
    assert copies == []
    assert "the source names leader epoch 5 of orders-0, but records of leader epoch 7 were" in start.reasons[P]


def test_partition_stops_if_later_leader_of_source_lost_records(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    start = start_at(8, monkeypatch)
    # when
    (copy,) = start.copies([P])
    # then
    assert (copy.state, start.reasons) == (CopyState.STOPPED, {})
    assert "A.orders-0 ends at offset 1000, but the source ends at offset 900" in copy.reason


@pytest.mark.parametrize(("mirrored", "leader_epoch"), [(999, 7), (989, 6)], ids=["stored at the end", "stored before"])
def test_leader_epoch_before_the_end_is_known_at_the_start(
    mirrored: int, leader_epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle partition would not notice a truncated source without it, and would store that it is unknown."""

    # given
    def run(check: TailCheck, _checked: object) -> None:
        check.source_epochs[REMOTE] = 6

    monkeypatch.setattr(TailCheck, "run", run)
    # when
    (copy,) = start_at(8, monkeypatch, source_end=1000, mirrored=mirrored).copies([P])
    # then
    assert copy.last_fetched_epoch == leader_epoch
    assert copy.source_offset == (1000, leader_epoch)
