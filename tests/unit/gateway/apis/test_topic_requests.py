"""CreateTopics, CreatePartitions, DeleteTopics and AlterPartitionReassignments through the gateway's policies.

The properties hold for every request, every set of denied topics and every set of topics that the upstream rejects:
each part has one entry, in the order of the request, the denied ones have the policy's error, and nothing that is
denied reaches the upstream.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.admin import ConfigEntry, ConfigResource, PartitionReassignment
from klamm.admin.results import PerKeyResult
from klamm.admin.types import ConfigSynonym, Node
from klamm.gateway.apis import api_020_delete_topics
from klamm.gateway.apis.api_019_create_topics import CreatedTopics
from klamm.gateway.apis.api_020_delete_topics import DeletedTopics
from klamm.gateway.apis.api_037_create_partitions import AddedPartitions
from klamm.gateway.apis.api_045_alter_partition_reassignments import AlteredReassignments
from klamm.gateway.policies.divided_requests import replaced
from klamm.gateway.policies.policy_api import ResourceTurns
from klamm.kafka_client.pool.calls import Outcome
from klamm.policy import CreatePartitionsDetails, DeleteTopicDetails, Override, TopicDetails
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import ConfigSource, ResourceType, TopicPartition
from klamm.security.acls import AclOperation
from tests.support.gateway_context import ANNA, FakeAdmin, FakeContext, FakePolicies, LimitedUpstream, id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from klamm.protocol.schema import Message

NAMES = tuple("abcdef")
TOPICS = st.lists(st.sampled_from(NAMES), max_size=8)
SOME = st.sets(st.sampled_from(NAMES))
DENIED = ErrorCode.POLICY_VIOLATION
INVALID = ErrorCode.INVALID_CONFIG


def creates(rejected: Collection[str], *, shows_details: bool = True) -> Callable[[Message], Message]:
    """Return an upstream that answers CreateTopics in reverse order, with errors for repeated and some other names."""

    def answer(request: Message) -> Message:
        assert isinstance(request, CreateTopicsRequest)
        names = [topic.name for topic in request.topics]
        entries = []
        for name in sorted(set(names), reverse=True):
            entry = CreateTopicsResponse.CreatableTopicResult(name=name, topic_id=id_of(name), error_message=None)
            if names.count(name) > 1:
                entry.error_code, entry.error_message = ErrorCode.INVALID_REQUEST, "Duplicate topic name."
            elif name in rejected:
                entry.error_code, entry.error_message = INVALID, f"{name}: rejected upstream"
            elif shows_details:
                entry.num_partitions, entry.replication_factor = 3, 2
                entry.configs = [
                    CreateTopicsResponse.CreatableTopicConfigs(name="flush.ms", value="1", config_source=1),
                    CreateTopicsResponse.CreatableTopicConfigs(name="retention.ms", value="7", config_source=5),
                ]
            entries.append(entry)
        return CreateTopicsResponse(topics=entries, throttle_time_ms=4 if request.validate_only else 2)

    return answer


def new_topic(name: str, **fields: Any) -> CreateTopicsRequest.CreatableTopic:
    return CreateTopicsRequest.CreatableTopic(name=name, **{"num_partitions": -1, "replication_factor": -1, **fields})


@settings(deadline=None)
@given(names=TOPICS, denied=SOME, rejected=SOME, validate_only=st.booleans())
def test_every_new_topic_has_one_entry_in_order(
    names: list[str], denied: set[str], rejected: set[str], validate_only: bool
) -> None:
    # given
    context, policies = FakeContext(creates(rejected)), FakePolicies(denied)
    request = CreateTopicsRequest(topics=[new_topic(name) for name in names], validate_only=validate_only)
    # when
    response = asyncio.run(CreatedTopics(policies.as_policies()).handle(request, context))
    # then
    assert [topic.name for topic in response.topics] == list(dict.fromkeys(names))
    for topic in response.topics:
        expected: tuple[int, str | None]
        if names.count(topic.name) > 1:
            expected = ErrorCode.INVALID_REQUEST, "Duplicate topic name."
        elif topic.name in rejected:
            expected = INVALID, f"{topic.name}: rejected upstream"
        elif topic.name in denied:
            expected = DENIED, f"{topic.name}: denied by policy"
        else:
            expected = ErrorCode.NONE, None
        assert (topic.error_code, topic.error_message) == expected
    valid = [name for name in names if names.count(name) == 1 and name not in rejected]
    assert [details.topic for details in policies.asked] == valid
    real = [topic.name for sent in context.forwarded if not sent.validate_only for topic in sent.topics]
    assert real == ([] if validate_only else [name for name in valid if name not in denied])
    assert response.throttle_time_ms == 4


def test_policy_sees_the_numbers_and_defaults_of_the_upstream() -> None:
    policies = FakePolicies()
    config = CreateTopicsRequest.CreatableTopicConfig(name="flush.ms", value="1")
    request = CreateTopicsRequest(topics=[new_topic("a", configs=[config])])
    asyncio.run(CreatedTopics(policies.as_policies()).handle(request, FakeContext(creates(()))))
    (details,) = policies.asked
    assert details == TopicDetails(
        "a", 3, 2, None, {"flush.ms": "1"}, "User:anna", "tool", "GATEWAY", defaults={"retention.ms": "7"}
    )


def test_policy_sees_the_assignments_of_a_request() -> None:
    policies = FakePolicies()
    assignments = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=[2, 1]) for index in (1, 0)
    ]
    request = CreateTopicsRequest(topics=[new_topic("a", assignments=assignments)])
    asyncio.run(CreatedTopics(policies.as_policies()).handle(request, FakeContext(creates(()))))
    (details,) = policies.asked
    assert (details.num_partitions, details.replication_factor) == (None, None)
    assert details.replicas_assignments == {0: (2, 1), 1: (2, 1)}


def test_old_create_topics_version_is_decided_by_newest_response() -> None:
    def upstream(request: Message) -> Message:
        # the first request has the client's version, whose response lacks the numbers
        return creates((), shows_details=len(context.called) > 0)(request)

    policies, context = FakePolicies(), FakeContext(upstream, api_version=4)
    asyncio.run(CreatedTopics(policies.as_policies()).handle(CreateTopicsRequest(topics=[new_topic("a")]), context))
    (details,) = policies.asked
    assert (details.num_partitions, details.replication_factor) == (3, 2)
    assert all(request.validate_only for request in context.called)


def test_gateway_reads_configs_that_client_may_not_describe() -> None:
    policies = FakePolicies()
    admin = FakeAdmin({"other": [[1]]}, {(2, "other"): {"retention.ms": "5"}})
    context = FakeContext(creates((), shows_details=False), admin)
    asyncio.run(CreatedTopics(policies.as_policies()).handle(CreateTopicsRequest(topics=[new_topic("a")]), context))
    (details,) = policies.asked
    assert (details.num_partitions, details.replication_factor) == (5, 3)
    assert details.defaults["retention.ms"] == "604800000"


def test_gateway_reads_the_default_that_the_only_topic_hides() -> None:
    """Kafka describes hours only beside milliseconds of the broker."""
    admin, policies = FakeAdmin({"other": [[1]]}, nodes=(Node(id=1, host="127.0.0.1", port=9092),)), FakePolicies()
    own = ConfigEntry(
        "retention.ms",
        "5",
        source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        synonyms=(ConfigSynonym("retention.ms", "5", ConfigSource.DYNAMIC_TOPIC_CONFIG),),
    )
    hours = ConfigEntry("log.retention.hours", "720", source=ConfigSource.STATIC_BROKER_CONFIG)
    admin.described = {
        (ResourceType.TOPIC, "other"): {"retention.ms": own},
        (ResourceType.BROKER, "1"): {"log.retention.hours": hours},
    }
    context = FakeContext(creates((), shows_details=False), admin)
    asyncio.run(CreatedTopics(policies.as_policies()).handle(CreateTopicsRequest(topics=[new_topic("a")]), context))
    assert policies.asked[0].defaults == {"retention.ms": "2592000000"}


def test_overridden_topic_is_validated_again_and_has_note() -> None:
    # given
    override = Override(reason="a: set right", configs={"flush.ms": "2", "segment.ms": None}, num_partitions=6)
    policies, context = FakePolicies(overrides={"a": override}), FakeContext(creates(()))
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=name, value="1") for name in ("flush.ms", "segment.ms", "b.c")
    ]
    # when
    request = CreateTopicsRequest(topics=[new_topic("b"), new_topic("a", configs=configs)])
    response = asyncio.run(CreatedTopics(policies.as_policies()).handle(request, context))
    # then
    assert [(topic.name, topic.error_code, topic.error_message) for topic in response.topics] == [
        ("b", 0, None),
        ("a", 0, override.note),
    ]
    assert [details.topic for details in policies.asked] == ["b", "a", "a"]
    assert [sent.validate_only for sent in context.forwarded] == [True, True, False]
    changed = context.forwarded[-1].topics[1]
    assert changed == context.forwarded[1].topics[0]
    assert (changed.num_partitions, changed.replication_factor) == (6, -1)
    assert [(config.name, config.value) for config in changed.configs] == [("b.c", "1"), ("flush.ms", "2")]


def test_policy_that_overrides_itself_denies_the_topic() -> None:
    policies = FakePolicies(overrides={"a": Override(reason="again", num_partitions=6)}, repeats=True)
    context = FakeContext(creates(()))
    request = CreateTopicsRequest(topics=[new_topic("a")])
    response = asyncio.run(CreatedTopics(policies.as_policies()).handle(request, context))
    assert [topic.error_code for topic in response.topics] == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "contradict" in (response.topics[0].error_message or "")
    assert all(sent.validate_only for sent in context.forwarded)


def retried(served: CreatedTopics | AddedPartitions, upstream: LimitedUpstream, request: Any) -> list[list[str]]:
    """Send a request as Java's admin client does, until the quota admits all topics; return those of each attempt."""
    attempts: list[list[str]] = []
    while request.topics and len(attempts) < 10:
        attempts.append([topic.name for topic in request.topics])
        context = FakeContext(upstream, FakeAdmin({name: [[1]] for name in NAMES}))
        response: Any = asyncio.run(served.handle(request, context))
        entries = response.topics if isinstance(response, CreateTopicsResponse) else response.results
        left = [each.name for each in entries if each.error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert left or {each.error_code for each in entries} == {0}
        request = replaced(request, topics=[topic for topic in request.topics if topic.name in left])
        upstream.wait(response)
    return attempts


def test_trial_does_not_use_the_quota_of_the_real_creation() -> None:
    # given a quota that the first topic uses up
    policies, upstream = FakePolicies(), LimitedUpstream(creates(()), rate=10)
    served = CreatedTopics(policies.as_policies())
    a, b = (CreateTopicsRequest(topics=[new_topic(name, num_partitions=60)]) for name in "ab")
    # when
    attempts = [retried(served, upstream, request) for request in (a, b)]
    # then one attempt is rejected at its trial, and one after it
    assert attempts == [[["a"]], [["b"]] * 3]
    assert [details.topic for details in policies.asked] == ["a", "b", "b"]
    # the next creation, also of the same topic, is tried
    upstream.now_s += 1000
    again = FakeContext(upstream)
    asyncio.run(served.handle(b, again))
    assert [sent.validate_only for sent in again.forwarded] == [True, False]


def test_topics_with_passed_trial_are_created_before_other_trials() -> None:
    policies, upstream = FakePolicies(), LimitedUpstream(creates(()), rate=1)
    topics = [new_topic(name, num_partitions=12) for name in "abc"]
    attempts = retried(CreatedTopics(policies.as_policies()), upstream, CreateTopicsRequest(topics=topics))
    assert attempts == [["a", "b", "c"], ["a", "b", "c"], ["b", "c"], ["b", "c"], ["c"], ["c"]]


def test_trials_of_an_overridden_topic_do_not_use_the_quota_of_its_creation() -> None:
    # given
    class LimitedPartitions(FakePolicies):
        async def check(self, kind: object, details: Any, overridden: Override | None = None) -> Override | None:
            return None if overridden else Override(reason="a: fewer", num_partitions=12)

    upstream = LimitedUpstream(creates(()), rate=1)
    served = CreatedTopics(LimitedPartitions().as_policies())
    # when
    attempts = retried(served, upstream, CreateTopicsRequest(topics=[new_topic("a", num_partitions=20)]))
    # then one attempt each is rejected at the second trial and at the creation
    assert attempts == [["a"]] * 3


def test_trial_does_not_use_the_quota_of_the_real_partitions() -> None:
    policies, upstream = FakePolicies(), LimitedUpstream(grows(()), rate=1)
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=12, assignments=None)
    served = AddedPartitions(policies.as_policies(), ResourceTurns())
    assert retried(served, upstream, CreatePartitionsRequest(topics=[topic])) == [["a"], ["a"]]
    assert len(policies.asked) == 2


