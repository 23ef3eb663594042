from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from klamm.admin import (
    DescribeGroupsResult,
    GroupDescription,
    GroupListing,
    GroupMember,
    KafkaApiError,
    ListGroupOffsetsResult,
    ListGroupsResult,
    NewTopic,
    OffsetAndMetadata,
    PerKeyResult,
    TopicPartition,
)
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.groups.both_sides import BothSides
from klamm.mirror.groups.control import GroupControl
from klamm.mirror.groups.cutover import cut_over
from klamm.mirror.groups.stores import CheckpointStore, EqualOffsets, MirroredOffsets, SyncStore
from klamm.mirror.progress.flow_progress import FlowGroups, GroupStatus, PartitionStatus
from klamm.mirror.progress.partition_progress import CopyState
from klamm.mirror.records.formats import Checkpoint, OffsetSync
from klamm.mirror.records.internal_topic import ControlConnection, LogBounds, TopicGoneError
from klamm.mirror.records.offset_translation import RunSync, SyncPair
from klamm.mirror.settings.mirror import parse_settings
from klamm.protocol.records import Record
from tests.support.mirror_fakes import FakeCluster, completed_result, done, rejection

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.kafka_client.pool.calls import Outcome
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple


SYNCS, CHECKPOINTS = "mm2-offset-syncs.B.internal", "A.checkpoints.internal"
ORDERS, REMOTE = ("orders", 0), ("A.orders", 0)


class Topics(ControlConnection):
    """Topics of one partition, in memory."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {SYNCS: [], CHECKPOINTS: []}
        self.gone: set[str] = set()
        self.unavailable: set[str] = set()
        self.bounds = {ORDERS: LogBounds(0, 10_000), REMOTE: LogBounds(0, 10_000)}

    def log_bounds(self, partitions: Sequence[PartitionTuple]) -> dict[PartitionTuple, LogBounds]:
        return {where: self.bounds[where] for where in partitions if where in self.bounds}

    def read(self, topic: str, from_offset: int) -> tuple[list[Record], int]:
        if topic not in self.records or topic in self.gone:
            raise TopicGoneError(f"{topic} does not exist")
        if topic in self.unavailable:
            raise ConnectionLostError(f"{topic} has no leader now")
        return self.records[topic][from_offset:], len(self.records[topic])

    def write(self, topic: str, records: Sequence[Record]) -> None:
        self.records[topic] += records

    def sync(self, upstream: int, downstream: int, first: int = -1) -> None:
        sync = OffsetSync(topic="orders", partition=0, upstream_offset=upstream, downstream_offset=downstream)
        headers = RunSync(SyncPair(upstream, downstream), first).headers()
        self.write(SYNCS, [Record(key=sync.key(), value=sync.value(), headers=headers)])

    def checkpoints(self) -> list[tuple[str, int, int]]:
        checkpoints = [Checkpoint.parse(each.key or b"", each.value or b"") for each in self.records[CHECKPOINTS]]
        return [(each.group, each.upstream_offset, each.downstream_offset) for each in checkpoints]


class GroupCluster(FakeCluster):
    """A cluster with groups."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets: dict[str, dict[PartitionTuple, OffsetAndMetadata]] = {}
        self.members: dict[str, int] = {}
        self.rejects_commits: dict[PartitionTuple, KafkaApiError] = {}
        self.rejects_lists: Exception | None = None
        self.unavailable: dict[str, Exception] = {}
        """Errors of groups whose coordinator is unavailable."""
        self.fails_commits: dict[str, Exception] = {}
        """Errors of groups whose coordinator becomes unavailable before offsets are committed."""

    def list_groups(self, *, timeout_ms: int | None = None) -> ListGroupsResult:
        if self.away():
            return ListGroupsResult(done(ConnectionLostError("nobody answers")))
        listed = [GroupListing(group_id=group, protocol_type="consumer", state=None) for group in self.offsets]
        return ListGroupsResult(done({1: tuple(listed)}))

    def describe_groups(self, group_ids: Collection[str], *, timeout_ms: int | None = None) -> DescribeGroupsResult:
        outcomes = {group: self._description(group) for group in group_ids}
        return completed_result(DescribeGroupsResult(group_ids), outcomes)

    def _description(self, group: str) -> GroupDescription | Exception:
        if group in self.unavailable:
            return self.unavailable[group]
        count = self.members.get(group, 0)
        if not count and group not in self.offsets:
            return rejection("GROUP_ID_NOT_FOUND")
        member = GroupMember(
            member_id="m",
            group_instance_id=None,
            client_id="c",
            host="h",
            metadata=b"",
            assignment=b"",
            assigned_partitions=None,
        )
        return GroupDescription(
            group_id=group,
            state="Stable" if count else "Empty",
            protocol_type="consumer",
            protocol="",
            members=(member,) * count,
        )

    def list_group_offsets(
        self, groups: Mapping[str, Collection[TopicPartition] | None], **_: Any
    ) -> ListGroupOffsetsResult:
        offsets = {group: self.offsets.get(group, {}).items() for group in groups}
        outcomes = {
            group: self.unavailable.get(group)
            or self.rejects_lists
            or {TopicPartition(*at): offset for at, offset in own}
            for group, own in offsets.items()
        }
        return completed_result(ListGroupOffsetsResult(groups), outcomes)

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int | None = None
    ) -> PerKeyResult[TopicPartition, None]:
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(offsets)
        outcomes = {where: self.fails_commits.get(group_id) or self.rejects_commits.get(where) for where in offsets}
        done_now = {where: offsets[where] for where, rejected in outcomes.items() if rejected is None}
        self.offsets[group_id] = {**self.offsets.get(group_id, {}), **dict(done_now.items())}
        return completed_result(result, outcomes)


