from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.mirror.progress.flow_progress import FlowProgress, FlowState, MirrorStatus, describe


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def row(partition: int, next_offset: int, end_offset: int, **more: Any) -> dict[str, Any]:
    return {
        "flow": "A->B",
        "topic": "t",
        "partition": partition,
        "remote_topic": "A.t",
        "next_offset": next_offset,
        "end_offset": end_offset,
        "records": 0,
        "bytes": 0,
        "last_timestamp": -1,
        "state": "COPYING",
        "reason": "",
        **more,
    }


def only(status: MirrorStatus) -> FlowProgress:
    (progress,) = status.snapshot()
    return progress


def test_flow_is_caught_up_without_lag_in_any_planned_partition() -> None:
    status = MirrorStatus(["A->B"])
    status.update("s", [row(0, 10, 10)])
    assert not only(status).is_done
    status.expect("A->B", [("t", 0), ("t", 1)])
    assert only(status).lag is None
    assert not only(status).is_done
    status.update("s", [row(1, 3, 10)])
    assert only(status).lag == 7
    status.update("s", [row(1, 10, 10)])
    assert only(status).is_done
    assert (only(status).copied, only(status).total) == (20, 20)


def test_source_end_of_a_topic_created_again_is_shown_if_records_keep_their_offsets() -> None:
    status = MirrorStatus(["A->B"], preserving=["A->B"])
    for session, next_offset, end_offset in (("s", 10, 10), ("s", 10, 2)):
        status.update(session, [row(0, next_offset, end_offset)])
    assert only(status).partitions[0].ends == (2, 10)


@pytest.mark.parametrize("session", ["s", "after a reset"])
def test_lag_of_a_topic_created_again_counts_from_its_new_end(session: str) -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 1_000_000, 1_000_000)])
    # when
    if session != "s":
        status.expect("A->B", [])
        status.expect("A->B", [("t", 0)])
    status.update(session, [row(0, 0, -1, state="WAITING", reason="starting")])
    assert not only(status).is_done
    status.update(session, [row(0, 4, 10)])
    # then
    assert (only(status).lag, only(status).copied, only(status).total) == (6, 4, 10)
    status.update(session, [row(0, 10, 10)])
    assert only(status).is_done


def test_lag_counts_from_the_end_after_an_unclean_leader_election() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    for next_offset, end_offset in ((100, 100), (60, -1), (60, 60)):
        status.update("s", [row(0, next_offset, end_offset)])
    assert only(status).partitions[0].end_offset == 60
    assert only(status).is_done


def test_repeated_smaller_end_offset_of_a_session_is_accepted() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    status.update("before", [row(0, 100, 100)])
    status.update("s", [row(0, 10, 10)])
    assert only(status).lag == 90
    status.update("s", [row(0, 10, 10)])
    assert only(status).lag == 0


def test_late_report_of_a_replaced_task_does_not_end_the_flow() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    status.update("replaced", [row(0, 10, 10)])
    status.update("s", [row(0, 10, 20)])
    status.update("replaced", [row(0, 10, 10)])
    assert not only(status).is_done
    status.update("s", [row(0, 15, 20)])
    assert only(status).lag == 5


def test_new_leader_with_an_old_high_watermark_does_not_end_the_flow() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    for end_offset in (100, 40):
        status.update("s", [row(0, 50, end_offset)])
    assert only(status).lag == 50


NEWS = st.tuples(st.sampled_from(["t", "u", "heartbeats"]), st.integers(0, 2), st.integers(-1, 9), st.integers(-1, 9))


