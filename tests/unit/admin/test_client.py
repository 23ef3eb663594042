"""The admin client on a stub broker: what it sends, and what becomes of the answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    AlterConfigsOptions,
    ClientConfigEntity,
    ClientConfigOp,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    EntityFilter,
    EntityType,
    FilterComponent,
    NewPartitions,
    NewTopic,
    OpType,
    ResourceType,
)
from klamm.kafka_client.errors import UnreadableResponseError
from klamm.protocol.codec import encode
from klamm.protocol.errors import (
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    KafkaApiError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.list_offsets import ListOffsetsResponse
from klamm.protocol.types import TopicPartition
from tests.support.stub_broker import CLOSE, NODE_ID, SILENCE, StubBroker, form_cluster, take_turns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.stub_broker import Answer, Request

TOPIC = ConfigResource(ResourceType.TOPIC, "stub")
OTHER = ConfigResource(ResourceType.TOPIC, "other")
SET = [AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)]
VERSIONS = {19: (2, 7), 32: (1, 4), 33: (0, 2), 37: (0, 3), 44: (0, 1), 50: (0, 0), 51: (0, 0)}


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    with StubBroker(versions=VERSIONS, features={"client.configs": (1, 1)}) as stub:
        yield stub


@pytest.fixture
def admin(broker: StubBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=5_000) as client:
        yield client


Altered = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


def altered(code: ErrorCode = ErrorCode.NONE, name: str = "stub") -> Altered:
    message = None if code is ErrorCode.NONE else "no"
    return Altered(error_code=code, error_message=message, resource_type=2, resource_name=name)


def test_each_resource_has_its_own_outcome(broker: StubBroker, admin: AdminClient) -> None:
    """K339-27: Admin API: incrementalAlterConfigs(map resource -> collection of AlterConfigOp, options) returns
    AlterConfigsResult with a future per resource (and all()).

    K339-29: Error text is returned in error_message on failure, null on success.
    """
    answers = [altered(), altered(ErrorCode.INVALID_CONFIG, "other")]
    broker.answer(44, lambda _: IncrementalAlterConfigsResponse(responses=answers))
    outcomes = admin.incremental_alter_configs({TOPIC: SET, OTHER: SET}).values()
    assert outcomes[TOPIC].result(60) is None
    with pytest.raises(InvalidConfigError, match="no"):
        outcomes[OTHER].result(60)


def test_non_string_config_value_raises_type_error(admin: AdminClient) -> None:
    number = ConfigEntry("retention.ms", 5)  # type: ignore[arg-type]
    for result in (
        admin.incremental_alter_configs({TOPIC: [AlterConfigOp(number, OpType.SET)]}),
        admin.replace_all_configs({TOPIC: [number]}),
    ):
        with pytest.raises(TypeError, match=r"retention\.ms: 5: expected a string, as in ConfigEntry"):
            result.all().result(60)


def test_incremental_alter_configs_sends_its_arguments(broker: StubBroker, admin: AdminClient) -> None:
    """K339-27: Admin API: incrementalAlterConfigs(map resource -> collection of AlterConfigOp, options) returns
    AlterConfigsResult with a future per resource (and all()).
    """
    broker.answer(44, lambda _: IncrementalAlterConfigsResponse(responses=[altered()]))
    ops = [
        AlterConfigOp(ConfigEntry("a", "1"), OpType.APPEND),
        AlterConfigOp(ConfigEntry("b", None), OpType.REMOVE),
    ]
    admin.incremental_alter_configs({TOPIC: ops}, AlterConfigsOptions(validate_only=True)).all().result(60)
    (request,) = broker.requests(44)
    assert request.api_version == 1
    sent = request.read(IncrementalAlterConfigsRequest)
    assert isinstance(sent, IncrementalAlterConfigsRequest)
    assert sent.validate_only
    (resource,) = sent.resources
    assert (resource.resource_type, resource.resource_name) == (2, "stub")
    assert [(config.name, config.config_operation, config.value) for config in resource.configs] == [
        ("a", 2, "1"),
        ("b", 1, None),
    ]


def test_missing_api_fails_without_fallback() -> None:
    """K339-40: If the broker does not offer key 44, the admin call fails with an "unsupported version" error; the API
    itself does not silently fall back.
    """
    versions = {key: value for key, value in VERSIONS.items() if key != 44}
    with (
        StubBroker(versions=versions) as broker,
        AdminClient(broker.bootstrap_servers, timeout_ms=5_000) as admin,
        pytest.raises(UnsupportedVersionError, match="IncrementalAlterConfigsRequest"),
    ):
        admin.incremental_alter_configs({TOPIC: SET}).all().result(60)
    assert broker.requests(44) == broker.requests(33) == []


@pytest.mark.parametrize(
    ("spec", "read_committed", "last_version"),
    [(-1, True, 1), (-3, False, 6), (-4, False, 7), (-5, False, 8), (-6, False, 10)],
)
def test_unknown_offset_spec_is_not_sent_to_older_broker(spec: int, read_committed: bool, last_version: int) -> None:
    """As in Kafka's ``ListOffsetsRequest.Builder``."""
    partition = TopicPartition("stub", 0)
    with (
        StubBroker(versions={2: (1, last_version)}) as broker,
        AdminClient(broker.bootstrap_servers, timeout_ms=5_000) as admin,
    ):
        broker.answer(2, lambda _: ListOffsetsResponse())
        with pytest.raises(UnsupportedVersionError, match=rf"ListOffsetsRequest 1-{last_version}"):
            admin.list_offsets({partition: spec}, read_committed=read_committed).all().result(60)
    assert broker.requests(2) == []