class Run:
    """The loop of a flow's groups between two fake clusters, with a clock of its own."""

    def __init__(self, **more: str) -> None:
        self.now = 1_000.0
        self.source, self.target = GroupCluster(), GroupCluster()
        self.topics = Topics()
        self.mirrored: dict[PartitionTuple, int] = {}
        """Last mirrored offset by source partition."""
        self.reads_of_mirrored = 0
        self.status = GroupStatus()
        self.rows: Sequence[PartitionStatus] | None = None
        """Progress of the partitions. None: another process copies them."""
        properties = {
            "clusters": "A,B",
            "A.bootstrap.servers": "a:1",
            "B.bootstrap.servers": "b:1",
            "A->B.enabled": "true",
            "topics": "orders",
            "sync.group.offsets.enabled": "true",
        }
        self.flow = parse_settings(properties | more).flows[0]
        self.begin()

    def begin(self) -> None:
        """Start the loop again. It remembers nothing."""
        assert self.flow.groups is not None
        syncs = SyncStore(self.topics, SYNCS)
        self.sides = BothSides(
            source=self.source,
            target=self.target,
            source_reader=self.topics,
            target_reader=self.topics,
            syncs=EqualOffsets(self.topics) if self.flow.preserves_offsets else syncs,
            mirrored=MirroredOffsets(self.flow, self.read_mirrored),
        )
        self.control = GroupControl(
            self.flow,
            self.flow.groups,
            self.sides,
            checkpoints=CheckpointStore(self.topics, self.topics, CHECKPOINTS),
            status=self.status,
            clock=lambda: self.now,
            now=lambda: self.now,
            place=self.place,
            progress=None if self.rows is None else lambda: self.rows or (),
        )

    def place(self, topic: NewTopic) -> NewTopic:
        return replace(topic, configs={**topic.configs, "placed": "yes"})

    def read_mirrored(self, _flow: FlowSettings) -> dict[PartitionTuple, int]:
        self.reads_of_mirrored += 1
        return self.mirrored

    def commit(self, offset: int, group: str = "g") -> None:
        self.source.offsets.setdefault(group, {})[ORDERS] = OffsetAndMetadata(offset)

    def turn(self, seconds: float = 60) -> FlowGroups:
        """Let time pass and do what is due then."""
        self.now += seconds
        self.control.turn()
        return self.status.snapshot()["A->B"]


