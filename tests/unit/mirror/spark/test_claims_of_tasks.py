"""Tasks copy a flow only while the driver holds its claim. The clusters of the flow are unavailable."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from klamm.mirror.copy.copier import ClaimLostError, Copier
from klamm.mirror.copy.partition import PartitionCopy, PartitionId
from klamm.mirror.copy.settings import copy_settings
from klamm.mirror.progress.flow_progress import MirrorStatus
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.spark import worker
from klamm.mirror.spark.coordinator import Coordinator
from klamm.mirror.spark.leases import FlowShare, PartitionGroup
from klamm.mirror.topics.claims import FlowClaim
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

FILE = {
    "clusters": "A,B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:1",
    "A->B.enabled": "true",
}
SETTINGS = copy_settings(parse_settings(FILE).flows[0])
GROUP = PartitionGroup(number=0, shares=(FlowShare(settings=SETTINGS, partitions=(PartitionId("t", 0, "A.t"),)),))


class Clock:
    """Monotonic clock of the driver."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def claim(clock: Clock) -> FlowClaim:
    return FlowClaim(held_until=clock.now + 60, clock=clock)


@pytest.fixture
def coordinator(claim: FlowClaim) -> Iterator[Coordinator]:
    made = Coordinator(MirrorStatus(["A->B"]), lease_s=60.0, tasks_max={}, claims={"A->B": claim})
    made.server.listen()
    yield made
    made.close()


def test_task_pauses_without_claim_and_ends_when_lease_ends(coordinator: Coordinator, claim: FlowClaim) -> None:
    # given
    session = worker.LeaseSession(GROUP.shares)
    worker.kept_sessions.keep(0, session)
    (copier,) = session.copiers
    server, group = coordinator.server, replace(GROUP, session=session.token)
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(
            lambda: [*worker.serve([group], task=0, lease=0, seconds=60.0, address=server.address, token=server.token)]
        )
        wait_until(lambda: copier.claimed_until < math.inf, timeout_s=30, what="the claim to reach the task")
        # when
        claim.let_go(holder="there, process 1")
        wait_until(lambda: copier.claimed_until < time.monotonic(), timeout_s=30, what="the loss to reach the task")
        assert not task.done()
        coordinator.end()
        # then
        assert len(task.result(30)) == 1
    assert worker.kept_sessions.take_all() == {}, "a session from before the loss must not be resumed"


def test_replaced_task_of_a_flow_without_a_limit_is_revoked() -> None:
    """It may not read the driver's line in time: while it ends, or on a connection that a suspension has cut."""
    # given
    coordinator = Coordinator(MirrorStatus(["A->B"]), lease_s=60.0, tasks_max={}, claims={"A->B": FlowClaim.always()})
    coordinator.server.listen()
    session = worker.LeaseSession(GROUP.shares)
    worker.kept_sessions.keep(0, session)
    (copier,) = session.copiers
    server, group = coordinator.server, replace(GROUP, session=session.token)
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(
            lambda: [*worker.serve([group], task=0, lease=0, seconds=60.0, address=server.address, token=server.token)]
        )
        wait_until(lambda: 0 in coordinator._tasks, timeout_s=30, what="the task, behind its first question")
        # when
        coordinator._replaced.append(session.token)
        # then
        wait_until(lambda: copier.claimed_until == -math.inf, timeout_s=30, what="the revocation")
        coordinator.end()
        task.result(30)
    coordinator.close()


