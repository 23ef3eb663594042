"""Reading of the resources that a cluster has."""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin import ConfigResource, ConfigSource, ResourceType, TopicPartition
from klamm.admin.types import inherited_value, own_source
from klamm.client_configs.description import EntityFilter, FilterComponent
from klamm.client_configs.entities import EntityType
from klamm.configs.definitions import topic_synonyms
from klamm.configs.layers import BrokerLayers
from klamm.configs.quotas import entity_text, quota_text
from klamm.kafka_client.errors import CLUSTER_ERRORS, explain
from klamm.lazy_dataclass import dataclass
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    KafkaApiError,
    ProtocolError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from klamm.resources.equality import acl_text
from klamm.resources.kinds import CONFIG_KINDS
from klamm.resources.model import CLUSTER, DEFAULT_BROKER, CurrentValue, Existing, Kind, ResourceKey, is_internal

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from klamm.admin import (
        AdminClient,
        ConfigEntry,
        CreatedTopic,
        PartitionReassignment,
        TopicDescription,
    )
    from klamm.client_configs.entities import ClientConfigEntity
    from klamm.kafka_client.pool.calls import Outcome
    from klamm.resources.model import Declared

Wanted: TypeAlias = "Mapping[ResourceKey, Collection[str] | None]"
"""Resources to describe with the keys that matter; None means all keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Resources of a cluster."""

    resources: Mapping[ResourceKey, Existing]
    failures: Mapping[Kind, BaseException] = field(default_factory=lambda: MappingProxyType({}))
    """Kinds that cannot be listed, and why."""

    @property
    def missing_kinds(self) -> frozenset[Kind]:
        """Kinds that this cluster does not have at all: no authorizer, or an older release."""
        return frozenset(
            kind
            for kind, error in self.failures.items()
            if isinstance(error, UnsupportedVersionError)
            or (isinstance(error, KafkaApiError) and error.error_code == ErrorCode.SECURITY_DISABLED)
        )


def observe(admin: AdminClient, wanted: Wanted, whole_kinds: Collection[Kind] = ()) -> Observation:
    """Return the existing resources among the wanted ones, and all of some kinds, without internal topics.

    Args:
        admin: Connection to the cluster.
        wanted: Resources with the keys to describe.
        whole_kinds: Kinds of which all resources are described, with all keys.

    Raises:
        ConnectionError: No broker responds.
        TimeoutError: No broker responds in time.
    """
    resources: dict[ResourceKey, Existing] = {}
    failures: dict[Kind, BaseException] = {}
    for kind in Kind:
        names = {key.name: keys for key, keys in wanted.items() if key.kind is kind}
        if not names and kind not in whole_kinds:
            continue
        is_whole = kind in whole_kinds
        try:
            if kind in CONFIG_KINDS:
                described = _with_configs(admin, kind, names, is_whole=is_whole)
            else:
                described = _READERS[kind](admin)
        except CLUSTER_ERRORS as error:
            if isinstance(error, ConnectionError | TimeoutError) and not isinstance(
                error, KafkaApiError | ProtocolError
            ):
                raise  # no broker responds: the other kinds would wait as long
            failures[kind] = error
            continue
        resources |= {
            ResourceKey(kind, name): existing for name, existing in described.items() if is_whole or name in names
        }
    return Observation(resources=resources, failures=failures)


def _with_configs(
    admin: AdminClient, kind: Kind, names: Mapping[str, Collection[str] | None], *, is_whole: bool
) -> dict[str, Existing]:
    """Return resources with their configs. One that the principal may not describe has a ``problem``."""
    keys_of = dict(names)
    if kind is Kind.TOPIC:
        listed = admin.list_topics(include_internal=True).result()
        keys_of = {name: keys for name, keys in names.items() if name in listed}
        if is_whole:
            keys_of |= {name: None for name, topic in listed.items() if not topic.is_internal and not is_internal(name)}
    elif is_whole:
        keys_of |= dict.fromkeys(_listed(admin, kind))
    resources = {name: config_resource(ResourceKey(kind, name)) for name in keys_of}
    keys = {resources[name]: None if keys is None else list(keys) for name, keys in keys_of.items()}
    configs = admin.describe_configs(keys, include_synonyms=True).values()
    topics = _topics(admin, list(keys_of)) if kind is Kind.TOPIC else {}
    with_configs = {}
    for name, resource in resources.items():
        existing = _existing(resource, configs[resource], topics.get(name), is_complete=keys_of[name] is None)
        if existing is not None:
            with_configs[name] = existing
    return with_configs


