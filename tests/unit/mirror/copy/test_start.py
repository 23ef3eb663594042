"""Start offsets of the copies of a task, for each state of source, target and offsets topic."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast
from uuid import UUID

import pytest

from klamm.kafka_client.data.cluster import LATEST
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
from klamm.mirror.copy.start import Start
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.source_offsets import ShardPlan, SourceOffset
from tests.support.copiers import copy_settings
from tests.support.fake_data_path import FakeSource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.data.cluster import Cluster
    from klamm.mirror.copy.source_offset_store import SourceOffsetStore
    from klamm.mirror.copy.transactions import ShardTransactions
    from klamm.protocol.types import PartitionTuple

P = PartitionId("t", 0, "A.t")
KEY = ("t", 0)
OLD_ID, NEW_ID = UUID(int=7), UUID(int=8)


@dataclass
class Store:
    """Offsets topic in memory. ``log`` holds the calls in order."""

    known: StoredSourceOffsets
    log: list[object] = field(default_factory=list)

    def read(self) -> StoredSourceOffsets:
        self.log.append("read")
        return self.known

    def write(self, begin: Mapping[PartitionTuple, SourceOffset], ids: Mapping[PartitionTuple, UUID]) -> None:
        self.log.append((dict(begin), dict(ids)))

    def records(self, begin: Mapping[PartitionTuple, SourceOffset], ids: Mapping[PartitionTuple, UUID]) -> object:
        return dict(begin), dict(ids)


@dataclass
class Transactions:
    """Transactions of a shard that record their calls in the log of a store."""

    store: Store
    planned_after: int = 0
    """Number of times that another process has to be fenced before the plan is ours."""

    def fence(self) -> None:
        self.store.log.append("fence")

    def is_planned(self, _: ShardPlan | None) -> bool:
        return self.planned_after == 0

    def take_over(self, _: ShardPlan | None) -> None:
        self.store.log.append("take over")
        self.planned_after -= 1

    def write(self, records: object) -> None:
        self.store.log.append(records)


@dataclass
class Rig:
    offset: int | None = None
    """Stored source offset. None: none is stored."""
    topic_id: UUID | None = OLD_ID
    continues: bool = False
    shares_topics: bool = False
    reset: str = "earliest"
    read_committed: bool = True
    planned_after: int | None = None
    """None: at least once."""
    source: FakeSource = field(
        default_factory=lambda: FakeSource({"t": 1}, topic_ids={"t": OLD_ID}, log_start=5, log_end=50)
    )
    target: FakeSource = field(default_factory=lambda: FakeSource({"A.t": 1}, topic_ids={}))

    def start(self) -> tuple[list[PartitionCopy], dict[PartitionId, str]]:
        stored = StoredSourceOffsets()
        if self.offset is not None:
            stored.offsets[KEY] = self.offset
            stored.leader_epochs[KEY] = 3
        if self.topic_id is not None and self.offset is not None:
            stored.topic_ids[KEY] = self.topic_id
        self.store = Store(stored)
        transactions = None if self.planned_after is None else Transactions(self.store, self.planned_after)
        settings = copy_settings("a:1", "b:1", alias="A", continue_after_loss=self.continues)
        start = Start(
            replace(
                settings,
                auto_offset_reset=self.reset,
                read_committed=self.read_committed,
                reset_duration_ms=1000,
                shared_topics=("t",) if self.shares_topics else ("u",),
            ),
            cast("Cluster", self.source),
            cast("Cluster", self.target),
            cast("SourceOffsetStore", self.store),
            cast("ShardTransactions | None", transactions),
        )
        return start.copies([P]), start.reasons


def test_partition_resumes_after_stored_source_offset() -> None:
    rig = Rig(offset=41)
    ((copy,), reasons) = rig.start()
    assert (copy.fetch_offset, copy.last_fetched_epoch, copy.is_settled, reasons) == (42, 3, True, {})


@pytest.mark.parametrize(
    ("reset", "of_timestamp", "at"),
    [("earliest", -1, 5), ("latest", -1, 50), ("by_duration", 20, 20), ("by_duration", -1, 50)],
)
def test_new_partition_stores_auto_offset_reset_start_first(reset: str, of_timestamp: int, at: int) -> None:
    rig = Rig(reset=reset)
    rig.source.offset_of_timestamp = of_timestamp
    ((copy,), _) = rig.start()
    assert copy.fetch_offset == at
    assert rig.store.log[-1] == ({KEY: SourceOffset(at)}, {KEY: OLD_ID})


@pytest.mark.parametrize("reset", ["latest", "by_duration"])
@pytest.mark.parametrize(("read_committed", "at"), [(True, 30), (False, 50)])
def test_latest_offset_under_read_committed_is_last_stable_offset(reset: str, at: int, *, read_committed: bool) -> None:
    """As of Kafka's consumer: an open transaction may be committed, and its records are to be copied then."""
    rig = Rig(reset=reset, read_committed=read_committed)
    rig.source.last_stable_offset = 30
    ((copy,), _) = rig.start()
    assert copy.fetch_offset == at