@given(st.lists(st.one_of(NEWS, st.sets(st.tuples(st.sampled_from(["t", "u", "heartbeats"]), st.integers(0, 2))))))
def test_incremental_totals_match_partition_sums(events: list[Any]) -> None:
    status = MirrorStatus(["A->B"], counts=lambda _, topic: topic != "heartbeats")
    expected: set[tuple[str, int]] | None = None
    for event in events:
        if isinstance(event, set):
            expected = event
            status.expect("A->B", event)
        else:
            topic, partition, position, end = event
            status.update("s", [row(partition, position, end, topic=topic)])
    assert not expected or {(p.topic, p.partition) for p in only(status).partitions} <= expected
    progress = only(status)
    counted = {(p.topic, p.partition): p for p in progress.partitions if p.topic != "heartbeats"}
    assert list(counted) == sorted(counted)
    assert progress.copied == sum(max(0, min(p.next_offset, p.end_offset)) for p in counted.values())
    assert progress.total == sum(max(0, p.end_offset) for p in counted.values())
    wanted = {key for key in expected or set() if key[0] != "heartbeats"}
    lags = [counted[key].lag if key in counted else None for key in wanted]
    known_lags = [lag for lag in lags if lag is not None]
    assert progress.lag == (sum(known_lags) if expected is not None and len(known_lags) == len(lags) else None)
    assert progress.is_done == (expected is not None and all(lag == 0 for lag in lags))


def test_unmirrored_topic_is_removed_from_progress() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0), ("t", 1)])
    status.update("s", [row(0, 1, 1, state="STOPPED", reason="its records are gone"), row(1, 2, 5)])
    status.expect("A->B", [("t", 1)])
    progress = only(status)
    assert (progress.stopped, progress.copied, progress.total, progress.lag) == ((), 2, 5, 3)
    status.update("s", [row(0, 1, 1, state="WAITING", reason="the last word of its task")])
    assert [partition.partition for partition in only(status).partitions] == [1]


def test_released_flow_is_not_done_and_keeps_its_progress_without_lag() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 10, 10)])
    # when
    status.release("A->B")
    # then
    progress = only(status)
    assert (progress.is_done, progress.lag, progress.copied, progress.total) == (False, None, 10, 10)
    assert status.topics("A->B") == frozenset({"t"})
    # when
    status.expect("A->B", [("t", 0)])
    # then
    assert not only(status).is_done, "the source may have new records"
    status.update("t", [row(0, 10, 15)])
    assert only(status).lag == 5


def test_flow_that_another_process_took_shows_no_partitions() -> None:
    # given
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 0, 5, records=5)])
    # when
    status.release("A->B", is_taken=True)
    # then
    assert (only(status).partitions, only(status).lag, only(status).total) == ((), None, 0)
    assert status.topics("A->B") is None


def test_copied_count_of_recreated_topic_is_capped_at_total() -> None:
    status = MirrorStatus(["A->B"])
    status.update("s", [row(0, 20, 3, state="STOPPED", reason="it was created again"), row(1, 5, 10)])
    assert (only(status).copied, only(status).total) == (8, 13)


def test_rates_cover_recent_seconds() -> None:
    clock = Clock()
    status = MirrorStatus(["A->B"], clock=clock)
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 0, 3000)])
    status.snapshot()
    clock.now = 2.0
    status.update("s", [row(0, 1000, 3000, records=1000, bytes=4_000_000)])
    progress = only(status)
    assert (progress.records_per_s, progress.mb_per_s, progress.eta_s) == (500.0, 2.0, 4.0)


def test_flow_rate_equals_partition_rate_without_earlier_snapshots() -> None:
    # given
    clock = Clock()
    status = MirrorStatus(["A->B"], clock=clock)
    status.expect("A->B", [("t", 0)])
    # when
    for clock.now in (0.0, 1.0, 2.0, 9.0, 10.0):
        status.update("s", [row(0, 0, 90_000, records=int(clock.now * 1000))])
    progress = only(status)
    # then
    assert progress.records_per_s == progress.partitions[0].records_per_s == pytest.approx(1000.0)


