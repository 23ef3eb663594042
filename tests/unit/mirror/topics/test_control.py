from __future__ import annotations

import contextlib
import logging
import threading
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch

import pytest

from klamm.admin import ConfigEntry, ConfigSource, KafkaApiError
from klamm.kafka_client.errors import ConnectionLostError, error_text
from klamm.mirror.filters import DefaultTopicFilter
from klamm.mirror.progress.flow_progress import (
    FlowFailedError,
    FlowProgress,
    FlowState,
    MirrorStatus,
    describe,
    needs_person,
)
from klamm.mirror.progress.partition_progress import NO_REMOTE_TOPIC, CopyState, PartitionProgress
from klamm.mirror.records.requested_states import RequestedState, RequestedStates
from klamm.mirror.settings.mirror import parse_settings
from klamm.mirror.topics import plan_output
from klamm.mirror.topics.claims import FlowClaim
from klamm.mirror.topics.control import Assignment, FlowControl
from klamm.mirror.topics.plan_output import plan_flow
from klamm.mirror.topics.remote_topics import RemoteTopics
from klamm.mirror.topics.states import FlowStates
from klamm.protocol.errors import InvalidConfigError
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.mirror_fakes import FakeCluster, done, rejection
from tests.support.mirror_status import progress_row

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from klamm.admin import NewTopic, TopicPartition
    from klamm.kafka_client.pool.calls import Outcome
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.mirror.settings.mirror import MirrorSettings
    from klamm.mirror.topics.remote_topics import Outcomes

POSITIONS = "mm2-offsets.A.internal"


class Run:
    """A control loop between two fake clusters, with a clock of its own."""

    def __init__(
        self, source: FakeCluster, target: FakeCluster, remote_topics: RemoteTopics | None = None, /, **more: str
    ) -> None:
        self.now = 100.0
        self.published: list[Assignment] = []
        parsed = settings(**more)
        self.settings = parsed.flows[0]
        self.status = MirrorStatus([self.settings.name])
        self.claim = FlowClaim.always()
        self.states = FlowStates()
        self.requested: list[Mapping[str, RequestedState]] = []
        self.forgotten: list[tuple[list[str], bool]] = []
        """Source topics that were forgotten, and whether A.orders existed then."""
        self.control = FlowControl(
            self.settings,
            source,
            target,
            status=self.status,
            publish=self.published.append,
            heartbeats=next((pair for pair in parsed.heartbeats if pair.name == "B->A"), None),
            claim=self.claim,
            states=self.states,
            request=self.requested.append,
            clock=lambda: self.now,
            forget=lambda _, topics: self.forgotten.append((sorted(topics), "A.orders" in target.topics)),
            remote_topics=remote_topics,
        )

    def run_once(self) -> tuple[FlowState, str]:
        """Run a turn and return the state and reason that the loop reports after it."""
        self.control.turn()
        self.control.report_progress()
        return self.progress().state, self.progress().reason

    def progress(self) -> FlowProgress:
        (progress,) = self.status.snapshot()
        return progress


def acl(topic: str) -> Acl:
    return Acl(
        resource_type=AclResourceType.TOPIC,
        resource_name=topic,
        pattern_type=PatternType.LITERAL,
        principal="User:alice",
        host="*",
        operation=AclOperation.READ,
        permission=AclPermission.ALLOW,
    )


def settings(**more: str) -> MirrorSettings:
    properties = {
        "clusters": "A,B",
        "A.bootstrap.servers": "a:1",
        "B.bootstrap.servers": "b:1",
        "A->B.enabled": "true",
        "topics": "orders,users",
        "emit.heartbeats.enabled": "false",
    }
    return parse_settings(properties | {key.replace("_", "."): value for key, value in more.items()})


def flow() -> FlowSettings:
    return settings().flows[0]