def test_checkpoints_follow_group_without_repetition() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic.

    K894-42: A checkpoint is emitted only if first, or upstream offset went back, or downstream advanced; never for
    untranslatable (-1) or unknown offsets.
    """
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    run.turn()
    assert run.topics.checkpoints() == [("g", 500, 400)]
    run.commit(510)
    run.turn(59)
    assert len(run.topics.checkpoints()) == 1, "emit.checkpoints.interval.seconds is 60"
    run.turn(1)
    run.commit(200)
    run.turn()
    assert run.topics.checkpoints()[1:] == [("g", 510, 410), ("g", 200, 100)]
    (topic,) = run.target.created
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (CHECKPOINTS, 1, 3)
    assert topic.configs["placed"] == "yes", "a klamm must not get it"


def test_group_after_control_batches_gets_checkpoint() -> None:
    run = Run()
    run.topics.bounds = {ORDERS: LogBounds(0, 9), REMOTE: LogBounds(0, 0)}
    run.commit(9)
    for last_mirrored, expected in ((7, []), (8, [("g", 9, 0)])):
        run.mirrored = {ORDERS: last_mirrored}
        run.turn()
        assert run.topics.checkpoints() == expected


@pytest.mark.parametrize(
    ("source_end", "expected"), [(1000, ("g", 510, 410)), (600, ("g", 510, 910))], ids=["reset", "recreated source"]
)
def test_group_goes_on_in_first_copies_unless_they_never_come_again(
    source_end: int, expected: tuple[str, int, int]
) -> None:
    # given
    run = Run()
    run.topics.bounds[ORDERS] = LogBounds(0, source_end)
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    run.topics.sync(109, 909, first=100)
    run.commit(510)
    # when
    run.begin()
    run.turn()
    # then
    assert run.topics.checkpoints() == [("g", 500, 400), expected]
    assert run.target.offsets["g"][REMOTE].offset == expected[2]


def test_restart_rewrites_no_checkpoint() -> None:
    """K894-42: what was written before is read from the topic."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    run.begin()
    run.turn()
    assert run.topics.checkpoints() == [("g", 500, 400)]


def test_unreadable_checkpoints_limit_translation_to_newest_sync(caplog: pytest.LogCaptureFixture) -> None:
    """K894-42: an older one might lead behind what was written before."""
    run = Run()
    run.topics.sync(100, 100)
    run.topics.sync(1000, 900)
    del run.topics.records[CHECKPOINTS]
    run.commit(500)
    groups = run.turn()
    assert groups.offsets[0].reason == "its offset is older than every offset sync"
    assert f"{CHECKPOINTS} does not exist, or may not be read: only offsets of records" in caplog.text


def test_damaged_syncs_and_checkpoints_are_counted_and_the_latest_of_each_topic_is_shown() -> None:
    run = Run()
    run.topics.write(SYNCS, [Record(key=b"?", value=b"?"), Record(key=b"?", value=b"?", offset=1)])
    run.topics.write(CHECKPOINTS, [Record(key=b"?", value=b"?", offset=7)])
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    groups = run.turn()
    assert groups.damaged_records == 3
    of_syncs, of_checkpoints = groups.damage
    assert of_syncs.startswith(f"{SYNCS}: ignored the record at offset 1: ")
    assert of_checkpoints.startswith(f"{CHECKPOINTS}: ignored the record at offset 7: ")
    assert groups.offsets[0].target_offset == 400, "translated by the sync that can be read"


def test_groups_are_selected_by_filter_and_topics() -> None:
    """K894-41: at every refresh; what goes away is not shown any more."""
    run = Run(**{"groups.exclude": "secret"})
    run.topics.sync(999, 999, first=0)
    run.commit(5)
    run.commit(5, "secret")
    run.source.offsets["other"] = {("users", 0): OffsetAndMetadata(5)}
    groups = run.turn()
    assert [row.group for row in groups.offsets] == ["g"]
    assert groups.skipped == (
        ("other", "it has no offsets on topics that are mirrored"),
        ("secret", "not among groups, or excluded by groups.exclude"),
    )
    run.commit(7, "later")
    assert len(run.turn(599).offsets) == 1
    del run.source.offsets["g"]
    assert [row.group for row in run.turn().offsets] == ["later"]


def test_idle_group_offsets_are_committed_forward_only() -> None:
    """K894-43: sync.group.offsets.enabled (false): writes translated offsets to the target group only if it has no
    active members and only forwards (never below the group's current target offset.
    """
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    assert run.turn().offsets[0].committed == 400
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(400)}}
    run.target.offsets["g"][REMOTE] = OffsetAndMetadata(450)
    run.commit(520)
    (row,) = run.turn().offsets
    assert (row.committed, row.sync_reason) == (450, "it is further already on cluster B")
    run.commit(600)
    (row,) = run.turn().offsets
    assert (row.committed, row.sync_reason) == (500, "")


