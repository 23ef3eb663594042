"""The same policies in a broker and in a gateway in front of a broker without policies: equal responses.

Each request is sent to both. Topic ids, which are random, are left out of the comparison.
"""

from __future__ import annotations

import urllib.request
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

import klamm
from klamm.admin import AdminClient, NewTopic
from klamm.embedded.server_process import BrokerStartError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import ConfigOperation, ResourceType
from tests.support.gateway_context import incremental
from tests.support.processes import wait_until
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from klamm.protocol.schema import Message

RULES = """
rules:
  - name: names
    naming: "[a-z]+[.][a-z]+"
    remedy: "use team.name"
  - name: sizes
    topics: "team[.].*"
    partitions: {max: 4}
    replication_factor: {max: 2}
    only_configs: [retention.ms, cleanup.policy, flush.ms, segment.ms]
    configs:
      retention.ms: {max: 604800000}
      cleanup.policy: {one_of: [delete]}
    omission: forbidden
  - name: set right
    effect: override
    topics: "right[.].*"
    partitions: {min: 3}
    configs:
      flush.ms: {max: 100}
  - name: keep
    topics: "team[.]kept"
    deletion: forbidden
  - name: brokers
    broker_configs:
      message.max.bytes: {min: 1200000, max: 2MB}
"""
SLOW = """
import time
from pathlib import Path
from klamm.policy import Policy
class Slow(Policy):
    def validate_create_topic(self, details):
        if not details.topic.startswith("slow"):
            return
        Path(__file__).with_name("begun").touch()
        while not Path(__file__).with_name("may-end").exists():
            time.sleep(0.01)
"""
UNKNOWN = "rules: [{name: a, configs: {retention.mss: {max: 1}}}]"
KINDS = ("create.topic", "alter.config", "create.partitions", "delete.topic")


class Both:
    """A broker with policies, and a gateway with the same policies in front of a broker without them."""

    def __init__(self, broker: klamm.Broker, gateway: klamm.Gateway, upstream: klamm.Broker) -> None:
        self.broker, self.gateway, self.upstream = broker, gateway, upstream
        # read at the start: only the end of a long log is kept
        self.metrics = gateway.log_text().partition("Metrics on http://")[2].partition("/")[0]
        host, _, port = gateway.bootstrap_servers.rpartition(":")
        first = f"{host}:{int(port) + 1}"  # the port of broker 1; the base port leads to any broker
        self.clients = tuple(WireClient(address) for address in (broker.bootstrap_servers.partition(",")[0], first))

    def ask(self, request: Message, response: type[Any], version: int) -> Any:
        """Return the gateway's response, which must equal the broker's, apart from topic ids and addresses."""
        expected, actual = (client.ask(request, response, version) for client in self.clients)
        for answer in (expected, actual):
            without_ids(answer)
        assert actual == expected
        return actual

    def create(self, *topics: CreateTopicsRequest.CreatableTopic, version: int = 7, validate_only: bool = False) -> Any:
        request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
        return self.ask(request, CreateTopicsResponse, version).topics

    def ids(self, name: str) -> list[Any]:
        return [client.topic_ids()[name] for client in self.clients]


def without_ids(answer: Any) -> None:
    for entry in getattr(answer, "topics", None) or getattr(answer, "responses", None) or []:
        if hasattr(entry, "topic_id"):
            entry.topic_id = ZERO_UUID
    if isinstance(answer, MetadataResponse):
        answer.cluster_id, answer.brokers = None, []
        for topic in answer.topics:  # replicas are placed by the number of topics that exist
            for partition in topic.partitions:
                partition.leader_id = partition.leader_epoch = 0
                partition.replica_nodes = partition.isr_nodes = []
            topic.partitions.sort(key=lambda partition: partition.partition_index)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    config = {f"{kind}.policy.class.name": "klamm.policy.rules:RulesPolicy" for kind in KINDS}
    config |= {"policy.rules.file": str(rules), "policy.reload.interval.ms": "0"}
    with (
        klamm.Broker(brokers=3, config=config) as broker,
        klamm.Broker(brokers=3) as upstream,
        klamm.Gateway(upstream.bootstrap_servers, config=config | {"metrics.listen": "127.0.0.1:0"}) as gateway,
    ):
        yield Both(broker, gateway, upstream)