def test_remote_topics_are_created_with_configs_before_copying() -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.

    K894-45: Internal topics: 1 partition, compacted, RF 3 default; existing topic is fine; no right to create -> assume
    it exists.
    """
    source, target = FakeCluster(orders=3, other=1), FakeCluster()
    source.configs["orders"] = {"retention.ms": "-1", "min.insync.replicas": "2"}
    run = Run(source, target)
    run.control.turn()
    positions, orders = target.created
    assert (positions.name, positions.num_partitions, positions.replication_factor) == (POSITIONS, 25, 3)
    assert positions.configs == {"cleanup.policy": "compact", "segment.bytes": "104857600"}
    assert (orders.name, orders.num_partitions, orders.replication_factor) == ("A.orders", 3, 2)
    assert orders.configs == {"retention.ms": "-1"}
    assert run.published == [(("orders", "A.orders", 3),)]


def test_worker_offsets_are_copied_before_records() -> None:
    """K894-38: a task would take a partition without a position for a new one."""
    parsed = settings().flows[0]
    is_away = [True]
    seen: list[tuple[str, int]] = []

    def carry(flow: FlowSettings) -> None:
        seen.append((flow.name, len(published)))
        if is_away.pop():
            raise ConnectionLostError("an open transaction hides source offsets")

    published: list[Assignment] = []
    control = FlowControl(
        parsed,
        FakeCluster(orders=1),
        FakeCluster(),
        status=MirrorStatus([parsed.name]),
        publish=published.append,
        carry=carry,
    )
    with pytest.raises(ConnectionLostError):
        control.turn()
    is_away.append(False)
    control.turn()
    control.turn()
    assert seen == [("A->B", 0), ("A->B", 0)]
    assert published == [(("orders", "A.orders", 1),)]


IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


@pytest.mark.parametrize(
    ("more", "again"),
    [
        ({"replication_policy_class": IDENTITY}, "topic orders would be copied to itself, endlessly"),
        ({"topics": ".*"}, "topic orders would be copied to A.orders, which would be mirrored again, endlessly"),
        ({}, "topic heartbeats would be copied to A.heartbeats"),
    ],
)
def test_flow_within_one_cluster_fails_on_its_own_topics(more: dict[str, str], again: str) -> None:
    cluster = FakeCluster(**{"orders": 1} if more else {"heartbeats": 1, "orders": 1})
    run = Run(cluster, cluster, **more)
    with pytest.raises(FlowFailedError, match=f"clusters A and B are the same cluster: {again}"):
        run.control.turn()
    assert (cluster.created, run.published) == ([], [])


def test_flow_within_one_cluster_copies_topics_under_other_names() -> None:
    cluster = FakeCluster(orders=1)
    run = Run(cluster, cluster)
    run.control.turn()
    assert run.published == [(("orders", "A.orders", 1),)]


@pytest.mark.parametrize("is_old", [False, True])
def test_equal_or_missing_cluster_id_does_not_prove_one_cluster(*, is_old: bool) -> None:
    source, target = FakeCluster(orders=1), FakeCluster(orders=1)
    target.cluster_id = source.cluster_id = None if is_old else "5L6g3nShT-eMCtK--X86sw"
    if is_old:
        source.uuid = target.uuid
    run = Run(source, target, replication_policy_class=IDENTITY)
    run.control.turn()
    assert run.published == [(("orders", "orders", 1),)]


def test_new_topics_and_partitions_are_found_at_next_refresh() -> None:
    """K894-36: what goes away on the source stays on the target; what was deleted there comes back."""
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    run.control.turn()
    source.topics = {"orders": 2, "users": 1}
    run.now += 599
    run.control.turn()
    assert target.topics["A.orders"] == 1
    run.now += 1
    run.control.turn()
    assert (target.topics["A.orders"], target.topics["A.users"]) == (2, 1)
    assert run.published[-1] == (("orders", "A.orders", 2), ("users", "A.users", 1))
    del source.topics["users"], target.topics["A.orders"]
    run.now += 600
    run.control.turn()
    assert (target.topics["A.orders"], target.topics["A.users"]) == (2, 1)


def test_remote_topic_missing_from_listing_is_still_copied() -> None:
    """Apache Kafka 4.4 acknowledges 500 topics of 20 partitions within seconds, and lists them within some more."""
    source, target = FakeCluster(orders=2, users=1), FakeCluster()
    run = Run(source, target)
    run.control.turn()
    target.unlisted.add("A.orders")
    run.now += 600
    run.control.turn()
    assert run.published == [(("orders", "A.orders", 2), ("users", "A.users", 1))]


def test_remote_topic_that_exists_but_is_not_listed_yet_is_awaited() -> None:
    """Another flow that shares it has just created it, or this flow before a restart."""
    # given
    source, target = FakeCluster(orders=2), FakeCluster(orders=1)
    target.unlisted.add("orders")
    run = Run(source, target, replication_policy_class=IDENTITY)
    # when
    with pytest.raises(ConnectionLostError, match="topic orders exists on cluster B, but is not listed yet"):
        run.control.turn()
    # then
    assert not run.progress().is_done
    # when
    target.unlisted.clear()
    run.control.turn()
    # then
    assert run.published == [(("orders", "orders", 2),)]


def test_topic_without_describe_right_is_reported_and_other_topics_are_copied() -> None:
    source, target = FakeCluster(orders=1, users=1), FakeCluster(**{"A.orders": 1})
    target.denied.add("A.orders")
    run = Run(source, target)
    run.control.turn()
    assert run.published == [(("users", "A.users", 1),)]
    assert run.progress().rejected == (("A.orders", "TOPIC_AUTHORIZATION_FAILED"),)


def test_rejected_topic_is_reported_and_others_continue(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    target.rejects["A.orders"] = rejection("POLICY_VIOLATION", "too few partitions")
    run = Run(source, target)
    with caplog.at_level(logging.WARNING):
        run.control.turn()
    assert run.published == [(("users", "A.users", 1),)]
    assert "Could not create topic A.orders on cluster B: POLICY_VIOLATION: too few partitions" in caplog.text
    (progress,) = run.status.snapshot()
    assert progress.rejected == (("A.orders", "POLICY_VIOLATION: too few partitions"),)
    assert "topic A.orders rejected: POLICY_VIOLATION: too few partitions" in describe(progress)
    del target.rejects["A.orders"]
    run.now += 600
    run.control.turn()
    (progress,) = run.status.snapshot()
    assert progress.rejected == ()


REPLICA = {
    "B_bootstrap_controllers": "c:1",
    "klamm_offsets": "preserve",
    "klamm_offsets_by": "replica",
    "klamm_replica_experimental": "true",
    "klamm_replica_node_id": "9",
    "klamm_replica_listeners": "klamm:9192",
}


class TopicsOfBroker(RemoteTopics):
    """Remote topics of a broker without storage that has joined, beside a topic of others."""

    rejection: KafkaApiError | ConnectionLostError | None = None

    def create(self, topics: Sequence[NewTopic]) -> Outcomes:
        if isinstance(self.rejection, ConnectionLostError):
            raise self.rejection
        return {topic.name: self.rejection for topic in topics}

    spread_topics: frozenset[str] = frozenset()
    handed_over: frozenset[str] = frozenset()

    def led(self) -> Sequence[tuple[str, str, int]]:
        return [("orders", "A.orders", 3)]

    def led_by_brokers(self, topics: Collection[str]) -> frozenset[str]:
        return self.handed_over & set(topics)

    of_other_flows: Mapping[str, int] = MappingProxyType({})

    def led_by_other_flows(self, topics: Collection[str]) -> dict[str, int]:
        return {name: self.of_other_flows[name] for name in topics if name in self.of_other_flows}

    changing: Collection[str] = ()

    def spread(self, topics: Collection[str], changing: Collection[str] = ()) -> dict[TopicPartition, KafkaApiError]:
        self.spread_topics |= set(topics)
        self.changing = changing
        return {}

    def misplaced(self, remote_topics: Collection[str]) -> dict[str, str]:
        return {"other": "the cluster has placed it on broker 9"} if "other" not in remote_topics else {}


def test_remote_topics_of_a_broker_are_led_while_the_source_is_unavailable() -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA)
    answer: list[Outcome[None]] = [done(ConnectionLostError("nobody listens")) for _ in range(2)]
    source.check_connection = lambda **_: answer.pop() if answer else done(None)  # type: ignore[method-assign]
    # when
    for _ in range(2):
        with pytest.raises(ConnectionLostError, match="nobody listens"):
            run.control.turn()
    # then
    assert run.published == [(("orders", "A.orders", 3),)]
    # when
    run.control.turn()
    # then
    assert set(run.published) == {(("orders", "A.orders", 3),)}


@pytest.mark.parametrize("is_late", [False, True])
def test_stopped_flow_of_a_broker_leads_nothing_while_the_source_is_unavailable(*, is_late: bool) -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA)
    source.check_connection = lambda **_: done(ConnectionLostError("nobody listens"))  # type: ignore[method-assign]
    if is_late:
        with pytest.raises(ConnectionLostError):
            run.control.turn()
    # when
    run.states.change(lambda _: RequestedStates(flow=RequestedState.STOPPED))
    with pytest.raises(ConnectionLostError):
        run.control.turn()
    # then
    assert run.published == ([(("orders", "A.orders", 3),), ()] if is_late else [])


def test_flow_of_a_broker_that_another_process_takes_is_released_while_the_source_is_unavailable() -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA)
    source.check_connection = lambda **_: done(ConnectionLostError("nobody listens"))  # type: ignore[method-assign]
    with pytest.raises(ConnectionLostError):
        run.control.turn()
    # when
    run.claim.let_go(holder="there, process 1")
    with pytest.raises(ConnectionLostError):
        run.control.turn()
    # then
    assert run.published == [(("orders", "A.orders", 3),), ()]


def test_topic_of_a_broker_that_is_not_selected_any_more_is_led_but_not_copied() -> None:
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA, topics="users")
    run.control.turn()
    assert run.published == [(("users", "A.users", 1), ("orders", "A.orders", 3))]
    assert run.requested[-1] == {"orders": RequestedState.PAUSED}
    # when
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.FAILED_OVER))
    run.control.turn()
    # then
    assert run.requested[-1] == {"orders": RequestedState.FAILED_OVER}


@pytest.mark.parametrize("is_led", [True, False])
def test_unselected_demoted_topic_is_paused_and_reported(monkeypatch: pytest.MonkeyPatch, *, is_led: bool) -> None:
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    remote_topics = TopicsOfBroker(target)
    if not is_led:
        monkeypatch.setattr(remote_topics, "led", lambda: [])
    run = Run(source, target, remote_topics, **REPLICA, topics="users")
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.DEMOTED))
    run.control.turn()
    assert run.requested[-1] == ({"orders": RequestedState.PAUSED} if is_led else {})
    reason = "orders is not among topics: it is not mirrored. Select, promote or delete it"
    assert ("A.orders", reason) in run.progress().rejected
    # when
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.PROMOTED))
    run.now += 1000
    run.control.turn()
    # then
    assert "A.orders" not in dict(run.progress().rejected)


def test_deleted_remote_topic_of_a_broker_is_created_again_as_soon_as_a_task_reports_it() -> None:
    """Until then klamm accepts partitions of other topics."""
    source, target = FakeCluster(orders=1, users=1), FakeCluster(**{"A.orders": 1, "A.users": 1})
    run = Run(source, target, **REPLICA)
    run.control.turn()
    del target.topics["A.orders"]
    run.now += 1
    run.control.turn()
    assert "A.orders" not in target.topics
    # when
    row = PartitionProgress(
        flow="A->B", topic="orders", partition=0, remote_topic="A.orders", next_offset=0, end_offset=0, records=0,
        bytes=0, last_timestamp=-1, state=CopyState.WAITING, reason=NO_REMOTE_TOPIC,
    )  # fmt: skip
    run.status.update("session", [row.to_json()])
    run.control.turn()
    # then
    assert "A.orders" in target.topics
    # when
    del target.topics["A.orders"]
    run.control.turn()
    assert "A.orders" not in target.topics, "one report causes one refresh"


def test_reassignments_of_promoted_and_demoted_topics_are_left_to_the_task() -> None:
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    topics = TopicsOfBroker(target)
    run = Run(source, target, topics, **REPLICA)
    run.control.turn()
    assert topics.spread_topics == {"A.orders", "A.users"}
    assert not topics.changing
    states = {"orders": RequestedState.DEMOTED, "users": RequestedState.FAILED_OVER}
    run.states.change(lambda _: RequestedStates(topics=states))
    run.now += 10_000
    run.control.turn()
    assert topics.changing == {"A.orders", "A.users"}


@pytest.mark.parametrize("error", [rejection("POLICY_VIOLATION", "no"), ConnectionLostError("nobody answers")])
def test_broker_is_told_that_a_topic_is_not_created(error: KafkaApiError | ConnectionLostError) -> None:
    """It accepts partitions as long as one of the published topics is missing."""
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.users": 1})
    topics = TopicsOfBroker(target)
    topics.rejection = error
    run = Run(source, target, topics, **REPLICA)
    # when
    with contextlib.suppress(ConnectionLostError):
        run.control.turn()
    # then
    with_new = (("orders", "A.orders", 3), ("users", "A.users", 1))
    assert run.published == [with_new, (("users", "A.users", 1),)]


def test_topics_on_a_broker_that_cannot_be_listed_hold_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    topics = TopicsOfBroker(target)
    topics.misplaced = Mock(side_effect=rejection("CLUSTER_AUTHORIZATION_FAILED"))  # type: ignore[method-assign]
    run = Run(source, target, topics, **REPLICA)
    run.control.turn()
    assert run.published == [(("orders", "A.orders", 3),)]
    assert "A->B: topics on klamm cannot be listed now: CLUSTER_AUTHORIZATION_FAILED" in caplog.text


def test_topic_that_is_placed_on_a_broker_without_storage_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA)
    run.control.turn()
    (progress,) = run.status.snapshot()
    assert progress.rejected == (("other", "the cluster has placed it on broker 9"),)
    assert "A->B: other: the cluster has placed it on broker 9" in caplog.text


def test_uncreatable_offsets_topic_names_key_to_change() -> None:
    target = FakeCluster()
    target.rejects[POSITIONS] = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    with pytest.raises(KafkaApiError, match=r"offset\.storage\.replication\.factor=3.*only 1 broker"):
        Run(FakeCluster(), target).control.turn()


def test_existing_offsets_topic_needs_no_create_right() -> None:
    """K894-45: Internal topics: 1 partition, compacted, RF 3 default; existing topic is fine; no right to create ->
    assume it exists.
    """
    for name in ("TOPIC_ALREADY_EXISTS", "TOPIC_AUTHORIZATION_FAILED"):
        target = FakeCluster(**{POSITIONS: 1})
        target.rejects[POSITIONS] = rejection(name, "")
        Run(FakeCluster(), target).control.turn()


def test_missing_offsets_topic_without_create_right_is_rejected() -> None:
    target = FakeCluster()
    target.rejects[POSITIONS] = rejection("CLUSTER_AUTHORIZATION_FAILED", "")
    with pytest.raises(KafkaApiError, match=POSITIONS):
        Run(FakeCluster(), target).control.turn()


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_offsets_topic_with_delete_policy_blocks_flow(policy: str) -> None:
    target = FakeCluster(**{POSITIONS: 1})
    target.configs[POSITIONS] = {"cleanup.policy": policy}
    run = Run(FakeCluster(orders=1), target)
    with pytest.raises(
        InvalidConfigError, match=f"cleanup.policy of {POSITIONS} is {policy}.* Set it to compact"
    ) as why:
        run.control.turn()
    assert needs_person(error_text(why.value))
    assert run.published == []
    # when
    target.configs[POSITIONS] = {"cleanup.policy": "compact"}
    run.control.turn()
    # then
    assert run.published


def test_offsets_topic_without_describe_configs_right_logs_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeCluster(**{POSITIONS: 1})
    monkeypatch.setattr(target, "entries", lambda _: rejection("TOPIC_AUTHORIZATION_FAILED"))
    run = Run(FakeCluster(orders=1), target, **{"sync.topic.configs.enabled": "false"})
    run.control.turn()
    assert run.published
    assert f"whether {POSITIONS} is compacted cannot be read: TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_flow_waits_for_unavailable_cluster_and_resumes() -> None:
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    stop = threading.Event()
    states: list[tuple[FlowState, str]] = []

    def away() -> bool:
        (progress,) = run.status.snapshot()
        states.append((progress.state, progress.reason))
        if len(states) == 3:
            stop.set()
        return len(states) < 3

    source.away = away
    run.control.run(stop)
    assert states == [(FlowState.STARTING, ""), *[(FlowState.WAITING, "nobody answers")] * 2]
    assert run.published == [(("orders", "A.orders", 1),)]
    assert run.progress().state is FlowState.STOPPED


def test_reachability_is_checked_again_after_outage() -> None:
    """So that a flow waits at once, not only after admin.timeout.ms."""
    source = FakeCluster(orders=1)
    run = Run(source, FakeCluster())
    states: list[str] = []
    stop = threading.Event()

    def check() -> Outcome[None]:
        states.append(run.progress().state.value)
        if len(states) == 2:
            stop.set()
        return done(ConnectionLostError("nobody listens") if len(states) == 1 else None)

    source.check_connection = check  # type: ignore[assignment, method-assign]
    run.control.run(stop)
    run.control.turn()
    assert states == ["STARTING", "WAITING"]


def test_flow_without_claim_stands_by_and_resumes() -> None:
    """A flow that is lost publishes no partitions; when it is claimed again, everything is done from the start."""
    run = Run(FakeCluster(orders=1), target := FakeCluster())
    run.control.turn()
    run.claim.let_go(holder="there, process 1")
    run.control.turn()
    del target.topics["A.orders"]
    run.control.turn()
    run.control.report_progress()
    (progress,) = run.status.snapshot()
    assert (progress.state, progress.reason) == (FlowState.STANDBY, "there, process 1 mirrors this flow")
    assert "A.orders" not in target.topics
    run.claim.hold(float("inf"), was_taken=True)
    run.control.turn()
    run.control.report_progress()
    assert run.published == [(("orders", "A.orders", 1),), (), (("orders", "A.orders", 1),)]
    assert run.status.snapshot()[0].state is FlowState.RUNNING


def test_claim_that_no_other_process_took_keeps_assignment() -> None:
    run = Run(FakeCluster(orders=1), FakeCluster())
    run.control.turn()
    run.claim.let_go()
    run.control.turn()
    run.claim.hold(float("inf"))
    run.control.turn()
    assert run.published == [(("orders", "A.orders", 1),)]


def test_flow_that_another_process_takes_is_not_done_and_has_no_lag() -> None:
    # given
    run = Run(FakeCluster(orders=1), FakeCluster())
    run.run_once()
    run.status.expect("A->B", [("orders", 0)])
    run.status.update("task", [progress_row(next_offset=10, end_offset=1000)])
    # when
    run.claim.let_go(holder="there, process 1")
    assert run.run_once()[0] is FlowState.STANDBY
    # then
    run.status.update("task", [progress_row(next_offset=20, end_offset=1000)])
    run.run_once()
    assert (run.progress().is_done, run.progress().lag, run.progress().partitions) == (False, None, ())


def test_flow_with_only_stopped_topics_is_caught_up() -> None:
    # given
    run = Run(FakeCluster(orders=1), FakeCluster())
    run.run_once()
    # when
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.STOPPED))
    run.run_once()
    # then
    assert run.published[-1] == ()
    assert (run.progress().is_done, run.progress().lag) == (True, 0)


def test_flow_that_cannot_be_claimed_waits_with_reason() -> None:
    run = Run(FakeCluster(orders=1), FakeCluster())
    run.claim.let_go(problem="heartbeats has no leader now")
    run.control.turn()
    run.control.report_progress()
    (progress,) = run.status.snapshot()
    assert (progress.state, progress.reason, run.published) == (FlowState.WAITING, "heartbeats has no leader now", [])


def test_flow_requiring_unsupported_api_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """K894-09: FAILED, an ERROR that names the setting, nothing more is copied."""
    source, target = FakeCluster(orders=1), FakeCluster()
    target.incompatible = True
    run = Run(source, target, use_incremental_alter_configs="required")
    source.configs["orders"] = {"retention.ms": "1"}
    with caplog.at_level(logging.ERROR):
        run.control.run(threading.Event())
    assert run.progress().state is FlowState.FAILED
    assert "use.incremental.alter.configs was set to required" in caplog.text
    assert run.published[-1] == ()


def test_custom_filter_that_fails_later_does_not_end_the_flow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MirrorMaker logs the error, and repeats the step later."""
    run, stop = Run(FakeCluster(orders=1), FakeCluster()), threading.Event()
    run.control.turn()
    calls: list[str] = []

    def should_replicate_topic(_: DefaultTopicFilter, topic: str) -> bool:
        calls.append(topic)
        if len(calls) == 1:
            raise LookupError("the list of topics cannot be read")
        stop.set()
        return True

    monkeypatch.setattr(DefaultTopicFilter, "should_replicate_topic", should_replicate_topic)
    run.now += 600
    run.control.run(stop)
    assert run.published == [(("orders", "A.orders", 1),)]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert message == "A->B waits: unexpected error: LookupError: the list of topics cannot be read"
    assert needs_person(message.removeprefix("A->B waits: ")), "klamm mirror --until-caught-up gives up"


