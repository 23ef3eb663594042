"""Interface of the control loops to a cluster: the admin requests and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.security.acls import Acl

DYNAMIC_TOPIC_CONFIG: Final = 1
"""``config_source`` of a value set on the topic itself. Any other source is a default (KIP-894)."""


class OperationType(IntEnum):
    """Wire values of ``config_operation`` that the mirror uses."""

    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigEntry:
    """Config of a topic, as in a DescribeConfigs response."""

    name: str
    value: str | None
    """Value. None: no value, or a sensitive one."""
    config_source: int
    read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """Return whether the value is a default, not set on the topic itself."""
        return self.config_source != DYNAMIC_TOPIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigOperation:
    """One operation of an IncrementalAlterConfigs request."""

    name: str
    operation: OperationType
    value: str | None
    """Value to set. None for DELETE."""
    old_value: str | None = None
    """Value that was set on the target topic before. None: not set, or unknown."""
    rule: str
    """Reason of the operation, shown in the plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """Topic of a cluster."""

    name: str
    topic_id: str
    """Topic id. Empty: the broker is too old to return it."""
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRemoteTopic:
    """Topic to create on the target."""

    name: str
    partition_count: int
    replication_factor: int
    """Replication factor. -1: the cluster's default."""
    configs: Mapping[str, str]


class AdminRefusedError(Exception):
    """A cluster answered with an error code. ``error_name`` is Kafka's name of the code."""

    def __init__(self, error_name: str, message: str) -> None:
        super().__init__(f"{error_name}: {message}" if message else error_name)
        self.error_name = error_name

    @property
    def is_denial(self) -> bool:
        """Return whether the principal lacks an ACL."""
        return self.error_name.endswith("AUTHORIZATION_FAILED")


class AdminIncompatibleError(Exception):
    """A cluster does not support an API, or no version in common."""


class ClusterAwayError(Exception):
    """A cluster does not answer (connection refused, timeout, no leader). Retryable."""


class Committed(NamedTuple):
    """Committed offset of a group and a partition: the next offset to read."""

    offset: int
    metadata: str = ""


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
        return self.state in ("Empty", "Dead")

    @property
    def members(self) -> str:
        """Return the number of members as text."""
        count = self.member_count
        return "members" if count == UNKNOWN_COUNT else "1 member" if count == 1 else f"{count} members"


Partition = tuple[str, int]
"""Topic name and partition number."""


class GroupAdmin(Protocol):
    """Admin requests about consumer groups. Every call may raise ``ClusterAwayError``."""

    def list_groups(self) -> Sequence[str]:
        """Return the ids of all consumer groups.

        Raises:
            AdminRefusedError: The principal may not list groups.
        """
        ...

    def describe_groups(self, groups: Sequence[str]) -> Mapping[str, GroupUse | AdminRefusedError]:
        """Return the state of groups."""
        ...

    def group_offsets(self, groups: Sequence[str]) -> Mapping[str, Mapping[Partition, Committed] | AdminRefusedError]:
        """Return all committed offsets of groups."""
        ...

    def alter_group_offsets(
        self, group: str, offsets: Mapping[Partition, Committed]
    ) -> Mapping[Partition, AdminRefusedError | None]:
        """Commit offsets for a group without members. With members the result is UNKNOWN_MEMBER_ID."""
        ...


class AclAdmin(Protocol):
    """Admin requests of the ACL sync. Every call may raise ``ClusterAwayError``."""

    def describe_topic_acls(self) -> Sequence[Acl]:
        """Return the ACLs of topics.

        Raises:
            AdminRefusedError: The principal may not describe ACLs, or the cluster has no authorizer
                (SECURITY_DISABLED).
            AdminIncompatibleError: The cluster does not support the API.
        """
        ...

    def create_acls(self, acls: Sequence[Acl]) -> Mapping[Acl, AdminRefusedError | None]:
        """Create ACLs, independently of each other.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        ...


class MirrorAdmin(AclAdmin, Protocol):
    """Admin requests of the control loops. Every call may raise ``ClusterAwayError``.

    Results are by topic name. None means success.
    """

    def check_reachable(self) -> None:
        """Check at once whether the cluster answers and accepts this client.

        Raises:
            ClusterAwayError: It does not.
        """
        ...

    def list_topics(self) -> Mapping[str, TopicSummary]:
        """Return all topics of the cluster, including internal ones."""
        ...

    def denied_topics(self, topics: Sequence[str]) -> Mapping[str, AdminRefusedError]:
        """Return which topics the principal may not describe. They are never listed, whether they exist or not."""
        ...

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        """Return all configs of topics, including defaults."""
        ...

    def create_topics(
        self, topics: Sequence[NewRemoteTopic], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Create topics, independently of each other, or only validate the request."""
        ...

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Increase the partition count of topics, or only validate the request."""
        ...

    def check_incremental_alter_configs(self, topic: str) -> None:
        """Check that the cluster supports IncrementalAlterConfigs, with a request that changes nothing.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        ...

    def incremental_alter_topic_configs(
        self, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Apply config operations (IncrementalAlterConfigs), or only validate them.

        Raises:
            AdminIncompatibleError: The cluster does not support the API.
        """
        ...

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, AdminRefusedError | None]:
        """Replace all dynamic configs of topics (AlterConfigs)."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
