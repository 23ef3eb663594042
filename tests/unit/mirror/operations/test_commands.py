"""Commands for the flows of a mirror whose clusters are lists in memory."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock, Mock
from uuid import UUID

import pytest

from klamm.admin import (
    KafkaApiError,
    PartitionDescription,
    PartitionReassignment,
    TopicDescription,
    TopicPartition,
)
from klamm.kafka_client.errors import ConnectionLostError
from klamm.mirror.copy.source_offset_store import StoredSourceOffsets
from klamm.mirror.operations import commands, promotion
from klamm.mirror.operations.commands import MirrorCommandError, MirrorCommands
from klamm.mirror.operations.offset_reset import OffsetChange
from klamm.mirror.progress.flow_progress import FlowGroups, FlowState, MirrorStatus
from klamm.mirror.progress.partition_progress import CopyState, PartitionProgress
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.records.source_offsets import StoredPromotion
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.states import FlowStates
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_producers import DescribeProducersResponse
from klamm.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from tests.support.mirror_fakes import FakeCluster, done, rejection

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from klamm.kafka_client.pool.calls import Outcome
    from klamm.mirror.progress.flow_progress import GroupStatus
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.schema import Message

FLOW = "A->B"
PROPERTIES = {
    "clusters": "A,B",
    "A.bootstrap.servers": "127.0.0.1:1",
    "B.bootstrap.servers": "127.0.0.1:2",
    "A->B.enabled": "true",
    "request.timeout.ms": "100",
}


class MemoryStore:
    """Requested states in memory."""

    def __init__(self) -> None:
        self.saved: list[RequestedStates] = []
        self.is_away = False
        self.is_silent = False
        """Whether states are stored without an acknowledgement."""

    def load(self) -> RequestedStates:
        if self.is_away:
            raise ConnectionLostError("B does not answer")
        return self.saved[-1] if self.saved else RequestedStates()

    def save(self, states: RequestedStates) -> None:
        self.saved.append(states)
        if self.is_silent:
            raise ConnectionLostError("no acknowledgement")


class Rig:
    """A mirror that copies ``orders`` and ``users``."""

    def __init__(self, *, is_started: bool = True, **more: str) -> None:
        flow = parse_settings(PROPERTIES | {key.replace("_", "."): value for key, value in more.items()}).flows[0]
        self.store = MemoryStore()
        self.states = FlowStates(self.store)
        self.claim = FlowClaim.always()
        self.status = MirrorStatus([FLOW])
        self.restarted: list[list[str]] = []
        self.commands = MirrorCommands(
            flows={FLOW: flow}, states={FLOW: self.states}, claims={FLOW: self.claim}, status=self.status, tasks=self
        )
        if is_started:
            self.status.expect(FLOW, [("orders", 0), ("users", 0), ("of-a-task-that-starts", 0)])
            self.report("orders", CopyState.COPYING)
            self.report("users", CopyState.COPYING)

    def restart(self, flow: str, topics: Iterable[str]) -> None:
        assert flow == FLOW
        self.restarted.append(list(topics))

    def wait_released(self, flow: str, topics: Collection[str], timeout_s: float) -> bool:
        raise AssertionError((flow, topics, timeout_s))

    def forget_sessions(self, flow: str) -> None:
        raise AssertionError(flow)

    def promote(self, *topics: str, **more: bool) -> dict[str, Any]:
        return self.commands.run({"action": "promote", "flow": FLOW, "topics": list(topics)} | more)

    def report(self, topic: str, state: CopyState, reason: str = "") -> None:
        row = PartitionProgress(
            flow=FLOW, topic=topic, partition=0, remote_topic=f"A.{topic}", next_offset=0, end_offset=0, records=0,
            bytes=0, last_timestamp=-1, state=state, reason=reason,
        )  # fmt: skip
        self.status.update("session", [row.to_json()])

    def run(self, action: str, *topics: str) -> dict[str, Any]:
        return self.commands.run({"action": action, "flow": FLOW, "topics": list(topics)})

    def reset(self, *topics: str, **more: Any) -> dict[str, Any]:
        parts = [{"topic": topic, "partitions": None} for topic in topics]
        command = {"action": "reset", "flow": FLOW, "partitions": parts, "to": "earliest", "value": 0} | more
        return self.commands.run(command)


@pytest.fixture(autouse=True)
def _no_missing_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "missing_partitions", lambda _flow, _topics: {})
    monkeypatch.setattr(commands, "sync_groups", lambda *_: "")
    monkeypatch.setattr(commands, "topics_at_risk", lambda _flow, _topics: [])
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])


def test_requested_states_are_stored_before_they_count() -> None:
    rig = Rig()
    assert rig.run("pause") == {"flow": FLOW, "state": "PAUSED", "topics": {}}
    assert rig.run("stop", "orders") == {"flow": FLOW, "state": "PAUSED", "topics": {"orders": "STOPPED"}}
    assert rig.store.saved[-1] == rig.states.current
    rig.store.is_away = True
    with pytest.raises(
        MirrorCommandError, match="A->B: B does not answer; nothing was changed: repeat the command"
    ) as caught:
        rig.run("resume")
    assert caught.value.status == 503
    assert rig.states.current.flow is RequestedState.PAUSED


def test_change_without_acknowledgement_is_unknown_and_read_back_by_the_next_command() -> None:
    rig = Rig()
    rig.store.is_silent = True
    with pytest.raises(
        MirrorCommandError, match="no acknowledgement; it is unknown whether the change was stored: repeat the command"
    ):
        rig.run("stop")
    assert rig.states.current.flow is RequestedState.RUNNING
    assert not rig.states.is_known
    rig.store.is_silent = False
    rig.store.is_away = True
    with pytest.raises(MirrorCommandError, match="B does not answer; it is unknown whether"):
        rig.run("restart")
    rig.store.is_away = False
    with pytest.raises(MirrorCommandError, match="it and its topics are STOPPED: first klamm mirror resume"):
        rig.run("restart")


def test_commands_of_one_flow_are_carried_out_one_after_the_other() -> None:
    rig = Rig()
    rig.run("stop")
    resuming = threading.Thread(target=rig.run, args=("resume",))
    seen: list[RequestedState] = []

    def wait_released(flow: str, topics: Collection[str], timeout_s: float) -> bool:
        resuming.start()
        resuming.join(0.3)
        seen.append(rig.states.current.flow)
        return False

    rig.wait_released = wait_released  # type: ignore[method-assign]
    with pytest.raises(MirrorCommandError, match="tasks still copy these topics"):
        rig.reset("orders", execute=True)
    resuming.join(60)
    assert seen == [RequestedState.STOPPED], "the flow stays stopped until its offsets are reset"
    assert rig.states.current.flow is RequestedState.RUNNING


def test_change_keeps_states_that_the_process_before_stored() -> None:
    rig = Rig()
    rig.store.saved.append(RequestedStates(topics={"users": RequestedState.STOPPED}))
    assert rig.run("pause", "orders")["topics"] == {"orders": "PAUSED", "users": "STOPPED"}
    assert rig.store.saved[-1].of("users") is RequestedState.STOPPED


def test_topic_is_known_before_a_task_reports_its_progress() -> None:
    assert Rig().run("pause", "of-a-task-that-starts")["topics"] == {"of-a-task-that-starts": "PAUSED"}


def test_resume_of_flow_resumes_its_topics() -> None:
    rig = Rig()
    rig.run("pause", "orders")
    assert rig.run("resume") == {"flow": FLOW, "state": "RUNNING", "topics": {}}
    assert rig.states.current == RequestedStates()


@pytest.mark.parametrize("action", ["pause", "resume", "stop", "restart"])
@pytest.mark.parametrize("topic", ["users", "of-a-flow-that-was-stopped-before-the-start"])
def test_topic_of_stopped_flow_names_the_command_that_starts_the_flow(action: str, topic: str) -> None:
    rig = Rig()
    rig.run("stop")
    with pytest.raises(MirrorCommandError) as caught:
        rig.run(action, topic)
    assert str(caught.value) == "A->B: it and its topics are STOPPED: first klamm mirror resume 'A->B'"
    assert caught.value.status == 409
    assert rig.store.saved[-1].topics == {}


def test_restart_of_a_stopped_topic_names_the_command_that_starts_it() -> None:
    rig = Rig()
    rig.run("stop", "orders")
    with pytest.raises(MirrorCommandError, match=r"topic orders is STOPPED: first klamm mirror resume 'A->B' orders$"):
        rig.run("restart", "orders")


@pytest.mark.parametrize(
    ("state", "status", "message"),
    [
        (FlowState.STARTING, 503, r"its topics are not known yet \(STARTING\); retry"),
        (FlowState.FAILED, 409, "it is FAILED: first klamm mirror restart 'A->B'"),
    ],
)
def test_topic_is_not_called_unknown_before_the_topics_are_known(state: FlowState, status: int, message: str) -> None:
    rig = Rig(is_started=False)
    rig.status.set_state(FLOW, state, "a reason")
    with pytest.raises(MirrorCommandError, match=message) as caught:
        rig.run("pause", "orders")
    assert caught.value.status == status


def test_topic_of_a_flow_that_mirrors_none_is_not_mirrored() -> None:
    rig = Rig(is_started=False)
    rig.status.expect(FLOW, [])
    with pytest.raises(MirrorCommandError, match="topic orders is not mirrored; name topics as on the source"):
        rig.run("pause", "orders")


@pytest.mark.parametrize(
    ("command", "status", "message"),
    [
        ({"flow": "A->C"}, 404, "flow A->C: this mirror has A->B; did you mean A->B"),
        ({"flow": "A-"}, 404, "flow A-: this mirror has A->B; put the name in quotes"),
        ({"topics": ["order"]}, 404, "topic order is not mirrored; did you mean orders"),
        ({"topics": [7]}, 400, "expected names of source topics"),
        ({"action": "delete"}, 400, "expected one of the actions pause, resume, stop, restart, reset"),
        ({"topics": "orders"}, 400, "expected one of the actions"),
        ({"action": "reset", "partitions": [], "to": "middle", "value": 0}, 400, "'middle' is not a valid ResetTo"),
        ({"action": "reset", "partitions": [7], "to": "earliest", "value": 0}, 404, "expected a topic and its part"),
    ],
)
def test_invalid_command_is_rejected_with_reason(command: dict[str, Any], status: int, message: str) -> None:
    rig = Rig()
    with pytest.raises(MirrorCommandError, match=message) as caught:
        rig.commands.run({"action": "pause", "flow": FLOW, "topics": []} | command)
    assert caught.value.status == status
    assert rig.store.saved == []


def test_process_that_stands_by_names_the_other_one() -> None:
    rig = Rig()
    rig.claim.let_go(holder="host-1, process 4711")
    with pytest.raises(MirrorCommandError, match="this process stands by; send the command to host-1, process 4711"):
        rig.run("pause")


def test_restart_starts_stopped_partitions_of_chosen_topics() -> None:
    rig = Rig()
    assert rig.run("restart")["restarted"] == []
    rig.report("orders", CopyState.STOPPED)
    rig.report("users", CopyState.STOPPED)
    assert rig.run("restart", "users")["restarted"] == [{"topic": "users", "partition": 0}]
    assert rig.restarted == [[], ["users"]]
    assert len(rig.run("restart")["restarted"]) == 2


def test_restart_of_failed_flow_lets_it_try_again() -> None:
    rig = Rig()
    rig.status.set_state(FLOW, FlowState.FAILED, "a reason")
    assert rig.run("restart")["restarted_flow"]
    assert rig.run("restart", "a-topic-that-it-did-not-reach")["restarted_flow"]
    assert rig.states.restarts == 2


def replica_rig(**more: Any) -> Rig:
    """Return a mirror of a flow whose remote topics klamm leads."""
    return Rig(
        **more,
        klamm_offsets="preserve",
        klamm_offsets_by="replica",
        klamm_replica_experimental="true",
        klamm_replica_node_id="9",
        klamm_replica_listeners="127.0.0.1:9192",
        B_bootstrap_controllers="127.0.0.1:9093",
    )


def test_promotion_of_a_topic_is_stored_and_ends_other_commands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    answer = rig.promote("orders", execute=True)
    (orders,) = answer["topics"]
    assert (orders["remote_topic"], orders["partitions"], orders["lag"]) == ("A.orders", 1, 0)
    assert rig.store.saved[-1].topics == {"orders": RequestedState.PROMOTED}
    with pytest.raises(MirrorCommandError, match="topic orders is PROMOTED: klamm mirror demote FILE orders"):
        rig.run("stop", "orders")
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])
    monkeypatch.setattr(commands, "topics_not_mirrored", lambda _flow, _topics: [])
    with pytest.raises(MirrorCommandError, match="topic users is RUNNING, not promoted"):
        rig.run("demote", "users")
    answer = rig.run("demote")
    assert answer["topics"] == {"orders": "DEMOTED"}
    assert [each["topic"] for each in answer["demoted"]] == ["orders"]
    assert rig.run("demote", "orders")["topics"] == answer["topics"]


@pytest.mark.parametrize("topics", [[], ["orders", "users"]])
def test_withdrawal_leaves_topics_that_are_handed_over(monkeypatch: pytest.MonkeyPatch, topics: list[str]) -> None:
    rig = replica_rig()
    rig.promote("orders", "users", execute=True, accept_loss=True)
    rig.report("orders", CopyState.COPYING, "not promoted yet: a reason")
    monkeypatch.setattr(commands, "handed_over_topics", lambda _, names: [each for each in names if each == "orders"])
    answer = rig.run("demote", *topics)
    assert answer["topics"] == {"orders": "FAILED_OVER", "users": "DEMOTED"}
    (orders,) = answer["handed_over"]
    assert (orders["topic"], orders["remote_topic"]) == ("orders", "A.orders")
    assert orders["unfinished"] == "orders-0: not promoted yet: a reason"
    with pytest.raises(MirrorCommandError, match="no topic can be demoted: orders handed over to brokers"):
        rig.run("demote")


def test_topics_that_were_written_since_their_promotion_stay_with_the_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    rig.promote("orders", "users", execute=True)
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, topics: list(topics))
    monkeypatch.setattr(commands, "open_store", MagicMock())
    monkeypatch.setattr(commands, "written_topics", lambda *_: {"orders": "A.orders-0 ends at offset 4, not at 3"})
    answer = rig.commands.run({"action": "demote", "flow": FLOW, "topics": [], "take_back": True})
    assert answer["topics"] == {"orders": "PROMOTED", "users": "DEMOTED"}
    assert [each["topic"] for each in answer["demoted"]] == ["users"]
    assert [each["reason"] for each in answer["handed_over"]] == ["A.orders-0 ends at offset 4, not at 3"]


def test_topic_that_is_not_selected_is_not_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing would be mirrored to it, and the brokers could no longer be written."""
    rig = replica_rig(topics="users")
    rig.promote("orders", "users", execute=True)
    command = {"action": "demote", "flow": FLOW, "topics": [], "take_back": True}
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, topics: list(topics))
    monkeypatch.setattr(commands, "open_store", MagicMock())
    monkeypatch.setattr(commands, "written_topics", lambda *_: {})
    with pytest.raises(MirrorCommandError, match=r"topics and topics\.exclude do not select orders: select it first"):
        rig.commands.run(command)
    assert rig.states.current.of("orders") is RequestedState.PROMOTED
    assert rig.commands.run(command | {"topics": ["users"]})["topics"]["users"] == "DEMOTED"
    # when it is not handed over yet
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])
    # then the promotion is withdrawn
    assert rig.commands.run(command | {"topics": ["orders"]})["topics"]["orders"] == "DEMOTED"


