from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock
from zipfile import ZipFile

import pytest
from pyspark import TaskContext

import klamm.mirror.spark
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.data.fetch import FetchLimits
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.copy.settings import CopySettings
from klamm.mirror.naming import CONNECTOR
from klamm.mirror.progress.flow_progress import FlowFailedError, MirrorStatus
from klamm.mirror.records.requested_states import RequestedState
from klamm.mirror.spark import leases, shipping, worker
from klamm.mirror.spark.channel import ChannelClient, ServerConnection
from klamm.mirror.spark.coordinator import Coordinator
from klamm.mirror.spark.leases import FlowShare, PartitionGroup
from klamm.mirror.spark.shipping import write_archive
from klamm.mirror.spark.source import LeasePartition, MirrorReader
from klamm.mirror.topics.claims import FlowClaim
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

WAIT_S = 60.0


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    made = Coordinator(MirrorStatus(["A->B"]), lease_s=60.0, tasks_max={"A->B": 2})
    made.set_slots(2)
    made.server.listen()
    yield made
    made.close()


def client(coordinator: Coordinator) -> ChannelClient:
    return ChannelClient(coordinator.server.address, coordinator.server.token)


def share(partitions: int) -> FlowShare:
    connection = ConnectionSettings(bootstrap_servers=("h:1",), client_id="c")
    settings = CopySettings(
        flow="A->B",
        source_alias="A",
        connector=CONNECTOR,
        source=connection,
        target=connection,
        source_offsets_topic="p",
        source_offsets_interval_s=1.0,
        read_committed=False,
        fetch_limits=FetchLimits(1, 1, 1, 1),
        buffer_bytes=1,
    )
    return FlowShare(settings=settings, partitions=tuple(PartitionId("t", at, "A.t") for at in range(partitions)))


def ask(channel: ChannelClient, **question: Any) -> dict[str, Any]:
    channel.send(question)
    answer = channel.receive(timeout_s=WAIT_S)
    assert answer is not None
    return answer


def test_no_second_lease_without_partitions(coordinator: Coordinator) -> None:
    planner = client(coordinator)
    ask(planner, ask="groups", lease=1)
    planner.send({"ask": "next", "after": 1})
    assert planner.receive(timeout_s=0.3) is None
    coordinator.publish("A->B", share(3))
    assert planner.receive(timeout_s=WAIT_S) == {"lease": 2}
    planner.close()


def test_lease_assigns_partitions_to_slots(coordinator: Coordinator) -> None:
    coordinator.publish("A->B", share(3))
    planner = client(coordinator)
    plan = ask(planner, ask="groups", lease=1)
    assert [len(group["shares"][0]["partitions"]) for group in plan["groups"]] == [2, 1]
    planner.close()


def test_released_flow_is_not_caught_up() -> None:
    # given
    status = MirrorStatus(["A->B"])
    coordinator = Coordinator(status, lease_s=60.0, tasks_max={"A->B": 2})
    coordinator.publish("A->B", share(1))
    # when
    coordinator.publish("A->B", share(0))
    # then
    (progress,) = status.snapshot()
    assert (progress.is_done, progress.lag) == (False, None)


def after_first_lease(coordinator: Coordinator, *, finished: bool = True) -> tuple[ChannelClient, ChannelClient]:
    """Return the channels of the planner and of a task that has ended its lease and keeps the session ``s1``.

    If not ``finished``, the task still copies.
    """
    coordinator.publish("A->B", share(1))
    planner, task = client(coordinator), client(coordinator)
    ask(planner, ask="groups", lease=1)
    task.send({"task": 0, "lease": 1, "pid": 1, "session": "s1"})
    if finished:
        task.send({"finished": 0, "lease": 1, "session": "s1"})
    ask(task, ask="next", after=0)  # answered behind the line before
    return planner, task