@pytest.mark.parametrize("left", [{}, {"g": {REMOTE: OffsetAndMetadata(400)}}], ids=["offsets deleted", "offsets left"])
def test_recreated_remote_topic_gets_new_checkpoints_and_no_old_offset(
    left: dict[str, dict[PartitionTuple, OffsetAndMetadata]],
) -> None:
    """A consumer would skip all records before an offset of the deleted topic."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    # when
    run.topics.bounds[REMOTE] = LogBounds(0, 0)
    run.target.offsets = left
    run.turn()
    # then
    assert run.target.offsets == left
    # when
    run.topics.sync(1009, 9, first=1000)
    run.topics.bounds[REMOTE] = LogBounds(0, 10)
    run.commit(1005)
    (row,) = run.turn().offsets
    # then
    assert run.topics.checkpoints() == [("g", 500, 400), ("g", 1005, 5)]
    assert (row.committed, row.sync_reason) == (5, "")
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(5)}}


@pytest.mark.parametrize(
    ("first", "at"),
    [(1000, 500), (1000, 1003), (-1, 500)],
    ids=["behind the mirror", "ahead of the mirror", "syncs of MirrorMaker"],
)
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "restarted"])
def test_recreated_remote_topic_that_grew_past_old_offsets_gets_new_checkpoints(
    first: int, at: int, *, restarts: bool
) -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(at)
    run.turn()
    # when
    run.topics.sync(1000, 0, first=first)
    run.topics.sync(2999, 1999, first=first)
    run.topics.bounds[REMOTE] = LogBounds(0, 2000)
    run.target.offsets = {}
    run.commit(1005)
    if restarts:
        run.begin()
    run.turn()
    # then
    expected = 1 if first < 0 else 5
    assert run.topics.checkpoints()[1:] == [("g", 1005, expected)]
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(expected)}}


def test_offset_of_deleted_remote_topic_is_not_committed_before_the_next_checkpoint() -> None:
    run = Run(**{"emit.checkpoints.interval.seconds": "600"})
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    run.topics.sync(2999, 1999, first=1000)
    run.topics.bounds[REMOTE] = LogBounds(0, 2000)
    run.target.offsets = {}
    run.turn()
    assert run.target.offsets == {}


def test_checkpoint_at_log_start_of_remote_partition_is_kept() -> None:
    """Its group is behind the syncs because the records before it are deleted on both sides."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.topics.bounds.update({ORDERS: LogBounds(1000, 1000), REMOTE: LogBounds(900, 900)})
    run.commit(50)
    run.turn()
    run.turn()
    assert run.topics.checkpoints() == [("g", 50, 900)]


def test_offset_of_missing_remote_partition_is_not_committed() -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    del run.topics.bounds[REMOTE]
    run.target.offsets.clear()
    (row,) = run.turn().offsets
    assert run.target.offsets == {}
    assert row.sync_reason == "its partition does not exist on cluster B, or has no leader"


REPLICA = {
    "B.bootstrap.controllers": "c:1",
    "klamm.offsets": "preserve",
    "klamm.offsets.by": "replica",
    "klamm.replica.experimental": "true",
    "klamm.replica.node.id": "9",
    "klamm.replica.listeners": "klamm:9192",
}


def test_group_offsets_of_topics_that_brokers_lead_are_not_committed() -> None:
    """As while klamm waits to take them back: clients may have written to them."""
    run = Run(**REPLICA)
    run.target.topics["A.orders"] = 1
    run.mirrored = {ORDERS: 999}
    run.commit(500)
    (row,) = run.turn().offsets
    assert run.target.offsets.get("g", {}) == {}
    reason = "brokers of cluster B lead its topic: groups continue with their offsets of the target"
    assert (row.committed, row.sync_reason) == (None, reason)
    del run.target.topics["A.orders"]
    (row,) = run.turn().offsets
    assert (row.committed, row.sync_reason) == (500, "")