def test_log_end_after_the_promotion_and_another_topic_id_prevent_a_demotion(monkeypatch: pytest.MonkeyPatch) -> None:
    target = FakeCluster(**{"A.orders": 2, "A.users": 1})
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: target)
    flow = replica_rig().commands.flows[FLOW]
    topic_id = target.describe_topics(["A.orders"]).all().result()["A.orders"].topic_id
    ends = MagicMock()
    ends.return_value.all.return_value.result.return_value = defaultdict(lambda: MagicMock(offset=0))
    monkeypatch.setattr(target, "list_offsets", ends)
    stored = StoredSourceOffsets(
        offsets={("orders", 0): -1, ("orders", 1): 4},
        promotions={"orders": StoredPromotion(topic_id, True), "users": StoredPromotion(UUID(int=99), True)},
    )
    denied = promotion.written_topics(flow, ["orders", "users"], stored)
    assert denied["orders"].startswith("A.orders-1 ends at offset 0, not at 5, where klamm handed it over")
    assert denied["users"] == "klamm did not hand A.users over"
    stored.offsets["orders", 1] = -1
    assert promotion.written_topics(flow, ["orders"], stored) == {}


@pytest.mark.parametrize("action", ["pause", "resume", "stop"])
def test_topic_that_klamm_takes_back_keeps_its_state(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    rig = replica_rig()
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])
    rig.promote("orders", execute=True)
    rig.run("demote", "orders")
    monkeypatch.setattr(commands, "topics_not_mirrored", lambda _flow, topics: list(topics))
    with pytest.raises(MirrorCommandError, match="topic orders is DEMOTED, and klamm does not mirror it yet"):
        rig.run(action, "users", "orders")
    assert rig.store.saved[-1].topics == {"orders": RequestedState.DEMOTED}
    rig.run(action, "users")
    # when
    monkeypatch.setattr(commands, "topics_not_mirrored", lambda _flow, _topics: [])
    # then
    rig.run(action, "orders")
    assert rig.store.saved[-1].of("orders") is not RequestedState.DEMOTED


