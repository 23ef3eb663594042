"""Changes whose impact can be predicted."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from klamm.protocol.types import ResourceType

EntityParts: TypeAlias = tuple[tuple[str, str | None], ...]
"""Type and name of each component of a quota or client config entity. The name None means the default of its type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigAltered:
    """New value of one config that a topic, a broker or another resource sets itself.

    The effective values before and after the change are derived from the facts: they may be inherited.
    """

    resource_type: ResourceType
    resource_name: str
    """Name of the resource. For BROKER, an empty name means the cluster-wide default."""
    name: str
    value: str | None
    """Value that the resource sets after the change. None: it sets no value and inherits one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """Growth of a topic (CreatePartitions)."""

    topic: str
    total_count: int
    """Number of partitions after the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationFactorAltered:
    """New number of replicas of each partition of a topic (KIP-455)."""

    topic: str
    factor: int
    """Replicas of each partition after the change."""
    factor_before: int
    """Replicas before the change: the largest number, if the partitions differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """Deletion of a topic with all its records."""

    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsDeleted:
    """Deletion of the records of one partition before an offset (DeleteRecords)."""

    topic: str
    partition: int
    before_offset: int
    """First offset that remains; -1 means the high watermark, as in DeleteRecords."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAltered:
    """New value of one client quota of an entity (KIP-546)."""

    entity: EntityParts
    """Components such as ``("user", "alice")`` and ``("client-id", None)``."""
    name: str
    """Quota, for example ``producer_byte_rate``."""
    value: float | None
    """New limit in the unit of the quota. None removes the quota of this entity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfigAltered:
    """New value of one dynamic client config of an entity (KIP-649)."""

    entity: EntityParts
    """A user, or a user and a client id."""
    name: str
    value: str | None
    """New value. None removes the config from this entity."""
    value_before: str | None = None
    """Value of this entity before the change. None: it has none, or it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AclsRemoved:
    """Removal of ACLs that allow a principal something."""

    principal: str
    acls: tuple[str, ...]
    """The ACLs as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenyAclsAdded:
    """Addition of ACLs that deny a principal something."""

    principal: str
    acls: tuple[str, ...]
    """The ACLs as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsRemoved:
    """Removal of SCRAM credentials of a user."""

    user: str
    mechanisms: tuple[str, ...]
    are_all: bool
    """Whether the user has no other SCRAM credential. False if that is unknown."""


Change: TypeAlias = (
    ConfigAltered
    | PartitionsAdded
    | ReplicationFactorAltered
    | TopicDeleted
    | RecordsDeleted
    | QuotaAltered
    | ClientConfigAltered
    | AclsRemoved
    | DenyAclsAdded
    | CredentialsRemoved
)
"""Any change whose impact can be predicted."""
