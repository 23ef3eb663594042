"""Admin clients of a flow's clusters, and the outcomes of their calls by topic name or group id.

An outcome is the value, None for calls without one, or the ``KafkaApiError`` with which the cluster rejects this topic
or group. An error that concerns all of them is raised: the cluster is unavailable, or lacks the API
(``CLUSTER_ERRORS``).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

from klamm.admin import (
    AdminClient,
    AlterConfigOp,
    AlterConfigsOptions,
    ConfigEntry,
    ConfigResource,
    KafkaApiError,
    NewPartitions,
    NewTopic,
    ResourceType,
    TopicPartition,
)
from klamm.kafka_client.errors import (
    CLUSTER_ERRORS,
    RETRIABLE_CODES,
    ConnectionLostError,
    SaslAuthenticationFailedError,
    SslAuthenticationFailedError,
    api_error,
    error_text,
    is_denial,
)
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import (
    ErrorCode,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnsupportedVersionError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from klamm.admin import OffsetAndMetadata, OpType, PerKeyResult, PolicyOverride
    from klamm.mirror.settings.flow import FlowSettings
    from klamm.protocol.types import PartitionTuple

    CommittedOffsets = Mapping[PartitionTuple, OffsetAndMetadata]
    """Committed offsets of a group. A negative offset means that none is committed."""

Key = TypeVar("Key")
Value = TypeVar("Value")

_MAX_RECORDS: Final = 2_000
"""Most metadata records that one request may lead to.

Far below Kafka's limit, so that the controller serves other clients in between.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigOperation:
    """One planned operation of an IncrementalAlterConfigs request."""

    name: str
    operation: OpType
    value: str | None
    """Value to set. None for DELETE."""
    old_value: str | None = None
    """Value that was set on the target topic before. None: not set, or unknown."""
    rule: str
    """Reason of the operation, shown in the plan."""


def admin_client(
    flow: FlowSettings, side: Literal["source", "target"], *, timeout_ms: int | None = None
) -> AdminClient:
    """Return the admin client of one side of a flow. It connects with the first call.

    Args:
        flow: Settings of the flow.
        side: Cluster to connect to.
        timeout_ms: Timeout of each call in milliseconds. None: ``admin.timeout.ms`` of the file.

    Raises:
        SettingsError: A security property is not supported or has a wrong value.
    """
    cluster = flow.source if side == "source" else flow.target
    if timeout_ms is None:
        timeout_ms = int(flow.admin_timeout.total_seconds() * 1000)
    return new_client(cluster.bootstrap_servers, flow.clients[f"{side}.admin"], timeout_ms=timeout_ms)


def new_client(bootstrap_servers: Sequence[str], properties: Mapping[str, str], *, timeout_ms: int) -> AdminClient:
    """Return an admin client with the mirror's client id.

    Raises:
        SettingsError: A security property is not supported or has a wrong value.
    """
    properties = {"client.id": "klamm-mirror-admin", **properties}
    return AdminClient.from_properties(bootstrap_servers, properties, timeout_ms=timeout_ms)


def check_reachable(admin: AdminClient, alias: str) -> None:
    """Connect once, to find out at once whether and why the cluster accepts no calls. Calls retry until their timeout.

    Raises:
        ConnectionLostError: No broker responds, or each rejects the login or the certificate.
    """
    try:
        admin.check_connection().result()
    except CLUSTER_ERRORS as error:
        is_rejected = isinstance(error, (SaslAuthenticationFailedError, SslAuthenticationFailedError))
        verb = "rejects this client" if is_rejected else "does not answer"
        raise ConnectionLostError(f"cluster {alias} {verb}: {error_text(error)}") from error


def outcome(future: Future[Value]) -> Value | KafkaApiError:
    """Wait for a call and return its value, or the error with which the cluster rejects it.

    Raises:
        UnsupportedVersionError: The cluster lacks the API.
        ConnectionError, TimeoutError, ProtocolError, KafkaApiError: The cluster is unavailable at present.
    """
    try:
        return future.result()
    except (UnsupportedVersionError, ConnectionError):
        raise
    except KafkaApiError as error:
        if error.error_code in RETRIABLE_CODES:
            raise
        return error


def outcomes(result: PerKeyResult[Key, Value]) -> dict[Key, Value | KafkaApiError]:
    """Wait for a call and return its outcomes by key. See ``outcome`` for the errors raised."""
    by_key: dict[Key, Value | KafkaApiError] = {}
    for key, future in result.values().items():
        value = outcome(future)
        by_key[key] = value
    return by_key