@pytest.mark.parametrize("state", [RequestedState.PAUSED, RequestedState.STOPPED])
def test_requested_state_counts_while_custom_filter_fails(
    state: RequestedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(FakeCluster(orders=1, users=1), FakeCluster())
    run.control.turn()

    def should_replicate_topic(_: DefaultTopicFilter, topic: str) -> bool:
        raise LookupError(topic)

    monkeypatch.setattr(DefaultTopicFilter, "should_replicate_topic", should_replicate_topic)
    run.now += 600
    run.states.change(lambda states: states.with_topics(["orders"], state))
    with pytest.raises(LookupError):
        run.control.turn()
    assert run.requested[-1] == {"orders": state}
    is_fetched = ("orders", "A.orders", 1) in run.published[-1]
    assert is_fetched == (state is RequestedState.PAUSED)


def test_conflict_with_another_flow_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    more = {"clusters": "A,B,C", "C.bootstrap.servers": "c:1", "C->B.enabled": "true"}
    run = Run(FakeCluster(orders=1), FakeCluster(), **more, replication_policy_class="IdentityReplicationPolicy")
    for _ in range(2):
        run.control.turn()
        run.now += 600
    (message,) = [text for text in caplog.messages if "also selects" in text]
    assert message.startswith("A->B: C->B also selects orders, and both flows sync topic configs")


def test_config_sync_can_be_disabled() -> None:
    source, target = FakeCluster(orders=1), FakeCluster()
    target.incompatible = True
    more = {"sync.topic.configs.enabled": "false", "use.incremental.alter.configs": "required"}
    Run(source, target, **more).control.turn()


def test_deleted_remote_topic_is_recreated_with_warning(caplog: pytest.LogCaptureFixture) -> None:
    """K894-36: the positions stand, so that what it held before is not mirrored again."""
    run = Run(FakeCluster(orders=1), target := FakeCluster())
    run.control.turn()
    del target.topics["A.orders"]
    run.now += 600
    with caplog.at_level(logging.WARNING):
        run.control.turn()
    assert "A.orders" in target.topics
    assert "topic A.orders was gone on cluster B and is created again: records mirrored to it before" in caplog.text


def test_plan_reports_changes_with_reasons_and_changes_nothing() -> None:
    source, target = FakeCluster(orders=2, users=2), FakeCluster(**{"A.users": 1})
    source.configs["orders"] = {"retention.ms": "-1"}
    source.configs["users"] = {"retention.ms": "5"}
    target.configs["A.users"] = {"retention.ms": "7"}
    source.acls = [acl("users")]
    assert plan_flow(flow(), source, target) == [
        "+ internal topic mm2-offsets.A.internal on cluster B: 25 partitions",
        "+ internal topic mm2-offset-syncs.B.internal on cluster A: 1 partition",
        "+ internal topic A.checkpoints.internal on cluster B: 1 partition",
        "+ topic A.orders: 2 partitions, replication factor 2 retention.ms=-1",
        "~ topic A.users: 1 -> 2 partitions",
        "~ topic A.users: retention.ms: 7 -> 5: set on the source topic",
        "+ topic A.users: ACL ALLOW READ for User:alice from *: on the source topic",
    ]
    assert target.topics == {"A.users": 1}
    assert target.acls == []


def test_plan_leaves_out_promoted_topics_and_syncs_of_stopped_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    source = FakeCluster(handed_over=2, lost=1, orders=2, users=1)
    target = FakeCluster(**{POSITIONS: 25, "A.handed_over": 1, "A.gone": 1, "A.old": 1, "A.orders": 1, "A.users": 1})
    for topic in source.topics:
        source.configs[topic] = {"retention.ms": "5"}
        target.configs[f"A.{topic}"] = {"retention.ms": "7"}
    source.acls = [acl(topic) for topic in source.topics]
    monkeypatch.setattr(plan_output, "first_cluster", lambda _flow, cluster_id, **_: cluster_id)
    monkeypatch.setattr(plan_output, "mirrored_topics", lambda _flow: frozenset({"gone", "old"}))
    states = RequestedStates().with_topics(["handed_over", "lost", "gone"], RequestedState.PROMOTED)
    states = states.with_topics(["orders"], RequestedState.STOPPED)
    everything = settings(topics=".*", klamm_sync_topic_deletions="on").flows[0]
    # when
    lines = plan_flow(everything, source, target, requested=lambda _: states)
    # then
    assert [line for line in lines if "internal topic" not in line] == [
        "~ topic A.orders: 1 -> 2 partitions",
        "~ topic A.users: retention.ms: 7 -> 5: set on the source topic",
        "- topic A.old: deleted, 3600 s after the start of the mirror or later: topic old is gone on cluster A",
        "+ topic A.users: ACL ALLOW READ for User:alice from *: on the source topic",
    ]


def test_plan_of_stopped_flow_has_no_changes() -> None:
    source, target = FakeCluster(orders=2), FakeCluster(**{POSITIONS: 25})
    # when
    lines = plan_flow(flow(), source, target, requested=lambda _: RequestedStates(flow=RequestedState.STOPPED))
    # then
    assert lines == ["! A->B: STOPPED by klamm mirror stop: no topic changes before klamm mirror resume"]


def test_plan_reads_no_states_without_an_offsets_topic() -> None:
    def unreadable(_: FlowSettings) -> RequestedStates:
        raise ConnectionLostError(f"{POSITIONS} does not exist yet on the target")

    assert plan_flow(flow(), FakeCluster(orders=1), FakeCluster(), requested=unreadable)


def planned(target: FakeCluster, **more: str) -> list[str]:
    """What is planned for a topic whose retention is another on the source, without the mirror's own topics."""
    source = FakeCluster(orders=1)
    source.configs["orders"] = {"retention.ms": "5"}
    source.acls = [acl("orders")]
    lines = plan_flow(settings(**{"topics": "orders", **more}).flows[0], source, target)
    return [line for line in lines if "+ internal topic " not in line and " ACL " not in line]


def mirrored() -> FakeCluster:
    target = FakeCluster(**{"A.orders": 1})
    target.configs["A.orders"] = {"retention.ms": "7", "min.insync.replicas": "2"}
    return target


def test_plan_without_syncs_has_no_config_changes() -> None:
    source, target = FakeCluster(orders=1), mirrored()
    source.configs["orders"] = {"retention.ms": "5"}
    source.acls = [acl("orders")]
    off = {"sync.topic.configs.enabled": "false", "sync.topic.acls.enabled": "false"}
    lines = plan_flow(settings(**off).flows[0], source, target)
    assert [line for line in lines if "A.orders" in line] == []


@pytest.mark.parametrize("mode", ["never", "requested"])
def test_plan_shows_configs_reset_by_alter_configs(mode: str) -> None:
    """K894-10: in replace mode also what is excluded; there, or where the target takes nothing else."""
    target = mirrored()
    target.incompatible = mode == "requested"
    assert planned(target, use_incremental_alter_configs=mode) == [
        "~ topic A.orders: retention.ms: 7 -> 5: set on the source topic",
        "- topic A.orders: min.insync.replicas: 2 -> (default): not in the complete set, which AlterConfigs writes",
    ]


def test_plan_reports_flow_that_will_fail() -> None:
    """K894-09: required: only IncrementalAlterConfigs; if incompatible, report to the user and fail the connector."""
    target = mirrored()
    target.incompatible = True
    with pytest.raises(FlowFailedError, match=r"use\.incremental\.alter\.configs was set to required"):
        planned(target, use_incremental_alter_configs="required")


class Picky(FakeCluster):
    """Knows one config."""

    def entries(self, topic: str) -> list[ConfigEntry]:
        return [ConfigEntry("segment.ms", "1", source=ConfigSource.DEFAULT_CONFIG)]


def test_plan_reports_configs_unknown_to_target() -> None:
    assert planned(Picky(**{"A.orders": 1})) == ["! topic A.orders: skipping retention.ms: cluster B does not know it"]


def test_heartbeats_topic_is_created_before_topics_are_listed() -> None:
    """K894-44, K894-45: so they are mirrored from the start."""
    source = FakeCluster(orders=1)
    run = Run(source, FakeCluster())
    run.control.turn()
    assert run.published == [(("orders", "A.orders", 1),)]
    run = Run(source, FakeCluster(), emit_heartbeats_enabled="true")
    run.control.turn()
    assert run.published == [(("heartbeats", "A.heartbeats", 1), ("orders", "A.orders", 1))]


def test_offset_syncs_topic_is_created_on_source_by_default() -> None:
    """K894-40: Offset syncs: as 3.5.

    K894-45: Internal topics: 1 partition, compacted, RF 3 default; existing topic is fine; no right to create -> assume
    it exists.
    """
    source, target = FakeCluster(orders=1), FakeCluster()
    Run(source, target, **{"offset-syncs.topic.replication.factor": "1"}).control.turn()
    (syncs,) = source.created
    assert (syncs.name, syncs.num_partitions, syncs.replication_factor) == ("mm2-offset-syncs.B.internal", 1, 1)
    assert syncs.configs == {"cleanup.policy": "compact"}
    source, target = FakeCluster(orders=1), FakeCluster()
    Run(source, target, **{"offset-syncs.topic.location": "target"}).control.turn()
    assert not source.created
    assert "mm2-offset-syncs.A.internal" in {topic.name for topic in target.created}


def test_disabled_offset_syncs_create_no_topic() -> None:
    """K894-40: Offset syncs: as 3.5."""
    source = FakeCluster(orders=1)
    Run(source, FakeCluster(), **{"emit.offset-syncs.enabled": "false"}).control.turn()
    assert not source.created


def test_rejected_offset_syncs_topic_does_not_stop_copying(caplog: pytest.LogCaptureFixture) -> None:
    source = FakeCluster(orders=1)
    source.rejects["mm2-offset-syncs.B.internal"] = rejection("INVALID_REPLICATION_FACTOR", "only 1 broker")
    run = Run(source, FakeCluster())
    with caplog.at_level(logging.WARNING):
        run.control.turn()
        run.control.turn()
    (warning,) = [record.getMessage() for record in caplog.records if "offset-syncs" in record.getMessage()]
    assert "on cluster A with offset-syncs.topic.replication.factor=3: INVALID_REPLICATION_FACTOR" in warning
    assert run.published == [(("orders", "A.orders", 1),)]


def test_topics_are_copied_while_offset_syncs_topic_cannot_be_created() -> None:
    # given
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    # when
    with (
        patch.object(source, "create_topics", side_effect=TimeoutError("no controller")),
        pytest.raises(TimeoutError, match="no controller"),
    ):
        run.control.turn()
    # then
    assert run.published == [(("orders", "A.orders", 1),)]
    assert not source.created
    # when
    run.control.turn()
    # then
    assert [topic.name for topic in source.created] == ["mm2-offset-syncs.B.internal"]
    assert len(run.published) == 1


@pytest.mark.parametrize("call", ["create_topics", "create_partitions"])
def test_failed_topic_creation_does_not_stop_existing_topics(call: str) -> None:
    # given
    source = FakeCluster(orders=2, users=1, **{"mm2-offset-syncs.B.internal": 1})
    there = {"A.orders": 1} | ({"A.users": 1} if call == "create_partitions" else {})
    target = FakeCluster(**{POSITIONS: 1}, **there)
    run = Run(source, target)
    # when
    with (
        patch.object(target, call, side_effect=rejection("THROTTLING_QUOTA_EXCEEDED")),
        pytest.raises(KafkaApiError, match="THROTTLING_QUOTA_EXCEEDED"),
    ):
        run.control.turn()
    # then
    assert [row[:2] for row in run.published[-1]] == [(name.removeprefix("A."), name) for name in sorted(there)]
    caught_up = [
        PartitionProgress(
            flow="A->B", topic=topic, partition=0, remote_topic=name, next_offset=1, end_offset=1, records=1,
            bytes=1, last_timestamp=-1, state=CopyState.COPYING, reason="",
        ).to_json() for topic, name, _ in run.published[-1]
    ]  # fmt: skip
    run.status.update("session", caught_up)
    assert not run.progress().is_done, "the others are still to be copied"
    # when
    run.control.turn()
    # then
    assert run.published[-1] == (("orders", "A.orders", 2), ("users", "A.users", 1))


def test_first_topics_that_cannot_be_created_publish_no_empty_assignment() -> None:
    """A run until everything is copied would end."""
    # given
    target = FakeCluster(**{POSITIONS: 1})
    run = Run(FakeCluster(orders=1), target)
    # when
    with (
        patch.object(target, "create_topics", side_effect=TimeoutError("no controller")),
        pytest.raises(TimeoutError),
    ):
        run.control.turn()
    # then
    assert not run.published


def test_failed_topic_creation_keeps_topic_omitted_by_broker_assigned() -> None:
    # given
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    run.control.turn()
    target.unlisted.add("A.orders")
    source.topics["users"] = 1
    run.now += 10_000
    # when
    with (
        patch.object(target, "create_topics", side_effect=TimeoutError("no controller")),
        pytest.raises(TimeoutError),
    ):
        run.control.turn()
    # then
    assert run.published[-1] == (("orders", "A.orders", 1),)


def test_acls_are_synced_at_start_and_by_interval() -> None:
    """K894-46: ACL sync: source topic ACLs, literal patterns only, of mirrored topics -> target remote topic (literal):
    skip ALLOW WRITE.
    """
    source, target = FakeCluster(orders=1), FakeCluster()
    source.acls = [acl("orders")]
    run = Run(source, target, **{"sync.topic.acls.interval.seconds": "5"})
    run.control.turn()
    assert target.acls == [acl("A.orders")]
    source.acls.append(replace(acl("orders"), principal="User:bob"))
    run.now += 4
    run.control.turn()
    assert len(target.acls) == 1
    run.now += 1
    run.control.turn()
    assert len(target.acls) == 2
    off = FakeCluster()
    Run(source, off, **{"sync.topic.acls.enabled": "false"}).control.turn()
    assert not off.acls


def test_new_topic_skips_configs_unknown_to_target(caplog: pytest.LogCaptureFixture) -> None:
    """K894-35: Target topic: same partition count, RF = replication.factor (2), configs after the filter at creation;
    created before data flows.
    """
    source, target = FakeCluster(orders=1, users=1), FakeCluster()
    target.unknown = frozenset({"confluent.value.schema.validation"})
    source.configs["orders"] = {"cleanup.policy": "compact", "confluent.value.schema.validation": "true"}
    run = Run(source, target)
    with caplog.at_level(logging.WARNING):
        run.control.turn()
    assert target.configs["A.orders"] == {"cleanup.policy": "compact"}
    assert "A.users" in target.topics
    skipped = "topic A.orders: skipping configs that cluster B does not know: confluent.value.schema.validation"
    assert skipped in caplog.text
    assert run.status.snapshot()[0].rejected == ()


def test_config_with_invalid_value_is_not_skipped() -> None:
    """K894-35: what the target knows and rejects needs somebody."""
    source, target = FakeCluster(orders=1), FakeCluster()
    target.rejects["A.orders"] = rejection("INVALID_CONFIG", "Invalid value strange")
    source.configs["orders"] = {"cleanup.policy": "strange"}
    run = Run(source, target)
    run.control.turn()
    assert run.status.snapshot()[0].rejected == (("A.orders", "INVALID_CONFIG: Invalid value strange"),)


def test_stopped_flow_releases_partitions_and_creates_no_topics() -> None:
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target, sync_topic_configs_interval_seconds="1")
    assert run.run_once() == (FlowState.RUNNING, "")
    run.states.change(lambda states: states.with_flow(RequestedState.STOPPED))
    source.topics["users"] = 1
    source.configs["users"] = {}
    run.now += 10_000
    assert run.run_once() == (FlowState.STOPPED, "requested by klamm mirror stop")
    assert run.published == [(("orders", "A.orders", 1),), ()]
    assert "A.users" not in target.topics
    run.states.change(lambda states: states.with_flow(RequestedState.RUNNING))
    assert run.run_once() == (FlowState.RUNNING, "")
    assert run.published[-1] == (("orders", "A.orders", 1), ("users", "A.users", 1))


