"""Retriable error codes in responses: the admin client repeats the request until the cluster is ready."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from klamm.admin import (
    Acl,
    AdminClient,
    AlterConfigOp,
    ClientConfigEntity,
    ClientConfigOp,
    ClientQuotaEntity,
    ClientQuotaOp,
    ConfigEntry,
    ConfigResource,
    ElectionType,
    EntityFilter,
    KafkaApiError,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OpType,
    ResourceType,
    ScramMechanism,
    TopicPartition,
    UserScramCredentialDeletion,
)
from klamm.kafka_client.errors import (
    RETRIABLE_CHANGE_CODES,
    RETRIABLE_CODES,
    RETRIABLE_COMMIT_CODES,
    RETRIABLE_LEADER_CODES,
)
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsResponse
from klamm.protocol.messages.alter_client_quotas import AlterClientQuotasResponse
from klamm.protocol.messages.alter_configs import AlterConfigsResponse
from klamm.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from klamm.protocol.messages.alter_user_scram_credentials import AlterUserScramCredentialsResponse
from klamm.protocol.messages.create_acls import CreateAclsResponse
from klamm.protocol.messages.create_partitions import CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsResponse
from klamm.protocol.messages.delete_groups import DeleteGroupsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsResponse
from klamm.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsResponse
from klamm.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsResponse
from klamm.protocol.messages.elect_leaders import ElectLeadersResponse
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.find_coordinator import FindCoordinatorResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from klamm.protocol.messages.list_config_resources import ListConfigResourcesResponse
from klamm.protocol.messages.list_groups import ListGroupsResponse
from klamm.protocol.messages.list_offsets import ListOffsetsResponse
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.offset_commit import OffsetCommitResponse
from klamm.protocol.messages.offset_delete import OffsetDeleteResponse
from klamm.protocol.messages.offset_fetch import OffsetFetchResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from klamm.security.acls import ANY_ACL, AclOperation, AclPermission, AclResourceType, PatternType
from tests.support.stub_broker import NODE_ID, StubBroker, redirect_fetches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.protocol.schema import Message
    from tests.support.stub_broker import Request

TOPIC: Final = ConfigResource(ResourceType.TOPIC, "stub")
PARTITION: Final = TopicPartition("stub", 0)
ALICE: Final = ClientQuotaEntity.of({"user": "alice"})
ACL: Final = Acl(
    resource_type=AclResourceType.TOPIC,
    resource_name="stub",
    pattern_type=PatternType.LITERAL,
    principal="User:alice",
    host="*",
    operation=AclOperation.READ,
    permission=AclPermission.ALLOW,
)
SET: Final = AlterConfigOp(ConfigEntry("retention.ms", "1"), OpType.SET)
CREATE_TOPICS: Final = 19


@dataclass(frozen=True, slots=True)
class Case:
    """An admin call, and the response with an error code where the API has it."""

    call: Callable[[AdminClient], Any]
    response: Callable[[int], Message]
    retriable: frozenset[ErrorCode] = RETRIABLE_CODES

    @property
    def api_key(self) -> int:
        """Return the key of the API that answers."""
        return self.response(0).API_KEY


def _offsets(code: int) -> Message:
    partition = ListOffsetsResponse.ListOffsetsPartitionResponse(partition_index=0, error_code=code, offset=5)
    return ListOffsetsResponse(
        topics=[ListOffsetsResponse.ListOffsetsTopicResponse(name="stub", partitions=[partition])]
    )


def _records(code: int) -> Message:
    partition = FetchResponse.PartitionData(partition_index=0, error_code=code, high_watermark=5, records=b"batch")
    return FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="stub", partitions=[partition])])


def _committed(code: int) -> Message:
    partition = OffsetCommitResponse.OffsetCommitResponsePartition
    topic = OffsetCommitResponse.OffsetCommitResponseTopic
    return OffsetCommitResponse(topics=[topic(name="stub", partitions=[partition(error_code=code)])])


def _fetched(code: int) -> Message:
    return OffsetFetchResponse(groups=[OffsetFetchResponse.OffsetFetchResponseGroup(group_id="g", error_code=code)])


def _uncommitted(code: int) -> Message:
    partition = OffsetDeleteResponse.OffsetDeleteResponsePartition
    topic = OffsetDeleteResponse.OffsetDeleteResponseTopic
    return OffsetDeleteResponse(error_code=code, topics=[topic(name="stub", partitions=[partition()])])


def _described_group(code: int) -> Message:
    group = DescribeGroupsResponse.DescribedGroup
    return DescribeGroupsResponse(groups=[group(group_id="g", group_state="Empty", error_code=code)])


def _deleted_group(code: int) -> Message:
    return DeleteGroupsResponse(results=[DeleteGroupsResponse.DeletableGroupResult(group_id="g", error_code=code)])


def _created(code: int, *names: str) -> Message:
    topic = CreateTopicsResponse.CreatableTopicResult
    return CreateTopicsResponse(topics=[topic(name=name, error_code=code) for name in names or ("stub",)])


def _deleted(code: int) -> Message:
    return DeleteTopicsResponse(responses=[DeleteTopicsResponse.DeletableTopicResult(name="stub", error_code=code)])


def _grown(code: int) -> Message:
    return CreatePartitionsResponse(
        results=[CreatePartitionsResponse.CreatePartitionsTopicResult(name="stub", error_code=code)]
    )


def _altered(code: int) -> Message:
    resource = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
    return IncrementalAlterConfigsResponse(responses=[resource(resource_type=2, resource_name="stub", error_code=code)])


def _replaced(code: int) -> Message:
    resource = AlterConfigsResponse.AlterConfigsResourceResponse
    return AlterConfigsResponse(responses=[resource(resource_type=2, resource_name="stub", error_code=code)])


def _described_configs(code: int) -> Message:
    result = DescribeConfigsResponse.DescribeConfigsResult
    return DescribeConfigsResponse(results=[result(resource_type=2, resource_name="stub", error_code=code)])


def _described_topic(code: int) -> Message:
    topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    return DescribeTopicPartitionsResponse(topics=[topic(name="stub", error_code=code)])


def _deleted_acls(code: int) -> Message:
    return DeleteAclsResponse(filter_results=[DeleteAclsResponse.DeleteAclsFilterResult(error_code=code)])


def _created_acls(code: int) -> Message:
    return CreateAclsResponse(results=[CreateAclsResponse.AclCreationResult(error_code=code)])


def _altered_quotas(code: int) -> Message:
    alice = AlterClientQuotasResponse.EntityData(entity_type="user", entity_name="alice")
    return AlterClientQuotasResponse(
        entries=[AlterClientQuotasResponse.EntryData(error_code=code, error_message=None, entity=[alice])]
    )


def _altered_client_configs(code: int) -> Message:
    alice = AlterClientConfigsResponse.EntityData(entity_type="user", entity_name="alice")
    return AlterClientConfigsResponse(
        entries=[AlterClientConfigsResponse.EntryData(error_code=code, error_message=None, entity=[alice])]
    )


def _altered_users(code: int) -> Message:
    user = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(results=[user(user="alice", error_code=code)])


def _described_user(code: int) -> Message:
    user = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(results=[user(user="alice", error_code=code)])


def _reassigned(code: int) -> Message:
    topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    partition = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    return AlterPartitionReassignmentsResponse(responses=[topic(name="stub", partitions=[partition(error_code=code)])])


def _elected(code: int) -> Message:
    topic = ElectLeadersResponse.ReplicaElectionResult
    partition = ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        replica_election_results=[topic(topic="stub", partition_result=[partition(error_code=code)])]
    )


CASES: Final = {
    "alter_client_configs": Case(
        lambda admin: admin.alter_client_configs({ClientConfigEntity(user="alice"): [ClientConfigOp("acks", "all")]}),
        _altered_client_configs,
    ),
    "alter_client_quotas": Case(
        lambda admin: admin.alter_client_quotas({ALICE: [ClientQuotaOp("producer_byte_rate", 1.0)]}), _altered_quotas
    ),
    "alter_group_offsets": Case(
        lambda admin: admin.alter_group_offsets("g", {PARTITION: OffsetAndMetadata(5)}),
        _committed,
        RETRIABLE_COMMIT_CODES,
    ),
    "alter_partition_reassignments": Case(
        lambda admin: admin.alter_partition_reassignments({PARTITION: (1,)}), _reassigned
    ),
    "alter_user_scram_credentials": Case(
        lambda admin: admin.alter_user_scram_credentials(
            [UserScramCredentialDeletion("alice", ScramMechanism.SCRAM_SHA_256)]
        ),
        _altered_users,
        RETRIABLE_CHANGE_CODES,
    ),
    "create_acls": Case(lambda admin: admin.create_acls([ACL]), _created_acls),
    "create_partitions": Case(
        lambda admin: admin.create_partitions({"stub": NewPartitions(2)}), _grown, RETRIABLE_CHANGE_CODES
    ),
    "create_topics": Case(lambda admin: admin.create_topics([NewTopic("stub")]), _created, RETRIABLE_CHANGE_CODES),
    "delete_acls": Case(lambda admin: admin.delete_acls([ANY_ACL]), _deleted_acls, RETRIABLE_CHANGE_CODES),
    "delete_group_offsets": Case(lambda admin: admin.delete_group_offsets("g", [PARTITION]), _uncommitted),
    "delete_groups": Case(lambda admin: admin.delete_groups(["g"]), _deleted_group),
    "delete_topics": Case(lambda admin: admin.delete_topics(["stub"]), _deleted, RETRIABLE_CHANGE_CODES),
    "describe_acls": Case(lambda admin: admin.describe_acls(), lambda code: DescribeAclsResponse(error_code=code)),
    "describe_client_configs": Case(
        lambda admin: admin.describe_client_configs(EntityFilter(components=(), strict=False)),
        lambda code: DescribeClientConfigsResponse(error_code=code, entries=[]),
    ),
    "describe_client_quotas": Case(
        lambda admin: admin.describe_client_quotas(),
        lambda code: DescribeClientQuotasResponse(error_code=code, entries=[]),
    ),
    "describe_configs": Case(lambda admin: admin.describe_configs([TOPIC]), _described_configs),
    "describe_groups": Case(lambda admin: admin.describe_groups(["g"]), _described_group),
    "describe_topics": Case(
        lambda admin: admin.describe_topics(["stub"], include_eligible_leaders=True), _described_topic
    ),
    "describe_user_scram_credentials": Case(
        lambda admin: admin.describe_user_scram_credentials(["alice"]), _described_user
    ),
    "elect_leaders": Case(lambda admin: admin.elect_leaders(ElectionType.PREFERRED, [PARTITION]), _elected),
    "fetch_batches": Case(
        lambda admin: admin.fetch_batches({PARTITION: 0}, max_bytes=100, partition_max_bytes=100),
        _records,
        RETRIABLE_LEADER_CODES,
    ),
    "incremental_alter_configs": Case(lambda admin: admin.incremental_alter_configs({TOPIC: [SET]}), _altered),
    "list_config_resources": Case(
        lambda admin: admin.list_config_resources(ResourceType.GROUP),
        lambda code: ListConfigResourcesResponse(error_code=code),
    ),
    "list_group_offsets": Case(lambda admin: admin.list_group_offsets({"g": None}), _fetched),
    "list_groups": Case(lambda admin: admin.list_groups(), lambda code: ListGroupsResponse(error_code=code)),
    "list_offsets": Case(lambda admin: admin.list_offsets({PARTITION: -1}), _offsets, RETRIABLE_LEADER_CODES),
    "list_partition_reassignments": Case(
        lambda admin: admin.list_partition_reassignments(),
        lambda code: ListPartitionReassignmentsResponse(error_code=code),
    ),
    "replace_all_configs": Case(lambda admin: admin.replace_all_configs({TOPIC: []}), _replaced),
}


@pytest.fixture(scope="module")
def broker() -> Iterator[StubBroker]:
    requests = {case.api_key: type(case.response(0)) for case in CASES.values()} | {10: FindCoordinatorResponse}
    versions = {key: (response.VERSIONS[0], min(response.VERSIONS[1], 9)) for key, response in requests.items()}
    with StubBroker(versions=versions, features={CLIENT_CONFIGS_FEATURE: (1, 1)}) as stub:
        coordinator = FindCoordinatorResponse.Coordinator(key="g", node_id=NODE_ID)
        stub.answer(10, lambda _: FindCoordinatorResponse(coordinators=[coordinator]))
        yield stub


@pytest.fixture(scope="module")
def admin(broker: StubBroker) -> Iterator[AdminClient]:
    with AdminClient(broker.bootstrap_servers, timeout_ms=30_000, retry_backoff_ms=1) as client:
        yield client


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_retriable_error_code_is_retried(broker: StubBroker, admin: AdminClient, case: Case) -> None:
    for code in sorted(case.retriable):
        # given
        codes = [code, ErrorCode.NONE]
        broker.answer(case.api_key, lambda _, codes=codes: case.response(codes.pop(0)))  # type: ignore[misc]
        # when
        case.call(admin).result(30)
        # then
        assert not codes, code.name


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_any_other_code_is_the_result_at_once(broker: StubBroker, admin: AdminClient, case: Case) -> None:
    """A change that must not be made twice is not repeated after a code that leaves open whether it was made."""
    final = {ErrorCode.INVALID_REQUEST, ErrorCode.CLUSTER_AUTHORIZATION_FAILED} | (RETRIABLE_CODES - case.retriable)
    for code in sorted(final):
        # given
        broker.answer(case.api_key, lambda _, code=code: case.response(code))  # type: ignore[misc]
        requests_before = len(broker.requests(case.api_key))
        # when
        with pytest.raises(KafkaApiError) as failure:
            case.call(admin).result(30)
        # then
        assert failure.value.error_code is code
        assert len(broker.requests(case.api_key)) == requests_before + 1


def test_only_the_keys_with_a_retriable_code_are_sent_again(broker: StubBroker, admin: AdminClient) -> None:
    # given
    requested: list[list[str]] = []

    def answer(request: Request) -> Message:
        message = request.read(CreateTopicsRequest)
        assert isinstance(message, CreateTopicsRequest)
        names = [topic.name for topic in message.topics]
        requested.append(names)
        codes = {"b": ErrorCode.THROTTLING_QUOTA_EXCEEDED} if len(names) > 1 else {}
        topic = CreateTopicsResponse.CreatableTopicResult
        return CreateTopicsResponse(topics=[topic(name=name, error_code=codes.get(name, 0)) for name in names])

    broker.answer(CREATE_TOPICS, answer)
    # when
    admin.create_topics([NewTopic("a"), NewTopic("b")]).result(30)
    # then
    assert requested == [["a", "b"], ["b"]]


def _timeout_of(call: Callable[[int], Any], code: ErrorCode) -> str:
    """Return the text of a call's timeout, with a limit that lets the broker answer on this machine."""
    for limit_ms in (100, 1_000, 10_000, 60_000):
        with pytest.raises(TimeoutError) as failure:
            call(limit_ms).result(90)
        if code.name in str(failure.value):
            break
    return str(failure.value)