def test_broker_configs_are_sent_to_that_broker(broker: StubBroker, admin: AdminClient) -> None:
    """K339-37: Broker resource: name = own broker id, or "" = cluster default; other id -> 42."""
    own = ConfigResource(ResourceType.BROKER, str(NODE_ID))
    away = ConfigResource(ResourceType.BROKER, "99")
    defaults = ConfigResource(ResourceType.BROKER, "")
    no_id = ConfigResource(ResourceType.BROKER, "9" * 5_000)

    def answer(request: Request) -> Answer:
        sent = request.read(IncrementalAlterConfigsRequest)
        assert isinstance(sent, IncrementalAlterConfigsRequest)
        return IncrementalAlterConfigsResponse(
            responses=[
                Altered(error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name)
                for resource in sent.resources
            ]
        )

    broker.answer(44, answer)
    outcomes = admin.incremental_alter_configs({own: SET, defaults: SET, no_id: SET, away: SET}).values()
    assert outcomes[own].result(60) is outcomes[defaults].result(60) is outcomes[no_id].result(60) is None
    assert len(broker.requests(44)) == 2
    with pytest.raises(ConnectionError, match="no broker 99"):
        outcomes[away].result(60)


def test_resource_missing_from_response_fails(broker: StubBroker, admin: AdminClient) -> None:
    """K339-20: Every requested resource appears once in the response."""
    broker.answer(44, lambda _: IncrementalAlterConfigsResponse(responses=[altered()]))
    with pytest.raises(KafkaApiError, match="has no entry for this resource"):
        admin.incremental_alter_configs({TOPIC: SET, OTHER: SET}).all().result(60)


def test_legacy_alter_configs_is_deprecated(broker: StubBroker, admin: AdminClient) -> None:
    """K339-25: Old AlterConfigs keeps replace-all semantics: keys left out are removed.

    K339-26: AlterConfigs is marked deprecated.
    """
    done = AlterConfigsResponse.AlterConfigsResourceResponse(error_message=None, resource_type=2, resource_name="stub")
    broker.answer(33, lambda _: AlterConfigsResponse(responses=[done]))
    with pytest.warns(DeprecationWarning, match="incremental_alter_configs"):
        result = admin.alter_configs({TOPIC: [ConfigEntry("retention.ms", "1")]})
    result.all().result(60)
    admin.replace_all_configs({TOPIC: [ConfigEntry("retention.ms", "1")]}).all().result(60)
    for request in broker.requests(33):
        sent = request.read(AlterConfigsRequest)
        assert isinstance(sent, AlterConfigsRequest)
        assert [(config.name, config.value) for config in sent.resources[0].configs] == [("retention.ms", "1")]