@pytest.mark.parametrize(("flow", "session"), [("A->B", ""), ("C->B", "s1")])
def test_forgotten_session_is_not_named_in_next_lease(coordinator: Coordinator, flow: str, session: str) -> None:
    """Its copiers would go on where they were, and write these offsets over the new ones."""
    planner, task = after_first_lease(coordinator)
    coordinator.forget_sessions(flow)
    assert ask(planner, ask="groups", lease=2)["groups"][0]["session"] == session
    planner.close()
    task.close()


def test_finished_session_is_named_in_next_lease_only(coordinator: Coordinator) -> None:
    planner, task = after_first_lease(coordinator)
    assert ask(planner, ask="groups", lease=2)["groups"][0]["session"] == "s1"
    assert ask(planner, ask="groups", lease=3)["groups"][0]["session"] == ""
    planner.close()
    task.close()


def test_change_ends_lease_for_late_task_too(coordinator: Coordinator) -> None:
    coordinator.publish("A->B", share(1))
    planner, early, late = client(coordinator), client(coordinator), client(coordinator)
    ask(planner, ask="groups", lease=1)
    early.send({"task": 0, "lease": 1, "pid": 1})
    assert early.receive(timeout_s=0.2) is None
    coordinator.publish("A->B", share(2))
    assert early.receive(timeout_s=WAIT_S) == {"end": 1}
    late.send({"task": 0, "lease": 1, "pid": 2})
    assert late.receive(timeout_s=WAIT_S) == {"end": 1}
    for channel in (planner, early, late):
        channel.close()


def test_unchanged_assignment_keeps_lease(coordinator: Coordinator) -> None:
    coordinator.publish("A->B", share(1))
    planner, task = client(coordinator), client(coordinator)
    ask(planner, ask="groups", lease=1)
    task.send({"task": 0, "lease": 1, "pid": 1})
    coordinator.publish("A->B", share(1))
    assert task.receive(timeout_s=0.2) is None
    planner.close()
    task.close()


def test_stop_waits_for_end_of_lease(coordinator: Coordinator) -> None:
    coordinator.publish("A->B", share(1))
    planner = client(coordinator)
    assert ask(planner, ask="next", after=0) == {"lease": 1}
    coordinator.end()
    assert not coordinator.wait_idle(0.05)
    assert ask(planner, ask="next", after=1) == {"lease": 1}
    assert coordinator.wait_idle(WAIT_S)
    planner.close()


def test_lines_without_token_are_ignored(coordinator: Coordinator) -> None:
    stranger = ChannelClient(coordinator.server.address, "guess")
    with pytest.raises(OSError, match=r"closed|reset"):
        ask(stranger, ask="next", after=0)
    stranger.close()


def test_task_detects_lost_driver(coordinator: Coordinator) -> None:
    task = client(coordinator)
    task.send({"task": 0, "lease": 1, "pid": 1})
    timer = threading.Timer(0.05, coordinator.close)
    timer.start()
    with pytest.raises(OSError, match=r"closed|reset"):
        task.receive(timeout_s=WAIT_S)
    timer.join()
    task.close()


def test_second_attempt_of_group_ends_first(coordinator: Coordinator) -> None:
    """Spark may give a task up that still lives; two that take turns at fencing each other would never get on."""
    coordinator.publish("A->B", share(4))
    lease = ask(client(coordinator), ask="next", after=0)["lease"]
    ask(client(coordinator), ask="groups", lease=lease)
    first, other, second = (client(coordinator) for _ in range(3))
    first.send({"task": 0, "lease": lease, "session": "s1"})
    other.send({"task": 1, "lease": lease, "session": "s2"})
    _until_known(coordinator, 2)
    assert first.receive(timeout_s=0.2) is None
    second.send({"task": 0, "lease": lease, "session": "s3"})
    assert first.receive(timeout_s=WAIT_S) == {"end": lease, "replaced": True}
    assert other.receive(timeout_s=0.2) is None
    assert second.receive(timeout_s=0.2) is None
    answers = [ask(first, ask="claims", session=session) for session in ("s1", "s2", "s3")]
    assert answers == [{"claims": {}, "replaced": True}, {"claims": {}}, {"claims": {}}]