def test_paused_flow_keeps_partitions_and_creates_topics() -> None:
    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    run.states.change(lambda states: states.with_flow(RequestedState.PAUSED))
    assert run.run_once() == (FlowState.PAUSED, "requested by klamm mirror pause")
    assert (run.published, run.requested) == ([(("orders", "A.orders", 1),)], [{"orders": RequestedState.PAUSED}])
    run.states.change(lambda states: states.with_flow(RequestedState.RUNNING))
    assert run.run_once() == (FlowState.RUNNING, "")
    assert run.requested[-1] == {}


def unavailable() -> tuple[FakeCluster, Run]:
    """Return a source that has become unavailable, and a flow from it whose previous turn failed."""
    source = FakeCluster(orders=1)
    run = Run(source, FakeCluster())
    run.control.turn()
    source.check_connection = lambda **_: done(ConnectionLostError("nobody listens"))  # type: ignore[method-assign]
    run.control._are_reachable = False
    return source, run


def test_flow_stops_while_the_source_is_unavailable() -> None:
    source, run = unavailable()
    # when
    run.states.change(lambda states: states.with_flow(RequestedState.STOPPED))
    # then
    for _ in range(2):
        assert run.run_once() == (FlowState.STOPPED, "requested by klamm mirror stop")
    assert not run.published[-1]
    # when
    run.states.change(lambda states: states.with_flow(RequestedState.RUNNING))
    with pytest.raises(ConnectionLostError, match="nobody listens"):
        run.control.turn()
    source.check_connection = lambda **_: done(None)  # type: ignore[method-assign]
    # then
    assert run.run_once() == (FlowState.RUNNING, "")
    assert run.published[-1] == (("orders", "A.orders", 1),)