def test_partition_without_response_to_second_offset_request_is_not_started() -> None:
    rig = Rig(reset="by_duration")
    rig.source.unanswered.add(LATEST)
    assert rig.start() == ([], {P: "the offsets of its leader are not known yet"})


def test_auto_offset_reset_none_stops_new_partition() -> None:
    ((copy,), _) = Rig(reset="none").start()
    assert copy.state is CopyState.STOPPED
    assert copy.reason.startswith("t-0 was never mirrored, and auto.offset.reset=none names no offset")
    ((copy,), _) = Rig(reset="none", offset=41).start()
    assert (copy.state, copy.fetch_offset) == (CopyState.COPYING, 42)


def test_remote_records_without_source_offset_stop_partition() -> None:
    rig = Rig()
    rig.target.log_end = 9
    ((copy,), _) = rig.start()
    assert copy.state is CopyState.STOPPED
    assert copy.reason.startswith("A.t-0 holds records, but mm2-offsets.A.internal has no source offset for it")


def test_records_of_another_flow_do_not_stop_partition(caplog: pytest.LogCaptureFixture) -> None:
    """As in MirrorMaker: several clusters are mirrored to one topic."""
    rig = Rig()
    rig.target.log_end = 9
    rig.shares_topics = True
    ((copy,), _) = rig.start()
    assert (copy.state, copy.fetch_offset) == (CopyState.COPYING, 5)
    (message,) = caplog.messages
    assert message.endswith("A.t-0 starts without a source offset: the records that it holds are taken for those of "
                            "other flows that select the topic")  # fmt: skip


@pytest.mark.parametrize("continues", [False, True], ids=["stop", "continue"])
def test_recreated_topic_stops_partition_or_restarts(*, continues: bool) -> None:
    rig = Rig(offset=41, continues=continues)
    rig.source.topic_ids["t"] = NEW_ID
    ((copy,), _) = rig.start()
    if continues:
        assert (copy.state, copy.fetch_offset) == (CopyState.COPYING, 5)
        assert rig.store.log[-1] == ({KEY: SourceOffset(5)}, {KEY: NEW_ID})
    else:
        assert copy.state is CopyState.STOPPED
        assert copy.reason.startswith("t was deleted and created again on the source.")


def test_missing_topic_id_is_stored() -> None:
    """As after a takeover from MirrorMaker, which stores no ids."""
    rig = Rig(offset=41, topic_id=None)
    ((copy,), _) = rig.start()
    assert (copy.fetch_offset, rig.store.log[-1]) == (42, ({}, {KEY: OLD_ID}))


@pytest.mark.parametrize(
    ("side", "reason"),
    [
        ("source", "t-0 has no leader on the source"),
        ("target", "A.t-0 does not exist on the target yet, or has no leader"),
    ],
)
def test_partition_without_leader_does_not_start(side: str, reason: str) -> None:
    rig = Rig(offset=41)
    getattr(rig, side).leaders.clear()
    assert rig.start() == ([], {P: reason})
    assert rig.store.log == []  # nothing is read or fenced for it


def test_fence_precedes_reading_source_offsets() -> None:
    rig = Rig(offset=41, planned_after=0)
    ((copy,), _) = rig.start()
    assert (rig.store.log[:2], copy.fetch_offset) == (["fence", "read"], 42)


def test_changed_shard_count_rereads_source_offsets() -> None:
    rig = Rig(planned_after=2)
    rig.start()
    assert rig.store.log[:8] == ["fence", "read", "take over", "fence", "read", "take over", "fence", "read"]
    assert rig.store.log[-1] == ({KEY: SourceOffset(5)}, {KEY: OLD_ID})


def test_competing_shard_counts_do_not_loop() -> None:
    with pytest.raises(ConnectionLostError, match="another number of shards"):
        Rig(planned_after=99).start()