def _listed(admin: AdminClient, kind: Kind) -> Iterable[str]:
    if kind is Kind.BROKER:
        return (DEFAULT_BROKER, *(str(node.id) for node in admin.describe_cluster().result().nodes))
    return admin.list_config_resources(CONFIG_KINDS[kind].resource_type).result()


def config_resource(key: ResourceKey) -> ConfigResource:
    """Return the resource of Kafka's config APIs for a key of a kind in ``CONFIG_KINDS``."""
    is_default = key == (Kind.BROKER, DEFAULT_BROKER)
    return ConfigResource(CONFIG_KINDS[key.kind].resource_type, "" if is_default else key.name)


Topic: TypeAlias = "tuple[Outcome[TopicDescription], Mapping[TopicPartition, PartitionReassignment] | None]"


def _topics(admin: AdminClient, names: Collection[str]) -> dict[str, Topic]:
    if not names:
        return {}
    moving: Mapping[TopicPartition, PartitionReassignment] | None
    try:
        moving = admin.list_partition_reassignments(None).result()
    except (UnsupportedVersionError, ClusterAuthorizationError):
        moving = None
    described = admin.describe_topics(names).values()
    return {name: (topic, moving) for name, topic in described.items()}


def _existing(
    resource: ConfigResource,
    configs: Outcome[Mapping[str, ConfigEntry]],
    topic: Topic | None,
    *,
    is_complete: bool,
) -> Existing | None:
    own = own_source(resource)
    try:
        entries = configs.result()
        values = {entry.name: _value(entry, own) for entry in entries.values()}
        if topic is None:
            return Existing(values=values, is_complete=is_complete)
        replicas, is_moving = _replicas(resource.name, topic[0].result(), topic[1])
    except UnknownTopicOrPartitionError:
        return None  # deleted since it was listed
    except CLUSTER_ERRORS as error:
        return Existing(values={}, problem=f"cannot be described: {explain(error)}")
    factors = sorted({len(brokers) for brokers in replicas})
    numbers = {PARTITIONS: str(len(replicas)), REPLICATION_FACTOR: " and ".join(map(str, factors))}
    return Existing(
        values={**_plain(numbers).values, **values},
        is_complete=is_complete,
        replicas=replicas,
        is_moving=is_moving,
    )


def _replicas(
    name: str, topic: TopicDescription, moving: Mapping[TopicPartition, PartitionReassignment] | None
) -> tuple[tuple[tuple[int, ...], ...], bool]:
    """Return the replicas of each partition after the reassignments in progress, and whether there are any."""
    replicas = []
    is_moving = moving is None
    for partition in topic.partitions:
        move = (moving or {}).get(TopicPartition(name, partition.partition))
        is_moving = is_moving or move is not None
        removing = () if move is None else move.removing_replicas
        replicas.append(tuple(broker for broker in partition.replicas if broker not in removing))
    return tuple(replicas), is_moving


def _value(entry: ConfigEntry, own: ConfigSource | None) -> CurrentValue:
    inherited = inherited_value(entry, own)
    return CurrentValue(
        value=entry.value,
        origin=entry.source.origin,
        is_own=entry.source is own,
        inherited=None if inherited is None else inherited.value,
        inherited_origin="default" if inherited is None else inherited.source.origin,
        is_sensitive=entry.is_sensitive,
        config_type=entry.config_type,
    )


def _plain(values: Mapping[str, str]) -> Existing:
    """Return a resource of which the cluster has no other values than its own."""
    return Existing(
        values={key: CurrentValue(value=value, origin=CLUSTER, is_own=True) for key, value in values.items()}
    )


