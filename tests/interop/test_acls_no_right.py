"""Requests of every API by a principal without any ACL: they reveal nothing and change nothing.

The table names every API that is served: a new one fails here until it has been thought about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import klamm
from klamm.broker.routes import ROUTES
from klamm.protocol import messages
from klamm.protocol.codec import encode
from klamm.protocol.records import Record, encode_batch
from klamm.protocol.schema import Message, Struct
from tests.support.security import log_in, sasl_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.wire import WireClient

from importlib import import_module

HIDDEN, ABSENT = "hidden-thing", "absent-thing"
"""Names of one length: what is said of the one must be what is said of the other."""

TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 29, 30, 31, 53
ILLEGAL_SASL_STATE, INVALID_REQUEST = 34, 42


@dataclass(frozen=True)
class Question:
    """A request about a name, and the codes that stand in the answer."""

    message: str
    """The module of the messages."""
    version: int
    build: Callable[[type[Any], str], Message]
    codes: frozenset[int]


def question(message: str, version: int, build: Callable[[type[Any], str], Message], *codes: int) -> Question:
    return Question(message, version, build, frozenset(codes))


def _produce(cls: type[Any], name: str, **fields: Any) -> Message:
    data = cls.PartitionProduceData(index=0, records=encode_batch([Record(None, b"x", timestamp=1)]))
    topic = cls.TopicProduceData(name=name, partition_data=[data])
    return cls(acks=-1, timeout_ms=1000, topic_data=[topic], **fields)  # type: ignore[no-any-return]


def _client_configs(cls: type[Any], name: str) -> Message:
    entity = [cls.EntityData(entity_type="user", entity_name=name)]
    op = cls.OpData(key="acks", value="all", remove=False)
    return cls(entries=[cls.EntryData(entity=entity, ops=[op])])  # type: ignore[no-any-return]


def _quotas(cls: type[Any], name: str) -> Message:
    entity = [cls.EntityData(entity_type="user", entity_name=name)]
    op = cls.OpData(key="producer_byte_rate", value=1.0, remove=False)
    return cls(entries=[cls.EntryData(entity=entity, ops=[op])], validate_only=False)  # type: ignore[no-any-return]


def _configs(cls: type[Any], name: str, field: str, **config: Any) -> Message:
    kinds = ((2, name), (32, name), (4, "1"), (4, ""), (8, "1"), (16, name))
    resource = cls.AlterConfigsResource
    settings = [getattr(cls, field)(name="retention.ms", value="1", **config)]
    return cls(  # type: ignore[no-any-return]
        resources=[resource(resource_type=kind, resource_name=of, configs=settings) for kind, of in kinds]
    )


def _filter(cls: type[Any]) -> dict[str, Any]:
    return {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": None, "operation": 1, "permission_type": 1,
    }  # fmt: skip


TABLE: dict[int, list[Question]] = {
    0: [
        question("produce", 9, _produce, TOPIC),
        question("produce", 9, lambda c, n: _produce(c, n, transactional_id=n), TRANSACTIONAL_ID),
    ],
    1: [
        question(
            "fetch",
            12,
            lambda c, n: c(
                max_bytes=1000,
                session_epoch=-1,
                topics=[c.FetchTopic(topic=n, partitions=[c.FetchPartition(partition=0, partition_max_bytes=1000)])],
            ),
            TOPIC,
        )
    ],
    2: [
        question(
            "list_offsets",
            7,
            lambda c, n: c(
                topics=[c.ListOffsetsTopic(name=n, partitions=[c.ListOffsetsPartition(timestamp=-1)])], replica_id=-1
            ),
            TOPIC,
        )
    ],
    3: [
        question("metadata", 9, lambda c, _: c(topics=None, include_cluster_authorized_operations=True)),
        question("metadata", 9, lambda c, n: c(topics=[c.MetadataRequestTopic(name=n)]), TOPIC),
    ],
    8: [
        question(
            "offset_commit",
            7,
            lambda c, n: c(
                group_id=n,
                topics=[c.OffsetCommitRequestTopic(name=n, partitions=[c.OffsetCommitRequestPartition()])],
            ),
            GROUP,
        )
    ],
    9: [
        question(
            "offset_fetch",
            8,
            lambda c, n: c(groups=[c.OffsetFetchRequestGroup(group_id=n, topics=None)]),
            GROUP,
        ),
        question("offset_fetch", 5, lambda c, n: c(group_id=n, topics=None), GROUP),
    ],
    10: [
        question("find_coordinator", 4, lambda c, n: c(key_type=0, coordinator_keys=[n]), GROUP),
        question("find_coordinator", 4, lambda c, n: c(key_type=1, coordinator_keys=[n]), TRANSACTIONAL_ID),
    ],
    11: [
        question(
            "join_group",
            5,
            lambda c, n: c(
                group_id=n,
                session_timeout_ms=6000,
                rebalance_timeout_ms=6000,
                protocol_type="consumer",
                protocols=[c.JoinGroupRequestProtocol(name="range", metadata=b"")],
            ),
            GROUP,
        )
    ],
    12: [question("heartbeat", 3, lambda c, n: c(group_id=n, member_id="m"), GROUP)],
    13: [question("leave_group", 3, lambda c, n: c(group_id=n, members=[c.MemberIdentity(member_id="m")]), GROUP)],
    14: [question("sync_group", 3, lambda c, n: c(group_id=n, member_id="m"), GROUP)],
    15: [question("describe_groups", 5, lambda c, n: c(groups=[n], include_authorized_operations=False), GROUP)],
    16: [question("list_groups", 4, lambda c, _: c())],
    17: [question("sasl_handshake", 1, lambda c, _: c(mechanism="PLAIN"), ILLEGAL_SASL_STATE)],
    18: [question("api_versions", 2, lambda c, _: c())],
    19: [
        question(
            "create_topics",
            7,
            lambda c, n: c(topics=[c.CreatableTopic(name=n, num_partitions=1, replication_factor=1)], timeout_ms=1000),
            TOPIC,
        )
    ],
    20: [
        question("delete_topics", 6, lambda c, n: c(topics=[c.DeleteTopicState(name=n)], timeout_ms=1000), TOPIC),
        question("delete_topics", 5, lambda c, n: c(topic_names=[n], timeout_ms=1000), TOPIC),
    ],
    21: [
        question(
            "delete_records",
            2,
            lambda c, n: c(
                topics=[c.DeleteRecordsTopic(name=n, partitions=[c.DeleteRecordsPartition(offset=-1)])], timeout_ms=1000
            ),
            TOPIC,
        )
    ],
    22: [
        question("init_producer_id", 4, lambda c, _: c(transactional_id=None), CLUSTER),
        question("init_producer_id", 4, lambda c, n: c(transactional_id=n), TRANSACTIONAL_ID),
    ],
    23: [
        question(
            "offset_for_leader_epoch",
            4,
            lambda c, n: c(topics=[c.OffsetForLeaderTopic(topic=n, partitions=[c.OffsetForLeaderPartition()])]),
            TOPIC,
        )
    ],
    24: [
        question(
            "add_partitions_to_txn",
            3,
            lambda c, n: c(
                v3_and_below_transactional_id=n,
                v3_and_below_topics=[c.AddPartitionsToTxnTopic(name=n, partitions=[0])],
            ),
            TRANSACTIONAL_ID,
        ),
        question(
            "add_partitions_to_txn",
            5,
            lambda c, n: c(
                transactions=[
                    c.AddPartitionsToTxnTransaction(
                        transactional_id=n, topics=[c.AddPartitionsToTxnTopic(name=n, partitions=[0])]
                    )
                ]
            ),
            CLUSTER,
        ),
    ],
    25: [question("add_offsets_to_txn", 4, lambda c, n: c(transactional_id=n, group_id=n), TRANSACTIONAL_ID)],
    26: [question("end_txn", 5, lambda c, n: c(transactional_id=n, committed=True), TRANSACTIONAL_ID)],
    27: [
        question(
            "write_txn_markers",
            1,
            lambda c, n: c(
                markers=[
                    c.WritableTxnMarker(producer_id=1, topics=[c.WritableTxnMarkerTopic(name=n, partition_indexes=[0])])
                ]
            ),
            CLUSTER,
        )
    ],
    28: [
        question(
            "txn_offset_commit",
            5,
            lambda c, n: c(
                transactional_id=n,
                group_id=n,
                topics=[c.TxnOffsetCommitRequestTopic(name=n, partitions=[c.TxnOffsetCommitRequestPartition()])],
            ),
            TRANSACTIONAL_ID,
        )
    ],
    29: [question("describe_acls", 3, lambda c, _: c(**_filter(c)), CLUSTER)],
    30: [
        question(
            "create_acls",
            3,
            lambda c, n: c(
                creations=[
                    c.AclCreation(
                        resource_type=2,
                        resource_name=n,
                        principal="User:someone",
                        host="*",
                        operation=2,
                        permission_type=3,
                    )
                ]
            ),
            CLUSTER,
        )
    ],
    31: [question("delete_acls", 3, lambda c, _: c(filters=[c.DeleteAclsFilter(**_filter(c))]), CLUSTER)],
    32: [
        question(
            "describe_configs",
            4,
            lambda c, n: c(
                resources=[
                    c.DescribeConfigsResource(resource_type=kind, resource_name=of, configuration_keys=None)
                    for kind, of in ((2, n), (32, n), (4, "1"), (8, "1"), (16, n))
                ]
            ),
            TOPIC,
            GROUP,
            CLUSTER,
        )
    ],
    33: [question("alter_configs", 2, lambda c, n: _configs(c, n, "AlterableConfig"), TOPIC, GROUP, CLUSTER)],
    35: [
        question("describe_log_dirs", 4, lambda c, _: c(topics=None), CLUSTER),
        question(
            "describe_log_dirs", 4, lambda c, n: c(topics=[c.DescribableLogDirTopic(topic=n, partitions=[0])]), CLUSTER
        ),
    ],
    36: [question("sasl_authenticate", 2, lambda c, _: c(auth_bytes=b"\x00admin\x00x"), ILLEGAL_SASL_STATE)],
    37: [
        question(
            "create_partitions",
            3,
            lambda c, n: c(topics=[c.CreatePartitionsTopic(name=n, count=9, assignments=None)], timeout_ms=1000),
            TOPIC,
        )
    ],
    42: [question("delete_groups", 2, lambda c, n: c(groups_names=[n]), GROUP)],
    44: [
        question(
            "incremental_alter_configs",
            1,
            lambda c, n: _configs(c, n, "AlterableConfig", config_operation=0),
            TOPIC,
            GROUP,
            CLUSTER,
        )
    ],
    43: [
        question(
            "elect_leaders", 2, lambda c, n: c(topic_partitions=[c.TopicPartitions(topic=n, partitions=[0])]), CLUSTER
        )
    ],
    45: [
        question(
            "alter_partition_reassignments",
            1,
            lambda c, n: c(
                topics=[
                    c.ReassignableTopic(name=n, partitions=[c.ReassignablePartition(partition_index=0, replicas=[1])])
                ]
            ),
            CLUSTER,
        )
    ],
    46: [question("list_partition_reassignments", 0, lambda c, _: c(topics=None), CLUSTER)],
    47: [
        question(
            "offset_delete",
            0,
            lambda c, n: c(
                group_id=n,
                topics=[c.OffsetDeleteRequestTopic(name=n, partitions=[c.OffsetDeleteRequestPartition()])],
            ),
            GROUP,
        )
    ],
    48: [question("describe_client_quotas", 1, lambda c, _: c(components=[], strict=False), CLUSTER)],
    49: [question("alter_client_quotas", 1, _quotas, CLUSTER)],
    50: [
        question("describe_user_scram_credentials", 0, lambda c, _: c(users=None), CLUSTER),
        question("describe_client_configs", 0, lambda c, _: c(components=[], resolve_entity=False), CLUSTER),
    ],
    51: [
        question(
            "alter_user_scram_credentials",
            0,
            lambda c, n: c(
                deletions=[c.ScramCredentialDeletion(name=n, mechanism=1)],
                upsertions=[
                    c.ScramCredentialUpsertion(
                        name="mallory", mechanism=1, iterations=4096, salt=b"s", salted_password=b"p"
                    )
                ],
            ),
            CLUSTER,
        ),
        question("alter_client_configs", 0, _client_configs, CLUSTER),
    ],
    60: [question("describe_cluster", 1, lambda c, _: c(include_cluster_authorized_operations=True))],
    61: [
        question(
            "describe_producers",
            0,
            lambda c, n: c(topics=[c.TopicRequest(name=n, partition_indexes=[0])]),
            TOPIC,
        )
    ],
    65: [question("describe_transactions", 0, lambda c, n: c(transactional_ids=[n]), TRANSACTIONAL_ID)],
    66: [question("list_transactions", 2, lambda c, _: c(transactional_id_pattern=None))],
    68: [
        question(
            "consumer_group_heartbeat",
            1,
            lambda c, n: c(
                group_id=n,
                member_id="m",
                rebalance_timeout_ms=6000,
                subscribed_topic_names=[n],
                topic_partitions=[],
            ),
            GROUP,
        )
    ],
    69: [question("consumer_group_describe", 1, lambda c, n: c(group_ids=[n]), GROUP)],
    71: [],  # needs no right in Kafka either, and its answer is about the client alone
    72: [question("push_telemetry", 0, lambda c, n: c(metrics=n.encode()), INVALID_REQUEST)],
    74: [question("list_config_resources", 1, lambda c, _: c(resource_types=[]), CLUSTER)],
    75: [
        question("describe_topic_partitions", 0, lambda c, _: c(topics=[], cursor=None)),
        question("describe_topic_partitions", 0, lambda c, n: c(topics=[c.TopicRequest(name=n)], cursor=None), TOPIC),
    ],
}

CASES = [(key, question) for key, questions in TABLE.items() for question in questions]


@pytest.fixture(scope="module")
def broker() -> Iterator[klamm.Broker]:
    """A broker that holds one of everything, all of it hidden from mallory."""
    settings = sasl_settings(authorizer=True)
    with klamm.Broker(listen="SASL_PLAINTEXT://127.0.0.1:0", config=settings) as broker:
        with log_in(broker.bootstrap_servers, "admin") as admin:
            admin.create_topic(HIDDEN)
            admin.produce(HIDDEN, 0, encode_batch([Record(None, b"treasure", timestamp=1)]))
            for api_key in (8, 22, 30, 44, 51):
                for question in TABLE[api_key]:
                    ask(admin, question, HIDDEN)
        yield broker


def ask(client: WireClient, question: Question, name: str) -> Message:
    module = import_module(f"{messages.__name__}.{question.message}")
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Message)]
    request = next(cls for cls in classes if cls.__name__.endswith("Request"))
    response = next(cls for cls in classes if cls.__name__.endswith("Response"))
    return client.ask(question.build(request, name), response, question.version)


def codes_in(value: object) -> set[int]:
    """Return every error code in a response, wherever it stands."""
    if isinstance(value, list):
        return set().union(*map(codes_in, value)) if value else set()
    if not isinstance(value, Message | Struct):
        return set()
    codes: set[int] = set()
    slots: tuple[str, ...] = value.__slots__
    for name in slots:
        field = getattr(value, name)
        codes |= {field} if name.endswith("error_code") else codes_in(field)
    return codes


def full_view(admin: WireClient) -> list[bytes]:
    """Return what a principal with all rights can see."""
    seen = [(3, 0), (9, 0), (15, 0), (16, 0), (29, 0), (32, 0), (50, 0), (50, 1), (74, 0), (2, 0), (60, 0)]
    return [
        bytes(encode(ask(admin, question, HIDDEN), question.version))
        for question in (TABLE[key][index] for key, index in seen)
    ]


def test_table_covers_every_served_api() -> None:
    assert set(TABLE) == set(ROUTES)


@pytest.mark.parametrize(("api_key", "question"), CASES, ids=[f"{key}-{question.message}" for key, question in CASES])
def test_principal_without_rights_reads_and_changes_nothing(
    broker: klamm.Broker, api_key: int, question: Question
) -> None:
    """K339-36: Authorization: ALTER_CONFIGS on Topic t for topic resources, on Cluster for broker resources; denial ->
    29 / 31 per resource.

    K649-65: Alter authorization: ALTER_CONFIGS on Cluster, else every entry 31.

    K649-66: Describe (resolve=false) authorization: DESCRIBE_CONFIGS on Cluster, else 31, Entries null.
    """
    with log_in(broker.bootstrap_servers, "admin") as admin, log_in(broker.bootstrap_servers, "mallory") as mallory:
        before = full_view(admin)
        # when
        hidden = ask(mallory, question, HIDDEN)
        absent = ask(mallory, question, ABSENT)
        # then
        assert codes_in(hidden) - {0} == question.codes, f"API {api_key}"
        hidden_response = bytes(encode(hidden, question.version)).replace(HIDDEN.encode(), ABSENT.encode())
        assert hidden_response == bytes(encode(absent, question.version)), "the answer tells what exists"
        if HIDDEN.encode() not in bytes(encode(request_of(question), question.version)):
            assert HIDDEN.encode() not in bytes(encode(hidden, question.version))
        assert full_view(admin) == before


def request_of(question: Question) -> Message:
    module = import_module(f"{messages.__name__}.{question.message}")
    request = next(value for name, value in vars(module).items() if name.endswith("Request"))
    return question.build(request, HIDDEN)