def test_rate_after_idle_time_covers_recent_seconds_only() -> None:
    # given
    clock = Clock()
    status = MirrorStatus(["A->B"], clock=clock)
    for clock.now in (0.0, 4.0, 8.0):
        status.update("s", [row(0, 0, 90_000, records=1000)])
    # when
    rates = []
    for clock.now, records in ((60.0, 7000), (61.0, 13_000), (66.0, 13_000), (71.0, 13_000)):
        status.update("s", [row(0, 0, 90_000, records=records)])
        rates.append(only(status).partitions[0].records_per_s)
    # then
    assert rates == [6000 / 5, 12_000 / 6, 6000 / 6, 0.0]


def test_rates_are_zero_after_reports_end() -> None:
    # given
    clock = Clock()
    status = MirrorStatus(["A->B"], clock=clock)
    clock.now = 1.0
    status.update("s", [row(0, 0, 90_000, records=1000)])
    assert only(status).partitions[0].records_per_s > 0
    # when
    for clock.now in (12.0, 18.0, 24.0):
        progress = only(status)
    # then
    assert (progress.records_per_s, progress.partitions[0].records_per_s) == (0.0, 0.0)


def test_new_session_does_not_count_records_twice() -> None:
    status = MirrorStatus(["A->B"])
    status.update("one", [row(0, 10, 20, records=10)])
    status.update("one", [row(0, 12, 20, records=12)])
    status.update("two", [row(0, 15, 20, records=3)])
    assert only(status).records == 15


def test_late_report_of_replaced_session_is_not_counted_twice() -> None:
    status = MirrorStatus(["A->B"])
    for session, records in (("one", 10), ("two", 3), ("one", 12), ("two", 4), ("three", 5), ("two", 6), ("three", 7)):
        status.update(session, [row(0, 10, 20, records=records)])
    assert only(status).records == 12 + 6 + 7


def test_last_report_of_partition_that_has_left_is_counted_once() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0), ("t", 1)])
    status.update("s", [row(1, 10, 20, records=10)])
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(1, 12, 20, records=12)])
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(1, 12, 20, records=12)])
    assert only(status).records == 12


def test_memory_does_not_grow_with_sessions_and_partitions_that_have_ended() -> None:
    status = MirrorStatus(["A->B"])

    def run_session(number: int) -> None:
        status.expect("A->B", [("t", 0), (f"t{number}", 0)])
        status.update(f"session {number}", [row(0, 1, 2, records=1), row(0, 1, 2, records=1, topic=f"t{number}")])

    def size() -> int:
        return len(pickle.dumps(status._flows["A->B"]))

    for number in range(10, 14):
        run_session(number)
    before = size()
    for number in range(14, 99):
        run_session(number)
    assert size() <= before + 100


def test_restarted_partition_keeps_its_progress() -> None:
    status = MirrorStatus(["A->B"])
    status.update("one", [row(0, 10, 20)])
    status.update("two", [row(0, -1, -1, state="WAITING", reason="starting")])
    (partition,) = only(status).partitions
    assert (partition.next_offset, partition.end_offset, partition.state) == (10, 20, "WAITING")


def test_end_that_a_restarted_partition_has_not_read_yet_is_unknown_where_offsets_are_equal() -> None:
    """Offsets of groups must not be taken over before the new task has compared the partition."""
    status = MirrorStatus(["A->B"], preserving=["A->B"])
    status.update("one", [row(0, 10, 20, state="STOPPED", reason="they differ")])
    status.update("two", [row(0, -1, -1)])
    (partition,) = status.partitions("A->B")
    assert (partition.end_offset, partition.state) == (-1, "COPYING")


def test_stopped_partition_does_not_block_completion() -> None:
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.RUNNING)
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 0, 5, state="STOPPED", reason="purged")])
    progress = only(status)
    assert progress.is_done
    assert [partition.reason for partition in progress.stopped] == ["purged"]
    assert describe(progress) == "A->B RUNNING: 0/5 records, 0 records/s, 0.0 MB/s, lag 5, 1 partition stopped"


