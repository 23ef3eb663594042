"""Immutable images of a cluster's metadata, and the replay of metadata records into the next image."""

from __future__ import annotations

from dataclasses import field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.connection.security import PROTOCOLS
from klamm.kraft.log_dirs import is_without_storage
from klamm.lazy_dataclass import dataclass
from klamm.protocol.messages.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from klamm.security.acls import Acl
from klamm.security.scram import ScramCredential, ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any
    from uuid import UUID

    from klamm.protocol.schema import Message

NO_LEADER: Final = -1
"""``leader`` of a partition without a leader."""
_LEADER_UNCHANGED: Final = -2
"""``leader`` of a PartitionChangeRecord that elects none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerEndpoint:
    """Listener of a broker, as other processes reach it."""

    name: str
    """Name of the listener, such as ``PLAINTEXT``. Brokers use the listener named ``inter.broker.listener.name``."""
    host: str
    port: int
    security_protocol: str
    """One of ``PROTOCOLS`` of ``kafka_client``, in the order of their numbers in registrations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerImage:
    """Registration of a broker."""

    node_id: int
    broker_epoch: int
    """Epoch of the registration. It grows with each new incarnation of the broker."""
    incarnation_id: UUID
    """Id of the broker's process. A process that restarts under the same id keeps its broker epoch."""
    registered_at: int
    """Offset of the record of the latest registration."""
    endpoints: tuple[BrokerEndpoint, ...]
    features: Mapping[str, tuple[int, int]]
    """Lowest and highest supported level by feature."""
    rack: str | None
    is_fenced: bool
    """Whether the broker leads no partition, because it sends no heartbeats or asked for it."""
    in_controlled_shutdown: bool
    log_dirs: tuple[UUID, ...]
    cordoned_log_dirs: tuple[UUID, ...]
    """Log directories that get no new partitions (metadata.version 4.3 and later)."""

    @property
    def process(self) -> tuple[int, UUID]:
        """Broker epoch and incarnation id, which name the process that is registered."""
        return self.broker_epoch, self.incarnation_id

    @property
    def has_storage(self) -> bool:
        """Whether the broker stores data: it is none of klamm's."""
        return not any(map(is_without_storage, self.log_dirs))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionImage:
    """State of a partition. All ids are node ids of brokers."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    """In-sync replicas."""
    adding: tuple[int, ...] = ()
    """Replicas that a reassignment in progress adds."""
    removing: tuple[int, ...] = ()
    """Replicas that a reassignment in progress removes."""
    leader: int
    """Leader, or ``NO_LEADER``."""
    leader_epoch: int
    """Number of elections. A leader with an older epoch is rejected by its followers."""
    partition_epoch: int
    """Number of changes to this partition. AlterPartition is rejected unless it names the current one."""
    elr: tuple[int, ...] = ()
    """Eligible leader replicas (KIP-966): they may be elected if no in-sync replica is live."""
    last_known_elr: tuple[int, ...] = ()
    """Former eligible leader replicas. Clearing them is a change to the partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicMetadata:
    """A topic and its partitions by index."""

    name: str
    topic_id: UUID
    partitions: Mapping[int, PartitionImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterImage:
    """The metadata of a cluster up to one offset of its metadata log."""

    offset: int = -1
    """Offset of the last record in the image; -1 before the first one."""
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    """Registered brokers by node id, including fenced ones."""
    topics: Mapping[UUID, TopicMetadata] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    """Topic id by name."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Finalized level by feature, such as ``metadata.version``."""
    acls: Mapping[UUID, Acl] = field(default_factory=dict)
    """ACLs by id, as the brokers' ``StandardAuthorizer`` applies them."""
    scram_credentials: Mapping[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    """SCRAM credentials of users (KIP-554)."""

    @property
    def live_brokers(self) -> tuple[BrokerImage, ...]:
        """Live brokers that store data: neither fenced ones nor klamm's."""
        return tuple(each for each in self.brokers.values() if each.has_storage and not each.is_fenced)

    def topic(self, name: str) -> TopicMetadata | None:
        """Return the topic of a name, or None if there is none."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: UUID, index: int) -> PartitionImage | None:
        """Return a partition, or None if there is none."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(index)


class ImageDelta:
    """Changes to an image. Maps that no record changes are shared with the image before.

    So a reader of images can see by identity which maps have changed.
    """

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._maps: dict[str, dict[Any, Any]] = {}
        """Changed maps by field of ``ClusterImage``."""
        self._partitions: dict[UUID, dict[int, PartitionImage]] = {}
        """Changed partitions of topics."""

    def replay(self, record: Message, offset: int) -> None:
        """Apply a record.

        Args:
            record: Metadata record. One that changes no part of an image has no effect.
            offset: Offset of the record, or of the last one in its batch.
        """
        match record:
            case FeatureLevelRecord():
                self._map("features")[record.name] = record.feature_level
            case TopicRecord() | RemoveTopicRecord() | PartitionRecord() | PartitionChangeRecord():
                self._replay_topic(record)
            case ClearElrRecord():
                self._clear_elr(record.topic_name)
            case AccessControlEntryRecord() | RemoveAccessControlEntryRecord():
                self._replay_acl(record)
            case UserScramCredentialRecord() | RemoveUserScramCredentialRecord():
                self._replay_credential(record)
            case _:
                self._replay_broker(record, offset)

    def _replay_acl(self, record: AccessControlEntryRecord | RemoveAccessControlEntryRecord) -> None:
        if isinstance(record, RemoveAccessControlEntryRecord):
            self._map("acls").pop(record.id, None)
            return
        self._map("acls")[record.id] = Acl.from_wire(
            record.resource_type,
            record.resource_name,
            record.pattern_type,
            principal=record.principal,
            host=record.host,
            operation=record.operation,
            permission=record.permission_type,
        )

    def _replay_credential(self, record: UserScramCredentialRecord | RemoveUserScramCredentialRecord) -> None:
        key = record.name, ScramMechanism.from_wire(record.mechanism)
        if isinstance(record, RemoveUserScramCredentialRecord):
            self._map("scram_credentials").pop(key, None)
            return
        self._map("scram_credentials")[key] = ScramCredential(
            salt=bytes(record.salt),
            stored_key=bytes(record.stored_key),
            server_key=bytes(record.server_key),
            iterations=record.iterations,
        )

    def _replay_broker(self, record: Message, offset: int) -> None:
        match record:
            case RegisterBrokerRecord():
                self._map("brokers")[record.broker_id] = _broker_image(record, offset)
            case UnregisterBrokerRecord():
                self._map("brokers").pop(record.broker_id, None)
            case FenceBrokerRecord():
                self._change_broker(record.id, is_fenced=True)
            case UnfenceBrokerRecord():
                self._change_broker(record.id, is_fenced=False)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record.broker_id, **_broker_changes(record))

    def _replay_topic(self, record: TopicRecord | RemoveTopicRecord | PartitionRecord | PartitionChangeRecord) -> None:
        match record:
            case TopicRecord():
                self._map("topics")[record.topic_id] = TopicMetadata(
                    name=record.name, topic_id=record.topic_id, partitions={}
                )
                self._map("topic_ids")[record.name] = record.topic_id
            case RemoveTopicRecord():
                topic: TopicMetadata = self._map("topics").pop(record.topic_id)
                self._partitions.pop(record.topic_id, None)
                del self._map("topic_ids")[topic.name]
            case PartitionRecord():
                self._partitions_of(record.topic_id)[record.partition_id] = PartitionImage(
                    replicas=tuple(record.replicas),
                    isr=tuple(record.isr),
                    adding=tuple(record.adding_replicas),
                    removing=tuple(record.removing_replicas),
                    leader=record.leader,
                    leader_epoch=record.leader_epoch,
                    partition_epoch=record.partition_epoch,
                    elr=tuple(record.eligible_leader_replicas or ()),
                    last_known_elr=tuple(record.last_known_elr or ()),
                )
            case PartitionChangeRecord():
                partitions = self._partitions_of(record.topic_id)
                partitions[record.partition_id] = _changed(partitions[record.partition_id], record)

    def _clear_elr(self, topic: str) -> None:
        """Clear the eligible leader replicas of a topic, or of all topics if the name is empty.

        The controller writes this when ``min.insync.replicas`` changes. It counts as a change to each partition that
        had any, as in Kafka's ``TopicDelta``.
        """
        topic_ids = self._maps.get("topic_ids", self._image.topic_ids)
        topics = self._maps.get("topics", self._image.topics)
        cleared = PartitionChangeRecord(eligible_leader_replicas=[], last_known_elr=[])
        for topic_id in [topic_ids[topic]] if topic else topic_ids.values():
            before = self._partitions.get(topic_id) or topics[topic_id].partitions
            if changed := {
                index: _changed(each, cleared) for index, each in before.items() if each.elr or each.last_known_elr
            }:
                self._partitions_of(topic_id).update(changed)

    def image(self, offset: int) -> ClusterImage:
        """Return the image with all changes, up to the record at ``offset``. The delta must not be used afterwards."""
        if self._partitions:
            topics = self._map("topics")
            for topic_id, partitions in self._partitions.items():
                topics[topic_id] = replace(topics[topic_id], partitions=MappingProxyType(partitions))
        changed = {name: MappingProxyType(mapping) for name, mapping in self._maps.items()}
        return replace(self._image, offset=offset, **changed)

    def _map(self, name: str) -> dict[Any, Any]:
        """Return a map of the image to change."""
        if name not in self._maps:
            self._maps[name] = dict(getattr(self._image, name))
        return self._maps[name]

    def _partitions_of(self, topic_id: UUID) -> dict[int, PartitionImage]:
        if topic_id not in self._partitions:
            self._partitions[topic_id] = dict(self._map("topics")[topic_id].partitions)
        return self._partitions[topic_id]

    def _change_broker(self, node_id: int, **changes: Any) -> None:
        brokers = self._map("brokers")
        brokers[node_id] = replace(brokers[node_id], **changes)


def replayed(image: ClusterImage, records: Iterable[Message], offset: int) -> ClusterImage:
    """Return the image after some records, the last of which is at ``offset``."""
    delta = ImageDelta(image)
    for record in records:
        delta.replay(record, offset)
    return delta.image(offset)


def _changed(partition: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    """Return a partition after a change. An election raises the leader epoch, also one that ends without a leader."""
    is_election = record.leader != _LEADER_UNCHANGED

    def changed(new: list[int] | None, old: tuple[int, ...]) -> tuple[int, ...]:
        return old if new is None else tuple(new)

    return PartitionImage(
        replicas=changed(record.replicas, partition.replicas),
        isr=changed(record.isr, partition.isr),
        adding=changed(record.adding_replicas, partition.adding),
        removing=changed(record.removing_replicas, partition.removing),
        leader=record.leader if is_election else partition.leader,
        leader_epoch=partition.leader_epoch + is_election,
        partition_epoch=partition.partition_epoch + 1,
        elr=changed(record.eligible_leader_replicas, partition.elr),
        last_known_elr=changed(record.last_known_elr, partition.last_known_elr),
    )


def _broker_image(record: RegisterBrokerRecord, offset: int) -> BrokerImage:
    return BrokerImage(
        node_id=record.broker_id,
        broker_epoch=record.broker_epoch,
        incarnation_id=record.incarnation_id,
        registered_at=offset,
        endpoints=tuple(
            BrokerEndpoint(
                name=listener.name,
                host=listener.host,
                port=listener.port,
                security_protocol=PROTOCOLS[listener.security_protocol],
            )
            for listener in record.end_points
        ),
        features={each.name: (each.min_supported_version, each.max_supported_version) for each in record.features},
        rack=record.rack,
        is_fenced=record.fenced,
        in_controlled_shutdown=record.in_controlled_shutdown,
        log_dirs=tuple(record.log_dirs),
        cordoned_log_dirs=tuple(record.cordoned_log_dirs or ()),
    )


def _broker_changes(record: BrokerRegistrationChangeRecord) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if record.fenced:
        changes["is_fenced"] = record.fenced > 0
    if record.in_controlled_shutdown:
        changes["in_controlled_shutdown"] = record.in_controlled_shutdown > 0
    if record.log_dirs:
        changes["log_dirs"] = tuple(record.log_dirs)
    if record.cordoned_log_dirs is not None:
        changes["cordoned_log_dirs"] = tuple(record.cordoned_log_dirs)
    return changes
