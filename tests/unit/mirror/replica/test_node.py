"""Life of a broker without storage in a target that exists only as an image of its metadata."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.errors import StaleBrokerError
from klamm.kraft.image import BrokerEndpoint, BrokerImage, ClusterImage
from klamm.mirror.copy.equal_offsets import ReplicaSettings
from klamm.mirror.replica import access as accesses
from klamm.mirror.replica import inter_broker
from klamm.mirror.replica import node as nodes
from klamm.mirror.replica.node import ReplicaNode
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.offset_for_leader_epoch import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType
from klamm.server.listeners import Address
from tests.support.processes import free_port, wait_until
from tests.support.replicas import FakeMember, image_of
from tests.support.security import Certificates, log_in, sasl_settings
from tests.support.stub_broker import StubBroker
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from klamm.kraft.image import TopicMetadata

KLAMM, TOPIC, TOPIC_ID = 9, "t", UUID(int=7)
SOON_S = 30.0
NO_CONFIGS: Mapping[str, str] = MappingProxyType({})


def other_klamm() -> BrokerImage:
    """Return the broker of another flow, with the lowest node id and a listener that nobody listens on."""
    endpoint = BrokerEndpoint(name="INTERNAL", host="127.0.0.1", port=1, security_protocol="PLAINTEXT")
    return replace(image_of(TOPIC, TOPIC_ID, 0, ()).brokers[0], endpoints=(endpoint,))


class Member(FakeMember):
    """Its controller elects at once, its metadata follow when ``publish_elections`` is called."""

    def __init__(self, image: ClusterImage) -> None:
        super().__init__(image, KLAMM)
        self.is_late = True
        self.fences: list[bool] = []
        self.cordons: list[bool] = []
        self.waits = 0
        self._elections = 0
        self._changed = threading.Condition()

    def fence(self, fenced: bool) -> None:
        self.fences.append(fenced)
        self._elections += 1
        if not self.is_late:
            self.publish_elections()

    def cordon(self, cordoned: bool) -> None:
        super().cordon(cordoned)
        self.cordons.append(cordoned)

    def publish_elections(self) -> None:
        """Publish an image with the elections so far."""
        topic = self.image.topics[TOPIC_ID]
        partition = replace(topic.partitions[0], leader_epoch=self._elections, partition_epoch=self._elections)
        self.publish_topics({TOPIC_ID: replace(topic, partitions={0: partition})})

    def publish_topics(self, topics: Mapping[UUID, TopicMetadata]) -> None:
        """Publish an image with topics."""
        names = {topic.name: topic_id for topic_id, topic in topics.items()}
        self.image = replace(self.image, topic_ids={**self.image.topic_ids, **names})
        with self._changed:
            self._publish(topics)
            self._changed.notify_all()

    def wait_for(self, predicate: Callable[[ClusterImage], bool], timeout_s: float) -> ClusterImage:
        with self._changed:
            self.waits += 1
            if not self._changed.wait_for(lambda: predicate(self.image), timeout_s):
                raise TimeoutError("the metadata do not appear")
        return self.image


@pytest.fixture(autouse=True)
def ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_TICK_S", 0.01)


@pytest.fixture
def member() -> Member:
    return Member(image_of(TOPIC, TOPIC_ID, KLAMM, (1,)))


@pytest.fixture
def address() -> Address:
    return Address(host="127.0.0.1", port=free_port())


def new_node(
    member: Member, address: Address, configs: Mapping[str, str] = NO_CONFIGS, protocol: str = "PLAINTEXT"
) -> ReplicaNode:
    endpoint = BrokerEndpoint(name="INTERNAL", host=address.host, port=address.port, security_protocol=protocol)
    settings = ReplicaSettings(
        node_id=KLAMM,
        controllers=ConnectionSettings(bootstrap_servers=(), client_id="replica"),
        listeners=(endpoint,),
        bind=(address,),
        configs=configs,
    )
    return ReplicaNode(settings, lambda: member, [(TOPIC, 0)], target=settings.controllers)


@pytest.fixture
def node(member: Member, address: Address) -> Iterator[ReplicaNode]:
    replica = new_node(member, address)
    yield replica
    replica.close()


def need_epoch(node: ReplicaNode, epoch: int) -> None:
    """Let a batch of the source wait for a leader epoch."""
    leader = node.partition(TOPIC, 0)
    assert leader is not None
    node.call(setattr, leader, "wanted_epoch", epoch)


def leader_epoch(node: ReplicaNode) -> int:
    leader = node.partition(TOPIC, 0)
    return -1 if leader is None or leader.leadership is None else leader.leadership.leader_epoch


def test_replicas_that_a_reassignment_removes_are_not_awaited(node: ReplicaNode, member: Member) -> None:
    topic = member.image.topics[TOPIC_ID]
    moving = replace(topic.partitions[0], replicas=(1, 2, 4, KLAMM), removing=(4, KLAMM))
    member.image = replace(member.image, topics={TOPIC_ID: replace(topic, partitions={0: moving})})
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    leader = node.partition(TOPIC, 0)
    assert leader is not None
    assert leader.leadership is not None
    assert leader.leadership.replicas == frozenset({1, 2, 4})
    assert leader.leadership.remaining == frozenset({1, 2})


def test_i3_leader_epoch_is_not_raised_again_before_the_metadata_show_it(node: ReplicaNode, member: Member) -> None:
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    need_epoch(node, 2)
    wait_until(lambda: member.waits == 1, timeout_s=SOON_S, what="an election")
    # when
    member.publish_elections()
    # then
    wait_until(lambda: leader_epoch(node) == 2, timeout_s=SOON_S, what="the higher epoch")
    assert member.fences == [True, False]


def test_i3_leader_epoch_is_raised_as_often_as_the_source_epoch_needs(node: ReplicaNode, member: Member) -> None:
    member.is_late = False
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    # when
    need_epoch(node, 7)
    # then
    wait_until(lambda: leader_epoch(node) == 8, timeout_s=SOON_S, what="the higher epoch")
    assert member.fences == [True, False] * 4


def test_halted_partition_that_may_have_been_handed_over_is_decided_by_another_election(
    node: ReplicaNode, member: Member
) -> None:
    member.is_late = False
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    leader = node.partition(TOPIC, 0)
    assert leader is not None

    def withdraw() -> None:
        leader.seal()
        leader.in_doubt_epoch = 0
        leader.halt("the source lost records")
        leader.unseal()

    # when
    node.call(withdraw)
    # then
    wait_until(lambda: leader_epoch(node) == 2, timeout_s=SOON_S, what="the higher epoch")
    assert (leader.is_in_doubt, leader.is_sealed, leader.halted) == (False, False, "the source lost records")


def test_new_partitions_are_accepted_only_while_a_remote_topic_is_missing(node: ReplicaNode, member: Member) -> None:
    topics, member.image = member.image.topics, replace(member.image, topics={}, topic_ids={})
    # when
    node.start()
    # then
    assert member.cordons == [False]
    # when
    member.publish_topics(topics)
    # then
    wait_until(lambda: member.cordons == [False, True], timeout_s=SOON_S, what="the cordon")


def test_node_with_all_topics_is_never_uncordoned(node: ReplicaNode, member: Member) -> None:
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    assert member.cordons == []


def test_node_that_is_no_broker_any_more_frees_its_listeners(
    node: ReplicaNode, member: Member, address: Address
) -> None:
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    # when
    member.error = StaleBrokerError("an operator has unregistered this broker")
    # then
    wait_until(lambda: not is_taken(address), timeout_s=SOON_S, what="the end of the listener")
    assert "klamm is no longer broker 9 of the target: an operator has unregistered" in node.error


def is_taken(address: Address) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((address.host, address.port)) == 0


def test_taken_listener_is_named_and_node_starts_when_it_is_free(node: ReplicaNode, address: Address) -> None:
    # given
    message = rf"klamm\.replica\.listeners: INTERNAL: cannot listen on {address}: .* or choose another port"
    with socket.create_server((address.host, address.port)):
        # then
        for _ in range(2):
            with pytest.raises(OSError, match=message):
                node.start()
        assert node.member is None
    # when
    node.start()
    # then
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    socket.create_connection((address.host, address.port)).close()


STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
EVERYONE = Acl(
    resource_type=AclResourceType.CLUSTER,
    resource_name="kafka-cluster",
    pattern_type=PatternType.LITERAL,
    principal="User:*",
    host="127.0.0.1",
    operation=AclOperation.CLUSTER_ACTION,
    permission=AclPermission.ALLOW,
)
NOBODY = replace(EVERYONE, permission=AclPermission.DENY)


@pytest.mark.parametrize(
    ("authorizer", "acls", "super_users", "is_served"),
    [
        ("", (), "", True),
        (STANDARD, (), "", False),
        (STANDARD, (EVERYONE,), "", True),
        (STANDARD, (EVERYONE, NOBODY), "", False),
        (STANDARD, (replace(EVERYONE, operation=AclOperation.DESCRIBE),), "", False),
        (STANDARD, (NOBODY,), "User:ANONYMOUS", True),
        ("com.example.Own", (EVERYONE,), "", False),
        ("com.example.Own", (), "User:a;User:ANONYMOUS", True),
        (None, (), "", False),
        (None, (EVERYONE,), "", True),
    ],
)
def test_replicas_need_cluster_action_as_on_the_brokers(
    member: Member,
    address: Address,
    *,
    authorizer: str | None,
    acls: tuple[Acl, ...],
    super_users: str,
    is_served: bool,
) -> None:
    member.inter_broker_listener, member.authorizer = "INTERNAL", authorizer
    member.image = replace(member.image, acls={UUID(int=number): acl for number, acl in enumerate(acls)})
    with contextlib.closing(new_node(member, address, {"super.users": super_users})) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with WireClient(str(address)) as client:
            is_denied = fetch_as_broker(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (is_denied, "User:ANONYMOUS lacks CLUSTER_ACTION" in node.access.rejection) == (
            not is_served,
            not is_served,
        )


def fetch_as_broker(client: WireClient) -> int:
    """Return the error code of the answer to a replica."""
    return fetch_response(client).responses[0].partitions[0].error_code


def fetch_response(client: WireClient, session_id: int = 0, session_epoch: int = -1) -> FetchResponse:
    """Return the answer to a replica. A request that is not the first one in its session names no partition."""
    topic = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[FetchRequest.FetchPartition(partition=0)])
    request = FetchRequest(
        replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=1),
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[] if session_epoch > 0 else [topic],
    )
    return client.ask(request, FetchResponse, 17)


def test_consumers_over_sasl_need_the_acls_of_the_target(member: Member, address: Address) -> None:
    member.inter_broker_listener, member.authorizer = "INTERNAL", STANDARD
    right = replace(EVERYONE, resource_type=AclResourceType.TOPIC, resource_name=TOPIC, operation=AclOperation.READ)
    member.image = replace(member.image, acls={UUID(int=1): replace(right, principal="User:alice")})
    topic = ListOffsetsRequest.ListOffsetsTopic(
        name=TOPIC, partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    fetched = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[FetchRequest.FetchPartition(partition=0)])
    codes = {}
    with contextlib.closing(new_node(member, address, sasl_settings(listener="internal"), "SASL_PLAINTEXT")) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        # when
        for user in ("mallory", "alice"):
            with log_in(str(address), user) as client:
                offsets = client.ask(ListOffsetsRequest(replica_id=-1, topics=[topic]), ListOffsetsResponse, 9)
                request = FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=-1), topics=[fetched])
                response = client.ask(request, FetchResponse, 17)
            codes[user] = (
                offsets.topics[0].partitions[0].error_code,
                response.responses[0].partitions[0].error_code,
            )
    # then
    assert codes == {
        "mallory": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        "alice": (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER),  # no replica fetches
    }


def test_consumers_on_plaintext_listeners_need_the_acls_of_the_target(member: Member, address: Address) -> None:
    member.authorizer = STANDARD
    right = replace(EVERYONE, resource_type=AclResourceType.TOPIC, resource_name=TOPIC)
    fetched = FetchRequest.FetchTopic(topic_id=TOPIC_ID, partitions=[FetchRequest.FetchPartition(partition=0)])
    fetch = FetchRequest(replica_state=FetchRequest.ReplicaState(replica_id=-1), topics=[fetched])
    wanted = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0)
    epochs = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=TOPIC, partitions=[wanted])]
    )
    with contextlib.closing(new_node(member, address)) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")

        def error_codes() -> tuple[int, int]:
            with WireClient(str(address)) as client:
                fetch_code = client.ask(fetch, FetchResponse, 17).responses[0].partitions[0].error_code
                response = client.ask(epochs, OffsetForLeaderEpochResponse, 4)
            return fetch_code, response.topics[0].partitions[0].error_code

        assert error_codes() == (ErrorCode.TOPIC_AUTHORIZATION_FAILED,) * 2

        member.publish(replace(member.image, acls={UUID(int=1): replace(right, operation=AclOperation.READ)}))

        assert ErrorCode.TOPIC_AUTHORIZATION_FAILED not in error_codes()  # READ implies DESCRIBE


@pytest.mark.parametrize(
    ("authorizer", "own_protocol", "protocol_of_brokers", "is_relayed"),
    [
        ("", "PLAINTEXT", "PLAINTEXT", True),
        (STANDARD, "PLAINTEXT", "PLAINTEXT", False),
        ("com.example.Own", "PLAINTEXT", "PLAINTEXT", False),
        (None, "PLAINTEXT", "PLAINTEXT", False),
        ("", "SASL_PLAINTEXT", "PLAINTEXT", False),
        ("", "PLAINTEXT", "SASL_SSL", False),
    ],
)
def test_requests_are_relayed_only_if_no_broker_has_to_know_the_client(
    member: Member,
    address: Address,
    *,
    authorizer: str | None,
    own_protocol: str,
    protocol_of_brokers: str,
    is_relayed: bool,
) -> None:
    member.authorizer = authorizer
    configs = sasl_settings(listener="internal") if own_protocol.startswith("SASL") else NO_CONFIGS
    with StubBroker() as broker, contextlib.closing(new_node(member, address, configs, own_protocol)) as node:
        endpoint = BrokerEndpoint(
            name="INTERNAL", host="127.0.0.1", port=broker.port, security_protocol=protocol_of_brokers
        )
        brokers = {0: other_klamm(), **member.image.brokers, 1: replace(member.image.brokers[1], endpoints=(endpoint,))}
        member.image = replace(member.image, brokers=brokers)
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with WireClient(str(address)) if configs is NO_CONFIGS else log_in(str(address), "alice") as client:
            expected = contextlib.nullcontext() if is_relayed else pytest.raises(OSError, match=r"closed|reset|end")
            with expected:
                client.ask(MetadataRequest(), MetadataResponse, 9)
            assert bool(broker.requests(ApiKey.METADATA)) == is_relayed
            if is_relayed:
                member.authorizer = STANDARD
                restarted = replace(member.image.brokers[1], broker_epoch=2)
                member.publish(replace(member.image, brokers={**member.image.brokers, 1: restarted}))
                wait_until(lambda: node.access.authorizer == STANDARD, timeout_s=SOON_S, what="the authorizer")
                with pytest.raises(OSError, match=r"closed|reset|end"):
                    client.ask(MetadataRequest(), MetadataResponse, 9)


def test_authorizer_that_a_restarted_broker_has_got_is_applied(member: Member, address: Address) -> None:
    member.inter_broker_listener, member.authorizer = "INTERNAL", ""
    with contextlib.closing(new_node(member, address)) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with WireClient(str(address)) as client:
            assert fetch_as_broker(client) != ErrorCode.TOPIC_AUTHORIZATION_FAILED

            member.authorizer = STANDARD
            restarted = replace(member.image.brokers[1], broker_epoch=2)
            member.publish(replace(member.image, brokers={**member.image.brokers, 1: restarted}))

            denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            wait_until(lambda: fetch_as_broker(client) == denied, timeout_s=SOON_S, what="a denial")


@pytest.mark.parametrize(
    ("authorizers", "expected"),
    [
        ({1: "", 2: ""}, ""),
        ({1: STANDARD, 2: STANDARD}, STANDARD),
        ({1: "", 2: STANDARD}, None),
        ({1: ""}, None),
        ({}, None),
        ({1: "", 2: "com.example.Own"}, "com.example.Own"),
        ({1: "com.example.Own"}, "com.example.Own"),
    ],
)
def test_nothing_is_checked_only_if_each_live_broker_has_no_authorizer(
    address: Address, monkeypatch: pytest.MonkeyPatch, authorizers: Mapping[int, str], expected: str | None
) -> None:
    image = image_of(TOPIC, TOPIC_ID, KLAMM, (1, 2))
    member = Member(replace(image, brokers={0: other_klamm(), **image.brokers}))
    monkeypatch.setattr(member, "read_authorizers", lambda _: authorizers)
    access = new_node(member, address).access
    asyncio.run(access.read_authorizers(member))
    assert access.authorizer == expected


def test_authorizer_that_a_broker_does_not_name_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Mock(node_ids=frozenset({1, 2, 3, 4, 5}))
    entry, result = DescribeConfigsResponse.DescribeConfigsResourceResult, DescribeConfigsResponse.DescribeConfigsResult
    name = "authorizer.class.name"
    answers: Mapping[int, object] = {
        1: DescribeConfigsResponse(results=[result(configs=[entry(name=name, value="")])]),
        2: DescribeConfigsResponse(results=[result(configs=[entry(name=name, value=None)])]),
        3: DescribeConfigsResponse(results=[result(configs=[])]),
        4: DescribeConfigsResponse(results=[result(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)]),
        5: ConnectionLostError("no response"),
    }
    cluster.connection.side_effect = lambda node_id: Mock(call=Mock(side_effect=[answers[node_id]]))
    monkeypatch.setattr(inter_broker, "Cluster", lambda *_: cluster)
    target = ConnectionSettings(bootstrap_servers=(), client_id="replica")
    assert inter_broker.read_authorizers(target, sorted(answers)) == {1: ""}


def test_session_of_a_replica_ends_with_its_right(member: Member, address: Address) -> None:
    member.inter_broker_listener, member.authorizer = "INTERNAL", STANDARD
    member.image = replace(member.image, acls={UUID(int=1): EVERYONE})
    with contextlib.closing(new_node(member, address)) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with WireClient(str(address)) as client:
            session_id = fetch_response(client, session_epoch=0).session_id
            assert session_id > 0
            assert fetch_response(client, session_id, 1).error_code == ErrorCode.NONE

            member.publish(replace(member.image, acls={}))

            assert fetch_response(client, session_id, 2).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            response = fetch_response(client, session_epoch=0)
            assert response.session_id == 0
            assert response.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_replicas_log_in_before_they_fetch(member: Member, address: Address) -> None:
    member.inter_broker_listener, member.authorizer = "INTERNAL", STANDARD
    configs = sasl_settings(listener="internal")
    with contextlib.closing(new_node(member, address, configs, "SASL_PLAINTEXT")) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with log_in(str(address), "mallory") as client:
            assert fetch_as_broker(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "User:mallory lacks CLUSTER_ACTION" in node.access.rejection
        with log_in(str(address), "admin") as client:
            assert fetch_as_broker(client) != ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "User:admin" not in node.access.rejection
        with pytest.raises(AssertionError, match="Invalid username or password"):
            log_in(str(address), "admin", "wrong")
        is_rejected(node, "127.0.0.1: Login failed: Authentication failed")
        with WireClient(str(address)) as client, pytest.raises(OSError, match=r"closed|reset|end"):
            fetch_as_broker(client)
        is_rejected(node, "127.0.0.1: Unexpected Kafka request with key 1 during SASL login")
        with WireClient(str(address)) as client:
            client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), SaslHandshakeResponse, 1)
        is_rejected(node, "127.0.0.1: Login failed: SASL mechanism GSSAPI: expected PLAIN,SCRAM-SHA-256,SCRAM-SHA-512")
        with WireClient(str(address)) as client:
            client.ask(SaslHandshakeRequest(mechanism="PLAIN"), SaslHandshakeResponse, 0)
            client.socket.sendall((5).to_bytes(4) + b"\x00a\x00bc")  # after handshake v0, without a request header
            is_rejected(node, "127.0.0.1: Login failed: Authentication failed")


def is_rejected(node: ReplicaNode, reason: str) -> None:
    """Wait until a client was rejected for a reason, and forget it."""
    wait_until(lambda: node.access.rejection.startswith(reason), timeout_s=SOON_S, what=reason)
    node.call(node.access.on_rejected, "", "")


def test_replica_on_a_listener_of_clients_is_reported(member: Member, address: Address) -> None:
    member.inter_broker_listener = "REPLICATION"
    with contextlib.closing(new_node(member, address)) as node:
        node.start()
        wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
        with WireClient(str(address)) as client:
            assert fetch_as_broker(client) == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "fetches as a broker on listener INTERNAL: expected REPLICATION" in node.access.rejection


def test_rejections_are_logged_by_client_and_again_after_a_time(
    member: Member, address: Address, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged(client: str, reason: str) -> bool:
        caplog.clear()
        access.on_rejected(client, reason)
        return f"{client}: {reason}" in caplog.text

    now = [1000.0]
    monkeypatch.setattr(accesses, "time", SimpleNamespace(monotonic=lambda: now[0]))
    access = new_node(member, address).access
    assert logged("10.0.0.1", "User:broker1 lacks CLUSTER_ACTION")
    assert logged("10.0.0.2", "User:broker2 lacks CLUSTER_ACTION")
    assert not logged("10.0.0.1", "User:broker1 lacks CLUSTER_ACTION")
    for number in range(200):
        access.on_rejected(f"10.1.0.{number}", "its TLS handshake failed")
    assert not logged("10.0.0.3", "another reason")
    now[0] += 600
    assert logged("10.0.0.1", "User:broker1 lacks CLUSTER_ACTION")
    assert logged("10.0.0.3", "another reason")


def certificate_of(address: Address) -> bytes | None:
    """Return the certificate of a listener."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port), timeout=60) as connection,
        context.wrap_socket(connection) as stream,
    ):
        return stream.getpeercert(binary_form=True)