def test_copier_with_running_thread_is_not_resumed(coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    monkeypatch.setattr(worker, "_JOIN_S", 0.01)
    other = FlowShare(settings=SETTINGS, partitions=(PartitionId("u", 0, "A.u"),))
    session = worker.LeaseSession([*GROUP.shares, other])
    worker.kept_sessions.keep(0, session)
    stuck = session.copiers[1]
    goes_on, has_ended = threading.Event(), threading.Event()

    def turn(_now: float, *, ending: bool) -> None:  # one that blocks, as while a cluster does not respond
        goes_on.wait(60)

    run = stuck.run

    def run_to_end(*args: Callable[[], Any]) -> None:
        with pytest.raises(ClaimLostError):
            run(*args)
        has_ended.set()

    monkeypatch.setattr(stuck, "_turn", turn)
    monkeypatch.setattr(stuck, "run", run_to_end)
    server, group = coordinator.server, PartitionGroup(number=0, shares=session.shares, session=session.token)
    with ThreadPoolExecutor(1) as threads:
        task = threads.submit(
            lambda: [*worker.serve([group], task=0, lease=0, seconds=60.0, address=server.address, token=server.token)]
        )
        # when
        coordinator.end()
        task.result(30)
    # then
    assert worker.kept_sessions.take_all() == {}, "two threads would run one copier"
    goes_on.set()
    assert has_ended.wait(30)


def test_claim_expired_during_start_prevents_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    copier = Copier(SETTINGS, GROUP.shares[0].partitions, clock=lambda: now)
    copier.claimed_until = 103.0
    seconds = iter([1.0, 30.0])
    sent: list[float] = []

    def start(_now: float) -> None:
        nonlocal now
        now += next(seconds)

    copier._start_more = start  # type: ignore[method-assign, assignment]
    copier._begin_source_offsets = lambda: sent.append(now)  # type: ignore[method-assign]
    monkeypatch.setattr(copier._producer, "send", sent.append)
    for at in (100.0, 101.0):
        copier._turn(at, ending=False)
    assert sent == [100.0, 101.0]
    copier.close()


@pytest.mark.parametrize("line", [{"end": 5}, {"end": 5, "replaced": True}])
def test_replaced_task_sends_neither_records_nor_source_offsets(
    line: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt may have written later source offsets while this process was suspended."""
    # given
    session = worker.LeaseSession(GROUP.shares)
    (copier,) = session.copiers
    copy = PartitionCopy(PartitionId("t", 0, "A.t"), start_offset=0, committed=True)
    copy.acked_offset = 500
    copier.add(copy)
    sent, written = Mock(), Mock()
    monkeypatch.setattr(copier._producer, "send", sent)
    monkeypatch.setattr(copier._source_offset_writer, "begin", written)
    channel = Mock(**{"receive.side_effect": [line, None]})
    run = worker._Lease(session, channel, lease=5, seconds=60.0)
    # when
    run.run()
    # then
    is_replaced = "replaced" in line
    assert (run.claim_is_lost, sent.called, written.called) == (is_replaced, not is_replaced, not is_replaced)
    session.close()


def test_claim_that_arrives_late_does_not_revive_a_revoked_session() -> None:
    session = worker.LeaseSession(GROUP.shares)
    session.revoke()
    session.claim(lambda _flow: math.inf)
    assert [copier.claimed_until for copier in session.copiers] == [-math.inf]
    session.close()


@pytest.mark.parametrize("blocking", ["_poll", "_collect_source_offsets"])
def test_claim_expired_within_turn_or_drain_prevents_source_offset_write(blocking: str) -> None:
    """The process may be suspended there, while another task copies the partitions."""
    # given
    now = 100.0
    copier = Copier(SETTINGS, GROUP.shares[0].partitions, clock=lambda: now)
    copier.claimed_until = 104.0
    written: list[float] = []

    def block(*_args: float, **_options: bool) -> None:
        nonlocal now
        now += 200.0

    setattr(copier, blocking, block)
    copier._start_more = lambda _now: None  # type: ignore[method-assign, assignment]
    copier._begin_source_offsets = lambda: written.append(now)  # type: ignore[method-assign]
    # when
    with pytest.raises(ClaimLostError):
        copier.run(lambda: True)
    # then
    assert written == []
    copier.close()


def test_copier_sends_nothing_after_its_claim_and_continues_with_the_next() -> None:
    now = 100.0
    turns: list[float] = []
    endings: list[bool] = []
    copier = Copier(SETTINGS, GROUP.shares[0].partitions, clock=lambda: now)

    def turn(at: float, *, ending: bool) -> None:
        turns.append(at)
        endings.append(ending)

    def pass_time() -> None:
        nonlocal now
        now += 1
        if now == 104:
            copier.claimed_until = 107.0

    copier._turn = turn  # type: ignore[method-assign, assignment]
    copier.claimed_until = 102.5
    with pytest.raises(ClaimLostError):
        copier.run(lambda: now >= 108, pass_time)
    assert turns == [100, 101, 102, 104, 105, 106]
    assert endings == [False, False, True, False, False, False]
    copier.close()
