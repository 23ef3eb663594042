"""What can happen to the metadata: one frozen class per kind of change, and the same classes come back on loading.

A change says what is to be stored, never how: ``statements`` turns it into SQL. Values are final (an upsert or a
removal), so replaying a change twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTopic:
    """Create a topic, or replace its partitions."""

    topic_id: UUID
    name: str
    is_internal: bool = False
    partitions: tuple[tuple[int, ...], ...]
    """The replicas of each partition, by partition index; the first replica leads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTopic:
    """Remove a topic, its configs and every offset committed for it."""

    topic_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConfig:
    """Set or remove one dynamic config of a resource."""

    resource_type: int
    """Wire value of Kafka's ``ConfigResource.Type``: 2 topic, 4 broker, 32 group."""
    resource_name: str
    name: str
    value: str | None
    """None removes the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropConfigs:
    """Remove every dynamic config of a resource."""

    resource_type: int
    resource_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutClientConfig:
    """Set or remove one config of a client entity (KIP-649)."""

    user: str | None
    """None is the default user."""
    client_id: str | None
    """None is the default client id, or nothing at all when ``has_client_id`` is false."""
    has_client_id: bool
    name: str
    value: str | None
    """None removes the config."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutGroup:
    """Store the state of a consumer group."""

    group_id: str
    payload: bytes
    """JSON in UTF-8, understood by ``klamm.broker.groups.snapshot`` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroup:
    """Remove a group and all its committed offsets."""

    group_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutGroupOffset:
    """Store one committed offset. The topic is named by id: a topic made anew under the same name inherits nothing."""

    group_id: str
    topic_id: UUID
    partition: int
    offset: int
    leader_epoch: int
    """-1 when the client gave none."""
    metadata: str
    commit_timestamp_ms: int
    """Milliseconds since the epoch, by the broker's clock."""
    expire_timestamp_ms: int | None = None
    """When the offset expires, if the client said so (OffsetCommit v2-4); None leaves it to the broker's retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropGroupOffset:
    """Remove one committed offset."""

    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutPendingOffset:
    """Store an offset that is committed when its transaction is, and not before."""

    producer_id: int
    commit: PutGroupOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPendingOffset:
    """Remove an offset that waited for its transaction."""

    producer_id: int
    group_id: str
    topic_id: UUID
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTransaction:
    """Store what the coordinator knows of a transactional id."""

    transactional_id: str
    payload: bytes
    """JSON in UTF-8, understood by ``klamm.broker.transactions.snapshot`` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTransaction:
    """Forget a transactional id."""

    transactional_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutDecision:
    """Remember how a transaction ended, until its markers are durable in all its partitions."""

    number: int
    """Ascending in the order of the decisions."""
    payload: bytes
    """JSON in UTF-8, understood by ``klamm.broker.transactions.decisions`` alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropDecision:
    """Forget how a transaction ended."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PutSetting:
    """Set one fact about the cluster itself: its id, the next producer id."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PutHistory:
    """Append one line to the record of who changed what; nothing is ever replaced there."""

    at_ms: int
    """Milliseconds since the epoch."""
    resource: str
    name: str
    old: str | None
    new: str | None
    principal: str
    client_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PutAcl:
    """Store one access control entry; numbers are those of the wire."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DropAcl:
    """Remove one access control entry."""

    acl: PutAcl


@dataclass(frozen=True, slots=True, kw_only=True)
class PutQuota:
    """Set or remove one quota of a client entity (KIP-546)."""

    entity: tuple[tuple[str, str | None], ...]
    """(type, name) in Kafka's words ``user``, ``client-id``, ``ip``; the name None is the default one."""
    name: str
    value: float | None
    """None removes the quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutScramCredential:
    """Store what a SCRAM login of a user is checked against; never a password."""

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
    | PutHistory
    | PutQuota
    | PutAcl
    | DropAcl
    | PutScramCredential
    | DropScramCredential
)
