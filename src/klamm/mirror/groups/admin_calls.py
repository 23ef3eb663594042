"""Calls about consumer groups on a flow's clusters: states, and committed offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.admin import ErrorCode, KafkaApiError, TopicPartition
from klamm.mirror.cluster_admin import outcome, outcomes, rejections

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from klamm.admin import AdminClient, OffsetAndMetadata
    from klamm.protocol.types import PartitionTuple

    CommittedOffsets = Mapping[PartitionTuple, OffsetAndMetadata]
    """Committed offsets of a group. A negative offset means that none is committed."""

_OF_CONSUMERS: Final = ("consumer", "")
_DEAD: Final = "Dead"
_EMPTY: Final = "Empty"
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
        return self.state in (_EMPTY, _DEAD)

    @property
    def members(self) -> str:
        """Return the number of members as text."""
        count = self.member_count
        return "members" if count == UNKNOWN_COUNT else "1 member" if count == 1 else f"{count} members"


def consumer_groups(admin: AdminClient) -> list[str]:
    """Return the ids of all consumer groups, including groups that never had a member.

    Raises:
        KafkaApiError: The principal may not list groups.
    """
    listed = outcome(admin.list_groups())
    if isinstance(listed, KafkaApiError):
        raise listed
    return [group.group_id for group in listed if group.protocol_type in _OF_CONSUMERS]


def group_uses(admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupUse | KafkaApiError]:
    """Return the state of groups. A group that does not exist is ``Dead``.

    For groups that this client cannot describe, such as share groups, the state comes from ListGroups.
    """
    found: dict[str, GroupUse | KafkaApiError] = {}
    for group, described in outcomes(admin.describe_groups(groups)).items() if groups else ():
        if not isinstance(described, KafkaApiError):
            found[group] = GroupUse(described.state, len(described.members))
        elif described.error_code is ErrorCode.GROUP_ID_NOT_FOUND:
            found[group] = GroupUse(_DEAD, 0)
        else:
            found[group] = described
    if GroupUse(_DEAD, 0) in found.values():
        for listed in admin.list_groups().result():
            if listed.state is not None and found.get(listed.group_id) == GroupUse(_DEAD, 0):
                found[listed.group_id] = GroupUse(listed.state, 0 if listed.state == _EMPTY else UNKNOWN_COUNT)
    return found


def group_offsets(admin: AdminClient, groups: Sequence[str]) -> dict[str, CommittedOffsets | KafkaApiError]:
    """Return all committed offsets of groups."""
    found = outcomes(admin.list_group_offsets(dict.fromkeys(groups))) if groups else {}
    return {
        group: offsets if isinstance(offsets, KafkaApiError) else dict(offsets.items())
        for group, offsets in found.items()
    }


def commit_offsets(
    admin: AdminClient, group: str, offsets: CommittedOffsets
) -> dict[PartitionTuple, KafkaApiError | None]:
    """Commit offsets for a group without members. With members the outcome is UNKNOWN_MEMBER_ID."""
    if not offsets:
        return {}
    asked = {TopicPartition(*where): offset for where, offset in offsets.items()}
    return dict(rejections(admin.alter_group_offsets(group, asked)).items())