def test_topic_that_klamm_has_not_taken_back_can_be_demoted_in_each_state(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])
    monkeypatch.setattr(
        commands, "topics_not_mirrored", lambda _flow, topics: [each for each in topics if each == "orders"]
    )
    with pytest.raises(MirrorCommandError, match="topic users is RUNNING, not promoted"):
        rig.run("demote", "orders", "users")
    assert rig.run("demote", "orders")["topics"] == {"orders": "DEMOTED"}


@pytest.mark.parametrize("action", ["pause", "stop"])
def test_promotion_is_withdrawn_in_a_flow_that_is_not_running_but_nothing_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    rig = replica_rig()
    rig.promote("orders", execute=True)
    rig.run(action)
    state = rig.store.saved[-1].flow
    with pytest.raises(MirrorCommandError, match=f"it is {state}: first klamm mirror resume 'A->B'"):
        rig.commands.run({"action": "demote", "flow": FLOW, "topics": ["orders"], "take_back": True})
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, _topics: [])
    for _ in range(2):
        assert rig.run("demote", "orders")["topics"] == {"orders": state}
    assert rig.store.saved[-1].topics == {"orders": RequestedState.DEMOTED}


@pytest.mark.parametrize("accept_loss", [True, False])
def test_topic_that_is_handed_over_during_its_withdrawal_stays_promoted(
    monkeypatch: pytest.MonkeyPatch, *, accept_loss: bool
) -> None:
    rig = replica_rig()
    rig.promote("orders", "users", execute=True, accept_loss=accept_loss)
    before = rig.store.saved[-1]

    def handed_over_topics(_flow: object, topics: Sequence[str]) -> list[str]:
        return [topic for topic in topics if topic == "orders" and rig.store.saved[-1] is not before]

    monkeypatch.setattr(commands, "handed_over_topics", handed_over_topics)
    answer = rig.run("demote")
    assert answer["topics"] == {"orders": before.of("orders"), "users": "DEMOTED"}
    assert [each["topic"] for each in answer["demoted"]] == ["users"]
    assert [each["topic"] for each in answer["handed_over"]] == ["orders"]