@pytest.mark.parametrize(
    "changes", [{"validate_only": True}, {"author": replace(ANNA, principal="User:berta")}, {"num_partitions": 24}]
)
def test_trial_of_another_request_is_not_skipped(changes: dict[str, Any]) -> None:
    # given
    upstream = LimitedUpstream(creates(()), rate=1)
    served = CreatedTopics(FakePolicies().as_policies())
    rejected = CreateTopicsRequest(topics=[new_topic("a", num_partitions=12)])
    upstream.wait(asyncio.run(served.handle(rejected, FakeContext(upstream))))
    # when
    context = FakeContext(upstream, author=changes.get("author", ANNA))
    topic = new_topic("a", num_partitions=changes.get("num_partitions", 12))
    validate_only = changes.get("validate_only", False)
    asyncio.run(served.handle(CreateTopicsRequest(topics=[topic], validate_only=validate_only), context))
    # then
    assert context.forwarded[0].validate_only


def grows(rejected: Collection[str]) -> Callable[[Message], Message]:
    def answer(request: Message) -> Message:
        assert isinstance(request, CreatePartitionsRequest)
        names = [topic.name for topic in request.topics]
        entries = []
        for name in sorted(set(names), reverse=True):
            error = INVALID if names.count(name) > 1 or name in rejected else ErrorCode.NONE
            entries.append(
                CreatePartitionsResponse.CreatePartitionsTopicResult(name=name, error_code=error, error_message=None)
            )
        return CreatePartitionsResponse(results=entries)

    return answer