def test_denied_resource_is_an_error(broker: StubBroker, admin: AdminClient) -> None:
    entry = DescribeConfigsResponse.DescribeConfigsResourceResult(
        name="retention.ms",
        value="1",
        config_source=1,
        synonyms=[DescribeConfigsResponse.DescribeConfigsSynonym(name="retention.ms", value="1", source=1)],
    )
    results = [
        DescribeConfigsResponse.DescribeConfigsResult(
            error_message="", resource_type=2, resource_name="stub", configs=[entry]
        ),
        DescribeConfigsResponse.DescribeConfigsResult(error_code=29, resource_type=2, resource_name="other"),
    ]
    broker.answer(32, lambda _: DescribeConfigsResponse(results=results))
    outcomes = admin.describe_configs({TOPIC: ["retention.ms"], OTHER: None}, include_synonyms=True).values()
    described = outcomes[TOPIC].result(60)["retention.ms"]
    assert (described.value, described.source, len(described.synonyms)) == ("1", 1, 1)
    with pytest.raises(KafkaApiError) as caught:
        outcomes[OTHER].result(60)
    assert caught.value.error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    sent = broker.requests(32)[0].read(DescribeConfigsRequest)
    assert isinstance(sent, DescribeConfigsRequest)
    assert [resource.configuration_keys for resource in sent.resources] == [["retention.ms"], None]


def test_create_topics_has_one_result_per_topic(broker: StubBroker, admin: AdminClient) -> None:
    """K108-05: Rejection -> the topic's result is 42."""
    config = CreateTopicsResponse.CreatableTopicConfigs(name="flush.ms", value="5", config_source=4)
    results = [
        CreateTopicsResponse.CreatableTopicResult(name="new", error_message=None, num_partitions=3, configs=[config]),
        CreateTopicsResponse.CreatableTopicResult(name="stub", error_code=36, error_message="exists"),
    ]
    broker.answer(19, lambda _: CreateTopicsResponse(topics=results))
    topics = [
        NewTopic(name="new", num_partitions=3, configs={"retention.ms": 1}),
        NewTopic(name="stub", replicas_assignments={1: (7,), 0: (7,)}),
    ]
    outcomes = admin.create_topics(topics, validate_only=True).values()
    created = outcomes["new"].result(60)
    assert created.num_partitions == 3
    assert created.configs == {"flush.ms": ConfigEntry("flush.ms", "5", source=ConfigSource.STATIC_BROKER_CONFIG)}
    with pytest.raises(TopicAlreadyExistsError, match="exists"):
        outcomes["stub"].result(60)
    sent = broker.requests(19)[0].read(CreateTopicsRequest)
    assert isinstance(sent, CreateTopicsRequest)
    assert sent.validate_only
    assert [(config.name, config.value) for config in sent.topics[0].configs] == [("retention.ms", "1")]
    assert [assignment.partition_index for assignment in sent.topics[1].assignments] == [0, 1]
    assert sent.topics[1].num_partitions == sent.topics[1].replication_factor == -1


def test_moved_controller_is_looked_up_again(broker: StubBroker, admin: AdminClient) -> None:
    codes = iter([ErrorCode.NOT_CONTROLLER, ErrorCode.NONE])

    def answer(_: Request) -> Answer:
        result = CreatePartitionsResponse.CreatePartitionsTopicResult(name="stub", error_code=next(codes))
        return CreatePartitionsResponse(results=[result])

    broker.answer(37, answer)
    admin.create_partitions({"stub": NewPartitions(total_count=2)}).all().result(60)
    assert len(broker.requests(37)) == 2


def test_broken_connection_is_retried(broker: StubBroker, admin: AdminClient) -> None:
    answers = iter([CLOSE, CLOSE, IncrementalAlterConfigsResponse(responses=[altered()])])
    broker.answer(44, lambda _: next(answers))
    admin.incremental_alter_configs({TOPIC: SET}).all().result(60)
    assert len(broker.requests(44)) == 3


