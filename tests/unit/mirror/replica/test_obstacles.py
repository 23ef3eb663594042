"""What keeps klamm from being a broker of the target."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock
from uuid import UUID

import pytest

from klamm.kafka_client.errors import ConnectionLostError
from klamm.kraft.errors import ClusterActionDeniedError
from klamm.kraft.log_dirs import log_dir_of
from klamm.mirror.progress.flow_progress import FlowFailedError
from klamm.mirror.replica import obstacles
from klamm.mirror.replica.remote_topics import ReplicaTopics
from klamm.mirror.settings.mirror import parse_settings
from klamm.properties import parse_properties
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.describe_quorum import DescribeQuorumResponse
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.security.acls import Acl, AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.schema import Message

FILE = """
clusters = A, B
A.bootstrap.servers = a:9092
B.bootstrap.servers = b:9092
B.bootstrap.controllers = c:9093
A->B.enabled = true
klamm.offsets = preserve
klamm.offsets.by = replica
klamm.replica.experimental = true
klamm.replica.node.id = 9
klamm.replica.listeners = klamm:9192
"""
SASL = """
klamm.replica.listener.security.protocol.map = PLAINTEXT:SASL_SSL
klamm.replica.sasl.enabled.mechanisms = PLAIN
"""
CLIENT_LISTENER = """
klamm.replica.listeners = PLAINTEXT://klamm:9192,CLIENT://klamm:9193
klamm.replica.listener.security.protocol.map = PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT
"""
LOGIN_OF_KLAMM = """
B.security.protocol = SASL_SSL
B.sasl.mechanism = PLAIN
B.sasl.jaas.config = PlainLoginModule required username="klamm" password="secret";
"""
SUPER_USERS = "klamm.replica.super.users = User:node\n"
ANONYMOUS_IS_SUPER = "klamm.replica.super.users = User:node;User:ANONYMOUS\n"
EVERYBODY_MAY = "klamm.replica.allow.everyone.if.no.acl.found = true\n"
OVER_SASL = {"listener_security_protocol_map": "PLAINTEXT:SASL_SSL", "sasl_mechanism_inter_broker_protocol": "PLAIN"}
NO_ACL = (
    "no ACL allows the brokers of cluster B CLUSTER_ACTION on it as User:ANONYMOUS, which fetching from klamm needs: "
    "expected klamm.replica.super.users with the principals of the brokers, if these are super users"
)
UNKNOWN_RULES = (
    "klamm does not know the rules of com.example.Own: expected klamm.replica.super.users with the principals of the "
    "brokers"
)
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def flow_of(more: str) -> FlowSettings:
    (flow,) = parse_settings(parse_properties(FILE + more)).flows
    return flow


FLOW = flow_of("")


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """A target with the broker 1 and metadata.version 4.3, whose controllers accept the principal."""
    cluster = Mock(node_ids=frozenset({1}), cluster_id="cluster")
    answer(cluster)
    monkeypatch.setattr(obstacles, "connected", lambda _flow: contextlib.closing(cluster))
    cluster.channel = Mock()
    monkeypatch.setattr(obstacles, "ControllerChannel", lambda _settings: cluster.channel)
    return cluster


def answer(cluster: Mock, *responses: Message) -> None:
    """Let the brokers give these responses, and else those of a target in whose way nothing is."""
    defaults = (finalized(30), quorum(3000), configs(), acls(), MetadataResponse())
    by_class = {type(response): response for response in (*defaults, *responses)}
    cluster.connection.return_value.call.side_effect = lambda _, response_class, **__: by_class[response_class]


def configs(values: dict[str, str] | None = None, error_code: int = 0) -> DescribeConfigsResponse:
    entries = [
        DescribeConfigsResponse.DescribeConfigsResourceResult(name=name.replace("_", "."), value=value)
        for name, value in {"authorizer_class_name": "", **(values or {})}.items()
    ]
    result = DescribeConfigsResponse.DescribeConfigsResult(error_code=error_code, configs=entries)
    return DescribeConfigsResponse(results=[result])


ALLOW = Acl(
    resource_type=AclResourceType.CLUSTER,
    resource_name="kafka-cluster",
    pattern_type=PatternType.LITERAL,
    principal="User:b",
    host="*",
    operation=AclOperation.CLUSTER_ACTION,
    permission=AclPermission.ALLOW,
)
DENY = replace(ALLOW, permission=AclPermission.DENY)


def acls(*rights: Acl) -> DescribeAclsResponse:
    return DescribeAclsResponse(
        resources=[
            DescribeAclsResponse.DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                acls=[
                    DescribeAclsResponse.AclDescription(
                        principal=acl.principal,
                        host=acl.host,
                        operation=acl.operation,
                        permission_type=acl.permission,
                    )
                ],
            )
            for acl in rights
        ]
    )


def finalized(level: int) -> ApiVersionsResponse:
    feature = ApiVersionsResponse.FinalizedFeatureKey(
        name="metadata.version", max_version_level=level, min_version_level=level
    )
    return ApiVersionsResponse(finalized_features=[feature])


def quorum(voter: int, *klamms: int, owner: str = "C") -> DescribeQuorumResponse:
    """Return a quorum of one controller, from which the brokers 1 and 9 fetch. Some of them are klamm's."""
    state = DescribeQuorumResponse.ReplicaState
    log_dirs = {1: UUID(int=1), 9: UUID(int=9), **{each: log_dir_of("cluster", each, owner) for each in klamms}}
    observers = [state(replica_id=each, replica_directory_id=log_dir) for each, log_dir in log_dirs.items()]
    partition = DescribeQuorumResponse.PartitionData(current_voters=[state(replica_id=voter)], observers=observers)
    return DescribeQuorumResponse(topics=[DescribeQuorumResponse.TopicData(partitions=[partition])])