def test_paused_topic_is_not_promoted() -> None:
    """It would be copied on during the promotion, and after its withdrawal."""
    rig = replica_rig()
    rig.run("pause", "orders")
    for topics in ((), ("orders",)):
        with pytest.raises(MirrorCommandError, match="topic orders is PAUSED: first klamm mirror resume 'A->B' orders"):
            rig.promote(*topics, execute=True)
    rig.run("resume", "orders")
    rig.promote("orders", execute=True)


@pytest.mark.parametrize("execute", [False, True])
def test_topics_that_the_flow_did_not_hand_over_are_not_promoted(
    monkeypatch: pytest.MonkeyPatch, *, execute: bool
) -> None:
    """Such as those of another flow with the same remote topics. Their promotion could neither end nor be withdrawn."""
    rig = replica_rig()
    led = ["orders"]
    stored = StoredSourceOffsets()
    monkeypatch.setattr(commands, "handed_over_topics", lambda _, names: [each for each in names if each in led])
    monkeypatch.setattr(commands, "open_store", lambda _: contextlib.nullcontext(SimpleNamespace(read=lambda: stored)))
    monkeypatch.setattr(commands, "plan", lambda flow, names, rows, **_: promotion.promotions(flow, names, rows))
    rig.status.expect(FLOW, [("orders", 0), ("users", 0)])
    assert [each["topic"] for each in rig.promote(execute=execute, accept_loss=True)["topics"]] == ["users"]
    message = r"another flow of klamm lead A\.orders, and this flow did not hand it over: there is nothing to promote"
    with pytest.raises(MirrorCommandError, match=message):
        rig.promote("users", "orders", execute=execute)
    # when this flow handed it over, and is to mirror it again
    stored = StoredSourceOffsets(promotions={"orders": StoredPromotion(UUID(int=7), is_finished=False)})
    # then
    assert rig.promote("orders", execute=execute)["pending"] == ["orders"]


