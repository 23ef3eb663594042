"""Changes that the history has of requests, by API, with old and new values."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from klamm.admin import ClientQuotaEntity, ClientQuotaFilter, ConfigEntry, ScramCredentialInfo
from klamm.admin.results import DescribeConfigsResult, PerKeyResult
from klamm.admin.types import ConfigSynonym
from klamm.gateway.apis.table import RECORDED
from klamm.gateway.history import before
from klamm.gateway.history.recorded_api import Change
from klamm.kafka_client.errors import ConnectionLostError, api_error
from klamm.kafka_client.pool.calls import Outcome
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from klamm.protocol.messages.alter_configs import AlterConfigsRequest
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.metadata import MetadataResponse
from klamm.protocol.types import ConfigOperation, ConfigSource, ResourceType
from klamm.security.scram import ScramMechanism
from tests.support.gateway_context import FakeAdmin, FakeContext, id_of, incremental

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from klamm.protocol.schema import Message

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


def changes(request: Message, response: Message | None, admin: Any, **context: Any) -> list[Change]:
    """Return what the history has of a request."""
    (api,) = [each for each in RECORDED if each.request is type(request)]

    def upstream(_: Message) -> Message:
        return MetadataResponse(
            topics=[MetadataResponse.MetadataResponseTopic(name="t", topic_id=id_of("t"), partitions=[])]
        )

    async def read() -> Any:
        return await api.read(request, FakeContext(upstream, admin, **context))

    return list(api.changes(request, response, asyncio.run(read())))


def altered(*resources: tuple[int, str], rejected: tuple[str, ...] = ()) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=int(ErrorCode.INVALID_CONFIG) if name in rejected else 0,
                resource_type=kind,
                resource_name=name,
            )
            for kind, name in resources
        ]
    )


class AdminOfValues:
    """Admin client of a cluster whose resources all have the same configs."""

    def __init__(self, **values: ConfigEntry) -> None:
        self._configs = {entry.name: entry for entry in values.values()}

    def describe_configs(
        self, resources: Mapping[Any, Any], *, include_synonyms: bool, is_current: bool
    ) -> DescribeConfigsResult:
        assert is_current
        result = DescribeConfigsResult(resources)
        for resource, names in resources.items():
            entries = {name: entry for name, entry in self._configs.items() if names is None or name in names}
            result.succeed(resource, entries)
        return result


class LostAdmin:
    """Admin client that reaches no broker."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = ConnectionLostError("gone") if error is None else error

    def __getattr__(self, _: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return fail


def test_each_config_of_a_request_has_its_old_and_new_value() -> None:
    """Also if they are the same: the broker that was asked for the old one may not have known the latest change."""
    # given
    admin = FakeAdmin({}, {(TOPIC, "a"): {"flush.ms": "5", "retention.ms": "9"}, (TOPIC, "b"): {"flush.ms": "5"}})
    operations = [("flush.ms", SET, "6"), ("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "compact")]
    request = IncrementalAlterConfigsRequest(
        resources=[
            incremental("a", *operations),
            incremental("b", ("flush.ms", SET, "5")),
            incremental("rejected", ("flush.ms", SET, "6")),
            incremental("1", ("kafka", SET, "DEBUG"), resource_type=ResourceType.BROKER_LOGGER),
        ]
    )
    response = altered(
        (TOPIC, "a"), (TOPIC, "b"), (TOPIC, "rejected"), (ResourceType.BROKER_LOGGER, "1"), rejected=("rejected",)
    )
    # then
    assert changes(request, response, admin) == [
        Change("TOPIC:a", "flush.ms", "5", "6"),
        Change("TOPIC:a", "retention.ms", "9", None),
        Change("TOPIC:a", "cleanup.policy", None, "delete,compact"),
        Change("TOPIC:b", "flush.ms", "5", "5"),
    ]


@pytest.mark.parametrize(
    ("operation", "value", "is_klamm", "new"),
    [
        (SUBTRACT, " compact", False, "compact"),
        (SUBTRACT, " compact", True, ""),
        (APPEND, " compact", False, "compact, compact"),
    ],
)
def test_list_has_the_value_that_the_upstream_computes(
    operation: ConfigOperation, value: str, is_klamm: bool, new: str
) -> None:
    """Kafka keeps blanks around elements, klamm drops them."""
    admin = FakeAdmin({}, {(TOPIC, "a"): {"cleanup.policy": "compact"}})
    admin.finalized_features = {"client.configs": 1} if is_klamm else {}
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", ("cleanup.policy", operation, value))])
    assert changes(request, altered((TOPIC, "a")), admin) == [Change("TOPIC:a", "cleanup.policy", "compact", new)]


def test_append_to_unset_list_starts_from_default_of_upstream() -> None:
    inherited = (
        ConfigSynonym("log.cleanup.policy", "compact", ConfigSource.STATIC_BROKER_CONFIG),
        ConfigSynonym("log.cleanup.policy", "delete", ConfigSource.DEFAULT_CONFIG),
    )
    entry = ConfigEntry("cleanup.policy", "compact", source=ConfigSource.STATIC_BROKER_CONFIG, synonyms=inherited)
    admin = FakeAdmin({})
    admin.described = {(TOPIC, "a"): {entry.name: entry}}
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", ("cleanup.policy", APPEND, "x"))])
    kafka = changes(request, altered((TOPIC, "a")), admin)
    admin.finalized_features = {"client.configs": 1}
    klamm = changes(request, altered((TOPIC, "a")), admin)
    assert [change.new for change in (*kafka, *klamm)] == ["delete,x", "compact,x"]


@pytest.mark.parametrize(("broker", "name"), [("", "ssl.cipher.suites"), ("1", "listener.name.x.ssl.cipher.suites")])
def test_append_to_unset_list_of_brokers_of_klamm_starts_from_static_value(broker: str, name: str) -> None:
    # given: a config that is not set on the resource is described of a broker only, under its own name
    dynamic = ConfigSynonym("ssl.cipher.suites", "dynamic", ConfigSource.DYNAMIC_BROKER_CONFIG)
    static = ConfigSynonym("ssl.cipher.suites", "static", ConfigSource.STATIC_BROKER_CONFIG)
    entry = ConfigEntry("ssl.cipher.suites", "dynamic", source=dynamic.source, synonyms=(dynamic, static))
    admin = FakeAdmin({})
    admin.finalized_features = {"client.configs": 1}
    admin.described = {(BROKER, "1"): {entry.name: entry}, (BROKER, ""): {}}
    # when
    part = incremental(broker, (name, APPEND, "x"), resource_type=BROKER)
    request = IncrementalAlterConfigsRequest(resources=[part])
    # then
    assert changes(request, altered((BROKER, broker)), admin) == [Change(f"BROKER:{broker}", name, None, "static,x")]


def test_replacement_removes_unnamed_configs() -> None:
    admin = FakeAdmin({}, {(TOPIC, "a"): {"flush.ms": "5", "retention.ms": "9"}})
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsRequest.AlterConfigsResource(
                resource_type=TOPIC,
                resource_name="a",
                configs=[AlterConfigsRequest.AlterableConfig(name="flush.ms", value="6")],
            )
        ]
    )
    assert changes(request, altered((TOPIC, "a")), admin) == [
        Change("TOPIC:a", "flush.ms", "5", "6"),
        Change("TOPIC:a", "retention.ms", "9", None),
    ]


def test_broker_has_one_name_in_the_history_in_any_spelling_of_its_id() -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[incremental("+01", ("log.cleaner.threads", SET, "2"), resource_type=BROKER)]
    )
    recorded = changes(request, altered((BROKER, "+01")), AdminOfValues())
    assert recorded == [Change("BROKER:1", "log.cleaner.threads", None, "2")]