def rejections(result: PerKeyResult[Key, Value]) -> dict[Key, KafkaApiError | None]:
    """Wait for a call and return the rejections by key, None for success. See ``outcome`` for the errors raised."""
    return {key: value if isinstance(value, KafkaApiError) else None for key, value in outcomes(result).items()}


def group_outcomes(futures: Mapping[Key, Future[Value]]) -> dict[Key, Value | KafkaApiError]:
    """Wait for requests about groups and return their outcomes by key.

    Each group has its own coordinator, and one that is unavailable does not fail the requests about other groups. Its
    outcome is the retriable error, or COORDINATOR_NOT_AVAILABLE if it does not respond.

    Raises:
        ConnectionError, TimeoutError, ProtocolError, KafkaApiError: No coordinator is available, as of ``outcome``.
    """
    by_key: dict[Key, Value | KafkaApiError] = {}
    failures: list[Exception] = []
    for key, future in futures.items():
        try:
            value = outcome(future)
        except KafkaApiError as error:
            failures.append(error)
            value = error
        except (ConnectionError, TimeoutError) as error:
            failures.append(error)
            value = api_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, error_text(error))
        by_key[key] = value
    if failures and len(failures) == len(by_key):
        raise failures[0]
    return by_key


def partition_counts(admin: AdminClient) -> dict[str, int]:
    """Return the partition counts of all topics, including internal ones."""
    names = list(admin.list_topics(include_internal=True).result())
    descriptions = outcomes(admin.describe_topics(names)) if names else {}
    return {name: len(topic.partitions) for name, topic in descriptions.items() if not isinstance(topic, KafkaApiError)}


def shared_topics(source: AdminClient, target: AdminClient) -> frozenset[str]:
    """Return the topics that are the same topic on both sides, because both clients reach one cluster.

    Equal cluster ids alone do not prove that: container images come with a default cluster id. Clusters before Kafka
    2.8 have no topic ids, and a random cluster id.
    """
    ids = {admin.describe_cluster().result().cluster_id or None for admin in (source, target)}
    if len(ids) > 1 or None in ids:
        return frozenset()
    here, there = (admin.list_topics(include_internal=True).result() for admin in (source, target))
    return frozenset(name for name in here.keys() & there.keys() if here[name].topic_id == there[name].topic_id)


def denied_topics(admin: AdminClient, topics: Collection[str]) -> dict[str, KafkaApiError]:
    """Return which topics the principal may not describe. They are never listed, whether they exist or not."""
    descriptions = outcomes(admin.describe_topics(topics)) if topics else {}
    return {
        name: error for name, error in descriptions.items() if isinstance(error, KafkaApiError) and is_denial(error)
    }


def missing_topics(admin: AdminClient, topics: Collection[str]) -> frozenset[str]:
    """Return which topics do not exist for certain. Topics that the principal may not describe are left out."""
    descriptions = outcomes(admin.describe_topics(topics)) if topics else {}
    return frozenset(
        name
        for name, error in descriptions.items()
        if isinstance(error, KafkaApiError) and error.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )


def delete_topics(admin: AdminClient, topics: Collection[str]) -> dict[str, KafkaApiError | None]:
    """Delete topics, independently of each other."""
    return rejections(admin.delete_topics(topics)) if topics else {}


def topic_configs(admin: AdminClient, topics: Iterable[str]) -> dict[str, Mapping[str, ConfigEntry] | KafkaApiError]:
    """Return all configs of topics by name, including defaults."""
    resources = [_topic(name) for name in topics]
    configs = outcomes(admin.describe_configs(resources)) if resources else {}
    return {resource.name: entries for resource, entries in configs.items()}


def create_topics(admin: AdminClient, topics: Iterable[NewTopic]) -> dict[str, KafkaApiError | None]:
    """Create topics, independently of each other."""
    return _in_portions(topics, _records_of_new_topic, lambda some: rejections(admin.create_topics(some)))


def validate_topics(admin: AdminClient, topics: Iterable[NewTopic]) -> dict[str, KafkaApiError | PolicyOverride | None]:
    """Validate the creation of topics.

    The outcome of a topic is None, its rejection, or what a policy of klamm would store in place of the values.
    """
    created = _in_portions(
        topics, _records_of_new_topic, lambda some: outcomes(admin.create_topics(some, validate_only=True))
    )
    return {name: each if isinstance(each, KafkaApiError) else each.override for name, each in created.items()}


def _records_of_new_topic(topic: NewTopic) -> int:
    return 1 + max(topic.num_partitions, len(topic.replicas_assignments)) + len(topic.configs)