def as_created(topic: CreatedTopic, declared: Declared, layers: BrokerLayers) -> Existing:
    """Return a new topic as the cluster would create it, with the values that it inherits, also for declared configs.

    Args:
        topic: Response to the trial. Its configs have the properties of the active controller, which need not be those
            of the brokers.
        declared: The topic in the files.
        layers: Values of a broker, which replace them.
    """
    numbers = {PARTITIONS: str(topic.num_partitions), REPLICATION_FACTOR: str(topic.replication_factor)}
    reported = {entry.name: entry.value for entry in topic.configs.values() if entry.name not in declared.values}
    inherited = reported | {name: layers.topic_default_shown(name) for name in topic_synonyms()}
    values = {
        name: CurrentValue(value=value, origin=ConfigSource.DEFAULT_CONFIG.origin, is_own=False)
        for name, value in inherited.items()
    }
    return Existing(values={**_plain(numbers).values, **values})


def broker_layers(admin: AdminClient) -> BrokerLayers | None:
    """Return the values of one broker, all in one layer; None if they cannot be read."""
    try:
        node = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().result().nodes[0].id))
        broker = admin.describe_configs([node]).result()[node]
    except CLUSTER_ERRORS:
        return None
    return BrokerLayers(static={entry.name: entry.value for entry in broker.values() if entry.value is not None})


def with_hidden(
    topics: Mapping[ResourceKey, Existing], read_layers: Callable[[], BrokerLayers | None]
) -> dict[ResourceKey, Existing]:
    """Return topics with the inherited values that Kafka does not describe, if they can be read from a broker.

    It describes ``log.retention.hours`` only below a value of ``log.retention.ms``.

    Args:
        topics: The topics.
        read_layers: Function that returns the values of a broker (``broker_layers``). It is called only if needed.
    """
    hidden = {
        key: [name for name, value in topic.own.items() if name in topic_synonyms() and value.inherited is None]
        for key, topic in topics.items()
    }
    layers = read_layers() if any(hidden.values()) else None
    if layers is None:
        return dict(topics)
    completed = {}
    for key, topic in topics.items():
        values = {n: replace(topic.values[n], inherited=layers.topic_default_shown(n)) for n in hidden[key]}
        completed[key] = replace(topic, values={**topic.values, **values})
    return completed


def _quotas(admin: AdminClient) -> dict[str, Existing]:
    quotas_of = admin.describe_client_quotas().result()
    return {
        entity_text(entity.parts): _plain({name: quota_text(value) or "" for name, value in quotas.items()})
        for entity, quotas in quotas_of.items()
    }


def _acls(admin: AdminClient) -> dict[str, Existing]:
    by_principal: dict[str, dict[str, str]] = {}
    for acl in admin.describe_acls().result():
        by_principal.setdefault(acl.principal, {})[acl_text(acl)] = ""
    return {principal: _plain(texts) for principal, texts in by_principal.items()}


def _credentials(admin: AdminClient) -> dict[str, Existing]:
    infos_of = admin.list_user_scram_credentials().result()
    return {
        user: _plain({info.mechanism.mechanism_name: str(info.iterations) for info in infos})
        for user, infos in infos_of.items()
    }


def _client_configs(admin: AdminClient) -> dict[str, Existing]:
    """Return users and their client ids. One request can only match one of both."""
    user = FilterComponent.of_entity_type(EntityType.USER)
    client = FilterComponent.of_entity_type(EntityType.CLIENT_ID)
    descriptions = [
        description
        for components in ((user,), (user, client))
        for description in admin.describe_client_configs(EntityFilter(components=components, strict=True)).result()
    ]
    return {
        client_entity_name(description.entity): _plain(description.configs)
        for description in descriptions
        if description.configs
    }


def client_entity_name(entity: ClientConfigEntity) -> str:
    """Return the name of an entity of client configs in files, such as ``user=alice,client-id=<default>``."""
    parts = tuple((kind.value, name) for kind, name in entity.components)
    return entity_text(parts)


_READERS: Final[Mapping[Kind, Callable[[AdminClient], dict[str, Existing]]]] = MappingProxyType(
    {
        Kind.QUOTA: _quotas,
        Kind.ACLS: _acls,
        Kind.SCRAM: _credentials,
        Kind.CLIENT_CONFIGS: _client_configs,
    }
)