def copied(state: CopyState, reason: str = "", *, end_offset: int = 10_000) -> PartitionStatus:
    return PartitionStatus(
        flow="A->B", topic="orders", partition=0, remote_topic="A.orders", next_offset=900, end_offset=end_offset,
        records=0, bytes=0, last_timestamp=-1, state=state, reason=reason,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [copied(CopyState.STOPPED, "the records differ")],
            "its copying stopped, so its offsets may not be equal any more: the records differ",
        ),
        (
            [copied(CopyState.WAITING, "A is away")],
            "it is not verified yet that offsets are equal: A is away",
        ),
        (
            [copied(CopyState.COPYING, end_offset=-1)],
            "it is not verified yet that offsets are equal: the source was not read yet",
        ),
        ([], "it is not verified yet that offsets are equal: the source was not read yet"),
    ],
)
def test_group_offsets_of_replica_that_may_differ_are_not_synced(rows: list[PartitionStatus], reason: str) -> None:
    # given
    run = Run(**REPLICA)
    run.rows = [copied(CopyState.COPYING)]
    run.begin()
    run.commit(500)
    run.turn()
    # when
    run.rows = rows
    run.commit(700)
    (row,) = run.turn().offsets
    # then
    assert (row.reason, row.committed) == (reason, 500)
    # when it is equal again
    run.rows = [copied(CopyState.COPYING)]
    (row,) = run.turn().offsets
    # then
    assert (row.reason, row.committed) == ("", 700)


def test_progress_does_not_hold_up_groups_of_topics_that_brokers_lead() -> None:
    run = Run(**REPLICA)
    run.rows = []
    run.begin()
    run.target.topics["A.orders"] = 1
    run.mirrored = {ORDERS: 999}
    run.commit(500)
    assert [each.reason for each in run.turn().offsets] == [""]


def test_group_never_skips_records_that_a_promoted_topic_got_from_its_producers() -> None:
    """The group went on on the source after the promotion: offsets from its log end on are other records."""
    # given
    run = Run(**REPLICA)
    run.target.topics["A.orders"] = 1
    run.mirrored = {ORDERS: 999}
    run.commit(1_050)
    # when
    outcome = cut_over(run.flow, "g", run.sides, dry_run=False)
    # then
    assert outcome.is_done
    (row,) = outcome.rows
    assert (row.source_offset, row.target_offset) == (1_050, 1_000)
    assert row.note == "its last 50 offsets are on the source alone: they came after the promotion"
    assert run.target.offsets["g"][REMOTE].offset == 1_000
    for offset in (1_050, 1_060):
        run.commit(offset)
        run.turn()
    assert run.topics.checkpoints() == [("g", 1_050, 1_000)]
    assert run.reads_of_mirrored == 1, "the end of the promotion is final"


def test_group_is_not_moved_to_a_topic_that_klamm_did_not_hand_over() -> None:
    run = Run(**REPLICA)
    run.target.topics["A.orders"] = 1
    run.commit(50)
    (row,) = cut_over(run.flow, "g", run.sides, dry_run=False).rows
    assert row.reason == "brokers lead A.orders, and the offset at which klamm handed it over is unknown"
    assert run.target.offsets == {}


def test_group_that_commits_while_offset_syncs_are_read_is_not_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    run = Run(**{"emit.checkpoints.interval.seconds": "600"})
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    assert run.target.offsets["g"][REMOTE].offset == 400
    run.commit(600)
    run.turn(600)
    run.target.offsets["g"][REMOTE] = OffsetAndMetadata(450)
    # when
    monkeypatch.setattr(
        run.sides.syncs, "refresh", lambda: run.target.offsets["g"].update({REMOTE: OffsetAndMetadata(700)})
    )
    run.turn()
    # then
    assert run.target.offsets["g"][REMOTE].offset == 700


def test_group_with_members_on_target_is_skipped_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """K894-43: sync.group.offsets.enabled (false): writes translated offsets to the target group only if it has no
    active members and only forwards (never below the group's current target offset.
    """
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.target.offsets["g"] = {REMOTE: OffsetAndMetadata(3)}
    run.target.members["g"] = 2
    with caplog.at_level(logging.WARNING):
        run.turn()
        (row,) = run.turn().offsets
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(3)}}
    assert row.sync_reason == "it has 2 members on cluster B"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == ("A->B: group g: offsets are not synced: it has 2 members on cluster B (A.orders-0)")


