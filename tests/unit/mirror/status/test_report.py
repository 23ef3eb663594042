"""The status report of a flow, read from its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from klamm.cli.mirror.status import ago, lines
from klamm.mirror.records.formats import Checkpoint, Heartbeat, OffsetSync
from klamm.mirror.records.source_offsets import ShardPlan
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.status.report import FlowStatus, ReportedSourceOffset, TargetState, as_document, flow_status
from klamm.mirror.status.target_reader import source_aliases

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings

NOW_MS = 1_700_000_000_000


def flow(**more: str) -> FlowSettings:
    keys = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1", "A->B.enabled": "true"}
    return parse_settings({**keys, **{name.replace("_", "."): value for name, value in more.items()}}).flows[0]


def target_state(**fields: object) -> TargetState:
    defaults: dict[str, object] = {
        "topics": {"A.orders": 2, "A.heartbeats": 1, "own": 1, "C.orders": 1, "A.checkpoints.internal": 1},
        "source_offsets": {
            ("orders", 0): ReportedSourceOffset(10, NOW_MS - 4000),
            ("orders", 1): ReportedSourceOffset(7, NOW_MS - 2000),
        },
        "heartbeats": [Heartbeat(source_alias="A", target_alias="B", timestamp=NOW_MS - 500)],
        "target_ends": {("A.orders", 0): 12, ("A.orders", 1): 7, ("A.heartbeats", 0): 99},
        "newest_records": {"A.orders": NOW_MS - 60_000, "A.heartbeats": NOW_MS - 100},
    }
    return TargetState(**{**defaults, **fields})  # type: ignore[arg-type]


def piece(state: TargetState, selected: tuple[str, ...] = (), *, of: FlowSettings | None = None) -> FlowStatus:
    return flow_status(of or flow(), state, frozenset(selected), any_target=False)


def test_topics_have_source_offset_or_remote_name() -> None:
    sight = piece(target_state())
    assert [(topic.topic, topic.remote_topic, len(topic.partitions)) for topic in sight.topics] == [
        ("heartbeats", "A.heartbeats", 1),
        ("orders", "A.orders", 2),
    ]


def test_heartbeats_do_not_count_as_newest_record() -> None:
    sight = piece(target_state())
    assert (sight.newest_record_ms, sight.source_offset_written_ms) == (NOW_MS - 60_000, NOW_MS - 2000)


def test_lag_is_unknown_without_source_and_ignores_heartbeats() -> None:
    assert piece(target_state()).lag is None
    ends = {("orders", 0): 15, ("orders", 1): 7, ("heartbeats", 0): 1000}
    assert piece(target_state(source_ends=ends)).lag == 5


def test_unmirrored_source_topic_is_shown_as_missing() -> None:
    # when
    sight = piece(target_state(source_ends={("late", 0): 30}), ("late",))
    # then
    (late,) = [topic for topic in sight.topics if topic.topic == "late"]
    assert (late.exists, late.lag) == (False, 30)
    assert any("A.late (missing)" in line for line in lines(sight, NOW_MS))


def test_identity_topics_come_from_source_offsets() -> None:
    identity = flow(replication_policy_class="IdentityReplicationPolicy")
    sight = piece(target_state(topics={"orders": 2, "own": 1}), of=identity)
    assert [(topic.topic, topic.remote_topic, topic.exists) for topic in sight.topics] == [("orders", "orders", True)]


def test_topic_of_same_name_is_remote_topic_without_file() -> None:
    sight = piece(target_state(topics={"orders": 2}))
    assert [(topic.remote_topic, topic.exists) for topic in sight.topics] == [("orders", True)]


def test_groups_show_records_to_read_on_target() -> None:
    # given
    def at(partition: int, downstream: int) -> tuple[Checkpoint, int]:
        where = {"group": "billing", "topic": "A.orders", "partition": partition}
        return Checkpoint(**where, upstream_offset=9, downstream_offset=downstream), NOW_MS - partition  # type: ignore[arg-type]

    # when
    (group,) = piece(target_state(checkpoints=[at(0, 5), at(1, 6)])).groups or ()
    # then
    assert (group.group, group.partitions, group.to_read, group.newest_checkpoint_ms) == ("billing", 2, 8, NOW_MS)


def test_flow_without_trace_does_not_exist() -> None:
    unmirrored = piece(TargetState(topics={"own": 1}))
    assert not unmirrored.exists
    assert any("no heartbeats of A" in unknown for unknown in unmirrored.unknown)


def test_target_alias_comes_from_heartbeats() -> None:
    beats = [Heartbeat(source_alias="A", target_alias="dr", timestamp=1)]
    assert flow_status(flow(), target_state(heartbeats=beats), frozenset(), any_target=True).name == "A->dr"


@pytest.mark.parametrize("timestamp", [NOW_MS * 1000, 2**63 - 1, -(2**63)])
def test_timestamp_that_no_calendar_has_is_left_out(timestamp: int) -> None:
    sight = piece(target_state(newest_records={"A.orders": timestamp}))
    document = as_document(sight, NOW_MS)
    assert document["newest_record_at"] is None
    assert document["newest_record_age_s"] == max(0, NOW_MS - timestamp) / 1000
    assert "newest record" in "\n".join(lines(sight, NOW_MS))


def test_document_and_text_have_times_and_ages() -> None:
    # given
    sync = OffsetSync(topic="orders", partition=0, upstream_offset=1, downstream_offset=1)
    state = target_state(
        plan=ShardPlan(4, (2,)),
        syncs_topic="mm2-offset-syncs.A.internal",
        syncs=[(sync, NOW_MS - 3_600_000 * 5)],
        source_ends={("orders", 0): 1010, ("orders", 1): 7, ("heartbeats", 0): 0},
    )
    # when
    sight = piece(state)
    document, text = as_document(sight, NOW_MS), "\n".join(lines(sight, NOW_MS))
    # then
    assert document["newest_record_age_s"] == 60
    assert document["newest_record_at"] == "2023-11-14T22:12:20.000+00:00"
    assert document["exactly_once_shards"] == {"count": 4, "before": [2]}
    assert document["topics"][1]["partitions"][0] == {
        "partition": 0,
        "next_offset": 10,
        "target_end": 12,
        "source_end": 1010,
        "written_at": "2023-11-14T22:13:16.000+00:00",
        "written_age_s": 4.0,
        "lag": 1000,
    }
    for words in (
        "lag                   1,000",
        "heartbeat A->B        0.5 s ago",
        "4 shards, before that 2",
        "5 h ago",
    ):
        assert words in text


def test_ends_of_both_sides_are_compared_if_records_keep_their_offsets() -> None:
    # given
    state = target_state(
        topics={"A.orders": 3, "A.checkpoints.internal": 1},
        target_ends={("A.orders", 0): 12, ("A.orders", 1): 7},
        source_ends={("orders", 0): 1010, ("orders", 1): 7, ("orders", 2): 5},
    )
    # when
    kept, translated = piece(state, of=flow(klamm_offsets="preserve")), piece(state)
    (orders,) = as_document(kept, NOW_MS)["topics"]
    # then
    assert as_document(kept, NOW_MS)["preserves_offsets"]
    assert [
        (partition["source_end"], partition["target_end"], partition["ends_are_equal"])
        for partition in orders["partitions"]
    ] == [(1010, 12, False), (7, 7, True), (5, None, None)]
    table = [line.split() for line in lines(kept, NOW_MS) if line.startswith("  orders")]
    assert table[1:] == [
        ["orders", "0", "1,010", "12", "no"],
        ["orders", "1", "7", "7", "yes"],
        ["orders", "2", "5", "not", "known", "not", "known"],
    ]
    assert not as_document(translated, NOW_MS)["preserves_offsets"]
    assert not any("EQUAL" in line for line in lines(translated, NOW_MS))


@pytest.mark.parametrize(
    ("age_ms", "words"),
    [(-50, "0.0 s ago"), (119_000, "119.0 s ago"), (121_000, "2 min ago"), (3 * 86_400_000, "3 d ago")],
)
def test_ages_are_shown_in_suitable_unit(age_ms: int, words: str) -> None:
    assert ago(NOW_MS - age_ms, NOW_MS) == words


def test_source_aliases_come_from_internal_topic_names() -> None:
    names = [
        "mm2-offsets.A.internal",
        "A.checkpoints.internal",
        "us.west.checkpoints.internal",
        "A.orders",
        "heartbeats",
    ]
    assert source_aliases(names) == ["A", "us.west"]