def test_secrets_and_unknown_configs_of_brokers_are_hidden() -> None:
    # given: the upstream shows no value of a secret, and knows secrets that klamm does not know
    dynamic = ConfigSource.DYNAMIC_BROKER_CONFIG
    admin = AdminOfValues(
        password=ConfigEntry("ssl.key.password", None, source=dynamic, is_sensitive=True),
        secret=ConfigEntry("vendor.token", None, source=dynamic, is_sensitive=True),
        threads=ConfigEntry("log.cleaner.threads", "1", source=dynamic),
    )
    operations = [
        ("ssl.key.password", SET, "hunter2"),
        ("vendor.token", DELETE, None),
        ("vendor.other", SET, "hunter2"),
        ("listener.name.x.ssl.keystore.password", SET, "hunter2"),
        ("log.cleaner.threads", SET, "2"),
    ]
    request = IncrementalAlterConfigsRequest(resources=[incremental("1", *operations, resource_type=BROKER)])
    # then
    assert changes(request, altered((BROKER, "1")), admin) == [
        Change("BROKER:1", "ssl.key.password", "[hidden]", "[hidden]"),
        Change("BROKER:1", "vendor.token", "[hidden]", None),
        Change("BROKER:1", "vendor.other", None, "[hidden]"),
        Change("BROKER:1", "listener.name.x.ssl.keystore.password", None, "[hidden]"),
        Change("BROKER:1", "log.cleaner.threads", "1", "2"),
    ]


