"""Clusters in memory, behind the calls of klamm's admin client, for the mirror's control loops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4, uuid5

from klamm.admin import (
    AdminClient,
    AlterConfigsResult,
    ClusterDescription,
    ConfigEntry,
    ConfigSource,
    CreatedTopic,
    CreatePartitionsResult,
    CreateTopicsResult,
    DeleteTopicsResult,
    DescribeConfigsResult,
    DescribeTopicsResult,
    ErrorCode,
    KafkaApiError,
    PartitionDescription,
    PerKeyResult,
    TopicDescription,
    TopicListing,
    UnsupportedVersionError,
)
from klamm.kafka_client.errors import api_error
from klamm.kafka_client.pool.calls import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from klamm.admin import Acl, AclFilter, AlterConfigOp, AlterConfigsOptions, ConfigResource, NewPartitions, NewTopic

Key = TypeVar("Key")
Value = TypeVar("Value")
AnyResult = TypeVar("AnyResult", bound=PerKeyResult[Any, Any])
_NO_ID = UUID(int=0)


def rejection(name: str, message: str = "") -> KafkaApiError:
    """Return the error for Kafka's name of a code."""
    return api_error(ErrorCode[name], message or None)


def done(value: Value | Exception) -> Outcome[Value]:
    """Return a completed future."""
    outcome: Outcome[Value] = Outcome()
    if isinstance(value, Exception):
        outcome.set_exception(value)
    else:
        outcome.set_result(value)
    return outcome


def completed_result(result: AnyResult, outcomes: Mapping[Any, Any]) -> AnyResult:
    """Complete all keys of a result, each with a value or an error."""
    for key, value in outcomes.items():
        if isinstance(value, Exception):
            result.fail(key, value)
        else:
            result.succeed(key, value)
    return result


def entries_of(own: Mapping[str, str], source: ConfigSource = ConfigSource.DYNAMIC_TOPIC_CONFIG) -> list[ConfigEntry]:
    """Return configs with one source."""
    return [ConfigEntry(name, value, source=source) for name, value in own.items()]