@pytest.mark.process
def test_status_reports_certificate_without_principal(member: Member, address: Address, tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    store = certificates.issue("klamm", "/CN=klamm")
    configs = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=broker$/broker/",
    }
    with contextlib.closing(new_node(member, address, configs, "SSL")) as node:
        node.start()
        context = ssl.create_default_context(cafile=str(certificates.authority))
        context.load_cert_chain(store)
        with (
            socket.create_connection((address.host, address.port), timeout=60) as connection,
            context.wrap_socket(connection, server_hostname="localhost"),
        ):
            is_rejected(node, "127.0.0.1: no rule of ssl.principal.mapping.rules matches its certificate")


@pytest.mark.process
def test_changed_key_store_counts_for_new_connections(member: Member, address: Address, tmp_path: Path) -> None:
    certificates = Certificates.create(tmp_path)
    store, renewed = (certificates.issue(name, "/CN=klamm") for name in ("first", "renewed"))
    configs = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    with contextlib.closing(new_node(member, address, configs, "SSL")) as node:
        node.start()
        first = certificate_of(address)
        store.write_text("half a file")
        os.utime(store, ns=(0, 1))
        wait_until(lambda: node.access.renewal_failures.has_any, timeout_s=SOON_S, what="the failure")
        assert certificate_of(address) == first

        renewed.replace(store)

        wait_until(lambda: certificate_of(address) != first, timeout_s=SOON_S, what="the renewed certificate")


