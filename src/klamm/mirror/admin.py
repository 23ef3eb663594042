"""Admin requests of the control loops, sent with klamm's admin client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeVar

from klamm.admin import (
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    AdminClient,
    AlterConfigOp,
    AlterConfigsOptions,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetAndMetadata,
    OpType,
    PatternType,
    ResourceType,
    TopicPartition,
)
from klamm.client.buffers import BufferPool
from klamm.client.cluster import Cluster
from klamm.client.errors import ConnectionLostError
from klamm.client.transport import ConnectionSettings
from klamm.mirror.model import (
    UNKNOWN_COUNT,
    AdminIncompatibleError,
    AdminRefusedError,
    ClusterAwayError,
    Committed,
    GroupUse,
    NewRemoteTopic,
    Partition,
    TopicConfigEntry,
    TopicConfigOperation,
    TopicSummary,
)
from klamm.mirror.progress import needs_person
from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from klamm.admin import Acl, PerKeyResult
    from klamm.mirror.settings.flow import FlowSettings

Key = TypeVar("Key")
Value = TypeVar("Value")

_AWAY: Final = (ConnectionError, TimeoutError, ProtocolError, OSError)
_PASSING: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


_OF_CONSUMERS: Final = ("consumer", "")
_DEAD: Final = "Dead"
_MOST_RECORDS: Final = 2_000
"""Most metadata records that one request may lead to.