def test_flow_pauses_while_the_source_is_unavailable() -> None:
    _, run = unavailable()
    # when
    run.states.change(lambda states: states.with_flow(RequestedState.PAUSED))
    with pytest.raises(ConnectionLostError, match="nobody listens"):
        run.control.turn()
    # then
    assert run.requested[-1] == {"orders": RequestedState.PAUSED}
    assert run.published[-1] == (("orders", "A.orders", 1),)


def test_topic_stops_while_the_source_is_unavailable() -> None:
    _, run = unavailable()
    # when
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.STOPPED))
    with pytest.raises(ConnectionLostError, match="nobody listens"):
        run.control.turn()
    # then
    assert run.published[-1] == ()


def test_stopped_topic_leaves_assignment_and_paused_topic_stays() -> None:
    run = Run(FakeCluster(orders=1, users=1), FakeCluster())
    run.control.turn()
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.STOPPED))
    run.states.change(lambda states: states.with_topics(["users"], RequestedState.PAUSED))
    assert run.run_once() == (FlowState.RUNNING, "")
    assert run.published[-1] == (("users", "A.users", 1),)
    # A topic that was paused before is not fetched until it is released.
    assert run.requested[-1] == {"orders": RequestedState.STOPPED, "users": RequestedState.PAUSED}
    (progress,) = run.status.snapshot()
    assert progress.topic_states == (("orders", "STOPPED"), ("users", "PAUSED"))
    assert "topic orders STOPPED" in describe(progress)