def test_node_id_of_a_controller_fails_the_flow(target: Mock) -> None:
    answer(target, quorum(9))
    with pytest.raises(FlowFailedError, match=r"klamm.replica.node.id=9: a controller of cluster B has this id"):
        ReplicaTopics(FLOW, Mock(), 9).check_supported()


def test_target_that_allows_a_replica_has_no_obstacle(target: Mock) -> None:
    assert obstacles.obstacles(FLOW) == {}
    target.channel.close.assert_called_once_with()


def test_metadata_version_before_4_3_fails_the_flow(target: Mock) -> None:
    answer(target, finalized(29))
    reason = obstacles.obstacles(FLOW)[""]
    assert reason.startswith("cluster B has metadata.version=29: expected 30 (4.3) or more")
    with pytest.raises(FlowFailedError, match=r"metadata.version=29"):
        ReplicaTopics(FLOW, Mock(), 9).check_supported()


def test_principal_without_cluster_action_is_named(target: Mock) -> None:
    target.channel.connection.side_effect = ClusterActionDeniedError("denied")
    expected = "the principal lacks CLUSTER_ACTION on cluster B, which brokers need"
    assert obstacles.obstacles(FLOW) == {"": expected}


@pytest.mark.parametrize("node_ids", [{9}, {1, 9}])
def test_node_id_of_another_broker_is_named(target: Mock, node_ids: set[int]) -> None:
    target.node_ids = frozenset(node_ids)
    expected = "klamm.replica.node.id=9: another broker of cluster B has this id"
    assert obstacles.obstacles(FLOW) == {"": expected}


def test_node_id_of_another_flow_is_named(target: Mock) -> None:
    target.node_ids = frozenset({1, 9})
    answer(target, quorum(3000, 9))
    expected = "klamm.replica.node.id=9: another flow's broker of cluster B has this id"
    assert obstacles.obstacles(FLOW) == {"": expected}
    with pytest.raises(ConnectionLostError, match=expected):
        ReplicaTopics(FLOW, Mock(), 9).check_supported()


