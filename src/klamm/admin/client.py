"""The admin client, with one method per admin operation."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import _acls, _client_configs, _configs, _listing, _topics
from klamm.admin._calls import NO_LEADERS, AdminCalls, operations
from klamm.admin._credentials import CredentialCalls
from klamm.admin._groups import GroupCalls
from klamm.admin._leader_calls import LeaderCalls
from klamm.admin._log_dirs import LogDirCalls
from klamm.admin._quotas import QuotaCalls
from klamm.admin._reassignments import ReassignmentCalls
from klamm.admin.results import (
    AlterConfigsResult,
    CreatePartitionsResult,
    CreateTopicsResult,
    DeleteTopicsResult,
    DescribeConfigsResult,
    DescribeTopicsResult,
    ListGroupsResult,
    ListOffsetsResult,
    PerKeyResult,
)
from klamm.admin.types import AlterConfigsOptions, ConfigResource
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.properties import parse_int, split_servers
from klamm.protocol.types import ResourceType
from klamm.security.acls import ANY_ACL

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine, Iterable, Sequence
    from types import TracebackType
    from typing import Self

    from klamm.admin._client_configs import ClientConfigOp, ClientConfigsDescription
    from klamm.admin.types import (
        AlterConfigOp,
        ClusterDescription,
        ConfigEntry,
        ConfigValue,
        NewPartitions,
        NewTopic,
        TopicListing,
    )
    from klamm.client_configs.description import EntityFilter
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.kafka_client.pool.calls import Outcome
    from klamm.policy.answers import PolicyOverride
    from klamm.protocol.types import TopicPartition
    from klamm.security.acls import Acl, AclFilter

DEFAULT_API_TIMEOUT_MS = 60_000
_API_TIMEOUT: Final = "default.api.timeout.ms"
_NOTHING: Final[Mapping[str, ConfigValue]] = MappingProxyType({})


class AdminClient(GroupCalls, QuotaCalls, CredentialCalls, ReassignmentCalls, LogDirCalls, LeaderCalls):
    """Admin client for klamm and Apache Kafka. Thread-safe; all network I/O runs on one background thread.

    ``timeout_ms`` of a call is the limit for this call in milliseconds; None means the client's own. With
    ``validate_only=True``, the cluster checks the request and changes nothing. ``alter_configs``,
    ``incremental_alter_configs`` and ``replace_all_configs`` take both in ``AlterConfigsOptions``.

    Args:
        bootstrap_servers: One or several addresses ``host:port``.
        timeout_ms: Limit for each call in milliseconds, including retries (Java's ``default.api.timeout.ms``).
        settings: Connection and security settings with kafka-python's names (``security_protocol``, ``sasl_mechanism``,
            ``ssl_cafile``, ``request_timeout_ms`` ...) and ``client_id``.

    Raises:
        ValueError: A setting is unknown.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] = "localhost:9092",
        *,
        timeout_ms: int = DEFAULT_API_TIMEOUT_MS,
        **settings: Any,
    ) -> None:
        settings.setdefault("client_id", "klamm-admin")
        super().__init__(
            ConnectionPool(ConnectionSettings.of_keywords(bootstrap_servers, settings), timeout_ms=timeout_ms)
        )

    @classmethod
    def from_properties(
        cls, bootstrap_servers: str | Sequence[str], properties: Mapping[str, str], *, timeout_ms: int | None = None
    ) -> Self:
        """Create a client from properties of the Java admin client, as in a file for ``--command-config``.

        Args:
            bootstrap_servers: One or several addresses ``host:port``.
            properties: Properties for security, ``client.id``, ``request.timeout.ms``, ``default.api.timeout.ms``,
                ``reconnect.backoff.ms`` and ``reconnect.backoff.max.ms``. Other properties have no effect.
            timeout_ms: Limit for each call in milliseconds. None means ``default.api.timeout.ms``, or one minute.

        Raises:
            klamm.properties.SettingsError: A property has a value that is not supported.
            ValueError: An address is not of the form ``host:port``.
        """
        settings = ConnectionSettings.of(split_servers(bootstrap_servers), properties, "klamm-admin")
        if timeout_ms is None:
            limit = properties.get(_API_TIMEOUT, str(DEFAULT_API_TIMEOUT_MS))
            timeout_ms = parse_int(_API_TIMEOUT, limit, at_least=1)
        made = cls.__new__(cls)
        AdminCalls.__init__(made, ConnectionPool(settings, timeout_ms=timeout_ms))
        return made

    def __enter__(self) -> Self:
        """Return the client itself. It connects on first use."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    @property
    def is_searching(self) -> bool:
        """Return whether the client is open and no broker of the cluster has responded yet."""
        return self._pool.is_searching

    def close(self) -> None:
        """Close the connections. Calls in progress fail. Idempotent."""
        self._pool.close()

    def check_connection(self, *, timeout_ms: int | None = None) -> Outcome[None]:
        """Check whether a bootstrap server responds and accepts this client, without retries.

        Fails at once with the reason. All other calls retry until their timeout.
        """
        return self._pool.submit(self._pool.check_connection, timeout_ms=timeout_ms)

    # --- configs ---

    def alter_topic_configs(
        self,
        topic: str,
        *,
        set: Mapping[str, ConfigValue] = _NOTHING,  # noqa: A002 - KIP-339's word
        append: Mapping[str, ConfigValue] = _NOTHING,
        subtract: Mapping[str, ConfigValue] = _NOTHING,
        delete: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> Outcome[PolicyOverride | None]:
        """Change the named configs of a topic and leave all others unchanged (KIP-339).

        ::

            changed = admin.alter_topic_configs("orders", set={"retention.ms": 60_000}, delete=["segment.ms"])
            changed.result()  # or, in a coroutine: await changed

        Args:
            topic: Name of the topic.
            set: Values by key.
            append: Elements to add to list configs, by key.
            subtract: Elements to remove from list configs, by key.
            delete: Keys to reset to their defaults.
            validate_only: Whether to only validate the changes.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        changes = operations(set=set, append=append, subtract=subtract, delete=delete)
        return self._alter_one(ConfigResource(ResourceType.TOPIC, topic), changes, validate_only, timeout_ms)

    def alter_broker_configs(
        self,
        broker_id: int | None,
        *,
        set: Mapping[str, ConfigValue] = _NOTHING,  # noqa: A002 - KIP-339's word
        append: Mapping[str, ConfigValue] = _NOTHING,
        subtract: Mapping[str, ConfigValue] = _NOTHING,
        delete: Iterable[str] = (),
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> Outcome[PolicyOverride | None]:
        """Change dynamic configs of one broker, or the cluster-wide default if ``broker_id`` is None.

        The other arguments are those of ``alter_topic_configs``.
        """
        name = "" if broker_id is None else str(broker_id)
        changes = operations(set=set, append=append, subtract=subtract, delete=delete)
        return self._alter_one(ConfigResource(ResourceType.BROKER, name), changes, validate_only, timeout_ms)

    def topic_configs(self, topic: str, *, timeout_ms: int | None = None) -> Outcome[Mapping[str, ConfigEntry]]:
        """Return the configs in force of a topic, by key."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return self.describe_configs([resource], timeout_ms=timeout_ms).values()[resource]

    def _alter_one(
        self, resource: ConfigResource, changes: list[AlterConfigOp], validate_only: bool, timeout_ms: int | None
    ) -> Outcome[PolicyOverride | None]:
        options = AlterConfigsOptions(timeout_ms=timeout_ms, validate_only=validate_only)
        return self.incremental_alter_configs({resource: changes}, options).values()[resource]

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        """Change the named configs of resources and leave all others unchanged (KIP-339).

        A resource whose broker does not offer this API fails with ``UnsupportedVersionError``. There is no fallback to
        ``alter_configs``.
        """
        options = options or AlterConfigsOptions()
        result = AlterConfigsResult(configs)
        work = functools.partial(_configs.incremental_alter, validate_only=options.validate_only, result=result)
        self._start_by_broker(result, work, configs, timeout_ms=options.timeout_ms)
        return result

    def alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[ConfigEntry]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        """Replace all configs of the resources. Configs that are not named are removed. Deprecated by KIP-339.

        Use ``incremental_alter_configs``, or ``replace_all_configs`` if replacing is intended.
        """
        warnings.warn(
            "alter_configs unsets every config that is not named; use incremental_alter_configs (KIP-339)",
            DeprecationWarning,
            stacklevel=2,
        )
        return self.replace_all_configs(configs, options)

    def replace_all_configs(
        self,
        configs: Mapping[ConfigResource, Collection[ConfigEntry]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        """Replace all configs of the resources (AlterConfigs, key 33). Configs that are not named are removed."""
        options = options or AlterConfigsOptions()
        result = AlterConfigsResult(configs)
        work = functools.partial(_configs.replace_all, validate_only=options.validate_only, result=result)
        self._start_by_broker(result, work, configs, timeout_ms=options.timeout_ms)
        return result

    def describe_configs(
        self,
        resources: Collection[ConfigResource] | Mapping[ConfigResource, Collection[str] | None],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        is_current: bool = False,
        timeout_ms: int | None = None,
    ) -> DescribeConfigsResult:
        """Return the configs in force per resource.

        Args:
            resources: Resources. A mapping restricts the keys of each one; None means all keys.
            include_synonyms: Whether to return the values of all sources of a config.
            include_documentation: Whether to return the documentation of each config.
            is_current: Whether to wait until the broker has applied all changes that were committed before this call.
                That takes two more requests, and the right to describe the cluster.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.

        Raises:
            TypeError: The keys of a resource are a single string.
        """
        keys_of = resources if isinstance(resources, Mapping) else dict.fromkeys(resources)
        wanted = {resource: keys_of[resource] for resource in resources}
        for resource, keys in wanted.items():
            if isinstance(keys, str):
                raise TypeError(f"{resource.name}: {keys!r}: expected a list of keys, as in [{keys!r}]")
        result = DescribeConfigsResult(wanted)
        work = functools.partial(
            _configs.describe,
            include_synonyms=include_synonyms,
            include_documentation=include_documentation,
            is_current=is_current,
            result=result,
        )
        self._start_by_broker(result, work, wanted, timeout_ms=timeout_ms)
        return result

    def _start_by_broker(
        self,
        result: PerKeyResult[ConfigResource, Any],
        work: functools.partial[Coroutine[Any, Any, None]],
        resources: Mapping[ConfigResource, Any],
        *,
        timeout_ms: int | None,
    ) -> None:
        """Start one request per broker that the resources belong to."""
        for node_id, some in _configs.by_broker(resources).items():
            part = {resource: resources[resource] for resource in some}
            self._start(
                result, functools.partial(work, node_id=node_id, resources=part), keys=some, timeout_ms=timeout_ms
            )

    # --- topics ---

    def create_topics(
        self, new_topics: Collection[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> CreateTopicsResult:
        """Create topics independently: a rejected topic does not affect the others."""
        result = CreateTopicsResult(topic.name for topic in new_topics)
        work = functools.partial(_topics.create, topics=new_topics, validate_only=validate_only, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def delete_topics(self, names: Collection[str], *, timeout_ms: int | None = None) -> DeleteTopicsResult:
        """Delete topics independently: a rejected deletion does not affect the others."""
        result = DeleteTopicsResult(names)
        self._start(result, functools.partial(_topics.delete, names=names, result=result), timeout_ms=timeout_ms)
        return result

    def create_partitions(
        self,
        new_partitions: Mapping[str, NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> CreatePartitionsResult:
        """Add partitions to topics independently: a rejected topic does not affect the others."""
        result = CreatePartitionsResult(new_partitions)
        work = functools.partial(_topics.grow, partitions=new_partitions, validate_only=validate_only, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def describe_topics(
        self,
        names: Collection[str],
        *,
        include_eligible_leaders: bool = False,
        partition_limit: int = _listing.DEFAULT_PARTITION_LIMIT,
        is_current: bool = False,
        timeout_ms: int | None = None,
    ) -> DescribeTopicsResult:
        """Describe topics. A topic that does not exist fails with ``UnknownTopicOrPartitionError``.

        Args:
            names: Topic names.
            include_eligible_leaders: Whether to request KIP-966's eligible leader replicas, if the broker supports
                them.
            partition_limit: Maximum number of partitions per response, used only with ``include_eligible_leaders``.
            is_current: As in ``describe_configs``; not with ``include_eligible_leaders``.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        result = DescribeTopicsResult(names)
        work = functools.partial(_topics.describe, names=names, is_current=is_current, result=result)
        if include_eligible_leaders:
            work = functools.partial(
                _listing.describe_with_eligible_leaders, names=names, partition_limit=partition_limit, result=result
            )
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def list_topics(
        self, *, include_internal: bool = False, is_current: bool = False, timeout_ms: int | None = None
    ) -> Outcome[Mapping[str, TopicListing]]:
        """Return all topics that the principal may describe, by name.

        Args:
            include_internal: Whether to include internal topics such as ``__consumer_offsets``.
            is_current: As in ``describe_configs``.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        work = functools.partial(_topics.list_all, include_internal=include_internal, is_current=is_current)
        return self._pool.submit(lambda deadline: work(self._pool, deadline), timeout_ms=timeout_ms)

    def list_config_resources(
        self, resource_type: ResourceType, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[str, ...]]:
        """Return the names of the resources of one type that have configs (KIP-1142)."""
        work = functools.partial(_listing.list_config_resources, resource_type=resource_type)
        return self._pool.submit(lambda deadline: work(self._pool, deadline), timeout_ms=timeout_ms)

    def list_groups(self, *, timeout_ms: int | None = None) -> ListGroupsResult:
        """Return the groups of all coordinators, by id.

        If a broker does not respond, the result fails; its ``valid()`` has the groups of the other brokers.
        """
        return ListGroupsResult(
            self._pool.submit(lambda deadline: _listing.list_groups(self._pool, deadline), timeout_ms=timeout_ms)
        )

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        leaders: Mapping[TopicPartition, int] = NO_LEADERS,
        timeout_ms: int | None = None,
    ) -> ListOffsetsResult:
        """Return offsets by ``OffsetSpec`` or by timestamp in milliseconds, from the leader of each partition.

        Args:
            specs: Requested offset of each partition.
            read_committed: Whether LATEST means the last stable offset.
            leaders: Node ids of leaders from a recent ``describe_topics``. The others are looked up, and those that
                turn out to have moved.
            timeout_ms: Limit for this call in milliseconds. None means the client's own.
        """
        result = ListOffsetsResult(specs)
        work = functools.partial(
            _topics.list_offsets, specs=specs, read_committed=read_committed, leaders=leaders, result=result
        )
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def describe_cluster(self, *, timeout_ms: int | None = None) -> Outcome[ClusterDescription]:
        """Return cluster id, controller, brokers, and the features of the broker that responds."""
        return self._pool.submit(lambda deadline: _topics.describe_cluster(self._pool, deadline), timeout_ms=timeout_ms)

    # --- ACLs ---

    def describe_acls(self, wanted: AclFilter = ANY_ACL, *, timeout_ms: int | None = None) -> Outcome[tuple[Acl, ...]]:
        """Return the ACLs that match a filter, or all. Fails with SECURITY_DISABLED if there is no authorizer."""
        return self._pool.submit(lambda deadline: _acls.describe(self._pool, deadline, wanted), timeout_ms=timeout_ms)

    def create_acls(self, acls: Collection[Acl], *, timeout_ms: int | None = None) -> PerKeyResult[Acl, None]:
        """Create ACLs independently. An ACL that already exists counts as created."""
        result: PerKeyResult[Acl, None] = PerKeyResult(acls)
        work = functools.partial(_acls.create, acls=list(result.values()), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def delete_acls(
        self, filters: Collection[AclFilter], *, timeout_ms: int | None = None
    ) -> PerKeyResult[AclFilter, tuple[Acl, ...]]:
        """Delete the ACLs that match each filter. The future of a filter returns the deleted ACLs."""
        result: PerKeyResult[AclFilter, tuple[Acl, ...]] = PerKeyResult(filters)
        work = functools.partial(_acls.delete, filters=list(result.values()), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    # --- client configs (KIP-649) ---

    def describe_client_configs(
        self, entity_filter: EntityFilter, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[ClientConfigsDescription, ...]]:
        """Return the entities that match the filter, with their own configs and the registered client versions.

        Fails with ``UnsupportedVersionError`` if the broker does not announce the feature ``client.configs``.
        """
        return self._pool.submit(
            lambda deadline: _client_configs.describe(self._pool, deadline, entity_filter), timeout_ms=timeout_ms
        )

    def alter_client_configs(
        self,
        alterations: Mapping[ClientConfigEntity, Collection[ClientConfigOp]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> PerKeyResult[ClientConfigEntity, None]:
        """Set and remove configs of users and their client ids. For each entity, either all changes apply or none.

        Fails with ``UnsupportedVersionError`` if the broker does not announce the feature ``client.configs``.
        """
        result: PerKeyResult[ClientConfigEntity, None] = PerKeyResult(alterations)
        work = functools.partial(
            _client_configs.alter, alterations=alterations, validate_only=validate_only, result=result
        )
        self._start(result, work, timeout_ms=timeout_ms)
        return result