def test_promoted_topic_stays_assigned_and_is_neither_created_nor_deleted_nor_synced() -> None:
    source, target = FakeCluster(orders=1, users=1), FakeCluster(**{"A.users": 1})
    source.configs["users"] = {"retention.ms": "7"}
    source.acls = [acl("orders"), acl("users")]
    run = Run(source, target)
    run.states.change(lambda states: states.with_topics(["orders", "users"], RequestedState.PROMOTED))
    assert run.run_once() == (FlowState.RUNNING, "")
    assert run.published == [(("users", "A.users", 1),)]
    assert run.requested == [{"users": RequestedState.PROMOTED}]
    assert "A.orders" not in target.topics
    assert target.configs["A.users"] == {}
    assert target.acls == []


def test_topics_are_promoted_without_the_source_also_those_that_brokers_lead_already() -> None:
    source, target = FakeCluster(), FakeCluster(**{"A.orders": 3, "A.users": 1})
    source.check_connection = lambda **_: done(ConnectionLostError("nobody listens"))  # type: ignore[method-assign]
    topics = TopicsOfBroker(target)
    run = Run(source, target, topics, **REPLICA)
    run.states.change(lambda states: states.with_topics(["users"], RequestedState.FAILED_OVER))
    with pytest.raises(ConnectionLostError):
        run.control.turn()
    assert run.published == [(("orders", "A.orders", 3), ("users", "A.users", 1))]
    assert topics.spread_topics == {"A.orders", "A.users"}
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.FAILED_OVER))
    with pytest.raises(ConnectionLostError):
        run.control.turn()
    assert run.requested[-1] == dict.fromkeys(("orders", "users"), RequestedState.FAILED_OVER)