def topic(
    name: str, *, partitions: int = -1, factor: int = -1, assignments: Sequence[Sequence[int]] = (), **configs: str
) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=list(each))
            for index, each in enumerate(assignments)
        ],
        configs=[
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_create_topics_is_decided_like_in_the_broker(both: Both, version: int) -> None:
    answers = both.create(
        topic(f"team.v{'abcdefgh'[version]}", partitions=2, retention_ms="5"),
        topic("Nonsense"),
        topic("team.large", partitions=9),
        topic("team.invalid", retention_ms="soon"),
        topic("team.twice"),
        topic("team.twice"),
        topic("team.config", max_message_bytes="5"),
        topic("team.assigned", assignments=[[1, 2, 3]]),
        topic("team.compacted", cleanup_policy="compact"),
        topic("nowhere", partitions=-7),
        version=version,
    )
    results = {entry.name: (entry.error_code, entry.error_message) for entry in answers}
    assert results["Nonsense"] == (
        ErrorCode.POLICY_VIOLATION,
        "Rule 'names': name=Nonsense of topic Nonsense does not match [a-z]+[.][a-z]+; use team.name.",
    )
    assert [code for code, _ in results.values()].count(ErrorCode.POLICY_VIOLATION) == 5


def test_create_topics_with_validate_only_is_decided_like_in_the_broker(both: Both) -> None:
    answers = both.create(topic("team.tried", partitions=2), topic("team.wide", factor=3), validate_only=True)
    assert [entry.error_code for entry in answers] == [0, ErrorCode.POLICY_VIOLATION]
    assert "team.tried" not in both.clients[1].topic_ids()


def test_overridden_topics_are_created_like_in_the_broker(both: Both) -> None:
    for validate_only in (True, False):
        (answer,) = both.create(topic("right.one", partitions=1, flush_ms="500"), validate_only=validate_only)
        assert (answer.error_code, answer.num_partitions) == (0, 3)
        assert "flush.ms=500 of topic right.one is above the maximum 100; set to 100. (" in answer.error_message
    assert both.clients[1].topic_configs("right.one")["flush.ms"] == "100"


def test_create_partitions_is_decided_like_in_the_broker(both: Both) -> None:
    both.create(topic("team.grows", partitions=1), topic("team.leaps", partitions=1))
    for validate_only in (True, False):
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
                for name, count in (("team.leaps", 9), ("team.missing", 2), ("team.grows", 3))
            ],
            validate_only=validate_only,
        )
        answer = both.ask(request, CreatePartitionsResponse, 3)
        assert [entry.error_code for entry in answer.results] == [
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            0,
        ]


def test_incremental_alter_configs_is_decided_like_in_the_broker(both: Both) -> None:
    both.create(
        topic("team.altered", retention_ms="7"), topic("team.other"), topic("right.altered"), topic("right.appended")
    )
    to, add, drop = ConfigOperation.SET, ConfigOperation.APPEND, ConfigOperation.DELETE
    for validate_only in (True, False):
        request = IncrementalAlterConfigsRequest(
            resources=[
                incremental("team.altered", ("retention.ms", to, "999999999999")),
                incremental("team.other", ("retention.ms", to, "5"), ("flush.ms", drop, None)),
                incremental("team.missing", ("flush.ms", to, "5")),
                incremental("right.altered", ("flush.ms", to, "5000")),
                incremental("right.appended", ("cleanup.policy", add, "compact")),
                incremental("", ("log.flush.interval.ms", to, "5000"), resource_type=ResourceType.BROKER),
                incremental("1", ("root", to, "INFO"), resource_type=ResourceType.BROKER_LOGGER),
            ],
            validate_only=validate_only,
        )
        answer = both.ask(request, IncrementalAlterConfigsResponse, 1)
        assert [entry.error_code for entry in answer.responses] == [
            ErrorCode.POLICY_VIOLATION, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0, 0, 0, 0,
        ]  # fmt: skip
        assert answer.responses[3].error_message.endswith('set to 100. (stored instead: {"flush.ms": "100"})')
    appended = incremental("team.other", ("cleanup.policy", add, "compact"))
    answer = both.ask(IncrementalAlterConfigsRequest(resources=[appended]), IncrementalAlterConfigsResponse, 1)
    assert answer.responses[0].error_message == (
        "Rule 'sizes': cleanup.policy=delete,compact of topic team.other is not one of delete; choose from delete."
    )