@settings(deadline=None)
@given(names=TOPICS, denied=SOME, rejected=SOME, validate_only=st.booleans())
def test_every_growing_topic_has_one_entry_in_order(
    names: list[str], denied: set[str], rejected: set[str], validate_only: bool
) -> None:
    # given
    admin = FakeAdmin({name: [[1, 2], [2, 1]] for name in NAMES})
    context, policies = FakeContext(grows(rejected), admin), FakePolicies(denied)
    topics = [CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=9, assignments=None) for name in names]
    request = CreatePartitionsRequest(topics=topics, validate_only=validate_only)
    # when
    response = asyncio.run(AddedPartitions(policies.as_policies(), ResourceTurns()).handle(request, context))
    # then
    valid = [name for name in names if names.count(name) == 1 and name not in rejected]
    assert [entry.name for entry in response.results] == list(dict.fromkeys(names))
    assert {entry.name: entry.error_code for entry in response.results} == {
        name: INVALID if name not in valid else DENIED if name in denied else ErrorCode.NONE for name in names
    }
    real = [topic.name for sent in context.forwarded if not sent.validate_only for topic in sent.topics]
    assert real == ([] if validate_only else [name for name in valid if name not in denied])
    for details in policies.asked:
        assert isinstance(details, CreatePartitionsDetails)
        assert (details.num_partitions, details.new_num_partitions, details.replication_factor) == (2, 9, 2)
        assert details.validate_only == validate_only


