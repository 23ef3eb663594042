from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.admin import OffsetAndMetadata
from klamm.mirror.groups.plans import (
    Logs,
    accepted,
    is_more_recent,
    offsets_to_commit,
    remote_topic_of,
    translate_group,
)
from klamm.mirror.groups.stores import SyncStore
from klamm.mirror.records.formats import Checkpoint
from klamm.mirror.records.internal_topic import LogBounds
from klamm.mirror.records.offset_translation import Translation
from klamm.mirror.settings.mirror import parse_settings

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings

FILE = {
    "clusters": "A,B",
    "A.bootstrap.servers": "a:1",
    "B.bootstrap.servers": "b:1",
    "A->B.enabled": "true",
    "topics": "orders,users,B.born-there",
}
FLOW = parse_settings(FILE).flows[0]
PRESERVING = parse_settings(FILE | {"klamm.offsets": "preserve"}).flows[0]
IDENTITY = parse_settings(FILE | {"replication.policy.class": "IdentityReplicationPolicy"}).flows[0]


class Knowledge(SyncStore):
    """Translation that subtracts 10 from every offset. Offsets below 10 are unknown."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics

    def knows(self, topic: str, partition: int) -> bool:
        return topic in self.topics and partition == 0

    def translate(self, topic: str, partition: int, upstream: int, source_end: int | None = None) -> Translation | None:
        return Translation(upstream - 10, 3) if self.knows(topic, partition) and upstream >= 10 else None


def checkpoint(upstream: int, downstream: int, topic: str = "A.orders") -> Checkpoint:
    return Checkpoint(
        group="g", topic=topic, partition=0, upstream_offset=upstream, downstream_offset=downstream, metadata=""
    )


def test_offsets_of_excluded_topics_are_ignored() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    offsets = {
        ("orders", 0): OffsetAndMetadata(5),
        ("orders", 1): OffsetAndMetadata(-1),
        ("other", 0): OffsetAndMetadata(5),
    }
    assert accepted(FLOW, offsets) == {("orders", 0): OffsetAndMetadata(5)}


def test_topic_mirrored_from_the_target_is_ignored_if_offsets_are_kept() -> None:
    """Its offsets are those of another log. MirrorMaker writes no checkpoint either, because it has no offset syncs."""
    offsets = {("orders", 0): OffsetAndMetadata(5), ("B.born-there", 0): OffsetAndMetadata(5)}
    assert accepted(PRESERVING, offsets) == {("orders", 0): OffsetAndMetadata(5)}


def test_topics_of_checkpoints_are_renamed_in_both_directions() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    assert remote_topic_of(FLOW, "orders") == "A.orders"
    assert remote_topic_of(FLOW, "C.orders") == "A.C.orders"
    assert remote_topic_of(FLOW, "B.born-there") == "born-there"
    assert remote_topic_of(FLOW, "B.C.born-further") == "born-further"


def test_checkpoint_keeps_offset_metadata() -> None:
    """K894-41: Checkpoints: groups passing the group filter and having an offset on at least one accepted topic."""
    (made,) = translate_group(
        FLOW,
        "g",
        {("orders", 0): OffsetAndMetadata(40, metadata="from here")},
        Knowledge("orders"),
        Logs(target={("A.orders", 0): LogBounds(0, 30)}, source={}),
    )
    assert made.checkpoint is not None
    assert (made.checkpoint.topic, made.checkpoint.downstream_offset) == ("A.orders", 30)
    assert (made.checkpoint.metadata, made.again_at_most, made.reason) == ("from here", 3, "")


def test_offset_without_checkpoint_has_reason() -> None:
    """K894-42: unknown, untranslatable, beyond the log's end, or nothing to stand on."""
    offsets = {
        ("orders", 0): OffsetAndMetadata(9),
        ("orders", 1): OffsetAndMetadata(9),
        ("users", 0): OffsetAndMetadata(50),
    }
    knowledge = Knowledge("orders", "users")
    plans = translate_group(FLOW, "g", offsets, knowledge, Logs({("A.users", 0): LogBounds(0, 39)}, {}))
    assert [each.checkpoint for each in plans] == [None] * 3
    assert [each.reason for each in plans] == [
        "its offset is older than every offset sync",
        "nothing was mirrored yet, according to the offset syncs",
        "offset 50 would be 40, beyond the end 39 of A.users-0: was the topic recreated?",
    ]
    (missing,) = translate_group(FLOW, "g", {("users", 0): OffsetAndMetadata(50)}, knowledge, Logs({}, {}))
    assert missing.reason == "its partition does not exist on cluster B, or has no leader"