def test_topic_that_is_not_selected_is_promoted_by_name_only() -> None:
    rig = replica_rig(topics="users")
    assert [each["topic"] for each in rig.promote(execute=True, accept_loss=True)["topics"]] == ["users"]
    assert [each["topic"] for each in rig.promote("orders", execute=True, accept_loss=True)["topics"]] == ["orders"]


def test_group_offsets_are_synced_before_a_promotion_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    synced: list[object] = []

    def sync_groups(_flow: object, topics: object, _progress: object) -> str:
        synced.append((topics, len(rig.store.saved)))
        return "1 group is missing"

    monkeypatch.setattr(commands, "sync_groups", sync_groups)
    assert rig.promote("orders", "users", execute=True)["warning"] == "1 group is missing"
    rig.report("orders", CopyState.PROMOTED)
    rig.report("users", CopyState.PROMOTED)
    assert rig.promote("orders", execute=True)["warning"] == ""
    assert synced == [(["orders", "users"], 0)]


@pytest.mark.parametrize(
    ("error", "is_requested"),
    [
        (ConnectionLostError("A is away"), False),
        (rejection("INVALID_REPLICATION_FACTOR", "2 > 1"), True),
        (KeyError("of a custom GroupFilter"), True),
    ],
)
def test_promotion_waits_for_a_cluster_to_sync_groups_but_not_for_a_correction(
    monkeypatch: pytest.MonkeyPatch, error: Exception, *, is_requested: bool
) -> None:
    rig = replica_rig()
    monkeypatch.setattr(commands, "sync_groups", MagicMock(side_effect=error))
    message = "offsets of groups cannot be synced: A is away; nothing was changed: repeat the command, or promote with"
    with contextlib.nullcontext() if is_requested else pytest.raises(MirrorCommandError, match=message):
        warning = rig.promote("orders", execute=True)["warning"]
        assert warning.startswith("offsets of groups were not synced again: ")
    assert bool(rig.store.saved) == is_requested


def test_promotion_is_not_stored_after_the_claim_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()

    def sync_groups(*_: object) -> str:
        rig.claim.let_go(holder="host-2")
        return ""

    monkeypatch.setattr(commands, "sync_groups", sync_groups)
    with pytest.raises(MirrorCommandError, match="this process stands by; send the command to host-2"):
        rig.promote("orders", execute=True)
    assert rig.store.saved == []