def test_timeout_error_names_the_last_retriable_code(broker: StubBroker, admin: AdminClient) -> None:
    loading, elsewhere = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR
    broker.answer(16, lambda _: ListGroupsResponse(error_code=loading))
    text = _timeout_of(lambda limit_ms: admin.list_groups(timeout_ms=limit_ms), loading)
    assert re.fullmatch(r"ListGroups: broker 7: no response within \d+ ms: COORDINATOR_LOAD_IN_PROGRESS", text)
    broker.answer(42, lambda _: _deleted_group(elsewhere))
    text = _timeout_of(lambda limit_ms: admin.delete_groups(["g"], timeout_ms=limit_ms), elsewhere)
    assert re.fullmatch(r"DeleteGroups: no result within \d+ ms: NOT_COORDINATOR: g", text)


def test_retried_request_has_the_remaining_timeout(broker: StubBroker, admin: AdminClient) -> None:
    # given
    limits: list[int] = []

    def answer(request: Request) -> Message:
        message = request.read(CreateTopicsRequest)
        assert isinstance(message, CreateTopicsRequest)
        limits.append(message.timeout_ms)
        return _created(ErrorCode.NONE if len(limits) > 5 else ErrorCode.NOT_CONTROLLER)

    broker.answer(CREATE_TOPICS, answer)
    # when
    admin.create_topics([NewTopic("stub")], timeout_ms=10_000).result(30)
    # then
    assert limits == sorted(limits, reverse=True)
    assert 0 < limits[-1] < limits[0] <= 10_000