def deletes(
    existing: Collection[str], *, operations: int = 1 << AclOperation.DELETE, cluster: int = 0
) -> Callable[[Message], Message]:
    """Return an upstream with these topics, for a client with these operations on the topics and the cluster."""
    names = {id_of(name): name for name in existing}

    def metadata(request: MetadataRequest) -> MetadataResponse:
        topics = []
        for topic in request.topics or ():
            name = names.get(topic.topic_id) if topic.name is None else topic.name
            entry = MetadataResponse.MetadataResponseTopic(name=name, topic_id=topic.topic_id)
            entry.topic_authorized_operations = operations
            if name not in existing:
                entry.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topics.append(entry)
        return MetadataResponse(topics=topics)

    def delete(request: DeleteTopicsRequest) -> DeleteTopicsResponse:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
        entries = []
        for name, topic_id in dict.fromkeys(reversed(wanted)):
            topic_name = names.get(topic_id) if name is None else name
            error = INVALID if wanted.count((name, topic_id)) > 1 else ErrorCode.NONE
            entries.append(
                DeleteTopicsResponse.DeletableTopicResult(
                    name=topic_name, topic_id=id_of(topic_name or ""), error_code=error, error_message=None
                )
            )
        return DeleteTopicsResponse(responses=entries, throttle_time_ms=3)

    def answer(request: Message) -> Message:
        if isinstance(request, MetadataRequest):
            return metadata(request)
        if isinstance(request, DeleteTopicsRequest):
            return delete(request)
        return DescribeClusterResponse(cluster_authorized_operations=cluster)

    return answer