def test_sync_of_groups_that_takes_long_does_not_hold_up_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()

    @contextlib.contextmanager
    def group_control(flow: FlowSettings, status: GroupStatus, _progress: object) -> Iterator[object]:
        status.set(flow.name, FlowGroups())
        yield SimpleNamespace(sync=lambda: ends.wait(60))

    monkeypatch.setattr(promotion, "group_control", group_control)
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: FakeCluster())
    monkeypatch.setattr(promotion, "MAX_SYNC_S", 0.01)
    flow = replica_rig().commands.flows[FLOW]
    try:
        assert (
            promotion.sync_groups(flow, ["orders"], tuple)
            == "offsets of groups were not all synced again within 0.01 s"
        )
    finally:
        ends.set()


def test_sync_of_groups_awaits_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter(["offset 9 is not mirrored yet", ""])

    @contextlib.contextmanager
    def group_control(flow: FlowSettings, status: GroupStatus, _progress: object) -> Iterator[object]:
        def sync() -> None:
            offset = MagicMock(topic="orders", reason=next(reasons))
            other = MagicMock(topic="other", reason="offset 3 is not mirrored yet")
            status.set(flow.name, FlowGroups(offsets=(offset, other)))

        yield SimpleNamespace(sync=sync)

    monkeypatch.setattr(promotion, "group_control", group_control)
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: FakeCluster())
    monkeypatch.setattr(promotion, "_GROUPS_EVERY_S", 0.0)
    flow = replica_rig().commands.flows[FLOW]
    promotion.sync_groups(flow, ["orders"], tuple)
    assert list(reasons) == []
    promotion.sync_groups(replica_rig(emit_checkpoints_enabled="false").commands.flows[FLOW], ["orders"], tuple)


@pytest.mark.parametrize(
    ("level", "min_isr", "is_at_risk"), [(1, "2", True), (1, "1", False), (0, "2", False)], ids=str
)
def test_topic_of_which_another_broker_could_be_elected_is_not_taken_back(
    monkeypatch: pytest.MonkeyPatch, level: int, min_isr: str, *, is_at_risk: bool
) -> None:
    target = FakeCluster(**{"A.orders": 1, "A.users": 1})
    target.configs["A.orders"] = {"min.insync.replicas": min_isr}
    target.configs["A.users"] = {"min.insync.replicas": "1"}
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: target)
    monkeypatch.setattr(promotion, "connected", MagicMock())
    monkeypatch.setattr(promotion, "target_nodes", MagicMock())
    features = {"eligible.leader.replicas.version": level}
    monkeypatch.setattr(promotion, "finalized_features", lambda _: features)
    monkeypatch.setattr(commands, "topics_at_risk", promotion.topics_at_risk)
    rig = replica_rig()
    rig.promote("orders", "users", execute=True)
    monkeypatch.setattr(commands, "handed_over_topics", lambda _flow, topics: list(topics))
    monkeypatch.setattr(commands, "open_store", MagicMock())
    monkeypatch.setattr(commands, "written_topics", lambda *_: {})
    command = {"action": "demote", "flow": FLOW, "topics": [], "take_back": True}
    if is_at_risk:
        with pytest.raises(MirrorCommandError, match=r"A\.orders has min\.insync\.replicas above 1, so clust"):
            rig.commands.run(command)
    else:
        rig.commands.run(command)
    assert (rig.states.current.of("users") is RequestedState.DEMOTED) != is_at_risk


def test_promotion_that_fails_before_it_is_stored_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    monkeypatch.setattr(commands, "handed_over_topics", MagicMock(side_effect=ConnectionLostError("B is away")))
    with pytest.raises(MirrorCommandError, match="B is away; nothing was changed: repeat the command"):
        rig.promote("orders", execute=True)


def test_repeated_promotion_returns_the_one_that_is_requested() -> None:
    rig = replica_rig()
    rig.store.is_silent = True
    with pytest.raises(MirrorCommandError, match="it is unknown whether the change was stored: repeat the command"):
        rig.promote("orders", execute=True)
    rig.store.is_silent = False
    assert rig.promote("orders", execute=True)["pending"] == ["orders"]
    answer = rig.promote("orders", "users", execute=True)
    assert answer["pending"] == [each["topic"] for each in answer["topics"]] == ["orders", "users"]
    rig.report("orders", CopyState.PROMOTED)
    assert rig.promote("orders", "users", execute=True)["pending"] == ["users"]
    assert [len(each.topics) for each in rig.store.saved] == [1, 2]


def test_pending_promotions_are_withdrawn_before_the_loss_of_the_source_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = replica_rig()
    handed_over: list[str] = []
    monkeypatch.setattr(
        commands, "handed_over_topics", lambda _flow, names: [each for each in names if each in handed_over]
    )
    rig.promote("orders", "users", execute=True)
    message = "PROMOTED already, by an earlier command: {0}. .* To withdraw it: klamm mirror demote FILE {1}$"
    with pytest.raises(MirrorCommandError, match=message.format("orders, users", "orders users")):
        rig.promote(execute=True, accept_loss=True)
    handed_over.append("orders")
    with pytest.raises(MirrorCommandError, match=message.format("users", "users")):
        rig.promote("orders", "users", execute=True, accept_loss=True)
    assert [each["topic"] for each in rig.promote("orders", execute=True, accept_loss=True)["topics"]] == ["orders"]
    rig.report("users", CopyState.PROMOTED)
    rig.promote("orders", "users", execute=True, accept_loss=True)
    assert rig.store.saved[-1].topics == dict.fromkeys(("orders", "users"), RequestedState.PROMOTED)