@pytest.mark.process
@pytest.mark.parametrize("error", [FileNotFoundError("no such file"), ValueError("not a number")])
def test_key_store_that_cannot_be_read_keeps_the_one_in_use(
    member: Member, address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = Certificates.create(tmp_path).issue("first", "/CN=klamm")
    configs = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
    with contextlib.closing(new_node(member, address, configs, "SSL")) as node:
        node.start()
        with monkeypatch.context() as broken:
            broken.setattr(ReplicaSettings, "endpoints", Mock(side_effect=error))
            os.utime(store, ns=(0, 1))
            wait_until(lambda: node.access.renewal_failures.has_any, timeout_s=SOON_S, what="the failure")

        os.utime(store, ns=(0, 2))
        wait_until(lambda: not node.access.renewal_failures.has_any, timeout_s=SOON_S, what="the renewal")


def test_key_store_that_disappears_while_it_is_looked_up_has_no_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = new_node(Member(image_of(TOPIC, TOPIC_ID, KLAMM, (1,))), Address(host="", port=0))
    settings = replace(node.access._settings, configs={"ssl.keystore.location": str(tmp_path / "gone")})
    monkeypatch.setattr(Path, "exists", lambda _: True)
    assert settings.store_times() == (0,)


def test_unexpected_error_while_watching_is_logged_and_leader_epochs_are_raised(
    node: ReplicaNode, member: Member, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    member.is_late = False
    node.start()
    wait_until(lambda: leader_epoch(node) == 0, timeout_s=SOON_S, what="the leadership")
    cause = Mock(side_effect=chain([RuntimeError("broken")] * 2, repeat(None)))
    reason_to_raise = node._reason_to_raise
    monkeypatch.setattr(node, "_reason_to_raise", lambda now: cause() or reason_to_raise(now))
    # when
    need_epoch(node, 1)
    # then
    wait_until(lambda: leader_epoch(node) == 2, timeout_s=SOON_S, what="the higher epoch")
    assert [record.getMessage() for record in caplog.records if record.exc_info] == [
        "Broker 9: a background step failed and is repeated"
    ]


@pytest.mark.parametrize(("configs", "limit"), [({}, 8), ({"max.connections.per.ip": "2"}, 2)])
def test_connections_are_limited_by_configs_and_by_the_descriptors_of_the_process(
    member: Member, address: Address, monkeypatch: pytest.MonkeyPatch, configs: Mapping[str, str], limit: int
) -> None:
    monkeypatch.setattr(nodes, "raise_limit", lambda: 0)
    with contextlib.closing(new_node(member, address, configs)) as node, contextlib.ExitStack() as stack:
        node.start()
        clients = [stack.enter_context(WireClient(str(address))) for _ in range(limit)]
        for client in clients:
            fetch_as_broker(client)
        with WireClient(str(address)) as client, pytest.raises(OSError, match=r"closed|reset|end"):
            fetch_as_broker(client)


def test_idle_connection_is_closed(member: Member, address: Address) -> None:
    with contextlib.closing(new_node(member, address, {"connections.max.idle.ms": "100"})) as node:
        node.start()
        with socket.create_connection((address.host, address.port), timeout=SOON_S) as connection:
            assert connection.recv(1) == b""


@pytest.mark.parametrize("has_replicas", [True, False])
def test_registration_stays_only_as_long_as_partitions_have_replicas_here(
    member: Member, address: Address, monkeypatch: pytest.MonkeyPatch, *, has_replicas: bool
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(member, "shut_down", lambda: calls.append("shut down"))
    if not has_replicas:
        topic = member.image.topics[TOPIC_ID]
        promoted = replace(topic.partitions[0], replicas=(1,), isr=(1,), leader=1, removing=())
        member.image = replace(member.image, topics={TOPIC_ID: replace(topic, partitions={0: promoted})})
    node = new_node(member, address)
    node.start()
    node.close()
    assert calls == (["shut down"] if has_replicas else [])