def deletion(name: str, *, by_id: bool) -> DeleteTopicsRequest.DeleteTopicState:
    if by_id:
        return DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=id_of(name))
    return DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)


@given(names=st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=6), denied=SOME)
def test_every_deleted_topic_has_one_entry_in_order(names: list[tuple[str, bool]], denied: set[str]) -> None:
    # given: each topic either by name or by id
    by_id = dict(names)
    names = [(name, by_id[name]) for name, _ in names]
    context = FakeContext(deletes(NAMES), FakeAdmin({name: [[1]] for name in NAMES}), api_version=6)
    policies = FakePolicies(denied)
    request = DeleteTopicsRequest(topics=[deletion(name, by_id=each) for name, each in names])
    # when
    response = asyncio.run(DeletedTopics(policies.as_policies(), ResourceTurns()).handle(request, context))
    # then
    plain = [name for name, _ in names]
    assert [entry.name for entry in response.responses] == list(dict.fromkeys(plain))
    for entry in response.responses:
        assert entry.name is not None
        repeated = plain.count(entry.name) > 1
        assert entry.error_code == (DENIED if entry.name in denied else INVALID if repeated else ErrorCode.NONE)
        assert entry.topic_id == id_of(entry.name)
    sent = [topic for request in context.forwarded for topic in request.topics]
    kept = [deletion(name, by_id=each) for name, each in names if name not in denied]
    assert sent == kept


def test_topic_that_the_gateway_cannot_look_up_is_not_deleted() -> None:
    context = FakeContext(deletes(()), FakeAdmin({}), api_version=6)
    request = DeleteTopicsRequest(topics=[deletion("a", by_id=False), deletion("b", by_id=True)])
    response = asyncio.run(DeletedTopics(FakePolicies().as_policies(), ResourceTurns()).handle(request, context))
    assert [entry.error_code for entry in response.responses] == [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    ]
    assert context.forwarded == []


def test_topic_by_id_that_the_brokers_do_not_know_yet_is_read_from_a_current_one() -> None:
    context = FakeContext(deletes(()), FakeAdmin({"new": [[1]]}), api_version=6)
    policies = FakePolicies()
    request = DeleteTopicsRequest(topics=[deletion("new", by_id=True)])
    asyncio.run(DeletedTopics(policies.as_policies(), ResourceTurns()).handle(request, context))
    assert [details.topic for details in policies.asked] == ["new"]
    assert context.forwarded == [request]