def test_topic_with_partitions_that_are_not_on_the_target_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    source, target = FakeCluster(orders=4), FakeCluster(**{"A.orders": 3})
    monkeypatch.setattr(commands, "missing_partitions", promotion.missing_partitions)
    monkeypatch.setattr(promotion, "admin_client", lambda _, side, **__: source if side == "source" else target)
    with pytest.raises(MirrorCommandError, match=r"orders has 4 partitions on cluster A, and A\.orders has 3: the mir"):
        rig.promote("orders", execute=True)
    assert rig.store.saved == []
    rig.promote("orders", execute=True, accept_loss=True)
    source.check_connection = lambda **_: done(ConnectionLostError("away"))  # type: ignore[method-assign]
    assert promotion.missing_partitions(rig.commands.flows[FLOW], ["orders"]) == {}


def test_topic_that_cannot_be_described_is_not_taken_for_one_that_klamm_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    flow = replica_rig().commands.flows[FLOW]
    target = FakeCluster(**{"A.orders": 1})
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: target)
    assert promotion.handed_over_topics(flow, ["orders", "users"]) == ["orders"]
    target.denied.add("A.orders")
    with pytest.raises(KafkaApiError, match="TOPIC_AUTHORIZATION_FAILED"):
        promotion.handed_over_topics(flow, ["orders", "users"])


def test_plan_awaits_no_replicas_that_a_reassignment_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Moving(FakeCluster):
        removing: tuple[int, ...] = (0, 9)

        def list_partition_reassignments(
            self, partitions: Collection[TopicPartition] | None = None, *, timeout_ms: int | None = None
        ) -> Outcome[Mapping[TopicPartition, PartitionReassignment]]:
            reassignment = PartitionReassignment(
                replicas=(0, 1, 9), adding_replicas=(1,), removing_replicas=self.removing
            )
            return done({TopicPartition("A.orders", 0): reassignment})

    rig = replica_rig()
    target = Moving(**{"A.orders": 1})
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: target)
    assert rig.promote("orders", accept_loss=True)["topics"][0]["obstacles"] == ()
    target.removing = (9,)
    assert rig.promote("orders", accept_loss=True)["topics"][0]["obstacles"] == ("A.orders-0: replicas 0 are not live",)


@pytest.mark.parametrize(
    ("leader", "error_code", "warning"),
    [
        (
            9,
            ErrorCode.NONE,
            r"transactional ids of the target whose producer ids are in the log: pay\. ",
        ),
        (
            9,
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            "not known: broker 1 does not name its .*: COORDINATOR_LOAD_",
        ),
        (1, ErrorCode.NONE, "$"),
    ],
    ids=["mirrored", "not known", "promoted before"],
)
def test_plan_reports_transactional_ids_with_colliding_producer_ids(
    monkeypatch: pytest.MonkeyPatch, leader: int, error_code: ErrorCode, warning: str
) -> None:
    # given
    def respond(request: Message, response: type[Message], **_: object) -> Message:
        if response is DescribeProducersResponse:
            producers = [DescribeProducersResponse.ProducerState(producer_id=7)]
            described = DescribeProducersResponse.PartitionResponse(active_producers=producers)
            topic = DescribeProducersResponse.TopicResponse(name="A.orders", partitions=[described])
            return DescribeProducersResponse(topics=[topic])
        assert isinstance(request, ListTransactionsRequest)
        assert request.producer_id_filters == [7]
        pay = ListTransactionsResponse.TransactionState(transactional_id="pay", producer_id=7)
        return ListTransactionsResponse(error_code=error_code, transaction_states=[pay])

    broker = MagicMock()
    broker.connection.return_value.call.side_effect = respond
    monkeypatch.setattr(promotion, "connected", lambda _: contextlib.nullcontext(broker))
    monkeypatch.setattr(promotion, "target_nodes", lambda _: MagicMock(brokers={1}))
    target = FakeCluster(**{"A.orders": 1})
    partition = PartitionDescription(partition=0, leader=leader, leader_epoch=0, replicas=(9, 1), isr=(leader,))
    described = TopicDescription(name="A.orders", topic_id=UUID(int=7), is_internal=False, partitions=(partition,))
    target.list_partition_reassignments = lambda *_, **__: done({})  # type: ignore[method-assign]
    target._described = lambda _: described  # type: ignore[assignment,method-assign]
    monkeypatch.setattr(promotion, "admin_client", lambda *_, **__: target)
    # when
    (planned,) = replica_rig().promote("orders", accept_loss=True)["topics"]
    # then
    assert re.search(f"^(the .* )?{warning}", planned["warning"])