@pytest.mark.parametrize(
    ("topic", "why"), [("B.born-there", "was mirrored from cluster B"), ("mm2-status.A.internal", "is internal")]
)
def test_offset_on_topic_that_the_flow_does_not_mirror_names_key_to_leave_it_out(topic: str, why: str) -> None:
    flow = parse_settings(FILE | {"topics": ".*", "topics.exclude": "none"}).flows[0]
    offsets = accepted(flow, {(topic, 0): OffsetAndMetadata(5)})
    (plan,) = translate_group(flow, "g", offsets, Knowledge("orders"), Logs({}, {}))
    reason = f"the topic {why}, so A->B does not mirror it: A->B.topics.exclude leaves its offsets out"
    assert (plan.checkpoint, plan.reason) == (None, reason)
    excluding = parse_settings(FILE | {"topics": ".*", "A->B.topics.exclude": topic}).flows[0]
    assert accepted(excluding, {(topic, 0): OffsetAndMetadata(5)}) == {}


@pytest.mark.parametrize(
    ("flow", "topic", "source", "target", "expected"),
    [
        pytest.param(FLOW, "orders", (5, 5), (0, 7), (7, 0), id="emptied and read to its end"),
        pytest.param(FLOW, "orders", (9, 9), (0, 0), (0, 0), id="emptied before it was read or mirrored"),
        pytest.param(FLOW, "orders", (9, 9), (2, 7), (2, 5), id="emptied before it was read, perhaps after mirroring"),
        pytest.param(FLOW, "orders", (4, 4), (0, 7), None, id="created again"),
        pytest.param(FLOW, "orders", (0, 5), (0, 0), None, id="with records"),
        pytest.param(FLOW, "B.born-there", (5, 5), (0, 7), None, id="mirrored from the target"),
        pytest.param(IDENTITY, "orders", (5, 5), (2, 7), (2, 5), id="producers moved first"),
    ],
)
def test_offset_of_empty_partition_translates_without_syncs(
    flow: FlowSettings,
    topic: str,
    source: tuple[int, int],
    target: tuple[int, int],
    expected: tuple[int, int] | None,
) -> None:
    remote = remote_topic_of(flow, topic), 0
    logs = Logs(target={remote: LogBounds(*target)}, source={(topic, 0): LogBounds(*source)})
    (made,) = translate_group(flow, "g", {(topic, 0): OffsetAndMetadata(5)}, Knowledge(), logs)
    translated = made.checkpoint and (made.checkpoint.downstream_offset, made.again_at_most)
    assert translated == expected


def test_checkpoint_is_written_when_it_changes() -> None:
    """K894-42: the first, after the group went back, or when it goes forward on the target."""
    last = checkpoint(100, 50)
    assert is_more_recent(last, None)
    assert is_more_recent(checkpoint(99, 40), last)
    assert is_more_recent(checkpoint(100, 51), last)
    assert not is_more_recent(last, last)
    assert not is_more_recent(checkpoint(120, 50), last)
    assert not is_more_recent(checkpoint(120, 49), last)


def test_target_offsets_only_move_forward() -> None:
    """K894-43: a negative offset counts as none, and so does one of a topic that was deleted and created again."""
    wanted = [checkpoint(100, 50, topic) for topic in ("new", "behind", "same", "further", "reset", "beyond", "away")]
    bounds = {(each.topic, 0): LogBounds(0, 60) for each in wanted if each.topic != "away"}
    current = {
        ("behind", 0): OffsetAndMetadata(49),
        ("same", 0): OffsetAndMetadata(50),
        ("further", 0): OffsetAndMetadata(51),
        ("reset", 0): OffsetAndMetadata(-1),
        ("beyond", 0): OffsetAndMetadata(61),
    }
    due = {(topic, 0): OffsetAndMetadata(50) for topic in ("new", "behind", "reset", "beyond")}
    assert offsets_to_commit(wanted, current, bounds) == due