def test_broker_leads_and_promotes_topics_missing_on_source() -> None:
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    topics = TopicsOfBroker(target)
    run = Run(source, target, topics, **REPLICA)
    run.states.change(lambda states: states.with_topics(["users"], RequestedState.PROMOTED))
    both = (("orders", "A.orders", 3), ("users", "A.users", 1))
    run.control.turn()
    # when
    source.topics.clear()
    run.now += 1000
    run.control.turn()
    # then
    assert set(run.published) == {both}
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.FAILED_OVER))
    run.control.turn()
    assert run.published[-1] == both
    assert run.requested[-1] == {"orders": RequestedState.FAILED_OVER, "users": RequestedState.PROMOTED}
    assert topics.spread_topics == {"A.orders", "A.users"}


def test_topic_that_brokers_lead_is_neither_synced_nor_deleted_without_its_promotion() -> None:
    """Its promotion was withdrawn while it was handed over."""
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    source.configs["users"] = {"retention.ms": "7"}
    topics = TopicsOfBroker(target)
    topics.handed_over = frozenset({"A.users"})
    run = Run(source, target, topics, **REPLICA, klamm_sync_topic_deletions="on")
    deletion = run.control._deletion = Mock(run=Mock(return_value=()), mirrorable=dict)
    # when
    run.control.turn()
    # then
    assert "A.orders" in deletion.run.call_args.args[1]
    assert "A.users" not in deletion.run.call_args.args[1]
    assert target.configs["A.users"] == {}
    assert "brokers of cluster B lead it" in dict(run.progress().rejected)["A.users"]