def test_session_that_a_later_lease_resumes_is_not_replaced(coordinator: Coordinator) -> None:
    # given
    before, task = client(coordinator), client(coordinator)
    before.send({"task": 0, "lease": 1, "session": "s1"})
    ask(before, ask="claims", session="s1")  # answered behind the line before
    # when
    task.send({"task": 0, "lease": 2, "session": "s1"})
    # then
    assert ask(task, ask="claims", session="s1") == {"claims": {}}


def test_late_task_of_earlier_lease_does_not_replace_current_task(coordinator: Coordinator) -> None:
    """Its process was suspended before it reported. Nobody would copy if it took the group from the current task."""
    # given
    planner, _ = after_first_lease(coordinator)
    ask(planner, ask="groups", lease=2)
    current, late = client(coordinator), client(coordinator)
    current.send({"task": 0, "lease": 2, "session": "s2"})
    assert ask(current, ask="claims", session="s2") == {"claims": {}}
    # when
    late.send({"task": 0, "lease": 1, "session": "s3"})
    # then
    assert late.receive(timeout_s=WAIT_S) == {"end": 1, "replaced": True}
    assert ask(current, ask="claims", session="s2") == {"claims": {}}
    current.send({"finished": 0, "lease": 2, "session": "s2"})
    ask(current, ask="next", after=2)  # answered behind the line before
    assert ask(planner, ask="groups", lease=3)["groups"][0]["session"] == "s2"


@pytest.mark.parametrize("finishes", ["before", "after"])
def test_session_of_replaced_task_is_not_named_in_next_lease(coordinator: Coordinator, finishes: str) -> None:
    # given
    planner, task = after_first_lease(coordinator, finished=finishes == "before")
    second = client(coordinator)
    # when
    second.send({"task": 0, "lease": 1, "session": "s2"})
    ask(second, ask="next", after=0)  # answered behind the line before
    if finishes == "after":
        assert task.receive(timeout_s=WAIT_S) == {"end": 1, "replaced": True}
        task.send({"finished": 0, "lease": 1, "session": "s1"})
        ask(task, ask="next", after=0)
    # then
    assert ask(planner, ask="groups", lease=2)["groups"][0]["session"] == ""
    for channel in (planner, task, second):
        channel.close()


def test_lost_slot_ends_lease(coordinator: Coordinator) -> None:
    # given
    coordinator.publish("A->B", share(4))
    planner, task = client(coordinator), client(coordinator)
    lease = ask(planner, ask="next", after=0)["lease"]
    assert len(ask(planner, ask="groups", lease=lease)["groups"]) == 2
    task.send({"task": 0, "lease": lease, "pid": 1})
    # when
    _until_known(coordinator)
    coordinator.set_slots(1)
    # then
    assert task.receive(timeout_s=WAIT_S) == {"end": lease}
    after = ask(planner, ask="next", after=lease)["lease"]
    assert len(ask(planner, ask="groups", lease=after)["groups"]) == 1


def _until_known(coordinator: Coordinator, tasks: int = 1) -> None:
    connections = coordinator.server._connections
    wait_until(
        lambda: sum(each.is_task for each in list(connections)) >= tasks, timeout_s=WAIT_S, what=f"{tasks} tasks"
    )