def test_topic_without_known_leader_is_retried(broker: StubBroker, admin: AdminClient) -> None:
    # given
    with_leader = MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=NODE_ID)
    states = [
        (ErrorCode.LEADER_NOT_AVAILABLE, []),
        (0, [MetadataResponse.MetadataResponsePartition(partition_index=0, leader_id=-1)]),
        (0, [with_leader]),
    ]

    def metadata(_: Request) -> Message:
        code, partitions = states.pop(0) if len(states) > 1 else states[0]
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=broker.port)],
            controller_id=NODE_ID,
            topics=[MetadataResponse.MetadataResponseTopic(name="stub", error_code=code, partitions=partitions)],
        )

    broker.answer(3, metadata)
    broker.answer(2, lambda _: _offsets(0))
    # when
    offsets = admin.list_offsets({PARTITION: -1}).result(30)
    # then
    assert offsets[PARTITION].offset == 5
    assert len(states) == 1


@pytest.mark.parametrize(
    ("codes", "lookups"),
    [((0,), 0), ((ErrorCode.NOT_LEADER_OR_FOLLOWER, 0), 1)],
    ids=["leader is current", "leader has moved"],
)
def test_given_leader_is_looked_up_only_after_it_moved(
    broker: StubBroker, admin: AdminClient, codes: tuple[int, ...], lookups: int
) -> None:
    # given
    responses = [_offsets(code) for code in codes]
    broker.answer(2, lambda _: responses.pop(0))
    earlier = len(broker.requests(3))
    # when
    offsets = admin.list_offsets({PARTITION: -1}, leaders={PARTITION: NODE_ID}).result(30)
    # then
    requests: list[Any] = [request.read(MetadataRequest) for request in broker.requests(3)[earlier:]]
    assert sum(bool(request.topics) for request in requests) == lookups
    assert offsets[PARTITION].offset == 5


