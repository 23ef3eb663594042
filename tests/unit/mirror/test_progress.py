from __future__ import annotations

from typing import Any

from klamm.mirror.progress import FlowProgress, FlowState, MirrorStatus, describe


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


def test_a_flow_has_caught_up_when_every_planned_partition_is_known_and_has_no_lag() -> None:
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


def test_rates_are_those_of_the_last_seconds() -> None:
    clock = Clock()
    status = MirrorStatus(["A->B"], clock=clock)
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 0, 3000)])
    status.snapshot()
    clock.now = 2.0
    status.update("s", [row(0, 1000, 3000, records=1000, bytes=4_000_000)])
    progress = only(status)
    assert (progress.records_per_s, progress.mb_per_s, progress.eta_s) == (500.0, 2.0, 4.0)


def test_a_new_session_counts_from_zero_and_nothing_is_counted_twice() -> None:
    status = MirrorStatus(["A->B"])
    status.update("one", [row(0, 10, 20, records=10)])
    status.update("one", [row(0, 12, 20, records=12)])
    status.update("two", [row(0, 15, 20, records=3)])
    assert only(status).records == 15


def test_a_partition_that_is_started_again_keeps_what_was_known() -> None:
    status = MirrorStatus(["A->B"])
    status.update("one", [row(0, 10, 20)])
    status.update("two", [row(0, -1, -1, state="WAITING", reason="starting")])
    (partition,) = only(status).partitions
    assert (partition.next_offset, partition.end_offset, partition.state) == (10, 20, "WAITING")


def test_a_stopped_partition_is_told_and_does_not_hold_up_the_end() -> None:
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.RUNNING)
    status.expect("A->B", [("t", 0)])
    status.update("s", [row(0, 0, 5, state="STOPPED", reason="purged")])
    progress = only(status)
    assert progress.is_done
    assert [partition.reason for partition in progress.stopped] == ["purged"]
    assert describe(progress) == "A->B RUNNING: 0/5 records, 0 records/s, 0.0 MB/s, lag 5, 1 partitions stopped"


def test_why_a_flow_waits_is_part_of_its_line() -> None:
    status = MirrorStatus(["A->B"])
    status.set_state("A->B", FlowState.WAITING, "target away")
    assert describe(only(status)).startswith("A->B WAITING (target away): 0/0 records")