class FakeCluster(AdminClient):
    """Topics with their own configs, in memory."""

    def __init__(self, **partition_counts: int) -> None:
        self.uuid = uuid4()
        self.cluster_id: str | None = str(self.uuid)
        self.topics = dict(partition_counts)
        self.configs: dict[str, dict[str, str]] = {name: {} for name in partition_counts}
        self.created: list[NewTopic] = []
        self.rejects: dict[str, KafkaApiError] = {}
        self.away: Callable[[], bool] = lambda: False
        self.incompatible = False
        self.keeps_no_acls = False
        self.unknown: frozenset[str] = frozenset()
        """Names of configs that this cluster does not know."""
        self.acls: list[Acl] = []
        self.unlisted: set[str] = set()
        """Existing topics that are not listed, because the broker that responds does not know them yet."""
        self.denied: set[str] = set()
        """Topics that the principal may not describe."""

    def check_connection(self, *, timeout_ms: int | None = None) -> Outcome[None]:
        return done(None)

    def describe_cluster(self, *, timeout_ms: int | None = None) -> Outcome[ClusterDescription]:
        return done(ClusterDescription(cluster_id=self.cluster_id, controller_id=0, nodes=()))

    def list_topics(
        self, *, include_internal: bool = False, is_current: bool = False, timeout_ms: int | None = None
    ) -> Outcome[Mapping[str, TopicListing]]:
        assert include_internal
        if self.away():
            return done(ConnectionError("nobody answers"))
        names = [name for name in self.topics if name not in self.unlisted | self.denied]
        return done(
            {name: TopicListing(name=name, topic_id=uuid5(self.uuid, name), is_internal=False) for name in names}
        )

    def describe_topics(self, names: Collection[str], **_: Any) -> DescribeTopicsResult:
        return completed_result(DescribeTopicsResult(names), {name: self._described(name) for name in names})

    def _described(self, name: str) -> TopicDescription | KafkaApiError:
        if name in self.denied:
            return rejection("TOPIC_AUTHORIZATION_FAILED")
        return _description(name, self.topics[name]) if name in self.topics else rejection("UNKNOWN_TOPIC_OR_PARTITION")

    def entries(self, topic: str) -> Iterable[ConfigEntry] | KafkaApiError:
        """Return all configs of a topic, or the error why they cannot be described."""
        return entries_of(self.configs.get(topic, {}))

    def describe_configs(
        self, resources: Collection[ConfigResource] | Mapping[ConfigResource, Collection[str] | None], **_: Any
    ) -> DescribeConfigsResult:
        configs = {resource: self.entries(resource.name) for resource in resources}
        return completed_result(
            DescribeConfigsResult(resources),
            {
                resource: entries if isinstance(entries, KafkaApiError) else {entry.name: entry for entry in entries}
                for resource, entries in configs.items()
            },
        )

    def create_topics(
        self, new_topics: Collection[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> CreateTopicsResult:
        outcomes = {topic.name: self._create(topic, validate_only=validate_only) for topic in new_topics}
        return completed_result(CreateTopicsResult(outcomes), outcomes)

    def _create(self, topic: NewTopic, *, validate_only: bool) -> CreatedTopic | KafkaApiError:
        if self.unknown & topic.configs.keys():
            return rejection("INVALID_CONFIG", "Unknown topic config name")
        if topic.name in self.topics:
            return rejection("TOPIC_ALREADY_EXISTS")
        if topic.name in self.rejects:
            return self.rejects[topic.name]
        if not validate_only:
            self.created.append(topic)
            self.topics[topic.name] = topic.num_partitions
            self.configs[topic.name] = {name: value or "" for name, value in topic.configs.items()}
        return CreatedTopic(name=topic.name, topic_id=_NO_ID, num_partitions=-1, replication_factor=-1)

    def create_partitions(
        self, new_partitions: Mapping[str, NewPartitions], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> CreatePartitionsResult:
        grown = {name: new.total_count for name, new in new_partitions.items() if name not in self.rejects}
        self.topics |= {} if validate_only else grown
        return completed_result(
            CreatePartitionsResult(new_partitions), {name: self.rejects.get(name) for name in new_partitions}
        )

    def delete_topics(self, names: Collection[str], *, timeout_ms: int | None = None) -> DeleteTopicsResult:
        for name in names:
            if name not in self.rejects:
                del self.topics[name]
        return completed_result(DeleteTopicsResult(names), {name: self.rejects.get(name) for name in names})

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        lacking = UnsupportedVersionError("not offered") if self.incompatible else None
        outcomes = {topic: lacking or (self.rejects.get(topic.name) if ops else None) for topic, ops in configs.items()}
        return completed_result(AlterConfigsResult(configs), outcomes)

    def replace_all_configs(
        self,
        configs: Mapping[ConfigResource, Collection[ConfigEntry]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        return completed_result(AlterConfigsResult(configs), {topic: self.rejects.get(topic.name) for topic in configs})

    def describe_acls(
        self, wanted: AclFilter | None = None, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[Acl, ...]]:
        return done(rejection("SECURITY_DISABLED", "no authorizer") if self.keeps_no_acls else tuple(self.acls))

    def create_acls(self, acls: Collection[Acl], *, timeout_ms: int | None = None) -> PerKeyResult[Acl, None]:
        self.acls += [acl for acl in acls if acl not in self.acls]
        result: PerKeyResult[Acl, None] = PerKeyResult(acls)
        return completed_result(result, dict.fromkeys(acls))

    def close(self) -> None:
        pass


def _description(name: str, count: int) -> TopicDescription:
    return TopicDescription(
        name=name,
        topic_id=_NO_ID,
        is_internal=False,
        partitions=tuple(
            PartitionDescription(partition=number, leader=0, leader_epoch=0, replicas=(0,), isr=(0,))
            for number in range(count)
        ),
    )
