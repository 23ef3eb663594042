"""Changes of the metadata: one frozen class per kind of change. Loading the metadata returns the same classes.

A change names the new value (an upsert or a removal), so applying it twice has no further effect. ``statements`` turns
changes into SQL. A named tuple, which is made faster, is a row already.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from klamm.history.change import RecordedChange
from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTopic:
    """Create a topic, or replace its partitions."""

    topic_id: UUID
    name: str
    is_internal: bool = False
    partitions: tuple[tuple[int, ...], ...]
    """Broker ids of each partition's replicas, by partition index. The first replica is the leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTopic:
    """Remove a topic, its configs and all offsets committed for it."""

    topic_id: UUID


class PutConfig(NamedTuple):
    """Set or remove one dynamic config of a resource."""

    resource_type: int
    """Wire value of Kafka's ``ConfigResource.Type``: 2 topic, 4 broker, 32 group."""
    resource_name: str
    name: str
    value: str | None
    """None removes the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConfigs:
    """Remove all dynamic configs of a resource."""

    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutClientConfig:
    """Set or remove one config of a client entity (KIP-649)."""

    user: str | None
    """None for the default user."""
    client_id: str | None
    """None for the default client id; without meaning if ``has_client_id`` is false."""
    has_client_id: bool
    name: str
    value: str | None
    """None removes the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutGroup:
    """Store the state of a consumer group."""

    group_id: str
    payload: bytes
    """JSON in UTF-8, written and read only by ``klamm.broker.groups.classic.snapshot``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup:
    """Remove a group and all its committed offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutGroupOffset:
    """Store one committed offset, by topic id: a topic that is deleted and created again has no committed offsets."""

    group_id: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int
    """-1 if the client sent none."""
    metadata: str
    commit_timestamp_ms: int
    """Milliseconds since the epoch, broker clock."""
    expire_timestamp_ms: int | None = None
    """Expiration requested by the client (OffsetCommit v2-4); None for the broker's retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroupOffset:
    """Remove one committed offset."""

    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPendingOffset:
    """Store an offset that takes effect only when its transaction commits."""

    producer_id: int
    commit: PutGroupOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPendingOffset:
    """Remove the pending offset of a transaction."""

    producer_id: int
    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTransaction:
    """Store the state of a transactional id."""

    transactional_id: str
    payload: bytes
    """JSON in UTF-8, written and read only by ``klamm.broker.transactions.model``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTransaction:
    """Remove a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutDecision:
    """Store the outcome of a transaction, until its markers are durable in all its partitions."""

    number: int
    """Sequence number; later decisions have larger numbers."""
    payload: bytes
    """JSON in UTF-8, written and read only by ``klamm.broker.transactions.decisions``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDecision:
    """Remove the outcome of a transaction."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSetting:
    """Set one value of the cluster itself, such as its id or the next producer id."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAcl:
    """Store one ACL entry. Numbers are Kafka's wire values."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAcl:
    """Remove one ACL entry."""

    acl: PutAcl


@dataclass(frozen=True, slots=True, kw_only=True)
class PutQuota:
    """Set or remove one quota of a client entity (KIP-546)."""

    entity: tuple[tuple[str, str | None], ...]
    """Pairs of type (Kafka's ``user``, ``client-id``, ``ip``) and name. The name None is the default entity."""
    name: str
    value: float | None
    """None removes the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutScramCredential:
    """Store the keys against which a user's SCRAM login is verified. The password is never stored."""

    user: str
    mechanism: int
    """Wire value: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropScramCredential:
    """Remove a user's credential of one mechanism."""

    user: str
    mechanism: int


Change: TypeAlias = (
    PutTopic
    | DropTopic
    | PutConfig
    | DropConfigs
    | PutClientConfig
    | PutGroup
    | DropGroup
    | PutGroupOffset
    | DropGroupOffset
    | PutPendingOffset
    | DropPendingOffset
    | PutTransaction
    | DropTransaction
    | PutDecision
    | DropDecision
    | PutSetting
    | RecordedChange
    | PutQuota
    | PutAcl
    | DropAcl
    | PutScramCredential
    | DropScramCredential
)