def test_values_that_cannot_be_read_are_unknown(caplog: pytest.LogCaptureFixture) -> None:
    operations = [("flush.ms", SET, "6"), ("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "compact")]
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", *operations)])
    secret = IncrementalAlterConfigsRequest(
        resources=[incremental("1", ("ssl.key.password", SET, "hunter2"), resource_type=BROKER)]
    )
    unknown = "[unknown]"
    assert changes(request, altered((TOPIC, "a")), LostAdmin()) == [
        Change("TOPIC:a", "flush.ms", unknown, "6"),
        Change("TOPIC:a", "retention.ms", unknown, None),
        Change("TOPIC:a", "cleanup.policy", unknown, unknown),
    ]
    assert changes(secret, None, LostAdmin()) == [
        Change("BROKER:1", "ssl.key.password", "[hidden]", "[hidden]", is_confirmed=False)
    ]
    assert "the history lacks old values: gone" in caplog.text
    changes(request, altered((TOPIC, "a")), LostAdmin(TimeoutError()))
    assert "the history lacks old values: TimeoutError" in caplog.text


IN_DOUBT = [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION]


@pytest.mark.parametrize(
    ("error_code", "confirmed"),
    [
        (None, [False]),
        (ErrorCode.NONE, [True]),
        (ErrorCode.POLICY_VIOLATION, []),
        *((code, [False]) for code in IN_DOUBT),
    ],
)
def test_change_with_unknown_outcome_is_recorded_as_not_confirmed(
    error_code: ErrorCode | None, confirmed: list[bool]
) -> None:
    """A broker that forwards a request to the controller returns REQUEST_TIMED_OUT while the change may yet be made."""
    for request, response in requests_with(0 if error_code is None else int(error_code)):
        recorded = changes(request, None if error_code is None else response, LostAdmin())
        assert [
            change.is_confirmed for change in recorded if change.name in ("flush.ms", "partitions", "x")
        ] == confirmed


def requests_with(error_code: int) -> Iterator[tuple[Message, Message]]:
    """Yield requests that each change one thing, and their responses with the error code."""
    yield (
        IncrementalAlterConfigsRequest(resources=[incremental("a", ("flush.ms", SET, "6"))]),
        IncrementalAlterConfigsResponse(
            responses=[
                IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                    error_code=error_code, resource_type=TOPIC, resource_name="a"
                )
            ]
        ),
    )
    yield (
        CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="a", num_partitions=3)]),
        CreateTopicsResponse(topics=[CreateTopicsResponse.CreatableTopicResult(name="a", error_code=error_code)]),
    )
    yield (
        CreatePartitionsRequest(topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=3)]),
        CreatePartitionsResponse(
            results=[CreatePartitionsResponse.CreatePartitionsTopicResult(name="a", error_code=error_code)]
        ),
    )
    yield (
        DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="a")]),
        DeleteTopicsResponse(responses=[DeleteTopicsResponse.DeletableTopicResult(name="a", error_code=error_code)]),
    )
    entity = [AlterClientQuotasRequest.EntityData(entity_type="user", entity_name="anna")]
    yield (
        AlterClientQuotasRequest(
            entries=[
                AlterClientQuotasRequest.EntryData(
                    entity=entity, ops=[AlterClientQuotasRequest.OpData(key="x", value=5.0, remove=False)]
                )
            ]
        ),
        AlterClientQuotasResponse(
            entries=[
                AlterClientQuotasResponse.EntryData(
                    error_code=error_code,
                    entity=[AlterClientQuotasResponse.EntityData(entity_type="user", entity_name="anna")],
                )
            ]
        ),
    )


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("is_by_id", [True, False])
def test_deletion_of_topic_repeated_by_new_controller_is_unconfirmed(*, is_by_id: bool, existed: bool) -> None:
    """A broker repeats its request at a new controller, which rejects what the first try has changed."""
    # given
    named: dict[str, Any] = {"topic_id": id_of("t")} if is_by_id else {"name": "t"}
    error_code = ErrorCode.UNKNOWN_TOPIC_ID if is_by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(**named)])
    rejected = DeleteTopicsResponse.DeletableTopicResult(**named, error_code=error_code)
    # when
    recorded = changes(request, DeleteTopicsResponse(responses=[rejected]), FakeAdmin({"t": [[1]]} if existed else {}))
    # then
    assert recorded == [Change("TOPIC:t", "partitions", "1", None, is_confirmed=False)] * existed