def test_topic_that_another_flow_leads_is_left_to_it_and_named() -> None:
    source, target = FakeCluster(orders=3, users=1), FakeCluster(**{"A.orders": 3, "A.users": 1})
    source.configs["users"] = {"retention.ms": "7"}
    topics = TopicsOfBroker(target)
    topics.handed_over, topics.of_other_flows = frozenset({"A.users", "A.orders"}), {"A.users": 1001}
    run = Run(source, target, topics, **REPLICA)
    # when
    run.control.turn()
    # then
    rejected = dict(run.progress().rejected)
    assert "another flow of klamm, broker 1001 of cluster B, mirrors a topic to it" in rejected["A.users"]
    assert "brokers of cluster B lead it" in rejected["A.orders"]
    assert target.configs["A.users"] == {}


def test_topic_without_a_leader_is_awaited_and_nobody_is_to_delete_it() -> None:
    source, target = FakeCluster(orders=3), FakeCluster(**{"A.orders": 3})
    topics = TopicsOfBroker(target)
    topics.handed_over, topics.of_other_flows = frozenset({"A.orders"}), {"A.orders": -1}
    run = Run(source, target, topics, **REPLICA)
    # when
    run.control.turn()
    # then
    reason = dict(run.progress().rejected)["A.orders"]
    assert "has no leader on cluster B: it is not mirrored before it has one" in reason
    assert "deletion" not in reason


@pytest.mark.parametrize("is_away", [False, True])
def test_withdrawn_promotion_refreshes_topics_at_once(*, is_away: bool) -> None:
    source, target = FakeCluster(orders=1), FakeCluster(**{"A.orders": 1})
    run = Run(source, target, TopicsOfBroker(target), **REPLICA)
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.PROMOTED))
    run.control.turn()
    source.topics["users"], source.configs["users"] = 1, {}
    # when
    run.states.change(lambda states: states.with_topics(["orders"], RequestedState.RUNNING))
    if is_away:
        answer: list[Outcome[None]] = [done(ConnectionLostError("nobody listens"))]
        source.check_connection = lambda **_: answer.pop() if answer else done(None)  # type: ignore[method-assign]
        run.control._are_reachable = False
        with pytest.raises(ConnectionLostError):
            run.control.turn()
    run.control.turn()
    # then
    assert {name for _, name, _ in run.published[-1]} == {"A.orders", "A.users"}


def test_requested_states_are_read_again_after_takeover() -> None:
    class Store:
        states = RequestedStates(flow=RequestedState.PAUSED)

        def load(self) -> RequestedStates:
            return self.states

        def save(self, states: RequestedStates) -> None:
            raise AssertionError(states)

    source, target = FakeCluster(orders=1), FakeCluster()
    run = Run(source, target)
    store = Store()
    run.states.store = store
    assert run.run_once()[0] is FlowState.PAUSED
    run.claim.let_go(holder="another process")
    run.control.turn()
    store.states = RequestedStates()
    run.claim.hold(float("inf"), was_taken=True)
    assert run.run_once()[0] is FlowState.RUNNING


def test_unacknowledged_states_are_read_back_before_the_next_turn() -> None:
    class Store:
        stored = RequestedStates()
        is_away = False

        def load(self) -> RequestedStates:
            if self.is_away:
                raise ConnectionLostError("B does not answer")
            return self.stored

        def save(self, states: RequestedStates) -> None:
            self.stored = states
            raise ConnectionLostError("no acknowledgement")

    run = Run(FakeCluster(orders=1), FakeCluster())
    run.states.store = store = Store()
    assert run.run_once()[0] is FlowState.RUNNING
    with pytest.raises(ConnectionLostError, match="no acknowledgement"):
        run.states.change(lambda states: states.with_flow(RequestedState.STOPPED))
    store.is_away = True
    with pytest.raises(ConnectionLostError, match="B does not answer"):
        run.control.turn()
    store.is_away = False
    assert run.run_once() == (FlowState.STOPPED, "requested by klamm mirror stop")
    assert run.published[-1] == ()


@pytest.mark.parametrize("state", [RequestedState.PAUSED, RequestedState.STOPPED])
def test_flow_that_an_operator_holds_is_not_done(state: RequestedState) -> None:
    run = Run(FakeCluster(orders=1), FakeCluster())
    run.states.change(lambda states: states.with_flow(state))
    run.run_once()
    (progress,) = run.status.snapshot()
    assert (progress.is_done, progress.is_blocked) == (False, True)
    assert progress.what_blocks == progress.reason


def test_replica_forgets_topic_ids_before_a_remote_topic_is_created_again() -> None:
    """The new remote topic may be the copy of another source topic."""
    source, target = FakeCluster(orders=1, users=1), FakeCluster(**{"A.users": 1})
    run = Run(source, target, **REPLICA)
    run.control.turn()
    del target.topics["A.orders"]
    target.unlisted.add("A.users")
    run.now += 1000
    run.control.turn()
    assert run.forgotten == [(["orders"], False), (["orders"], False)]
    assert "A.orders" in target.topics


def test_replay_forgets_no_topic_ids() -> None:
    run = Run(FakeCluster(orders=1), FakeCluster(), klamm_offsets="preserve")
    run.control.turn()
    assert run.forgotten == []