def test_alter_configs_is_decided_like_in_the_broker(both: Both) -> None:
    both.create(topic("team.replaced", retention_ms="7", flush_ms="5"))
    for configs in ({"flush.ms": "6"}, {"flush.ms": "6", "retention.ms": "8"}):
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=ResourceType.TOPIC,
            resource_name="team.replaced",
            configs=[AlterConfigsRequest.AlterableConfig(name=name, value=value) for name, value in configs.items()],
        )
        answer = both.ask(AlterConfigsRequest(resources=[resource]), AlterConfigsResponse, 2).responses[0]
        assert answer.error_code == (ErrorCode.POLICY_VIOLATION if len(configs) == 1 else 0)


def test_delete_topics_is_decided_like_in_the_broker(both: Both) -> None:
    both.create(topic("team.kept"), topic("team.gone"))
    answers = []
    for client, gone, kept in zip(both.clients, both.ids("team.gone"), both.ids("team.kept"), strict=True):
        states = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=each) for each in (kept, gone)]
        states += [DeleteTopicsRequest.DeleteTopicState(name=name) for name in ("team.never", "team.large")]
        answer = client.ask(DeleteTopicsRequest(topics=states), DeleteTopicsResponse, 6)
        assert [entry.topic_id for entry in answer.responses[:2]] == [kept, gone]
        without_ids(answer)
        answers.append(answer)
    assert answers[0] == answers[1]
    assert [entry.error_code for entry in answers[0].responses] == [
        ErrorCode.POLICY_VIOLATION, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]  # fmt: skip
    answer = both.ask(DeleteTopicsRequest(topic_names=["team.kept"]), DeleteTopicsResponse, 5)
    assert answer.responses[0].error_message == "Rule 'keep': topic team.kept must not be deleted."
    names = ["", "bad name", "..", "x" * 250]
    answer = both.ask(DeleteTopicsRequest(topic_names=names), DeleteTopicsResponse, 5)
    assert {entry.error_code for entry in answer.responses} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("version", [1, 4, 12])
def test_auto_created_topics_are_decided_like_in_the_broker(both: Both, version: int) -> None:
    letters = {1: "first", 4: "fourth", 12: "twelfth"}[version]
    names = [f"team.{letters}", f"Nonsense{version}", f"right.{letters}", "bad name"]
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in names])
    answer = both.ask(request, MetadataResponse, version)
    assert [entry.error_code for entry in answer.topics] == [
        0,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        0,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert [len(entry.partitions) for entry in answer.topics] == [1, 0, 3, 0]


def test_reassignment_that_changes_replication_factor_is_denied_alike(both: Both) -> None:
    both.create(topic("team.moved", partitions=2, factor=1))
    request = AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="team.moved",
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas in ((0, [1, 2, 3]), (1, [2]))
                ],
            )
        ]
    )
    answer = both.clients[1].ask(request, AlterPartitionReassignmentsResponse, 0)
    (topic_entry,) = answer.responses
    assert [(each.partition_index, each.error_code) for each in topic_entry.partitions] == [
        (0, ErrorCode.POLICY_VIOLATION),
        (1, 0),
    ]
    with AdminClient(both.upstream.bootstrap_servers) as admin:
        described = admin.describe_topics(["team.moved"]).result()["team.moved"]
    assert [each.replicas for each in described.partitions][1] == (2,)
    assert len(described.partitions[0].replicas) == 1