def test_worker_without_module_fails_mirror_with_reason(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.setitem(sys.modules, "klamm.mirror.spark.worker", None)
    monkeypatch.delattr(klamm.mirror.spark, "worker", raising=False)
    host, port = coordinator.server.address
    reader = MirrorReader({"host": host, "port": str(port), "token": coordinator.server.token})
    # when
    with pytest.raises(ImportError):
        next(reader.read(LeasePartition(1, 60.0, 0, [{"number": 0}])))
    # then
    wait_until(lambda: coordinator.failure is not None, timeout_s=WAIT_S, what="the reason")
    with pytest.raises(FlowFailedError, match=r"cannot run the mirror: .*Install klamm with its dependencies"):
        reader.latestOffset({"lease": 0}, None)
    reader.stop()


@pytest.mark.parametrize(("attempt", "session"), [(0, "kept"), (1, "")])
def test_retried_task_resumes_no_session(monkeypatch: pytest.MonkeyPatch, attempt: int, session: str) -> None:
    # given
    serve = Mock(return_value=())
    monkeypatch.setattr(worker, "serve", serve)
    monkeypatch.setattr(TaskContext, "_taskContext", Mock(attemptNumber=lambda: attempt))
    group = PartitionGroup(number=0, shares=(share(1),), session="kept")
    reader = MirrorReader({"host": "h", "port": "1", "token": "t"})
    # when
    assert [*reader.read(LeasePartition(1, 60.0, 0, [leases.to_json(group)]))] == []
    # then
    assert serve.call_args.args == ([replace(group, session=session)],)


def test_archive_may_have_modules_from_before_1980(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    module = tmp_path / "package" / "module.py"
    module.parent.mkdir()
    module.touch()
    os.utime(module, (0, 0))
    monkeypatch.setattr(shipping, "_PACKAGE", module.parent)
    # when
    archive = write_archive(tmp_path / "klamm.zip")
    # then
    assert ZipFile(archive).namelist() == ["package/module.py"]


@pytest.mark.process
def test_shipped_archive_is_importable(tmp_path: Path) -> None:
    # given
    archive = write_archive(tmp_path / "klamm.zip")
    # when
    code = "import klamm.mirror.spark.worker as it, klamm.mirror.run; print(it.__file__)"
    environ = {**os.environ, "PYTHONPATH": str(archive)}
    output = subprocess.run([sys.executable, "-c", code], env=environ, cwd=tmp_path, capture_output=True, check=True)
    # then
    assert output.stdout.decode().startswith(str(archive))


def test_limit_is_divided_by_partitions_and_followed_by_running_tasks(coordinator: Coordinator) -> None:
    coordinator.set_limits({"A->B": 900})
    coordinator.publish("A->B", share(3))
    planner, early, late = client(coordinator), client(coordinator), client(coordinator)
    plan = ask(planner, ask="groups", lease=1)
    assert [group["live"] for group in plan["groups"]] == [[[600, [], []]], [[300, [], []]]]
    early.send({"task": 0, "lease": 1, "pid": 1})
    assert early.receive(timeout_s=0.2) is None
    coordinator.set_limits({"A->B": 90})
    assert early.receive(timeout_s=WAIT_S) == {"live": [[60, [], []]]}
    late.send({"task": 1, "lease": 1, "pid": 2})
    assert late.receive(timeout_s=WAIT_S) == {"live": [[30, [], []]]}
    coordinator.set_limits({})
    assert early.receive(timeout_s=WAIT_S) == late.receive(timeout_s=WAIT_S) == {"live": [[None, [], []]]}
    for channel in (planner, early, late):
        channel.close()


def test_last_line_to_a_task_has_the_latest_live_values(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given: while a limit is sent, an operator pauses the topic
    coordinator.publish("A->B", share(1))
    planner, task = client(coordinator), client(coordinator)
    ask(planner, ask="groups", lease=1)
    task.send({"task": 0, "lease": 1, "pid": 1})
    _until_known(coordinator)
    pausing = threading.Thread(target=coordinator.set_topic_states, args=("A->B", {"t": RequestedState.PAUSED}))
    send = ServerConnection.send

    def send_late(connection: ServerConnection, message: Mapping[str, Any]) -> None:
        monkeypatch.undo()
        pausing.start()
        pausing.join(0.3)
        send(connection, message)

    monkeypatch.setattr(ServerConnection, "send", send_late)
    # when
    coordinator.set_limits({"A->B": 90})
    pausing.join(WAIT_S)
    # then
    lines = [task.receive(timeout_s=WAIT_S), task.receive(timeout_s=WAIT_S)]
    assert lines[-1] == {"live": [[90, [["t", "PAUSED"]], []]]}
    planner.close()
    task.close()


def test_coordinator_answers_how_long_flows_are_held() -> None:
    claims = {"A->B": FlowClaim(held_until=100.0, clock=lambda: 97.0), "A->C": FlowClaim.always()}
    made = Coordinator(MirrorStatus(["A->B", "A->C"]), lease_s=60.0, tasks_max={}, claims=claims)
    made.server.listen()
    channel = client(made)
    try:
        assert ask(channel, ask="claims") == {"claims": {"A->B": 3.0}}
        claims["A->B"].let_go(holder="there")
        assert ask(channel, ask="claims") == {"claims": {"A->B": 0.0}}
    finally:
        channel.close()
        made.close()


def test_tasks_from_before_a_takeover_do_not_hold_the_flow() -> None:
    claim = FlowClaim(held_until=100.0, clock=lambda: 97.0)
    made = Coordinator(MirrorStatus(["A->B"]), lease_s=60.0, tasks_max={}, claims={"A->B": claim})
    made.set_slots(1)
    made.server.listen()
    made.publish("A->B", share(1))
    channel = client(made)
    try:
        ask(channel, ask="groups", lease=1)
        assert ask(channel, ask="claims") == {"claims": {"A->B": 3.0}}
        claim.hold(100.0, was_taken=True)
        assert ask(channel, ask="claims") == {"claims": {"A->B": 0.0}}
    finally:
        channel.close()
        made.close()


def test_first_lease_without_work_starts_python_workers_only(coordinator: Coordinator) -> None:
    channel = client(coordinator)
    assert ask(channel, ask="next", after=0) == {"lease": 1}
    groups = ask(channel, ask="groups", lease=1)["groups"]
    assert [(group["number"], group["shares"]) for group in groups] == [(0, []), (1, [])]
    group = leases.from_json(groups[0])
    address, token = coordinator.server.address, coordinator.server.token
    assert [*worker.serve([group], task=0, lease=1, seconds=60.0, address=address, token=token)] == []
    channel.send({"ask": "next", "after": 1})
    coordinator.publish("A->B", share(1))
    assert channel.receive(timeout_s=WAIT_S) == {"lease": 2}
    channel.close()


@pytest.fixture
def replicas() -> Iterator[Coordinator]:
    """Return the coordinator of two flows that are brokers of their targets, in a Spark with three slots."""
    made = Coordinator(MirrorStatus(["A->B", "C->B"]), lease_s=60.0, tasks_max={}, replicas=("A->B", "C->B"))
    made.set_slots(3)
    made.server.listen()
    for flow in ("A->B", "C->B"):
        made.publish(flow, FlowShare(settings=replace(share(0).settings, flow=flow), partitions=share(1).partitions))
    yield made
    made.close()


def place(task: ChannelClient, number: int, lease: int, *kept: str, waited: bool = False) -> None:
    task.send({"ask": "place", "task": number, "lease": lease, "sessions": kept, "waited": waited})


def end_lease(task: ChannelClient, group: int, lease: int, session: str) -> None:
    task.send({"task": group, "lease": lease, "pid": 1})
    task.send({"finished": group, "lease": lease, "session": session})
    ask(task, ask="next", after=0)  # answered behind the lines before


def test_task_gets_the_group_whose_session_its_process_keeps(replicas: Coordinator) -> None:
    # given
    planner, first, second, late = (client(replicas) for _ in range(4))
    assert ask(planner, ask="groups", lease=1)["any_task"]
    place(first, 0, 1)
    place(second, 1, 1)
    assert [task.receive(timeout_s=WAIT_S) for task in (first, second)] == [{"group": 0}, {"group": 1}]
    end_lease(first, 0, 1, "s0")
    end_lease(second, 1, 1, "s1")
    # when: Spark gives the tasks to the other processes
    assert len(ask(planner, ask="groups", lease=2)["groups"]) == 2
    place(second, 0, 2, "s1")
    place(first, 1, 2, "s0")
    # then
    assert [task.receive(timeout_s=WAIT_S) for task in (first, second)] == [{"group": 0}, {"group": 1}]
    place(late, 1, 2)  # Spark retries the task
    assert late.receive(timeout_s=WAIT_S) == {"group": 0}
    place(late, 1, 1)
    assert late.receive(timeout_s=WAIT_S) == {"group": None}
    for channel in (planner, first, second, late):
        channel.close()


def test_process_that_keeps_a_session_gets_a_task_after_another_flow_has_stopped(replicas: Coordinator) -> None:
    # given
    planner, first, second = (client(replicas) for _ in range(3))
    ask(planner, ask="groups", lease=1)
    end_lease(first, 0, 1, "s0")
    end_lease(second, 1, 1, "s1")
    replicas.publish("A->B", None)
    first, second = client(replicas), client(replicas)
    # when
    groups = ask(planner, ask="groups", lease=2)["groups"]
    place(first, 1, 2, "s0")
    # then
    assert [(group["number"], len(group["shares"]), group["session"]) for group in groups] == [
        (1, 1, "s1"),
        (0, 0, "s0"),
    ]
    assert first.receive(timeout_s=WAIT_S) == {"group": 0}
    place(second, 0, 2, "s1")
    assert second.receive(timeout_s=WAIT_S) == {"group": 1}
    for channel in (planner, first, second):
        channel.close()


def test_task_without_session_waits_for_the_others_until_it_has_waited_enough(replicas: Coordinator) -> None:
    # given: the process of the first group has died
    planner, first, second = (client(replicas) for _ in range(3))
    ask(planner, ask="groups", lease=1)
    end_lease(first, 0, 1, "s0")
    ask(planner, ask="groups", lease=2)
    # when
    place(second, 0, 2)
    # then
    assert second.receive(timeout_s=0.2) is None
    place(second, 0, 2, waited=True)
    assert second.receive(timeout_s=WAIT_S) == {"group": 0}
    for channel in (planner, first, second):
        channel.close()


class StalledDriver(Coordinator):
    """Driver that handles no request for a group before ``goes_on`` is set."""

    goes_on: threading.Event

    def on_line(self, connection: ServerConnection, message: Mapping[str, Any]) -> None:
        if message.get("ask") == "place":
            self.goes_on.wait(WAIT_S)
        super().on_line(connection, message)


def test_task_waits_for_its_group_while_the_driver_stalls(monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    unreachable = ConnectionSettings(bootstrap_servers=("127.0.0.1:1",), client_id="c")
    settings = replace(share(0).settings, source=unreachable, target=unreachable)
    driver = StalledDriver(MirrorStatus(["A->B", "C->B"]), lease_s=60.0, tasks_max={}, replicas=("A->B", "C->B"))
    driver.goes_on = threading.Event()
    driver.set_slots(2)
    driver.server.listen()
    for flow in ("A->B", "C->B"):
        driver.publish(flow, FlowShare(settings=replace(settings, flow=flow), partitions=share(1).partitions))
    planner = client(driver)
    groups = [leases.from_json(group) for group in ask(planner, ask="groups", lease=1)["groups"]]
    waits: list[float] = []

    class Client(ChannelClient):
        def receive(self, *, timeout_s: float) -> dict[str, Any] | None:
            answer = super().receive(timeout_s=min(timeout_s, 0.01))
            waits.extend([timeout_s] if answer is None else [])
            if len(waits) == 4:  # after the task has reported that it does not wait for other tasks
                driver.goes_on.set()
            return answer

    monkeypatch.setattr(worker, "ChannelClient", Client)
    address, token = driver.server.address, driver.server.token
    rows: list[tuple[Any, ...]] = []
    task = threading.Thread(
        target=lambda: rows.extend(worker.serve(groups, task=0, lease=1, seconds=60.0, address=address, token=token))
    )
    # when
    task.start()
    wait_until(lambda: driver.has_tasks or not task.is_alive(), timeout_s=WAIT_S, what="the task")
    driver.end()
    task.join(30)
    # then
    assert len(rows) == 1
    for session in worker.kept_sessions.take_all().values():
        session.close()
    planner.close()
    driver.close()