@pytest.mark.parametrize("count", [1, 2])
def test_partitions_repeated_by_new_controller_are_unconfirmed(count: int) -> None:
    request = CreatePartitionsRequest(topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=count)])
    rejected = CreatePartitionsResponse.CreatePartitionsTopicResult(name="t", error_code=ErrorCode.INVALID_PARTITIONS)
    recorded = changes(request, CreatePartitionsResponse(results=[rejected]), FakeAdmin({"t": [[1]]}))
    assert recorded == [Change("TOPIC:t", "partitions", "1", "2", is_confirmed=False)] * (count > 1)


def test_late_state_is_recorded_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "READ_S", 0.01)
    silent = SimpleNamespace(describe_configs=lambda resources, **_: DescribeConfigsResult(resources))
    request = IncrementalAlterConfigsRequest(resources=[incremental("a", ("flush.ms", SET, "6"))])
    assert changes(request, altered((TOPIC, "a")), silent) == [Change("TOPIC:a", "flush.ms", "[unknown]", "6")]


def test_many_resources_are_read_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "_AT_ONCE", 10)
    names = [f"t{number}" for number in range(95)]
    admin = FakeAdmin({}, {(TOPIC, name): {} for name in names})
    request = IncrementalAlterConfigsRequest(
        resources=[incremental(name, ("flush.ms", SET, "6")) for name in names], validate_only=False
    )
    recorded = changes(request, altered(*((TOPIC, name) for name in names)), admin)
    assert recorded == [Change(f"TOPIC:{name}", "flush.ms", None, "6") for name in names]
    assert len(admin.calls) == 10


def test_new_topic_has_its_partitions_and_configs() -> None:
    def topic(name: str, count: int, assigned: int = 0) -> CreateTopicsRequest.CreatableTopic:
        return CreateTopicsRequest.CreatableTopic(
            name=name,
            num_partitions=count,
            replication_factor=-1,
            assignments=[
                CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[1])
                for index in range(assigned)
            ],
            configs=[
                CreateTopicsRequest.CreatableTopicConfig(name="flush.ms", value="7"),
                CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=None),
            ],
        )

    def entry(name: str, count: int, error_code: int = 0) -> CreateTopicsResponse.CreatableTopicResult:
        return CreateTopicsResponse.CreatableTopicResult(name=name, num_partitions=count, error_code=error_code)

    request = CreateTopicsRequest(topics=[topic("a", -1), topic("b", -1, 2), topic("c", -1), topic("rejected", 1)])
    response = CreateTopicsResponse(topics=[entry("c", -1), entry("b", -1), entry("a", 5), entry("rejected", -1, 41)])
    recorded = changes(request, response, None)
    assert [change for change in recorded if change.name == "partitions"] == [
        Change("TOPIC:a", "partitions", None, "5"),
        Change("TOPIC:b", "partitions", None, "2"),
        Change("TOPIC:c", "partitions", None, "[unknown]"),
    ]
    assert [change for change in recorded if change.name != "partitions"] == [
        Change(f"TOPIC:{name}", "flush.ms", None, "7") for name in "abc"
    ]
    assert {change.resource for change in changes(request, None, None)} == {
        "TOPIC:a",
        "TOPIC:b",
        "TOPIC:c",
        "TOPIC:rejected",
    }