def create_partitions(
    admin: AdminClient,
    counts: Mapping[str, int],
    *,
    assignments: Mapping[str, tuple[tuple[int, ...], ...]] = MappingProxyType({}),
    validate_only: bool = False,
) -> dict[str, KafkaApiError | None]:
    """Increase the partition counts of topics, or only validate the request.

    Args:
        admin: Admin client of the cluster.
        counts: New partition counts by topic.
        assignments: Brokers of the new partitions by topic. For other topics the cluster chooses them.
        validate_only: Whether nothing is changed.
    """
    new = {name: NewPartitions(count, assignments.get(name)) for name, count in counts.items()}
    return _in_portions(
        counts,
        lambda name: counts[name],
        lambda some: rejections(
            admin.create_partitions({name: new[name] for name in some}, validate_only=validate_only)
        ),
    )


def check_incremental_alter_configs(admin: AdminClient, topic: str) -> None:
    """Check that the cluster has IncrementalAlterConfigs, by a request that changes nothing for any topic.

    Raises:
        UnsupportedVersionError: The cluster lacks IncrementalAlterConfigs.
    """
    rejections(admin.incremental_alter_configs({_topic(topic): []}, AlterConfigsOptions(validate_only=True)))


def alter_topic_configs(
    admin: AdminClient, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
) -> dict[str, KafkaApiError | PolicyOverride | None]:
    """Apply config operations (IncrementalAlterConfigs), or only validate them.

    The outcome of a topic is None, its rejection, or what a policy of klamm stores in place of the values.

    Raises:
        UnsupportedVersionError: The cluster lacks IncrementalAlterConfigs.
    """
    ops = {
        _topic(name): [AlterConfigOp(ConfigEntry(each.name, each.value), each.operation) for each in planned]
        for name, planned in operations.items()
        if planned
    }
    options = AlterConfigsOptions(validate_only=validate_only)
    return _in_portions(
        ops,
        lambda topic: len(ops[topic]),
        lambda some: {
            resource.name: changed
            for resource, changed in outcomes(
                admin.incremental_alter_configs({topic: ops[topic] for topic in some}, options)
            ).items()
        },
    )


def replace_topic_configs(
    admin: AdminClient, configs: Mapping[str, Mapping[str, str]], *, validate_only: bool = False
) -> dict[str, KafkaApiError | None]:
    """Replace all dynamic configs of topics (AlterConfigs), or only validate them."""
    entries = {_topic(name): [ConfigEntry(*each) for each in own.items()] for name, own in configs.items()}
    options = AlterConfigsOptions(validate_only=validate_only)
    return _in_portions(
        entries,
        lambda topic: 1 + len(entries[topic]),
        lambda some: _by_name(admin.replace_all_configs({topic: entries[topic] for topic in some}, options)),
    )


def portions(items: Iterable[Key], weight: Callable[[Key], int]) -> Iterator[list[Key]]:
    """Yield portions of a change, each small enough for one request.

    Apache Kafka rejects a whole request that leads to more than 10,000 records in the metadata log (QuorumController's
    ``MAX_RECORDS_PER_USER_OP``): five hundred topics with twenty partitions each are too many.

    Args:
        items: Changes to split.
        weight: Returns the approximate number of metadata records of one change.
    """
    portion: list[Key] = []
    total = 0
    for item in items:
        if portion and total + weight(item) > _MAX_RECORDS:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += weight(item)
    if portion:
        yield portion


def _in_portions(
    items: Iterable[Key],
    weight: Callable[[Key], int],
    ask: Callable[[list[Key]], Mapping[str, Value]],
) -> dict[str, Value]:
    return {name: answer for some in portions(items, weight) for name, answer in ask(some).items()}