@pytest.mark.parametrize("seconds", [60, 600], ids=["known groups", "groups are to be found"])
def test_group_offsets_are_committed_while_source_is_unavailable(seconds: float) -> None:
    """K894-43: MirrorMaker's ``syncGroupOffset`` is a task of its own, which needs the target alone."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.target.members["g"] = 1
    run.turn()
    assert run.target.offsets == {}
    run.target.members.clear()
    run.source.away = lambda: True
    run.source.rejects_lists = ConnectionLostError("nobody answers")
    run.topics.unavailable.add(SYNCS)
    with pytest.raises(ConnectionLostError):
        run.turn(seconds)
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(400)}}
    (row,) = run.status.snapshot()["A->B"].offsets
    assert row.committed == 400


def test_group_offsets_are_not_committed_without_offset_syncs_topic() -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.target.members["g"] = 1
    run.turn()
    run.target.members.clear()
    run.topics.gone.add(SYNCS)
    with pytest.raises(TopicGoneError):
        run.turn()
    assert run.target.offsets == {}


def test_offset_of_deleted_remote_topic_is_not_committed_if_source_is_lost_after_groups_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    # when
    run.topics.sync(2999, 1999, first=1000)
    run.topics.bounds[REMOTE] = LogBounds(0, 2000)
    run.target.offsets = {}
    run.commit(1005)
    run.begin()
    list_group_offsets = run.source.list_group_offsets

    def list_once(groups: Mapping[str, Collection[TopicPartition] | None], **_: Any) -> ListGroupOffsetsResult:
        result = list_group_offsets(groups)
        run.source.rejects_lists = ConnectionLostError("broken")
        return result

    monkeypatch.setattr(run.source, "list_group_offsets", list_once)
    with pytest.raises(ConnectionLostError):
        run.turn()
    # then
    assert run.target.offsets == {}


UNAVAILABLE = pytest.mark.parametrize(
    ("error", "text"),
    [
        (rejection("NOT_COORDINATOR", "moved"), "NOT_COORDINATOR: moved"),
        (ConnectionLostError("broken"), "COORDINATOR_NOT_AVAILABLE: broken"),
        (TimeoutError("no response"), "COORDINATOR_NOT_AVAILABLE: no response"),
    ],
    ids=["error code", "connection lost", "timeout"],
)
"""Errors if the coordinator of a group is unavailable, and the reason shown."""


def run_of_two_groups() -> Run:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500, "known")
    run.commit(500, "other")
    return run


@UNAVAILABLE
def test_unavailable_source_coordinator_does_not_stop_other_groups(error: Exception, text: str) -> None:
    """As in MirrorMaker, which skips such a group for the round."""
    run = run_of_two_groups()
    run.turn()
    # when
    run.commit(600, "known")
    run.commit(600, "other")
    run.commit(600, "new")
    run.source.unavailable = {"known": error, "new": error}
    groups = run.turn(600)
    # then
    assert run.topics.checkpoints()[2:] == [("other", 600, 500)]
    assert run.target.offsets["other"] == {REMOTE: OffsetAndMetadata(500)}
    assert {row.group for row in groups.offsets} == {"known", "other"}
    assert groups.skipped == (("new", text),)
    # when
    run.source.unavailable.clear()
    run.turn()
    # then
    assert run.topics.checkpoints()[3:] == [("known", 600, 500), ("new", 600, 500)]


def test_failing_search_does_not_stop_known_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """ListGroups needs every broker that the source lists. MirrorMaker's refresh is a task of its own, too."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    # when
    monkeypatch.setattr(run.source, "list_groups", lambda: done(TimeoutError("no response from node 3")))
    run.commit(600)
    with pytest.raises(TimeoutError, match="no response from node 3"):
        run.turn(600)
    # then
    assert run.topics.checkpoints() == [("g", 500, 400), ("g", 600, 500)]
    assert run.target.offsets["g"] == {REMOTE: OffsetAndMetadata(500)}


def test_failing_group_filter_concerns_its_group_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = run_of_two_groups()

    def should_replicate_group(group: str) -> bool:
        return {"other": True}[group]

    assert run.flow.groups is not None
    group_filter = SimpleNamespace(should_replicate_group=should_replicate_group)
    monkeypatch.setattr(run.control, "_settings", replace(run.flow.groups, group_filter=group_filter))
    # when
    groups = run.turn()
    run.turn()
    # then
    assert run.topics.checkpoints() == [("other", 500, 400)]
    assert groups.skipped == (("known", "the group filter failed: KeyError: 'known'"),)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