Far below Kafka's limit, so that the controller serves other clients in between.
"""
_EMPTY: Final = "Empty"
_TOPIC_ACLS: Final = AclFilter(
    resource_type=AclResourceType.TOPIC,
    resource_name=None,
    pattern_type=PatternType.ANY,
    principal=None,
    host=None,
    operation=AclOperation.ANY,
    permission=AclPermission.ANY,
)


class KafkaAdmin:
    """Implementation of ``MirrorAdmin`` on klamm's admin client. Thread-safe."""

    def __init__(
        self, bootstrap_servers: Sequence[str], properties: Mapping[str, str], *, timeout_ms: int, alias: str = ""
    ) -> None:
        """Create the client. It connects with the first request.

        Args:
            bootstrap_servers: Bootstrap servers, each ``host:port``.
            properties: Admin client properties.
            timeout_ms: Timeout of each call in milliseconds.
            alias: Alias of the cluster, for messages.

        Raises:
            SettingsError: A security property is not supported or has a wrong value.
        """
        self._cluster = f"cluster {alias}" if alias else "the cluster"
        client_id = properties.get("client.id", "klamm-mirror-admin")
        self._connection = ConnectionSettings.of(tuple(bootstrap_servers), properties, client_id)
        self._admin = AdminClient.from_properties(
            bootstrap_servers, {"client.id": client_id, **properties}, timeout_ms=timeout_ms
        )

    @classmethod
    def of(cls, flow: FlowSettings, side: Literal["source", "target"], *, timeout_ms: int | None = None) -> KafkaAdmin:
        """Create the client of one side of a flow.

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
        properties = flow.clients[f"{side}.admin"]
        return cls(cluster.bootstrap_servers, properties, timeout_ms=timeout_ms, alias=cluster.alias)

    def check_reachable(self) -> None:
        """Log in once without a request, to find out at once whether and why the cluster accepts no calls.

        The calls themselves retry until their timeout and then report only that no broker answered.

        Raises:
            ClusterAwayError: No broker answers, or each rejects the login or the certificate.
        """
        cluster = Cluster(self._connection, BufferPool(max_free_bytes=0))
        try:
            cluster.refresh(())
        except (UnsupportedVersionError, ConnectionLostError, ProtocolError) as error:
            verb = "refuses this client" if needs_person(str(error)) else "does not answer"
            raise ClusterAwayError(f"{self._cluster} {verb}: {error}") from error
        finally:
            cluster.close()

    def list_topics(self) -> Mapping[str, TopicSummary]:
        """Return all topics of the cluster, including internal ones."""
        listed = _wait(self._admin.list_topics(include_internal=True))
        names = list(listed)
        described = _outcomes(self._admin.describe_topics(names)) if names else {}
        return {
            name: TopicSummary(name=name, topic_id=str(topic.topic_id), partition_count=len(topic.partitions))
            for name, topic in described.items()
            if not isinstance(topic, AdminRefusedError)
        }

    def denied_topics(self, topics: Sequence[str]) -> Mapping[str, AdminRefusedError]:
        """Return which topics the principal may not describe. They are never listed, whether they exist or not."""
        described = _outcomes(self._admin.describe_topics(topics)) if topics else {}
        return {
            name: outcome
            for name, outcome in described.items()
            if isinstance(outcome, AdminRefusedError) and outcome.is_denial
        }

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        """Return all configs of topics, including defaults."""
        if not topics:
            return {}
        described = _outcomes(self._admin.describe_configs([_topic(name) for name in topics]))
        return {
            resource.name: entries if isinstance(entries, AdminRefusedError) else _entries(entries)
            for resource, entries in described.items()
        }

    def create_topics(
        self, topics: Sequence[NewRemoteTopic], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Create topics, independently of each other, or only validate the request."""
        asked = [
            NewTopic(
                name=topic.name,
                num_partitions=topic.partition_count,
                replication_factor=topic.replication_factor,
                configs=dict(topic.configs),
            )
            for topic in topics
        ]
        return _in_portions(
            asked,
            lambda topic: 1 + topic.num_partitions + len(topic.configs),
            lambda some: _refusals(self._admin.create_topics(some, validate_only=validate_only)),
        )

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Increase the partition count of topics, or only validate the request."""
        asked = {name: NewPartitions(total_count=count) for name, count in counts.items()}
        return _in_portions(
            asked,
            lambda name: counts[name],
            lambda some: _refusals(
                self._admin.create_partitions({name: asked[name] for name in some}, validate_only=validate_only)
            ),
        )

    def check_incremental_alter_configs(self, topic: str) -> None:
        """Check that the cluster supports IncrementalAlterConfigs, with a request that changes nothing.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        # The result for the topic does not matter, only whether the API exists.
        _by_name(self._admin.incremental_alter_configs({_topic(topic): []}, AlterConfigsOptions(validate_only=True)))

    def incremental_alter_topic_configs(
        self, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Apply config operations (IncrementalAlterConfigs), or only validate them.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        asked = {
            _topic(name): [
                AlterConfigOp(ConfigEntry(operation.name, operation.value), OpType(operation.operation))
                for operation in planned
            ]
            for name, planned in operations.items()
            if planned
        }
        return _in_portions(
            asked,
            lambda topic: len(asked[topic]),
            lambda some: _by_name(
                self._admin.incremental_alter_configs(
                    {topic: asked[topic] for topic in some}, AlterConfigsOptions(validate_only=validate_only)
                )
            ),
        )

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, AdminRefusedError | None]:
        """Replace all dynamic configs of topics (AlterConfigs)."""
        asked = {
            _topic(name): [ConfigEntry(key, value) for key, value in entries.items()]
            for name, entries in configs.items()
        }
        return _in_portions(
            asked,
            lambda topic: 1 + len(asked[topic]),
            lambda some: _by_name(self._admin.replace_all_configs({topic: asked[topic] for topic in some})),
        )

    def describe_topic_acls(self) -> Sequence[Acl]:
        """Return the ACLs of topics.

        Raises:
            AdminRefusedError: The principal may not describe ACLs, or the cluster has no authorizer
                (SECURITY_DISABLED).
            AdminIncompatibleError: The cluster does not support the API.
        """
        return _wait(self._admin.describe_acls(_TOPIC_ACLS))

    def create_acls(self, acls: Sequence[Acl]) -> Mapping[Acl, AdminRefusedError | None]:
        """Create ACLs, independently of each other.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        return _refusals(self._admin.create_acls(acls)) if acls else {}

    def list_groups(self) -> Sequence[str]:
        """Return the ids of all consumer groups, including groups that never had a member.

        Raises:
            AdminRefusedError: The principal may not list groups.
        """
        return [group.group_id for group in _wait(self._admin.list_groups()) if group.protocol_type in _OF_CONSUMERS]

    def describe_groups(self, groups: Sequence[str]) -> Mapping[str, GroupUse | AdminRefusedError]:
        """Return the state of groups. A group that does not exist is ``Dead``.

        For groups of the KIP-848 protocol the state comes from ListGroups, because this client cannot describe them.
        """
        found: dict[str, GroupUse | AdminRefusedError] = {}
        for group, described in _outcomes(self._admin.describe_groups(groups)).items() if groups else ():
            if not isinstance(described, AdminRefusedError):
                found[group] = GroupUse(described.state, len(described.members))
            elif described.error_name == ErrorCode.GROUP_ID_NOT_FOUND.name:
                found[group] = GroupUse(_DEAD, 0)
            else:
                found[group] = described
        if any(isinstance(state, GroupUse) and state.state == _DEAD for state in found.values()):
            for listed in _wait(self._admin.list_groups()):
                if listed.state is not None and found.get(listed.group_id) == GroupUse(_DEAD, 0):
                    found[listed.group_id] = GroupUse(listed.state, 0 if listed.state == _EMPTY else UNKNOWN_COUNT)
        return found

    def group_offsets(self, groups: Sequence[str]) -> Mapping[str, Mapping[Partition, Committed] | AdminRefusedError]:
        """Return all committed offsets of groups. A negative offset means that none is committed."""
        if not groups:
            return {}
        return {
            group: offsets
            if isinstance(offsets, AdminRefusedError)
            else {(at.topic, at.partition): Committed(of.offset, of.metadata) for at, of in offsets.items()}
            for group, offsets in _outcomes(self._admin.list_group_offsets(dict.fromkeys(groups))).items()
        }

    def alter_group_offsets(
        self, group: str, offsets: Mapping[Partition, Committed]
    ) -> Mapping[Partition, AdminRefusedError | None]:
        """Commit offsets for a group without members. With members the result is UNKNOWN_MEMBER_ID."""
        if not offsets:
            return {}
        asked = {TopicPartition(*at): OffsetAndMetadata(offset=of[0], metadata=of[1]) for at, of in offsets.items()}
        outcomes = _refusals(self._admin.alter_group_offsets(group, asked))
        return {(at.topic, at.partition): refused for at, refused in outcomes.items()}

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()


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
        if portion and total + weight(item) > _MOST_RECORDS:
            yield portion
            portion, total = [], 0
        portion.append(item)
        total += weight(item)
    if portion:
        yield portion


def _in_portions(
    items: Iterable[Key],
    weight: Callable[[Key], int],
    ask: Callable[[list[Key]], Mapping[str, AdminRefusedError | None]],
) -> Mapping[str, AdminRefusedError | None]:
    return {name: outcome for some in portions(items, weight) for name, outcome in ask(some).items()}


def _topic(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


def _entries(described: Mapping[str, ConfigEntry]) -> tuple[TopicConfigEntry, ...]:
    return tuple(
        TopicConfigEntry(
            name=entry.name,
            value=entry.value,
            config_source=int(entry.source),
            read_only=entry.is_read_only,
            is_sensitive=entry.is_sensitive,
        )
        for entry in described.values()
    )


def _wait(future: Future[Value]) -> Value:
    try:
        return future.result()
    except UnsupportedVersionError as error:
        raise AdminIncompatibleError(str(error)) from error
    except KafkaApiError as error:
        if error.error_code in _PASSING:
            raise ClusterAwayError(str(error)) from error
        raise AdminRefusedError(error.error_code.name, error.error_message or "") from error
    except _AWAY as error:
        raise ClusterAwayError(str(error) or type(error).__name__) from error


def _outcomes(result: PerKeyResult[Key, Value]) -> dict[Key, Value | AdminRefusedError]:
    out: dict[Key, Value | AdminRefusedError] = {}
    for key, future in result.values().items():
        try:
            out[key] = _wait(future)
        except AdminRefusedError as refused:
            out[key] = refused
    return out


def _refusals(result: PerKeyResult[Key, Value]) -> dict[Key, AdminRefusedError | None]:
    return {
        key: outcome if isinstance(outcome, AdminRefusedError) else None for key, outcome in _outcomes(result).items()
    }


def _by_name(result: PerKeyResult[ConfigResource, None]) -> dict[str, AdminRefusedError | None]:
    return {resource.name: refused for resource, refused in _refusals(result).items()}
