"""Request contexts for interceptors of the gateway: a scripted upstream, and policies that deny by name."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid5

from klamm.admin import (
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    PartitionDescription,
    PartitionReassignment,
    TopicDescription,
    TopicListing,
)
from klamm.admin.results import CreateTopicsResult, DescribeConfigsResult, DescribeTopicsResult
from klamm.admin.types import ConfigSynonym, CreatedTopic, Node
from klamm.broker.quotas import MutationQuota, TokenBucket
from klamm.gateway.policies.divided_requests import replaced
from klamm.gateway.relay.filter import Forward, Reply
from klamm.history.change import Author
from klamm.kafka_client.pool.calls import Outcome
from klamm.policy import PolicyFailedError, PolicyViolationError
from klamm.policy_runtime.decision import TWICE
from klamm.policy_runtime.denials import DeniedCreations
from klamm.protocol.errors import ThrottlingQuotaExceededError, UnknownTopicOrPartitionError
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from klamm.protocol.types import ConfigOperation, ConfigSource, ResourceType, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from klamm.gateway.relay.filter import FilterResult
    from klamm.policy import Override
    from klamm.policy_runtime import Policies
    from klamm.policy_runtime.service import UndecidedChange
    from klamm.protocol.schema import Message

ANNA = Author(principal="User:anna", client_id="tool", listener="GATEWAY")
NAMESPACE = UUID(int=7)


def id_of(topic: str) -> UUID:
    """Return the id that the scripted upstream gives a topic."""
    return uuid5(NAMESPACE, topic)


def incremental(
    name: str, *operations: tuple[str, ConfigOperation, str | None], resource_type: int = ResourceType.TOPIC
) -> IncrementalAlterConfigsRequest.AlterConfigsResource:
    """Return the part of an IncrementalAlterConfigs request for one resource."""
    return IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
            for key, operation, value in operations
        ],
    )


@dataclass
class FakePolicies:
    """Policies that deny some names, and remember what they were asked."""

    denied: Collection[str] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    """Overrides by name, each given once; ``repeats`` gives them again and again."""
    repeats: bool = False
    asked: list[Any] = field(default_factory=list)
    denied_creations: DeniedCreations = field(default_factory=DeniedCreations)
    enforced: bool = True
    undecided: list[tuple[str, str]] = field(default_factory=list)
    """Subjects that could not be read, and the reasons."""

    def turn(self, kind: object) -> AbstractAsyncContextManager[object]:
        return contextlib.nullcontext()

    def guards_kind(self, kind: object) -> bool:
        return True

    def is_enforced(self, kind: object) -> bool:
        return self.enforced

    def deny_undecided(self, kind: object, change: UndecidedChange, reason: str) -> bool:
        self.undecided.append((change.subject, reason))
        return self.enforced

    async def check(self, kind: object, details: Any, overridden: Override | None = None) -> Override | None:
        name = getattr(details, "topic", None) or details.resource_name
        is_first = all(name != (getattr(each, "topic", None) or each.resource_name) for each in self.asked)
        self.asked.append(details)
        if name in self.overrides and (is_first or self.repeats):
            if overridden is not None:
                raise PolicyFailedError(TWICE)
            return self.overrides[name]
        if name in self.denied:
            raise PolicyViolationError(f"{name}: denied by policy")
        return None

    def as_policies(self) -> Policies:
        """Return this object as the class that interceptors expect."""
        return cast("Policies", self)


class FakeAdmin:
    """Admin client of the gateway: topics with their replicas and configs."""

    def __init__(
        self,
        topics: Mapping[str, Sequence[Sequence[int]]],
        configs: Mapping[tuple[int, str], Mapping[str, str]] | None = None,
        nodes: tuple[Node, ...] = (),
    ) -> None:
        self.topics, self.nodes = topics, nodes
        self.configs = configs or {}
        self.reassigning: Mapping[TopicPartition, PartitionReassignment] = {}
        self.finalized_features: Mapping[str, int] = {}
        """Those of the brokers. The gateway in front of them announces client configs in any case."""
        self.described: Mapping[tuple[int, str], Mapping[str, ConfigEntry]] = {}
        """Configs of resources that are not topics."""
        self.calls: list[str] = []

    def list_partition_reassignments(self) -> Outcome[Mapping[TopicPartition, PartitionReassignment]]:
        outcome: Outcome[Mapping[TopicPartition, PartitionReassignment]] = Outcome()
        outcome.set_result(self.reassigning)
        return outcome

    def describe_cluster(self) -> Outcome[ClusterDescription]:
        outcome: Outcome[ClusterDescription] = Outcome()
        outcome.set_result(
            ClusterDescription(
                cluster_id="c",
                controller_id=1,
                nodes=self.nodes,
                features={"client.configs": (1, 1)},
                finalized_features=self.finalized_features,
            )
        )
        return outcome

    def describe_topics(self, names: Collection[str], *, is_current: bool) -> DescribeTopicsResult:
        assert is_current
        self.calls.append("describe_topics")
        result = DescribeTopicsResult(names)
        for name in names:
            if name in self.topics or (ResourceType.TOPIC, name) in self.configs:
                result.succeed(name, described(name, self.topics.get(name, [[1]])))
            else:
                result.fail(name, UnknownTopicOrPartitionError("This server does not host this topic-partition."))
        return result

    def list_topics(self, *, include_internal: bool, is_current: bool) -> Outcome[Mapping[str, TopicListing]]:
        assert include_internal
        assert is_current
        self.calls.append("list_topics")
        outcome: Outcome[Mapping[str, TopicListing]] = Outcome()
        outcome.set_result(
            {name: TopicListing(name=name, topic_id=id_of(name), is_internal=False) for name in self.topics}
        )
        return outcome

    def create_topics(self, topics: Collection[Any], *, validate_only: bool) -> CreateTopicsResult:
        assert validate_only
        self.calls.append("create_topics")
        result = CreateTopicsResult(topic.name for topic in topics)
        for topic in topics:
            made = CreatedTopic(name=topic.name, topic_id=id_of(topic.name), num_partitions=5, replication_factor=3)
            result.succeed(topic.name, made)
        return result

    def describe_configs(
        self, resources: Collection[ConfigResource], *, include_synonyms: bool = False, is_current: bool = False
    ) -> DescribeConfigsResult:
        assert include_synonyms or resources
        self.calls.append("describe_configs")
        result = DescribeConfigsResult(resources)
        for resource in resources:
            own = self.configs.get((resource.type, resource.name))
            if own is None and resource.type is ResourceType.TOPIC and resource.name in self.topics:
                own = {}
            if (resource.type, resource.name) in self.described:
                result.succeed(resource, self.described[resource.type, resource.name])
            elif own is None:
                result.fail(resource, UnknownTopicOrPartitionError("no such resource"))
            else:
                result.succeed(resource, topic_configs(own))
        return result


def described(name: str, replicas: Sequence[Sequence[int]]) -> TopicDescription:
    """Return the description of a topic with these replicas."""
    return TopicDescription(
        name=name,
        topic_id=id_of(name),
        is_internal=False,
        partitions=tuple(
            PartitionDescription(partition=index, leader=each[0], leader_epoch=0, replicas=tuple(each), isr=tuple(each))
            for index, each in enumerate(replicas)
        ),
    )


def topic_configs(own: Mapping[str, str]) -> dict[str, ConfigEntry]:
    """Return a description of a topic with these configs; three others have defaults."""
    defaults = {"retention.ms": "604800000", "cleanup.policy": "delete", "flush.ms": "9223372036854775807"}
    entries = {}
    for name in {**defaults, **own}:
        synonyms = [ConfigSynonym(name, own[name], ConfigSource.DYNAMIC_TOPIC_CONFIG)] if name in own else []
        if name in defaults:
            synonyms.append(ConfigSynonym(f"log.{name}", defaults[name], ConfigSource.DEFAULT_CONFIG))
        first = synonyms[0]
        entries[name] = ConfigEntry(name, first.value, source=first.source, synonyms=tuple(synonyms))
    return entries


@dataclass
class FakeContext:
    """Context of one request. The upstream is a function from requests to responses."""

    upstream: Callable[[Message], Message]
    admin: Any = None
    api_version: int = 7
    api_key: int = 19
    author: Author = ANNA
    client_host: str = "127.0.0.1"
    watch: Any = None
    wait_result: Any = None
    login: Any = None
    served: Any = None
    supported_features: Any = None
    keep_versions: Any = None
    forwarded: list[Any] = field(default_factory=list)
    """Requests that were forwarded, in order."""
    called: list[Any] = field(default_factory=list)
    """Requests of other APIs or versions, in order."""

    def decode(self, request_class: type[Any]) -> Any:
        raise NotImplementedError

    async def forward(self, request: Message) -> Any:
        self.forwarded.append(request)
        return self.upstream(request)

    async def call(self, request: Message, response_class: type[Any]) -> Any:
        self.called.append(request)
        response = self.upstream(request)
        assert isinstance(response, response_class)
        return response


@dataclass
class LimitedUpstream:
    """Upstream with a strict ``controller_mutation_rate``, which counts trials as well, in front of another one."""

    upstream: Callable[[Any], Any]
    rate: float
    now_s: float = 0.0
    bucket: TokenBucket = field(default_factory=TokenBucket)

    def __call__(self, request: Message) -> Message:
        if not isinstance(request, (CreateTopicsRequest, CreatePartitionsRequest)):
            return cast("Message", self.upstream(request))
        quota = MutationQuota(self.bucket, self.rate, is_strict=True, now_s=lambda: self.now_s)
        admitted: list[Any] = []
        rejected: list[Any] = []
        for topic in request.topics:
            entry: Any
            if isinstance(topic, CreateTopicsRequest.CreatableTopic):
                entry, partitions = CreateTopicsResponse.CreatableTopicResult, max(topic.num_partitions, 1)
            else:
                entry, partitions = CreatePartitionsResponse.CreatePartitionsTopicResult, topic.count
            try:
                quota.charge(partitions)
            except ThrottlingQuotaExceededError as error:
                rejected.append(entry(name=topic.name, error_code=error.error_code, error_message=None))
            else:
                admitted.append(topic)
        response = self.upstream(replaced(request, topics=admitted))
        (response.topics if isinstance(response, CreateTopicsResponse) else response.results).extend(rejected)
        response.throttle_time_ms = quota.throttle_time_ms
        return cast("Message", response)

    def wait(self, response: Any) -> None:
        """Let the time pass that a response asks the client to wait."""
        self.now_s += response.throttle_time_ms / 1000


def plain(result: FilterResult) -> Any:
    """Return the message or the error in the result of a filter; None if it forwards the request as it is."""
    if isinstance(result, Reply):
        return result.response
    return result.request if isinstance(result, Forward) else result