def test_denial_is_logged_and_counted_by_the_gateway(both: Both) -> None:
    both.create(topic("Logged"))
    assert "Create topic policy: denied 'Logged', asked by User:ANONYMOUS" in both.gateway.log_text()
    with urllib.request.urlopen(f"http://{both.metrics}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    assert 'klamm_policy_decisions_total{policy="create.topic",mode="enforce",action="deny"}' in page


def slow_policy_gateway(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., klamm.Gateway], timeout_ms: int
) -> klamm.Gateway:
    """Start a gateway whose policy decides on topics with the prefix "slow" after the file "may-end" is created."""
    (tmp_path / "policy_that_waits.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    config = {"create.topic.policy.class.name": "policy_that_waits:Slow", "policy.timeout.ms": timeout_ms}
    return make(both.upstream.bootstrap_servers, config=config)


def test_slow_policy_delays_only_requests_it_checks(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    """The policy decides only after another client was served, so a gateway that waits for it would time out."""
    # given
    gateway = slow_policy_gateway(both, tmp_path, monkeypatch, make_klamm_gateway, timeout_ms=60_000)
    with WireClient(gateway.bootstrap_servers) as delayed, WireClient(gateway.bootstrap_servers) as other:
        # when
        delayed.send(CreateTopicsRequest(topics=[topic("slow-1"), topic("next")]), 7)
        wait_until((tmp_path / "begun").exists, timeout_s=300, what="the policy to be asked")
        for _ in range(20):
            other.ask(MetadataRequest(topics=[]), MetadataResponse, 9)
        (tmp_path / "may-end").touch()
        answer = delayed.receive(CreateTopicsResponse, 7)
    # then
    assert [(entry.name, entry.error_code) for entry in answer.topics] == [("slow-1", 0), ("next", 0)]


def test_policy_that_does_not_decide_fails_the_topic(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_klamm_gateway: Callable[..., klamm.Gateway]
) -> None:
    # given
    gateway = slow_policy_gateway(both, tmp_path, monkeypatch, make_klamm_gateway, timeout_ms=1000)
    with WireClient(gateway.bootstrap_servers) as client:
        # when
        (entry,) = client.ask(CreateTopicsRequest(topics=[topic("slow-2")]), CreateTopicsResponse, 7).topics
    # then
    assert entry.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "did not decide within 1000 ms" in (entry.error_message or "")


def test_broker_configs_are_decided_like_in_the_broker(both: Both) -> None:
    alter_broker(both, "1")
    alter_broker(both, "")  # last, because policies deny the removal of a default that a broker would inherit


def alter_broker(both: Both, name: str) -> None:
    """Alter the configs of a broker, or the cluster defaults ("")."""

    def ask(request: Any, response: type[Any], version: int) -> str | None:
        answers = [client.ask(request, response, version).responses[0] for client in both.clients]
        assert answers[0].error_code == answers[1].error_code
        # what is below the cluster default is unknown to the gateway: it denies a removal with another message
        assert not name or answers[0].error_message == answers[1].error_message
        return str(answers[0].error_message) if answers[0].error_code == ErrorCode.POLICY_VIOLATION else None

    def alter(value: str | None) -> str | None:
        operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
        resource = incremental(name, ("message.max.bytes", operation, value))
        resource.resource_type = ResourceType.BROKER
        return ask(IncrementalAlterConfigsRequest(resources=[resource]), IncrementalAlterConfigsResponse, 1)

    def replace(key: str, value: str) -> str | None:
        configs = {key: value} if name else {key: value, "min.insync.replicas": "1"}  # which must stay
        resource = AlterConfigsRequest.AlterConfigsResource(
            resource_type=ResourceType.BROKER,
            resource_name=name,
            configs=[AlterConfigsRequest.AlterableConfig(name=each, value=text) for each, text in configs.items()],
        )
        return ask(AlterConfigsRequest(resources=[resource]), AlterConfigsResponse, 2)

    subject = f"broker {name}" if name else "all brokers"
    assert f"message.max.bytes=3000000 of {subject} is above the maximum 2000000" in str(alter("3000000"))
    assert alter("1500000") is None
    assert "below the minimum 1200000" in str(alter(None))
    assert "below the minimum 1200000" in str(replace("log.cleaner.threads", "1"))
    assert replace("message.max.bytes", "1600000") is None


def test_rules_on_configs_missing_upstream_fail_gateway_start(
    klamm_session_broker: klamm.Broker, tmp_path: Path
) -> None:
    with AdminClient(klamm_session_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name=f"described-{uuid4().hex}")]).all().result()
    (tmp_path / "rules.yaml").write_text(UNKNOWN)
    config = {
        "create.topic.policy.class.name": "klamm.policy.rules:RulesPolicy",
        "policy.rules.file": str(tmp_path / "rules.yaml"),
    }
    with (
        pytest.raises(BrokerStartError, match=r"retention\.mss: not a topic config of the upstream"),
        klamm.Gateway(klamm_session_broker.bootstrap_servers, config=config),
    ):
        pass
