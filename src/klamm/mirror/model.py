"""What the control loops know about a cluster, and what they may ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.security.acls import Acl

DYNAMIC_TOPIC_CONFIG: Final = 1
"""``config_source`` of a value that was set on the topic itself; any other source is a default (KIP-894)."""


class OperationType(IntEnum):
    """Wire values of ``config_operation`` that the mirror uses."""

    SET = 0
    DELETE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigEntry:
    """One config of a topic as DescribeConfigs answers it."""

    name: str
    value: str | None
    """None means: no value, or one that is not shown."""
    config_source: int
    read_only: bool = False
    is_sensitive: bool = False

    @property
    def is_default(self) -> bool:
        """Tell whether the topic itself does not set it."""
        return self.config_source != DYNAMIC_TOPIC_CONFIG


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfigOperation:
    """One operation of an IncrementalAlterConfigs request."""

    name: str
    operation: OperationType
    value: str | None
    """None for DELETE."""
    old_value: str | None = None
    """The target's own value before; None means: none, or not known."""
    rule: str
    """Why: for the plan that a person reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSummary:
    """A topic of a cluster."""

    name: str
    topic_id: str
    """Empty when the broker is too old to tell."""
    partition_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRemoteTopic:
    """A topic to create."""

    name: str
    partition_count: int
    replication_factor: int
    """-1 means: the cluster's default."""
    configs: Mapping[str, str]


class AdminRefusedError(Exception):
    """A cluster answered with an error code; ``error_name`` is Kafka's name of it."""

    def __init__(self, error_name: str, message: str) -> None:
        super().__init__(f"{error_name}: {message}" if message else error_name)
        self.error_name = error_name

    @property
    def is_denial(self) -> bool:
        """Tell whether a right is missing."""
        return self.error_name.endswith("AUTHORIZATION_FAILED")


class AdminIncompatibleError(Exception):
    """A cluster does not offer an API at all, or not in a version that is known here."""


class ClusterAwayError(Exception):
    """A cluster does not answer (refused connections, timeouts, no leader): try again later."""


class Committed(NamedTuple):
    """A group's offset of one partition: the next record that it reads."""

    offset: int
    metadata: str = ""


UNKNOWN_COUNT: Final = -1


class GroupUse(NamedTuple):
    """Whether a group is in use."""

    state: str
    """Kafka's name of it: ``Empty``, ``Stable``...; ``Dead`` for a group that does not exist."""
    member_count: int
    """-1: it has some, but nobody tells how many."""

    @property
    def is_idle(self) -> bool:
        """Tell whether nobody is in the way of setting its offsets."""
        return self.state in ("Empty", "Dead")

    @property
    def members(self) -> str:
        """How many members it has, for people."""
        count = self.member_count
        return "members" if count == UNKNOWN_COUNT else "1 member" if count == 1 else f"{count} members"


Partition = tuple[str, int]
"""Topic and number."""


class GroupAdmin(Protocol):
    """The admin calls about groups. Every call may raise ``ClusterAwayError``."""

    def list_groups(self) -> Sequence[str]:
        """Return the ids of all groups of consumers.

        Raises:
            AdminRefusedError: no right to.
        """
        ...

    def describe_groups(self, groups: Sequence[str]) -> Mapping[str, GroupUse | AdminRefusedError]:
        """Tell which groups are in use."""
        ...

    def group_offsets(self, groups: Sequence[str]) -> Mapping[str, Mapping[Partition, Committed] | AdminRefusedError]:
        """Return all that groups have committed."""
        ...

    def alter_group_offsets(
        self, group: str, offsets: Mapping[Partition, Committed]
    ) -> Mapping[Partition, AdminRefusedError | None]:
        """Commit offsets for a group without members (UNKNOWN_MEMBER_ID: it has some)."""
        ...


class AclAdmin(Protocol):
    """The admin calls of the ACL sync. Every call may raise ``ClusterAwayError``."""

    def describe_topic_acls(self) -> Sequence[Acl]:
        """Return the ACLs of topics.

        Raises:
            AdminRefusedError: no right to, or no ACLs are kept (SECURITY_DISABLED).
            AdminIncompatibleError: the cluster lacks the API.
        """
        ...

    def create_acls(self, acls: Sequence[Acl]) -> Mapping[Acl, AdminRefusedError | None]:
        """Create ACLs, each for itself.

        Raises:
            AdminIncompatibleError: the cluster lacks the API.
        """
        ...


class MirrorAdmin(AclAdmin, Protocol):
    """The admin calls of the control loops. Every call may raise ``ClusterAwayError``.

    Results are by topic name; None means: done.
    """

    def check_reachable(self) -> None:
        """Find out at once whether the cluster answers and lets this client in.

        Raises:
            ClusterAwayError: it does not.
        """
        ...

    def list_topics(self) -> Mapping[str, TopicSummary]:
        """Return all topics of the cluster, internal ones too."""
        ...

    def describe_topic_configs(
        self, topics: Sequence[str]
    ) -> Mapping[str, tuple[TopicConfigEntry, ...] | AdminRefusedError]:
        """Return all configs of topics, defaults too."""
        ...

    def create_topics(
        self, topics: Sequence[NewRemoteTopic], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Create topics, each for itself, or only ask whether they may be created."""
        ...

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Grow topics to a number of partitions, or only ask whether they may grow."""
        ...

    def check_incremental_alter_configs(self, topic: str) -> None:
        """Ask whether IncrementalAlterConfigs is offered, by a request that changes nothing of a topic.

        Raises:
            AdminIncompatibleError: the cluster lacks the API.
        """
        ...

    def incremental_alter_topic_configs(
        self, operations: Mapping[str, Sequence[TopicConfigOperation]], *, validate_only: bool = False
    ) -> Mapping[str, AdminRefusedError | None]:
        """Apply operations (IncrementalAlterConfigs), or only ask whether they may be applied.

        Raises:
            AdminIncompatibleError: the cluster lacks the API.
        """
        ...

    def alter_topic_configs(self, configs: Mapping[str, Mapping[str, str]]) -> Mapping[str, AdminRefusedError | None]:
        """Replace all own configs of topics (AlterConfigs)."""
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