@pytest.mark.parametrize("is_by_id", [False, True])
def test_deleted_topic_loses_its_partitions_and_configs(is_by_id: bool) -> None:
    admin = FakeAdmin({"t": [[1], [1]], "kept": [[1]]}, {(TOPIC, "t"): {"flush.ms": "5"}, (TOPIC, "kept"): {}})
    states = [
        DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=id_of("t"))
        if is_by_id
        else DeleteTopicsRequest.DeleteTopicState(name="t"),
        DeleteTopicsRequest.DeleteTopicState(name="kept"),
        DeleteTopicsRequest.DeleteTopicState(name="missing"),
    ]
    response = DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(name="t", topic_id=id_of("t")),
            DeleteTopicsResponse.DeletableTopicResult(name="kept", topic_id=id_of("kept"), error_code=44),
            DeleteTopicsResponse.DeletableTopicResult(name="missing", topic_id=UUID(int=0), error_code=3),
        ]
    )
    assert changes(DeleteTopicsRequest(topics=states), response, admin) == [
        Change("TOPIC:t", "partitions", "2", None),
        Change("TOPIC:t", "flush.ms", "5", None),
    ]


def test_deletion_of_an_id_that_was_not_found_has_the_name_of_the_response() -> None:
    """The brokers that were asked before did not know the topic yet."""
    states = [DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=id_of(name)) for name in ("new", "kept")]
    entries = [
        DeleteTopicsResponse.DeletableTopicResult(name=name, topic_id=id_of(name), error_code=code)
        for name, code in (("new", ErrorCode.NONE), ("kept", 44))
    ]
    unseen = DeleteTopicsResponse.DeletableTopicResult(name=None, topic_id=UUID(int=1), error_code=100)
    request = DeleteTopicsRequest(topics=[*states, DeleteTopicsRequest.DeleteTopicState(topic_id=UUID(int=1))])
    response = DeleteTopicsResponse(responses=[*entries, unseen])
    assert changes(request, response, FakeAdmin({})) == [Change("TOPIC:new", "partitions", "[unknown]", None)]


def test_topic_that_grows_has_both_numbers_of_partitions() -> None:
    topics = [
        CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=5, assignments=None)
        for name in ("t", "rejected")
    ]
    response = CreatePartitionsResponse(
        results=[
            CreatePartitionsResponse.CreatePartitionsTopicResult(name="t"),
            CreatePartitionsResponse.CreatePartitionsTopicResult(name="rejected", error_code=37),
        ]
    )
    request = CreatePartitionsRequest(topics=topics)
    assert changes(request, response, FakeAdmin({"t": [[1]]})) == [Change("TOPIC:t", "partitions", "1", "5")]


def quota_entry(name: str | None, *ops: tuple[str, float | None]) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=name)],
        ops=[AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in ops],
    )


def test_quotas_have_their_numbers_as_text() -> None:
    rates: Outcome[Any] = Outcome()
    rates.set_result({ClientQuotaEntity.of({"user": None}): {"producer_byte_rate": 5.0, "request_percentage": 1.5}})

    def describe(wanted: ClientQuotaFilter, *, is_current: bool = False) -> Outcome[Any]:
        assert is_current, "a broker may lag behind the controller"
        return rates

    admin = SimpleNamespace(describe_client_quotas=describe)
    ops = [("producer_byte_rate", 6.0), ("request_percentage", None), ("consumer_byte_rate", None)]
    request = AlterClientQuotasRequest(entries=[quota_entry(None, *ops), quota_entry("rejected", *ops)])
    response = AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=code,
                entity=[AlterClientQuotasResponse.EntityData(entity_type="user", entity_name=name)],
            )
            for name, code in ((None, 0), ("rejected", 42))
        ]
    )
    resource = "QUOTA:user=<default>"
    assert changes(request, response, admin) == [
        Change(resource, "producer_byte_rate", "5", "6"),
        Change(resource, "request_percentage", "1.5", None),
        Change(resource, "consumer_byte_rate", None, None),
    ]
    assert changes(AlterClientQuotasRequest(entries=request.entries[:1]), response, LostAdmin())[0] == Change(
        resource, "producer_byte_rate", "[unknown]", "6"
    )