def test_open_transactions_that_may_not_be_described_are_not_counted_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = replica_rig()
    clusters = {"source": MagicMock(), "target": MagicMock()}
    clusters["target"].list_partition_reassignments.return_value.result.return_value = {}
    clusters["target"].describe_cluster.return_value.result.return_value.nodes = ()
    for admin in clusters.values():
        admin.__enter__.return_value = admin
        admin.describe_topics.side_effect = lambda names: dict.fromkeys(names, rejection("UNKNOWN_TOPIC_OR_PARTITION"))
    clusters["source"].describe_producers.return_value = {
        TopicPartition("orders", 0): rejection("TOPIC_AUTHORIZATION_FAILED"),
        TopicPartition("users", 0): (MagicMock(transaction_start_offset=4), MagicMock(transaction_start_offset=None)),
    }
    monkeypatch.setattr(promotion, "outcomes", lambda value: value)
    monkeypatch.setattr(promotion, "admin_client", lambda _, side, **__: clusters[side])
    topics = rig.promote("orders", "users")["topics"]
    assert [(each["topic"], each["open_transactions"]) for each in topics] == [("orders", None), ("users", 1)]


def test_promotion_of_a_failed_flow_is_rejected() -> None:
    rig = replica_rig()
    rig.status.set_state(FLOW, FlowState.FAILED, "a reason")
    with pytest.raises(MirrorCommandError, match="it is FAILED: first klamm mirror restart 'A->B'"):
        rig.promote("orders", execute=True)


def test_promotion_without_the_source_concerns_all_topics_by_default() -> None:
    rig = replica_rig()
    rig.status.expect(FLOW, [("heartbeats", 0), ("orders", 0), ("users", 0), ("of-a-task-that-starts", 0)])
    rig.promote(execute=True, accept_loss=True)
    topics = ("orders", "users", "of-a-task-that-starts")
    assert rig.store.saved[-1].topics == dict.fromkeys(topics, RequestedState.FAILED_OVER)


def test_promotion_names_what_partitions_wait_for() -> None:
    rig = replica_rig()
    rig.report("orders", CopyState.STOPPED, "a reason")
    (orders, users) = rig.promote("orders", "users", execute=True)["topics"]
    assert (orders["obstacles"], users["obstacles"]) == (("orders-0: a reason",), ())


def test_promotion_of_a_flow_that_produces_is_rejected() -> None:
    with pytest.raises(MirrorCommandError, match=r"need no promotion: expected klamm\.offsets\.by=replica"):
        Rig().promote("orders", execute=True)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (["orders", "users"], "topic users is PAUSED: first klamm mirror stop 'A->B' users"),
        ([], "it is RUNNING: first klamm mirror stop 'A->B'$"),
    ],
)
def test_reset_requires_stopped_topics(topics: list[str], message: str) -> None:
    rig = Rig()
    rig.run("stop", "orders")
    rig.run("pause", "users")
    with pytest.raises(MirrorCommandError, match=message) as caught:
        rig.reset(*topics)
    assert caught.value.status == 409


def test_reset_forgets_lease_sessions_before_it_writes_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would go on where they were, and write these offsets over the new ones."""
    # given
    rig, seen = Rig(), Mock()
    monkeypatch.setattr(commands, "open_store", lambda _flow: contextlib.nullcontext(Mock()))
    monkeypatch.setattr(commands, "SourceOffsetReset", lambda *_: seen)
    monkeypatch.setattr(rig, "wait_released", lambda *_: True)
    seen.plan.return_value, seen.absent = [], ()
    rig.forget_sessions = seen.forget  # type: ignore[method-assign]
    rig.run("stop")
    # when
    rig.reset("orders")
    rig.reset("orders", execute=True)
    # then
    assert [name for name, *_ in seen.method_calls] == ["plan", "plan", "forget", "execute"]


def test_reset_is_rejected_where_the_target_decides() -> None:
    rig = Rig(klamm_offsets="preserve")
    with pytest.raises(MirrorCommandError, match=r"klamm\.offsets=preserve: offsets could not stay equal"):
        rig.reset("orders")


@pytest.mark.parametrize(
    ("current", "requested", "new", "effect"),
    [
        (10, 4, 4, "6 offsets are mirrored again, as duplicates in A.orders"),
        (10, 9, 9, "1 offset is mirrored again, as duplicates in A.orders"),
        (10, 15, 15, "5 offsets are not mirrored"),
        (10, 11, 11, "1 offset is not mirrored"),
        (10, 10, 10, "no change"),
        (10, 99, 20, "10 offsets are not mirrored; 99 is outside the log of the source"),
        (None, 2, 2, "the first offset is stored"),
    ],
)
def test_plan_of_reset_names_its_effect(current: int | None, requested: int, new: int, effect: str) -> None:
    change = OffsetChange(
        topic="orders", partition=0, remote_topic="A.orders", current_offset=current, new_offset=new,
        log_start_offset=2, log_end_offset=20, requested_offset=requested,
    )  # fmt: skip
    assert change.effect == effect