def test_controllers_that_are_not_named_fail_the_flow(target: Mock) -> None:
    answer(target, DescribeQuorumResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    expected = "the target does not name its controllers (DescribeQuorum): expected DESCRIBE on the cluster"
    assert obstacles.obstacles(FLOW) == {"": expected}
    assert obstacles.target_obstacle(FLOW) == expected


def test_only_brokers_with_storage_are_asked(target: Mock) -> None:
    """The klamm of another flow has the lowest id. Its listener passes DescribeQuorum on to a broker."""
    target.node_ids = frozenset({0, 1})
    answer(target, quorum(3000, 0))
    assert obstacles.obstacles(FLOW, ["A.orders"]) == {}
    node_ids = [call.args[0] for call in target.connection.call_args_list]
    assert node_ids[:1] == [0]
    assert set(node_ids[1:]) == {1}


def test_node_id_of_klamm_itself_is_no_obstacle(target: Mock) -> None:
    target.node_ids = frozenset({1, 9})
    answer(target, quorum(3000, 9, owner="mm2-offsets.A.internal/A"))
    assert obstacles.obstacles(FLOW) == {}
    target.close.assert_called_once_with()
    ReplicaTopics(FLOW, Mock(), 9).check_supported()


@pytest.mark.parametrize(
    ("values", "more", "reason"),
    [
        (
            {"inter_broker_listener_name": "INTERNAL"},
            "",
            "klamm.replica.listeners=PLAINTEXT: expected a listener INTERNAL, because the target's brokers have "
            "inter.broker.listener.name=INTERNAL",
        ),
        (
            {"security_inter_broker_protocol": "SASL_SSL"},
            "",
            "klamm.replica.listeners=PLAINTEXT: expected a listener SASL_SSL, because the target's brokers have "
            "inter.broker.listener.name=SASL_SSL",
        ),
        (
            {"listener_security_protocol_map": "PLAINTEXT:SASL_SSL"},
            "",
            "klamm.replica.listener.security.protocol.map: listener PLAINTEXT is PLAINTEXT: expected "
            "PLAINTEXT:SASL_SSL, as on the target's brokers",
        ),
        (
            {"listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_SSL"},
            CLIENT_LISTENER,
            "klamm.replica.listener.security.protocol.map: listener CLIENT is PLAINTEXT: expected CLIENT:SASL_SSL, as "
            "on the target's brokers",
        ),
        (
            {
                "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
                "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
            },
            CLIENT_LISTENER,
            "klamm.replica.listeners=PLAINTEXT,CLIENT: the target's brokers have no listener CLIENT: expected some of "
            "PLAINTEXT",
        ),
        (
            {
                "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,CLIENT:PLAINTEXT",
                "listeners": "PLAINTEXT://:9092",
                "advertised_listeners": "PLAINTEXT://b:9092,client://b:9093",
            },
            CLIENT_LISTENER,
            "",
        ),
        (
            {
                "listener_security_protocol_map": "PLAINTEXT:SASL_SSL",
                "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
            },
            SASL,
            "klamm.replica.sasl.enabled.mechanisms=PLAIN: expected SCRAM-SHA-512, with which the target's brokers log "
            "in at listener PLAINTEXT (sasl.mechanism.inter.broker.protocol)",
        ),
        (
            {"authorizer_class_name": STANDARD},
            "",
            NO_ACL,
        ),
        (
            {"authorizer_class_name": "com.example.Own"},
            "",
            UNKNOWN_RULES,
        ),
        ({"authorizer_class_name": "com.example.Own"}, EVERYBODY_MAY, UNKNOWN_RULES),
        ({"authorizer_class_name": "com.example.Own"}, SUPER_USERS, UNKNOWN_RULES),
        ({"authorizer_class_name": "com.example.Own"}, ANONYMOUS_IS_SUPER, ""),
        ({"authorizer_class_name": STANDARD}, SUPER_USERS, NO_ACL),
        ({"authorizer_class_name": STANDARD}, ANONYMOUS_IS_SUPER, ""),
        ({"authorizer_class_name": STANDARD}, EVERYBODY_MAY, ""),
        ({"authorizer_class_name": STANDARD, **OVER_SASL}, SASL + SUPER_USERS, ""),
        (
            OVER_SASL,
            SASL,
            "",
        ),
    ],
)
def test_listener_that_the_brokers_cannot_use_is_named(
    target: Mock, values: dict[str, str], more: str, reason: str
) -> None:
    answer(target, configs(values))
    assert obstacles.obstacles(flow_of(more)) == ({"": reason} if reason else {})


@pytest.mark.parametrize(
    ("rights", "more", "is_allowed"),
    [
        ((replace(ALLOW, operation=AclOperation.DESCRIBE),), "", False),
        ((ALLOW,), "", True),
        ((replace(ALLOW, operation=AclOperation.ALL),), "", True),
        ((replace(ALLOW, host="127.0.0.1"),), "", True),
        ((replace(ALLOW, host="127.0.0.2"),), "", False),
        ((ALLOW, replace(DENY, host="127.0.0.2")), "", True),
        ((ALLOW, replace(DENY, host="127.0.0.1")), "", False),
        ((ALLOW, replace(DENY, principal="User:*")), "", False),
        ((replace(ALLOW, principal="User:*"),), "", True),
        ((replace(ALLOW, principal="User:klamm"),), "", False),
        ((replace(ALLOW, principal="User:klamm"),), EVERYBODY_MAY, False),
        ((replace(ALLOW, principal="User:klamm"),), "klamm.replica.super.users = User:klamm\n", False),
        ((DENY,), SUPER_USERS, True),
    ],
)
def test_brokers_that_log_in_need_an_acl_that_allows_their_host(
    target: Mock, rights: tuple[Acl, ...], more: str, *, is_allowed: bool
) -> None:
    broker = MetadataResponse.MetadataResponseBroker(node_id=1, host="127.0.0.1", port=9092)
    own = MetadataResponse.MetadataResponseBroker(node_id=9, host="127.0.0.9", port=9092)
    answer(
        target,
        configs({"authorizer_class_name": STANDARD, **OVER_SASL}),
        acls(*rights),
        MetadataResponse(brokers=[broker, own]),
    )
    reason = obstacles.obstacles(flow_of(SASL + LOGIN_OF_KLAMM + more)).get("", "")
    expected = "" if is_allowed else "no ACL allows the brokers of cluster B CLUSTER_ACTION on it from 127.0.0.1, which"
    assert reason.startswith(expected)
    assert bool(reason) != is_allowed


def test_plan_accepts_klamms_acl_for_brokers_on_plaintext_listeners(target: Mock) -> None:
    answer(target, configs({"authorizer_class_name": STANDARD}), acls(replace(ALLOW, principal="User:ANONYMOUS")))
    assert obstacles.obstacles(FLOW) == {}


def test_brokers_need_an_acl_if_their_configs_are_not_readable(target: Mock) -> None:
    answer(target, configs(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
    assert obstacles.obstacles(FLOW) == {"": NO_ACL}


def test_topic_without_read_right_is_named(target: Mock) -> None:
    def described(name: str, *operations: AclOperation, error_code: int = 0) -> MetadataResponse.MetadataResponseTopic:
        bits = sum(1 << operation for operation in operations)
        return MetadataResponse.MetadataResponseTopic(
            name=name, error_code=error_code, topic_authorized_operations=bits
        )

    topics = [
        described("A.orders", AclOperation.DESCRIBE),
        described("A.readable", AclOperation.READ),
        described("A.new", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    answer(target, MetadataResponse(topics=topics))
    assert obstacles.obstacles(FLOW, ["A.orders", "A.readable", "A.new"]) == {
        "A.orders": "the principal lacks READ on it, which klamm mirror promote needs (DescribeProducers), and "
        "consumers with read_committed that look up offsets (Fetch)"
    }
