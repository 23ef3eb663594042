"""The admin client: what to do with a cluster, each thing with its own future."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.admin import _acls, _client_configs, _configs, _listing, _topics
from klamm.admin._changes import ConfigValue, operations
from klamm.admin._credentials import CredentialCalls
from klamm.admin._groups import GroupCalls
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
    ListOffsetsResult,
    PerKeyResult,
)
from klamm.admin.types import AlterConfigsOptions, ConfigResource
from klamm.connections.pool import ConnectionPool
from klamm.protocol.types import ResourceType
from klamm.security.acls import ANY_ACL

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from types import TracebackType
    from typing import Self

    from klamm.admin._client_configs import ClientConfigOp, ClientConfigsDescription
    from klamm.admin.types import (
        AlterConfigOp,
        ClusterDescription,
        ConfigEntry,
        GroupListing,
        NewPartitions,
        NewTopic,
        TopicListing,
    )
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.client_configs.filters import EntityFilter
    from klamm.connections.outcome import Outcome
    from klamm.protocol.types import TopicPartition
    from klamm.security.acls import Acl, AclFilter

DEFAULT_API_TIMEOUT_MS = 60_000
_NOTHING: Final[Mapping[str, ConfigValue]] = MappingProxyType({})


class AdminClient(GroupCalls, QuotaCalls, CredentialCalls, ReassignmentCalls, LogDirCalls):
    """Administer a cluster of klamm or Apache Kafka. Thread-safe; one thread of its own does the talking.

    Args:
        bootstrap_servers: ``host:port`` or several of them.
        timeout_ms: How long one call may take, retries included (Java's ``default.api.timeout.ms``).
        settings: kafka-python's names for connections and security (``security_protocol``, ``sasl_mechanism``,
            ``ssl_cafile``, ``request_timeout_ms`` ...) and ``client_id``.

    Raises:
        ValueError: A setting that connections do not know.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str] = "localhost:9092",
        *,
        timeout_ms: int = DEFAULT_API_TIMEOUT_MS,
        **settings: Any,
    ) -> None:
        settings.setdefault("client_id", "klamm-admin")
        super().__init__(ConnectionPool(bootstrap_servers, timeout_ms=timeout_ms, **settings))

    def __enter__(self) -> Self:
        """Return the client itself; it connects when it is first used."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self.close()

    @property
    def is_searching(self) -> bool:
        """Whether the client is open and no broker of the cluster has answered yet."""
        return self._pool.is_searching

    def close(self) -> None:
        """Close the connections; calls under way fail. Idempotent."""
        self._pool.close()

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
    ) -> Outcome[None]:
        """Change the named configs of a topic and leave all others alone (KIP-339).

        ::

            changed = admin.alter_topic_configs("orders", set={"retention.ms": 60_000}, delete=["segment.ms"])
            changed.result()  # or, in a coroutine: await changed

        Args:
            topic: The topic's name.
            set: Values by key.
            append: Elements to add to list configs, by key.
            subtract: Elements to remove from list configs, by key.
            delete: Keys to reset to their defaults.
            validate_only: Check the changes without making them.
            timeout_ms: Limit for this call; None means the client's own.
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
    ) -> Outcome[None]:
        """Change dynamic configs of one broker, or the default of all brokers where ``broker_id`` is None.

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
    ) -> Outcome[None]:
        options = AlterConfigsOptions(timeout_ms=timeout_ms, validate_only=validate_only)
        return self.incremental_alter_configs({resource: changes}, options).values()[resource]

    def incremental_alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[AlterConfigOp]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        """Change the named configs and leave all others alone (KIP-339).

        A resource whose broker does not offer this API fails with ``UnsupportedVersionError``; nothing falls back
        to ``alter_configs``.
        """
        options = options or AlterConfigsOptions()
        result = AlterConfigsResult(configs)
        for node_id, resources in _configs.by_broker(configs).items():
            alterations = {resource: configs[resource] for resource in resources}
            work = functools.partial(
                _configs.incremental_alter,
                node_id=node_id,
                alterations=alterations,
                validate_only=options.validate_only,
                result=result,
            )
            self._start(result, work, keys=resources, timeout_ms=options.timeout_ms)
        return result

    def alter_configs(
        self,
        configs: Mapping[ConfigResource, Collection[ConfigEntry]],
        options: AlterConfigsOptions | None = None,
    ) -> AlterConfigsResult:
        """Replace all configs of the resources: what is not named is unset. Deprecated by KIP-339.

        Use ``incremental_alter_configs``; where replacing is what is wanted, ``replace_all_configs`` says so.
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
        """Replace all configs of the resources (AlterConfigs, key 33): what is not named is unset."""
        options = options or AlterConfigsOptions()
        result = AlterConfigsResult(configs)
        for node_id, resources in _configs.by_broker(configs).items():
            replacements = {resource: configs[resource] for resource in resources}
            work = functools.partial(
                _configs.replace_all,
                node_id=node_id,
                replacements=replacements,
                validate_only=options.validate_only,
                result=result,
            )
            self._start(result, work, keys=resources, timeout_ms=options.timeout_ms)
        return result

    def describe_configs(
        self,
        resources: Collection[ConfigResource] | Mapping[ConfigResource, Collection[str] | None],
        *,
        include_synonyms: bool = False,
        include_documentation: bool = False,
        timeout_ms: int | None = None,
    ) -> DescribeConfigsResult:
        """Return the configs in force, per resource; a mapping names the wanted keys (None: all of them)."""
        keys_of = resources if isinstance(resources, Mapping) else dict.fromkeys(resources)
        wanted = {resource: keys_of[resource] for resource in resources}
        result = DescribeConfigsResult(wanted)
        for node_id, some in _configs.by_broker(wanted).items():
            work = functools.partial(
                _configs.describe,
                node_id=node_id,
                resources={resource: wanted[resource] for resource in some},
                include_synonyms=include_synonyms,
                include_documentation=include_documentation,
                result=result,
            )
            self._start(result, work, keys=some, timeout_ms=timeout_ms)
        return result

    # --- topics ---

    def create_topics(
        self, new_topics: Collection[NewTopic], *, validate_only: bool = False, timeout_ms: int | None = None
    ) -> CreateTopicsResult:
        """Make topics, each on its own: one that is refused does not stop the others."""
        result = CreateTopicsResult(topic.name for topic in new_topics)
        work = functools.partial(_topics.create, topics=new_topics, validate_only=validate_only, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def delete_topics(self, names: Collection[str], *, timeout_ms: int | None = None) -> DeleteTopicsResult:
        """Delete topics, each on its own."""
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
        """Let topics grow, each on its own."""
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
        timeout_ms: int | None = None,
    ) -> DescribeTopicsResult:
        """Describe topics; a topic that is not there fails with ``UnknownTopicOrPartitionError``.

        Args:
            names: Which topics.
            include_eligible_leaders: Ask for KIP-966's replicas too, where the broker knows of them.
            partition_limit: With these, the most partitions in one answer.
            timeout_ms: How long it may take; None means the client's own timeout.
        """
        result = DescribeTopicsResult(names)
        work = functools.partial(_topics.describe, names=names, result=result)
        if include_eligible_leaders:
            work = functools.partial(
                _listing.describe_with_eligible_leaders, names=names, partition_limit=partition_limit, result=result
            )
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> Outcome[Mapping[str, TopicListing]]:
        """Return every topic that may be seen, by name."""
        work = functools.partial(_topics.list_all, include_internal=include_internal)
        return self._pool.submit(lambda deadline: work(self._pool, deadline), timeout_ms=timeout_ms)

    def list_config_resources(
        self, resource_type: ResourceType, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[str, ...]]:
        """Return the names of the resources of one type that have configs (KIP-1142)."""
        work = functools.partial(_listing.list_config_resources, resource_type=resource_type)
        return self._pool.submit(lambda deadline: work(self._pool, deadline), timeout_ms=timeout_ms)

    def list_groups(self, *, timeout_ms: int | None = None) -> Outcome[tuple[GroupListing, ...]]:
        """Return the groups of all coordinators, by id."""
        return self._pool.submit(lambda deadline: _listing.list_groups(self._pool, deadline), timeout_ms=timeout_ms)

    def list_offsets(
        self,
        specs: Mapping[TopicPartition, int],
        *,
        read_committed: bool = False,
        timeout_ms: int | None = None,
    ) -> ListOffsetsResult:
        """Find offsets by ``OffsetSpec`` or by timestamp in milliseconds; each leader is asked."""
        result = ListOffsetsResult(specs)
        work = functools.partial(_topics.list_offsets, specs=specs, read_committed=read_committed, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def describe_cluster(self, *, timeout_ms: int | None = None) -> Outcome[ClusterDescription]:
        """Return cluster id, controller, brokers and the features of the broker that was asked."""
        return self._pool.submit(lambda deadline: _topics.describe_cluster(self._pool, deadline), timeout_ms=timeout_ms)

    # --- ACLs ---

    def describe_acls(self, wanted: AclFilter = ANY_ACL, *, timeout_ms: int | None = None) -> Outcome[tuple[Acl, ...]]:
        """Return the ACLs that a filter means, all without one; SECURITY_DISABLED when there is no authorizer."""
        return self._pool.submit(lambda deadline: _acls.describe(self._pool, deadline, wanted), timeout_ms=timeout_ms)

    def create_acls(self, acls: Collection[Acl], *, timeout_ms: int | None = None) -> PerKeyResult[Acl, None]:
        """Create ACLs, each on its own; one that exists already counts as created."""
        result: PerKeyResult[Acl, None] = PerKeyResult(acls)
        work = functools.partial(_acls.create, acls=list(result.values()), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def delete_acls(
        self, filters: Collection[AclFilter], *, timeout_ms: int | None = None
    ) -> PerKeyResult[AclFilter, tuple[Acl, ...]]:
        """Delete the ACLs that each filter means; its future has those that were deleted."""
        result: PerKeyResult[AclFilter, tuple[Acl, ...]] = PerKeyResult(filters)
        work = functools.partial(_acls.delete, filters=list(result.values()), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    # --- client configs (KIP-649) ---

    def describe_client_configs(
        self, entity_filter: EntityFilter, *, timeout_ms: int | None = None
    ) -> Outcome[tuple[ClientConfigsDescription, ...]]:
        """Return the entities that the filter accepts, with their own configs and the registered client versions.

        Fails with ``UnsupportedVersionError`` where the broker does not announce the feature ``client.configs``.
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
        """Set and remove configs of users and their client ids; each entity all or nothing.

        Fails with ``UnsupportedVersionError`` where the broker does not announce the feature ``client.configs``.
        """
        result: PerKeyResult[ClientConfigEntity, None] = PerKeyResult(alterations)
        work = functools.partial(
            _client_configs.alter, alterations=alterations, validate_only=validate_only, result=result
        )
        self._start(result, work, timeout_ms=timeout_ms)
        return result