def _topic(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


def _by_name(result: PerKeyResult[ConfigResource, Any]) -> dict[str, KafkaApiError | None]:
    return {resource.name: rejected for resource, rejected in rejections(result).items()}


KNOWN_AFTER_S: Final = 10.0
"""Time in seconds until all brokers know a new topic. Until then a missing internal topic is not reported."""


def create_internal_topic(
    admin: AdminClient,
    name: str,
    *,
    replication_factor: int,
    partition_count: int = 1,
    configs: Mapping[str, str] = MappingProxyType({}),
    place: Callable[[NewTopic], NewTopic] = lambda topic: topic,
) -> KafkaApiError | None:
    """Create a compacted topic. Return the rejection, or None if the topic exists or is assumed to exist.

    An existing topic is not changed. For it, neither a controller needs to be available, nor does the principal need
    the right to create topics: Metadata reports it. On a cluster without CreateTopics, the topic is assumed to exist
    (Kafka's ``MirrorUtils.createCompactedTopic``).

    Args:
        admin: Admin client of the cluster.
        name: Name of the topic.
        replication_factor: Replication factor. -1: the default of the cluster.
        partition_count: Number of partitions.
        configs: Its other configs.
        place: Returns the topic with the brokers of its partitions, or as it is.

    Raises:
        ConnectionError, TimeoutError: The cluster is unavailable.
    """
    if not isinstance(outcomes(admin.describe_topics([name]))[name], KafkaApiError):
        return None
    topic = internal_topic(
        name, replication_factor=replication_factor, partition_count=partition_count, configs=configs
    )
    try:
        rejected = create_topics(admin, [place(topic)]).get(name)
    except UnsupportedVersionError:
        return None
    except InvalidReplicationFactorError as error:  # of ``place``
        return error
    return None if isinstance(rejected, TopicAlreadyExistsError) else rejected


def internal_topic(
    name: str, *, replication_factor: int, partition_count: int = 1, configs: Mapping[str, str] = MappingProxyType({})
) -> NewTopic:
    """Return the description of a compacted internal topic."""
    return NewTopic(
        name=name,
        num_partitions=partition_count,
        replication_factor=replication_factor,
        configs={**configs, "cleanup.policy": "compact"},
    )


_OF_CONSUMERS: Final = ("consumer", "")
_DEAD: Final = "Dead"
_EMPTY: Final = "Empty"
UNKNOWN_COUNT: Final = -1


class GroupUse(NamedTuple):
    """State and member count of a group."""

    state: str
    """Kafka's name of the state: ``Empty``, ``Stable`` and so on. ``Dead``: the group does not exist."""
    member_count: int
    """Number of members. -1: there are members, but their number is unknown."""

    @property
    def is_idle(self) -> bool:
        """Return whether the group has no members, so that its offsets can be changed."""
        return self.state in (_EMPTY, _DEAD)

    @property
    def members(self) -> str:
        """Return the number of members as text."""
        count = self.member_count
        return "members" if count == UNKNOWN_COUNT else "1 member" if count == 1 else f"{count} members"


def consumer_groups(admin: AdminClient) -> list[str]:
    """Return the ids of all consumer groups, including groups that never had a member.

    Raises:
        KafkaApiError: The principal may not list groups.
    """
    listed = outcome(admin.list_groups())
    if isinstance(listed, KafkaApiError):
        raise listed
    return [group.group_id for group in listed if group.protocol_type in _OF_CONSUMERS]


def group_uses(admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupUse | KafkaApiError]:
    """Return the state of groups. A group that does not exist is ``Dead``.

    For groups that this client cannot describe, such as share groups, the state comes from ListGroups.
    """
    uses: dict[str, GroupUse | KafkaApiError] = {}
    for group, described in group_outcomes(admin.describe_groups(groups).values()).items() if groups else ():
        if not isinstance(described, KafkaApiError):
            uses[group] = GroupUse(described.state, len(described.members))
        elif described.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
            uses[group] = GroupUse(_DEAD, 0)
        else:
            uses[group] = described
    if GroupUse(_DEAD, 0) in uses.values():
        for listed in admin.list_groups().result():
            if listed.state is not None and uses.get(listed.group_id) == GroupUse(_DEAD, 0):
                uses[listed.group_id] = GroupUse(listed.state, 0 if listed.state == _EMPTY else UNKNOWN_COUNT)
    return uses


def group_offsets(admin: AdminClient, groups: Sequence[str]) -> dict[str, CommittedOffsets | KafkaApiError]:
    """Return all committed offsets of groups."""
    offsets_by_group = group_outcomes(admin.list_group_offsets(dict.fromkeys(groups)).values()) if groups else {}
    return {
        group: offsets if isinstance(offsets, KafkaApiError) else dict(offsets.items())
        for group, offsets in offsets_by_group.items()
    }


def commit_offsets(
    admin: AdminClient, offsets: Mapping[str, CommittedOffsets]
) -> dict[str, dict[PartitionTuple, KafkaApiError | None]]:
    """Commit offsets for groups without members. Return the rejections by group, None for success.

    With members the outcome is UNKNOWN_MEMBER_ID.
    """
    futures = {
        (group, partition): future
        for group, of_group in offsets.items()
        if of_group
        for partition, future in admin.alter_group_offsets(
            group, {TopicPartition(*where): offset for where, offset in of_group.items()}
        )
        .values()
        .items()
    }
    rejected: dict[str, dict[PartitionTuple, KafkaApiError | None]] = {group: {} for group in offsets}
    for (group, where), error in group_outcomes(futures).items():
        rejected[group][where] = error
    return rejected