def quota_responses(*outcomes: tuple[dict[str, str], ErrorCode]) -> AlterClientQuotasResponse:
    return AlterClientQuotasResponse(
        entries=[
            AlterClientQuotasResponse.EntryData(
                error_code=error_code,
                entity=[
                    AlterClientQuotasResponse.EntityData(entity_type=kind, entity_name=name)
                    for kind, name in entity.items()
                ],
            )
            for entity, error_code in outcomes
        ]
    )


@pytest.mark.parametrize(
    ("error_code", "values"),
    [(ErrorCode.INVALID_REQUEST, ["6", "7"]), (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])],
)
def test_quotas_of_an_entity_that_a_request_repeats_are_not_confirmed(error_code: ErrorCode, values: list[str]) -> None:
    """Kafka makes the first change, and reports that it ignores the duplicate entity."""
    entries = [quota_entry("anna", ("x", 6.0)), quota_entry("anna", ("x", 7.0)), quota_entry("bob", ("x", 8.0))]
    response = quota_responses(({"user": "anna"}, error_code), ({"user": "bob"}, error_code))
    recorded = changes(AlterClientQuotasRequest(entries=entries), response, LostAdmin())
    assert recorded == [Change("QUOTA:user=anna", "x", "[unknown]", value, is_confirmed=False) for value in values]


def test_rejected_entity_of_an_unknown_type_hides_no_quota() -> None:
    entry = quota_entry("anna", ("x", 6.0))
    other = AlterClientQuotasRequest.EntryData(
        entity=[*entry.entity, AlterClientQuotasRequest.EntityData(entity_type="nose", entity_name="red")],
        ops=entry.ops,
    )
    response = quota_responses(
        ({"user": "anna"}, ErrorCode.NONE), ({"nose": "red", "user": "anna"}, ErrorCode.INVALID_REQUEST)
    )
    recorded = changes(AlterClientQuotasRequest(entries=[entry, other]), response, LostAdmin())
    assert recorded == [Change("QUOTA:user=anna", "x", "[unknown]", "6")]


def test_credentials_have_iterations_and_no_password() -> None:
    class Admin:
        def describe_user_scram_credentials(self, users: Any) -> PerKeyResult[str, Any]:
            result: PerKeyResult[str, Any] = PerKeyResult(users)
            result.succeed("anna", (ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096),))
            result.fail("bob", api_error(ErrorCode.RESOURCE_NOT_FOUND, "none"))
            for user in ("carl", "rejected"):
                result.fail(user, api_error(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "denied"))
            return result

    request = AlterUserScramCredentialsRequest(
        deletions=[AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="anna", mechanism=1)],
        upsertions=[
            AlterUserScramCredentialsRequest.ScramCredentialUpsertion(
                name=name, mechanism=2, iterations=8192, salt=b"salt", salted_password=b"hunter2"
            )
            for name in ("bob", "carl", "rejected")
        ],
    )
    response = AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(user=user, error_code=code)
            for user, code in (("anna", 0), ("bob", 0), ("carl", 0), ("rejected", 58))
        ]
    )
    assert changes(request, response, Admin()) == [
        Change("SCRAM:anna", "SCRAM-SHA-256", "[hidden] iterations=4096", None),
        Change("SCRAM:bob", "SCRAM-SHA-512", None, "[hidden] iterations=8192"),
        Change("SCRAM:carl", "SCRAM-SHA-512", "[unknown]", "[hidden] iterations=8192"),
    ]


@pytest.mark.parametrize("existed", [True, False])
def test_deletion_of_credential_repeated_by_new_controller_is_unconfirmed(*, existed: bool) -> None:
    class Admin:
        def describe_user_scram_credentials(self, users: Any) -> PerKeyResult[str, Any]:
            result: PerKeyResult[str, Any] = PerKeyResult(users)
            mechanism = ScramMechanism.SCRAM_SHA_256 if existed else ScramMechanism.SCRAM_SHA_512
            result.succeed("anna", (ScramCredentialInfo(mechanism, 4096),))
            return result

    request = AlterUserScramCredentialsRequest(
        deletions=[AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="anna", mechanism=1)]
    )
    rejected = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
        user="anna", error_code=ErrorCode.RESOURCE_NOT_FOUND
    )
    deleted = Change("SCRAM:anna", "SCRAM-SHA-256", "[hidden] iterations=4096", None, is_confirmed=False)
    assert changes(request, AlterUserScramCredentialsResponse(results=[rejected]), Admin()) == [deleted] * existed