def test_offsets_are_committed_in_the_round_that_finds_the_groups() -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.source.unavailable["g"] = ConnectionLostError("broken")
    with pytest.raises(ConnectionLostError):
        run.turn()
    # when
    run.source.unavailable.clear()
    run.turn(1)
    # then
    assert run.target.offsets["g"] == {REMOTE: OffsetAndMetadata(400)}


def test_offset_of_deleted_remote_topic_is_not_committed_for_group_with_unavailable_coordinator() -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.source.offsets["other"] = {("orders", 1): OffsetAndMetadata(1)}
    run.turn()
    # when
    run.source.unavailable["g"] = ConnectionLostError("broken")
    run.topics.sync(2999, 1999, first=1000)
    run.topics.bounds[REMOTE] = LogBounds(0, 2000)
    run.target.offsets = {}
    run.turn()
    # then
    assert run.target.offsets == {}


@UNAVAILABLE
def test_unavailable_target_coordinator_does_not_stop_other_groups(error: Exception, text: str) -> None:
    run = run_of_two_groups()
    run.target.unavailable["known"] = error
    rows = {row.group: row for row in run.turn().offsets}
    assert run.target.offsets == {"other": {REMOTE: OffsetAndMetadata(400)}}
    assert (rows["other"].committed, rows["other"].sync_reason) == (400, "")
    assert rows["known"].sync_reason == f"it cannot be described on cluster B: {text}"


@UNAVAILABLE
def test_failed_offset_commit_does_not_stop_other_groups(error: Exception, text: str) -> None:
    run = run_of_two_groups()
    run.target.fails_commits["known"] = error
    rows = {row.group: row for row in run.turn().offsets}
    assert run.target.offsets["other"] == {REMOTE: OffsetAndMetadata(400)}
    assert (rows["known"].sync_reason, rows["other"].sync_reason) == (text, "")


def test_unavailable_coordinators_of_all_groups_fail_the_round() -> None:
    run = Run()
    run.commit(500)
    run.commit(500, "other")
    run.source.unavailable = dict.fromkeys(run.source.offsets, ConnectionLostError("broken"))
    with pytest.raises(ConnectionLostError, match="broken"):
        run.turn()


def test_rejected_offset_commits_are_logged() -> None:
    """K894-43: sync.group.offsets.enabled (false): writes translated offsets to the target group only if it has no
    active members and only forwards (never below the group's current target offset.
    """
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.target.rejects_commits[REMOTE] = rejection("UNKNOWN_MEMBER_ID", "")
    assert run.turn().offsets[0].sync_reason == "it has members on cluster B"
    run.target.rejects_commits[REMOTE] = rejection("GROUP_AUTHORIZATION_FAILED", "not you")
    assert run.turn().offsets[0].sync_reason == "GROUP_AUTHORIZATION_FAILED: not you"


def test_denied_offsets_of_group_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """K894-25: a denial is logged with the operation's name; not again with every checkpoint."""
    run = Run()
    run.commit(500)
    run.turn()
    run.source.rejects_lists = rejection("GROUP_AUTHORIZATION_FAILED", "")
    run.turn()
    run.turn()
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "while trying to list offsets for consumer group g on cluster A" in message


def test_group_offsets_are_not_committed_by_default() -> None:
    """K894-43: sync.group.offsets.enabled is false in MirrorMaker."""
    run = Run(**{"sync.group.offsets.enabled": "false"})
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.turn()
    assert run.topics.checkpoints() == [("g", 500, 400)]
    assert run.target.offsets == {}