def test_flow_waits_when_all_partitions_wait() -> None:
    """The control loop may have no work for ten minutes."""
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0), ("t", 1)])
    status.set_state("A->B", FlowState.RUNNING)
    status.update("s", [row(0, -1, -1, state="WAITING", reason="starting"), row(1, 5, 5)])
    status.update("s", [row(1, 5, 5, state="WAITING", reason="b:1 is away")])
    assert (only(status).state, only(status).reason) == (FlowState.RUNNING, "")
    status.update("s", [row(0, 3, 5, state="WAITING", reason="b:1 is away")])
    assert (only(status).state, only(status).reason) == (FlowState.WAITING, "b:1 is away")
    status.update("new lease", [row(0, -1, -1, state="WAITING", reason="starting")])
    assert only(status).state is FlowState.RUNNING


def test_waiting_flow_line_has_reason() -> None:
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.WAITING, "target away")
    assert describe(only(status)).startswith("A->B WAITING (target away): 0/0 records")


def test_waiting_partition_is_part_of_flow_line() -> None:
    """The topic may be deleted; until the next refresh, no other line would report it."""
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0), ("t", 1)])
    status.set_state("A->B", FlowState.RUNNING)
    status.update("s", [row(0, 5, 5), row(1, 3, 5, state="WAITING", reason="no leader on the target")])
    assert describe(only(status)).endswith("lag 2, 1 partition waits: t-1: no leader on the target")


@pytest.mark.parametrize(
    ("reason", "is_blocked"),
    [
        ("the target rejected records: TOPIC_AUTHORIZATION_FAILED", True),
        ("INVALID_REPLICATION_FACTOR: mm2-offsets.A.internal could not be created", True),
        ("SASL_AUTHENTICATION_FAILED: Login as alice by PLAIN failed: Authentication failed", True),
        ("certificate verify failed: certificate has expired", True),
        ("the target rejected records: NOT_ENOUGH_REPLICAS", False),
        ("No broker of b:1 responds: Connection refused", False),
    ],
)
def test_flow_is_blocked_by_denied_request(reason: str, *, is_blocked: bool) -> None:
    # given
    status = MirrorStatus(["A->B", "A->C"])
    for flow in ("A->B", "A->C"):
        status.expect(flow, [("t", 0), ("t", 1)])
    status.set_state("A->B", FlowState.WAITING, reason)
    status.set_state("A->C", FlowState.RUNNING)
    # when
    for partition, at in ((0, 10), (1, 4)):
        state, why = ("COPYING", "") if at == 10 else ("WAITING", reason)
        status.update("s", [{**progress_row("A->C", partition, at), "state": state, "reason": why}])
    # then
    whole, of_a_partition = status.snapshot()
    assert (whole.is_blocked, of_a_partition.is_blocked) == (is_blocked, is_blocked)
    assert [flow.what_blocks for flow in status.snapshot()] == ([reason, f"t-1: {reason}"] if is_blocked else ["", ""])


def test_flow_with_copying_partition_is_not_blocked() -> None:
    status = MirrorStatus(["A->B"])
    status.expect("A->B", [("t", 0), ("t", 1)])
    status.set_state("A->B", FlowState.RUNNING)
    denied = {**progress_row("A->B", 1, 4), "state": "WAITING", "reason": "TOPIC_AUTHORIZATION_FAILED"}
    status.update("s", [progress_row("A->B", 0, 9), denied])
    assert not status.snapshot()[0].is_blocked


def progress_row(flow: str, partition: int, at: int) -> dict[str, object]:
    return {
        "flow": flow, "topic": "t", "partition": partition, "remote_topic": "A.t", "next_offset": at, "end_offset": 10,
        "records": at, "bytes": at, "last_timestamp": -1, "state": "COPYING", "reason": "",
    }  # fmt: skip