def test_missing_response_raises_timeout(broker: StubBroker, admin: AdminClient) -> None:
    broker.answer(44, lambda _: SILENCE)
    with pytest.raises(TimeoutError, match="300 ms"):
        admin.incremental_alter_configs({TOPIC: SET}, AlterConfigsOptions(timeout_ms=300)).all().result(60)


def test_unknown_topic_is_an_error(broker: StubBroker, admin: AdminClient) -> None:
    outcomes = admin.describe_topics(["stub", "none"]).values()
    assert outcomes["stub"].result(60).partitions[0].leader == NODE_ID
    with pytest.raises(UnknownTopicOrPartitionError):
        outcomes["none"].result(60)


def test_topics_are_listed_by_name(admin: AdminClient) -> None:
    assert list(admin.list_topics().result(60)) == ["stub"]


def test_describe_cluster_returns_nodes_and_features(broker: StubBroker, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(60)
    assert (cluster.cluster_id, cluster.controller_id, cluster.nodes[0].port) == ("stub", NODE_ID, broker.port)
    assert dict(cluster.features) == {"client.configs": (1, 1)}
    assert dict(cluster.finalized_features) == {"client.configs": 1}


def test_client_configs_are_altered_per_entity(broker: StubBroker, admin: AdminClient) -> None:
    """K649-81: Admin client offers describeClientConfigs(filter) and alterClientConfigs(alterations, validateOnly)."""
    alice, app1 = ClientConfigEntity.of_user("alice"), ClientConfigEntity.of_client("alice", None)
    entity = AlterClientConfigsResponse.EntityData
    broker.answer(
        51,
        lambda _: AlterClientConfigsResponse(
            entries=[
                AlterClientConfigsResponse.EntryData(
                    error_message=None, entity=[entity(entity_type="user", entity_name="alice")]
                ),
                AlterClientConfigsResponse.EntryData(
                    error_code=42,
                    error_message="no",
                    entity=[
                        entity(entity_type="user", entity_name="alice"),
                        entity(entity_type="client-id", entity_name=None),
                    ],
                ),
            ]
        ),
    )
    outcomes = admin.alter_client_configs(
        {alice: [ClientConfigOp("acks", "all")], app1: [ClientConfigOp("acks", None)]}, validate_only=True
    ).values()
    assert outcomes[alice].result(60) is None
    with pytest.raises(InvalidRequestError, match="no"):
        outcomes[app1].result(60)
    sent = broker.requests(51)[0].read(AlterClientConfigsRequest)
    assert isinstance(sent, AlterClientConfigsRequest)
    assert sent.validate_only
    assert [[(op.key, op.value, op.remove) for op in entry.ops] for entry in sent.entries] == [
        [("acks", "all", False)],
        [("acks", "", True)],
    ]


EVERY_USER = EntityFilter(components=(FilterComponent.of_entity_type(EntityType.USER),), strict=False)


def test_described_client_configs_include_compatibility(broker: StubBroker, admin: AdminClient) -> None:
    """K649-22: EntityCompatibility lists, per software name+version that registered under the entity, the configs it
    supports.

    K649-81: Admin client offers describeClientConfigs(filter) and alterClientConfigs(alterations, validateOnly).
    """
    response = DescribeClientConfigsResponse
    broker.answer(
        50,
        lambda _: response(
            error_message=None,
            entries=[
                response.EntryData(
                    entity=[
                        response.EntityData(
                            entity_type="user",
                            entity_name="alice",
                            entity_compatibility=[
                                response.VersionData(client_information="a/1", supported_configs=["acks"])
                            ],
                        )
                    ],
                    values=[response.ValueData(key="acks", value="all")],
                )
            ],
        ),
    )
    (described,) = admin.describe_client_configs(EVERY_USER).result(60)
    assert described.entity == ClientConfigEntity.of_user("alice")
    assert dict(described.configs) == {"acks": "all"}
    (compatibility,) = described.compatibility
    assert (compatibility.client_information, compatibility.supported_configs) == ("a/1", ("acks",))


def test_rejected_filter_is_an_error(broker: StubBroker, admin: AdminClient) -> None:
    rejection = DescribeClientConfigsResponse(error_code=42, error_message="no", entries=None)
    broker.answer(50, lambda _: rejection)
    with pytest.raises(InvalidRequestError, match="no"):
        admin.describe_client_configs(EVERY_USER).result(60)


def test_broker_without_client_configs_feature_gets_no_key_50_or_51() -> None:
    """O649-A."""
    alice = ClientConfigEntity.of_user("alice")
    with StubBroker(versions=VERSIONS) as broker, AdminClient(broker.bootstrap_servers, timeout_ms=5_000) as admin:
        with pytest.raises(UnsupportedVersionError, match=r"client\.configs"):
            admin.describe_client_configs(EVERY_USER).result(60)
        with pytest.raises(UnsupportedVersionError, match=r"client\.configs"):
            admin.alter_client_configs({alice: [ClientConfigOp("acks", "all")]}).all().result(60)
    assert broker.requests(50) == broker.requests(51) == []


def test_client_configs_are_not_sent_to_a_broker_without_the_feature_beside_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a broker would read the request as one for SCRAM credentials."""
    # given
    alice = ClientConfigEntity.of_user("alice")
    features = {"client.configs": (1, 1)}
    with StubBroker(versions=VERSIONS, features=features) as new, StubBroker(versions=VERSIONS) as old:
        form_cluster({1: new, 2: old})
        new.answer(50, lambda _: DescribeClientConfigsResponse(entries=[]))
        take_turns(monkeypatch, 1, 2)
        with AdminClient(new.bootstrap_servers, timeout_ms=5_000) as admin:
            # when
            described = admin.describe_client_configs(EVERY_USER).result(60)
            error = admin.alter_client_configs({alice: [ClientConfigOp("acks", "all")]}).all().exception(60)
    # then
    assert described == ()
    assert isinstance(error, UnsupportedVersionError)
    assert old.requests(50) == old.requests(51) == []


def test_response_that_is_longer_than_client_configs_is_unreadable(broker: StubBroker, admin: AdminClient) -> None:
    """It is that of the API for SCRAM credentials, which shares the key."""
    response = bytes(encode(DescribeClientConfigsResponse(entries=[]), 0))
    broker.answer(50, lambda _: response + b"\0")
    with pytest.raises(UnreadableResponseError):
        admin.describe_client_configs(EVERY_USER).result(60)


def test_admin_client_is_thread_safe(broker: StubBroker, admin: AdminClient) -> None:
    broker.answer(44, lambda _: IncrementalAlterConfigsResponse(responses=[altered()]))
    errors: list[BaseException | None] = []

    def ask() -> None:
        errors.extend(admin.incremental_alter_configs({TOPIC: SET}).all().exception(10) for _ in range(10))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == [None] * 40


def test_close_fails_pending_calls_and_rejects_new_ones(broker: StubBroker) -> None:
    broker.answer(44, lambda _: SILENCE)
    admin = AdminClient(broker.bootstrap_servers)
    result = admin.incremental_alter_configs({TOPIC: SET})
    broker.wait_for(lambda: bool(broker.requests(44)))
    admin.close()
    admin.close()
    with pytest.raises(ConnectionError):
        result.all().result(60)
    with pytest.raises(RuntimeError, match="closed"):
        admin.describe_cluster()


def test_unknown_setting_is_rejected() -> None:
    with pytest.raises(ValueError, match="no_such_setting"):
        AdminClient("127.0.0.1:1", no_such_setting=1)


def test_silent_broker_raises_timeout(broker: StubBroker) -> None:
    broker.answer(18, lambda _: SILENCE)
    with (
        AdminClient(broker.bootstrap_servers, timeout_ms=300) as admin,
        pytest.raises(TimeoutError, match="300 ms"),
    ):
        admin.describe_cluster().result(60)