def test_checkpoint_latency_is_reported() -> None:
    """MirrorMaker calls it checkpoint-latency-ms; by group, topic and partition."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.control.now = iter([10.0, *[10.25] * 9]).__next__
    latency = run.turn().offsets[0].checkpoint_latency_ms
    assert latency is not None
    assert (latency.last, latency.least, latency.most, latency.mean) == (250, 250, 250, 250)


def test_equal_reason_of_many_partitions_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.source.offsets["g"] = {("orders", partition): OffsetAndMetadata(partition + 1) for partition in range(3)}
    with caplog.at_level(logging.INFO, "klamm.mirror.groups.control"):
        run.turn()
    messages = [record.getMessage() for record in caplog.records if "no checkpoint" in record.getMessage()]
    assert messages == [
        "A->B: group g: no checkpoint: nothing was mirrored yet, according to the offset syncs"
        " (orders-0, orders-1, orders-2)"
    ]


def test_reason_is_logged_once_until_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.commit(500)
    with caplog.at_level(logging.INFO, "klamm.mirror.groups.control"):
        run.turn()
        run.turn()
        run.topics.sync(999, 899)
        run.turn()
        run.topics.sync(1, 1, first=0)
        run.topics.sync(1000, 1000, first=0)
        run.turn()
    messages = [record.getMessage() for record in caplog.records if "no checkpoint" in record.getMessage()]
    assert [each.removeprefix("A->B: group g: no checkpoint: ") for each in messages] == [
        "nothing was mirrored yet, according to the offset syncs (orders-0)",
        "its offset is older than every offset sync (orders-0)",
    ]
    assert run.topics.checkpoints() == [("g", 500, 500)]


def test_failure_is_shown_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    """K894-45: also a topic of checkpoints that cannot be created."""
    run = Run()
    run.target.rejects[CHECKPOINTS] = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    with pytest.raises(KafkaApiError, match=r"checkpoints\.topic\.replication\.factor=3.*only 1 broker"):
        run.control.turn()
    stop = threading.Event()
    problems: list[str] = []

    def away() -> bool:
        problems.append(run.status.snapshot().get("A->B", FlowGroups()).problem)
        if len(problems) == 2:
            stop.set()
        return len(problems) < 2

    run.target.rejects.clear()
    run.source.away = away
    with caplog.at_level(logging.INFO):
        run.control.run(stop)
    assert problems == ["", "nobody answers"]
    assert run.status.snapshot()["A->B"].problem == ""
    assert "A->B: offsets of groups cannot all be translated now: nobody answers" in caplog.text
    assert "A->B: offsets of groups are translated again" in caplog.text


def test_new_checkpoints_topic_may_be_unknown_at_first(caplog: pytest.LogCaptureFixture) -> None:
    """K894-42, K894-45: nothing counts as unknown because of it, and nobody is alarmed."""
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    run.topics.gone.add(CHECKPOINTS)
    with caplog.at_level(logging.WARNING), pytest.raises(TopicGoneError):
        run.control.turn()
    run.topics.gone.clear()
    run.turn(1)
    assert run.topics.checkpoints() == [("g", 500, 400)]
    assert not caplog.records


def test_last_round_commits_group_offsets() -> None:
    """K894-41: what was copied since the last round counts."""
    run = Run()
    run.commit(500)
    run.turn()
    stop = threading.Event()
    stop.set()
    run.topics.sync(999, 899, first=100)
    run.control.run(stop)
    assert run.topics.checkpoints() == [("g", 500, 400)]
    assert run.target.offsets == {"g": {REMOTE: OffsetAndMetadata(400)}}


def test_failing_group_filter_is_retried(caplog: pytest.LogCaptureFixture) -> None:
    run = Run()
    run.topics.sync(999, 899, first=100)
    run.commit(500)
    rounds: list[str] = []
    stop = threading.Event()

    def list_groups() -> Outcome[tuple[GroupListing, ...]]:
        rounds.append(run.status.snapshot()["A->B"].problem if rounds else "")
        if len(rounds) == 1:
            raise KeyError("g")
        stop.set()
        return done((GroupListing(group_id="g", protocol_type="consumer", state=None),))

    run.source.list_groups = list_groups  # type: ignore[assignment, method-assign]
    run.control.run(stop)
    assert rounds[1] == "KeyError: 'g'"
    assert run.topics.checkpoints() == [("g", 500, 400)]
    assert "offsets of groups cannot all be translated now: KeyError: 'g'" in caplog.text


def test_skipped_groups_are_logged_once_with_reason(caplog: pytest.LogCaptureFixture) -> None:
    run = Run(**{"groups.exclude": "tool-.*"})
    for number in range(7):
        run.commit(5, f"tool-{number}")
    run.source.offsets["other"] = {("users", 0): OffsetAndMetadata(5)}
    with caplog.at_level(logging.INFO):
        run.turn()
        run.turn(600)
    messages = [record.message for record in caplog.records if "groups skipped" in record.message]
    assert messages == [
        "A->B: groups skipped: other: it has no offsets on topics that are mirrored",
        "A->B: groups skipped: tool-0, tool-1, tool-2, tool-3, tool-4 and 2 more: not among groups, or excluded by "
        "groups.exclude",
    ]