class ComparedId(UUID):
    """Id that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        ComparedId.compared += 1
        return super().__eq__(other)

    __hash__ = UUID.__hash__


def test_ids_of_many_topics_are_not_compared_with_each_other() -> None:
    """A client can name 100,000 ids, and a cluster can have as many topics."""
    names = [f"topic-{number}" for number in range(200)]
    ids = [ComparedId(int=number + 1000) for number in range(len(names))]
    context = FakeContext(deletes(()), FakeAdmin({name: [[1]] for name in names}), api_version=6)
    asyncio.run(api_020_delete_topics.names_of(ids, context))
    assert context.admin.calls == ["list_topics"]
    assert ComparedId.compared < len(names) ** 2 / 4


@pytest.mark.parametrize(
    ("operations", "cluster", "error"),
    [
        (1 << AclOperation.DELETE, 0, ErrorCode.POLICY_VIOLATION),
        (1 << AclOperation.READ, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (0, 1 << AclOperation.DELETE, ErrorCode.POLICY_VIOLATION),
    ],
)
def test_client_without_delete_right_gets_authorization_error(operations: int, cluster: int, error: ErrorCode) -> None:
    upstream = deletes(NAMES, operations=operations, cluster=cluster)
    context = FakeContext(upstream, FakeAdmin({"a": [[1]]}), api_version=6)
    request = DeleteTopicsRequest(topics=[deletion("a", by_id=False)])
    response = asyncio.run(DeletedTopics(FakePolicies({"a"}).as_policies(), ResourceTurns()).handle(request, context))
    assert [entry.error_code for entry in response.responses] == [error]


def test_old_deletion_names_its_topics() -> None:
    context = FakeContext(deletes(NAMES), FakeAdmin({name: [[1, 2]] for name in NAMES}), api_version=5)
    policies = FakePolicies({"b"})
    request = DeleteTopicsRequest(topic_names=["b", "a"])
    asyncio.run(DeletedTopics(policies.as_policies(), ResourceTurns()).handle(request, context))
    assert [sent.topic_names for sent in context.forwarded] == [["a"]]
    assert [(each.topic, each.replication_factor) for each in policies.asked] == [("b", 2), ("a", 2)]
    assert all(isinstance(each, DeleteTopicDetails) for each in policies.asked)


def reassigns(request: Message) -> Message:
    """Answer in reverse order."""
    assert isinstance(request, AlterPartitionReassignmentsRequest)
    return AlterPartitionReassignmentsResponse(
        error_message=None,
        responses=[
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=topic.name,
                partitions=[
                    AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                        partition_index=each.partition_index, error_message=None
                    )
                    for each in reversed(topic.partitions)
                ],
            )
            for topic in reversed(request.topics)
        ],
    )


GROWN = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=2, assignments=None)
REPLICAS = st.none() | st.lists(st.integers(1, 3), min_size=1, max_size=3, unique=True)


@given(
    wanted=st.dictionaries(st.sampled_from(NAMES), st.dictionaries(st.integers(0, 3), REPLICAS, min_size=1)),
    denied=SOME,
)
def test_policy_decides_on_changed_replication_factor_only(
    wanted: dict[str, dict[int, list[int] | None]], denied: set[str]
) -> None:
    # given
    request = AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name=name,
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
                    for index, replicas in partitions.items()
                ],
            )
            for name, partitions in wanted.items()
        ]
    )
    policies = FakePolicies(denied)
    context = FakeContext(reassigns, FakeAdmin({name: [[1, 2]] * 4 for name in NAMES}), api_version=1)
    # when
    response = asyncio.run(AlteredReassignments(policies.as_policies(), ResourceTurns()).handle(request, context))
    # then
    resized = {
        name: {index: each for index, each in partitions.items() if each is not None and len(each) != 2}
        for name, partitions in wanted.items()
    }
    assert {each.topic: list(each.new_assignments) for each in policies.asked} == {
        name: [tuple(each) for each in partitions.values()] for name, partitions in resized.items() if partitions
    }
    answered = {
        topic.name: {each.partition_index: each.error_code for each in topic.partitions} for topic in response.responses
    }
    assert answered == {
        name: {index: DENIED if name in denied and index in resized[name] else 0 for index in partitions}
        for name, partitions in wanted.items()
    }
    if denied & {name for name, changed in resized.items() if changed}:
        assert [topic.name for topic in response.responses] == list(wanted)
        assert [list(each) for each in answered.values()] == [list(each) for each in wanted.values()]
    (sent,) = context.forwarded
    for topic in sent.topics:
        for each in topic.partitions:
            assert topic.name not in denied or each.partition_index not in resized[topic.name]


def moved(partition: int = 0, replicas: list[int] | None = None) -> AlterPartitionReassignmentsRequest:
    moves = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=partition, replicas=replicas)
    topic = AlterPartitionReassignmentsRequest.ReassignableTopic(name="a", partitions=[moves])
    return AlterPartitionReassignmentsRequest(topics=[topic])


def test_policy_sees_all_entries_of_a_partition() -> None:
    """Kafka applies one after the other, and the second leaves the removals of the first in place."""
    request = moved(0, [1, 4])
    request.topics[0].partitions += moved(0, [1, 2, 3, 4]).topics[0].partitions
    policies, context = FakePolicies({"a"}), FakeContext(reassigns, FakeAdmin({"a": [[1, 2, 3]]}), api_version=1)
    asyncio.run(AlteredReassignments(policies.as_policies(), ResourceTurns()).handle(request, context))
    assert [details.new_assignments for details in policies.asked] == [((1, 4), (1, 2, 3, 4))]
    assert [sent.topics for sent in context.forwarded] == [[]]


def in_progress(replicas: list[int], *, adding: tuple[int, ...] = (), removing: tuple[int, ...] = ()) -> FakeAdmin:
    """Return the admin client of an upstream that reassigns partition 0 of topic a."""
    admin = FakeAdmin({"a": [replicas]})
    running = PartitionReassignment(replicas=tuple(replicas), adding_replicas=adding, removing_replicas=removing)
    admin.reassigning = {TopicPartition("a", 0): running}
    return admin


@pytest.mark.parametrize(
    ("admin", "replicas", "judged"),
    [
        (in_progress([2, 1], adding=(2,), removing=(1,)), [2, 3], [2, 3]),
        (in_progress([2, 1], adding=(2,), removing=(1,)), [3], None),
        (in_progress([1, 2], adding=(2,)), [2, 3], None),
        (in_progress([1, 2], adding=(2,)), None, [1]),
        (in_progress([2, 1], adding=(2,), removing=(1,)), None, None),
        # [1] -> [2], then [2] -> [3]: its cancellation keeps the two replicas of the first
        (in_progress([3, 2, 1], adding=(3,), removing=(2, 1)), None, [2, 1]),
    ],
)
def test_policy_sees_final_replicas_of_reassignment_in_progress(
    admin: FakeAdmin, replicas: list[int] | None, judged: list[int] | None
) -> None:
    policies, context = FakePolicies({"a"}), FakeContext(reassigns, admin, api_version=1)
    response = asyncio.run(
        AlteredReassignments(policies.as_policies(), ResourceTurns()).handle(moved(0, replicas), context)
    )
    assert [details.new_assignments for details in policies.asked] == ([] if judged is None else [(tuple(judged),)])
    codes = [each.error_code for topic in response.responses for each in topic.partitions]
    assert codes == [ErrorCode.NONE if judged is None else DENIED]


@pytest.mark.parametrize(
    ("admin", "assignments", "error"),
    [
        (in_progress([2, 1], adding=(2,), removing=(1,)), None, ErrorCode.REASSIGNMENT_IN_PROGRESS),
        (in_progress([2, 1], adding=(2,), removing=(1,)), [[1, 2]], ErrorCode.NONE),
        (in_progress([1, 2], adding=(2,)), None, ErrorCode.NONE),
    ],
)
@pytest.mark.parametrize("is_enforced", [False, True])
def test_undecidable_partitions_are_added_in_audit_mode_only(
    is_enforced: bool, admin: FakeAdmin, assignments: list[list[int]] | None, error: ErrorCode
) -> None:
    Assignment = CreatePartitionsRequest.CreatePartitionsAssignment  # noqa: N806  # a class
    entries = None if assignments is None else [Assignment(broker_ids=each) for each in assignments]
    topic = CreatePartitionsRequest.CreatePartitionsTopic(name="a", count=2, assignments=entries)
    policies, context = FakePolicies(enforced=is_enforced), FakeContext(grows(()), admin)
    request = CreatePartitionsRequest(topics=[topic])
    response = asyncio.run(AddedPartitions(policies.as_policies(), ResourceTurns()).handle(request, context))
    assert [entry.error_code for entry in response.results] == [error if is_enforced else ErrorCode.NONE]
    assert [subject for subject, _ in policies.undecided] == ["'a'"] * (error != ErrorCode.NONE)


class FailingAdmin(FakeAdmin):
    """Admin client of an upstream in which some calls fail."""

    def __init__(self, failing: str) -> None:
        super().__init__({"a": [[1]]}, {(2, "a"): {}})
        self._failing = failing

    def __getattribute__(self, name: str) -> Any:
        if name != "_failing" and name == self._failing:
            return self._fail
        return super().__getattribute__(name)

    def _fail(self, keys: Any = (), **_: object) -> Any:
        if self._failing in {"list_topics", "list_partition_reassignments"}:
            outcome: Outcome[Any] = Outcome()
            outcome.set_exception(TimeoutError("no response"))
            return outcome
        names = [each if isinstance(each, (str, ConfigResource)) else each.name for each in keys]
        result: PerKeyResult[Any, Any] = PerKeyResult(names)
        for name in names:
            result.fail(name, TimeoutError("no response"))
        return result


@pytest.mark.parametrize(
    ("judge", "request_", "failing"),
    [
        (CreatedTopics, CreateTopicsRequest(topics=[new_topic("new")]), "create_topics"),
        (CreatedTopics, CreateTopicsRequest(topics=[new_topic("new")]), "list_topics"),
        (CreatedTopics, CreateTopicsRequest(topics=[new_topic("new")]), "describe_configs"),
        (AddedPartitions, CreatePartitionsRequest(topics=[GROWN]), "describe_topics"),
        (AddedPartitions, CreatePartitionsRequest(topics=[GROWN]), "list_partition_reassignments"),
        (AddedPartitions, CreatePartitionsRequest(topics=[GROWN]), "describe_configs"),
        (DeletedTopics, DeleteTopicsRequest(topics=[deletion("a", by_id=False)]), "describe_topics"),
        (DeletedTopics, DeleteTopicsRequest(topics=[deletion("hidden", by_id=True)]), "list_topics"),
        (AlteredReassignments, moved(0, [1, 2]), "describe_topics"),
    ],
)
@pytest.mark.parametrize("is_enforced", [False, True])
def test_change_with_unreadable_state_is_made_in_audit_mode_only(
    is_enforced: bool, judge: Any, request_: Any, failing: str
) -> None:
    def upstream(request: Message) -> Message:
        if isinstance(request, CreateTopicsRequest):
            return creates((), shows_details=False)(request)
        if isinstance(request, CreatePartitionsRequest):
            return grows(())(request)
        return (
            reassigns(request) if isinstance(request, AlterPartitionReassignmentsRequest) else deletes(("a",))(request)
        )

    policies, context = FakePolicies(enforced=is_enforced), FakeContext(upstream, FailingAdmin(failing))
    more = () if judge is CreatedTopics else (ResourceTurns(),)
    response = asyncio.run(judge(policies.as_policies(), *more).handle(request_, context))
    entries = next(getattr(response, name) for name in ("topics", "results", "responses") if hasattr(response, name))
    codes = [part.error_code for entry in entries for part in getattr(entry, "partitions", [entry])]
    assert codes == [ErrorCode.UNKNOWN_SERVER_ERROR if is_enforced else ErrorCode.NONE]
    assert policies.asked == []
    assert len(policies.undecided) == 1
    sent = [each for each in context.forwarded if getattr(each, "topics", ()) and not getattr(each, "validate_only", 0)]
    assert len(sent) == (not is_enforced)


def test_authorization_error_of_the_upstream_hides_the_policys() -> None:
    def denies(request: Message) -> Message:
        assert isinstance(request, AlterPartitionReassignmentsRequest)
        return AlterPartitionReassignmentsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    request = AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="a",
                partitions=[
                    AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1, 2, 3])
                ],
            )
        ]
    )
    context = FakeContext(denies, FakeAdmin({"a": [[1]]}), api_version=1)
    response = asyncio.run(
        AlteredReassignments(FakePolicies({"a"}).as_policies(), ResourceTurns()).handle(request, context)
    )
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert response.responses == []