def test_fetch_that_a_quota_does_not_allow_is_repeated(broker: StubBroker, admin: AdminClient) -> None:
    """The broker responds with a throttle time and without partitions."""
    responses = [FetchResponse(throttle_time_ms=1), _records(0)]
    broker.answer(FetchResponse.API_KEY, lambda _: responses.pop(0))
    # when
    batches = admin.fetch_batches({PARTITION: 0}, max_bytes=100, partition_max_bytes=100).result(30)
    # then
    assert bytes(batches[PARTITION]) == b"batch"


def test_batches_are_fetched_from_the_preferred_read_replica_until_it_fails() -> None:
    """KIP-392. The leader has no records, like a klamm that leads the partitions of a mirror."""
    # given
    responses = [_records(ErrorCode.NOT_LEADER_OR_FOLLOWER), _records(0)]
    versions = {FetchResponse.API_KEY: (4, 12)}
    with StubBroker(versions=versions) as leader, StubBroker(versions=versions) as replica:
        redirect_fetches(leader, replica)
        replica.answer(FetchResponse.API_KEY, lambda _: responses.pop(0))
        with AdminClient(leader.bootstrap_servers, timeout_ms=30_000, retry_backoff_ms=1) as client:
            # when
            batches = client.fetch_batches({PARTITION: 0}, max_bytes=100, partition_max_bytes=100).result(30)
        # then
        assert bytes(batches[PARTITION]) == b"batch"
        assert len(leader.requests(FetchResponse.API_KEY)) == 2
