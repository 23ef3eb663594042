"""Groups and their committed offsets (KIP-222, KIP-396, KIP-496, KIP-709), requested from their coordinators.

::

    with AdminClient(bootstrap_servers="localhost:9092") as admin:
        described = admin.describe_groups(["billing"]).values()["billing"].result()
        described.state, [member.assigned_partitions for member in described.members]

        every = admin.list_group_offsets({"billing": None}).all().result()["billing"]
        some = admin.list_group_offsets({"billing": [TopicPartition("orders", 0)]}, require_stable=True)
        every[TopicPartition("orders", 0)].offset  # partitions without a commit are not in the mapping

        # only while no member is in the group; each partition has its own future
        commits = {TopicPartition("orders", 0): OffsetAndMetadata(offset=42, metadata="from the mirror")}
        admin.alter_group_offsets("billing", commits).all().result()
        admin.delete_group_offsets("billing", [TopicPartition("orders", 0)]).all().result()
        admin.delete_groups(["billing"]).all().result()

Describing or deleting a group that does not exist fails with ``KafkaApiError`` of ``ErrorCode.GROUP_ID_NOT_FOUND``;
listing its offsets returns none, and altering them creates the group. Altering offsets of a group with members fails
with ``UNKNOWN_MEMBER_ID``. A coordinator that moves is looked up again until the call's timeout. Works from Kafka 2.3
on (``delete_group_offsets`` from 2.4, ``require_stable`` from 2.5).
"""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.admin import _group_offsets
from klamm.admin._calls import AdminCalls, ask_coordinators
from klamm.admin.results import DescribeGroupsResult, ListGroupOffsetsResult, PerKeyResult
from klamm.admin.types import GroupDescription, GroupMember
from klamm.kafka_client.errors import api_error
from klamm.kafka_client.pool.keyed_calls import result_of
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from klamm.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin.types import OffsetAndMetadata
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError


_DEAD: Final = "Dead"
_CONSUMER_PROTOCOL_TYPE: Final = "consumer"
_NOT_OF_KIP_848: Final = frozenset({ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION})
"""Error codes of ConsumerGroupDescribe for a group that may be a classic one."""
_UNKNOWN_MEMBER_TYPE: Final = -1
_UPGRADED: Final = 1
_Described: TypeAlias = "Mapping[str, GroupDescription | KafkaApiError]"


class GroupCalls(AdminCalls):
    """Admin calls for groups."""

    def describe_groups(self, group_ids: Collection[str], *, timeout_ms: int | None = None) -> DescribeGroupsResult:
        """Describe groups with their members. A group that does not exist fails with GROUP_ID_NOT_FOUND."""
        result = DescribeGroupsResult(group_ids)
        self._start(result, functools.partial(_describe, result=result), timeout_ms=timeout_ms)
        return result

    def delete_groups(self, group_ids: Collection[str], *, timeout_ms: int | None = None) -> PerKeyResult[str, None]:
        """Delete groups and their offsets. A group with members fails with NON_EMPTY_GROUP."""
        result: PerKeyResult[str, None] = PerKeyResult(group_ids)
        self._start(result, functools.partial(_delete, result=result), timeout_ms=timeout_ms)
        return result

    def list_group_offsets(
        self,
        groups: Mapping[str, Collection[TopicPartition] | None],
        *,
        require_stable: bool = False,
        timeout_ms: int | None = None,
    ) -> ListGroupOffsetsResult:
        """Return the committed offsets of groups for some partitions, or for all partitions if None.

        With ``require_stable`` the call waits for pending offsets of open transactions (Kafka 2.5 and newer).
        """
        result = ListGroupOffsetsResult(groups)
        work = functools.partial(
            _group_offsets.list_all, groups=dict(groups), require_stable=require_stable, result=result
        )
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def alter_group_offsets(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, timeout_ms: int | None = None
    ) -> PerKeyResult[TopicPartition, None]:
        """Commit offsets for a group without members. A group that does not exist is created.

        Raises:
            ValueError: An offset is negative.
        """
        for partition, commit in offsets.items():
            if commit.offset < 0:
                raise ValueError(f"{partition}: Invalid negative offset {commit.offset}")
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(offsets)
        work = functools.partial(_group_offsets.alter, group_id=group_id, offsets=dict(offsets), result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result

    def delete_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition], *, timeout_ms: int | None = None
    ) -> PerKeyResult[TopicPartition, None]:
        """Delete committed offsets of a group.

        Topics that its members subscribe to fail with GROUP_SUBSCRIBED_TO_TOPIC.
        """
        result: PerKeyResult[TopicPartition, None] = PerKeyResult(partitions)
        work = functools.partial(_group_offsets.delete, group_id=group_id, result=result)
        self._start(result, work, timeout_ms=timeout_ms)
        return result


async def _describe(pool: ConnectionPool, deadline: Deadline, *, result: DescribeGroupsResult) -> None:
    async def ask(node_id: int | None, group_ids: list[str], attempt: Deadline) -> _Described:
        """Request the groups as those of KIP-848, and the others as classic ones, as Kafka's client does."""
        descriptions: dict[str, GroupDescription | KafkaApiError] = {}
        offered = await pool.offered_versions(attempt, node_id, looked_up=True)
        if ConsumerGroupDescribeRequest.API_KEY in offered:
            response = await pool.send(
                ConsumerGroupDescribeRequest(group_ids=group_ids),
                ConsumerGroupDescribeResponse,
                deadline=attempt,
                node_id=node_id,
                looked_up=True,
            )
            descriptions = {
                group.group_id: result_of(group.error_code, group.error_message, _consumer_group(group, node_id))
                for group in response.groups
                if group.error_code not in _NOT_OF_KIP_848
            }
        classic = [group_id for group_id in group_ids if group_id not in descriptions]
        return descriptions if not classic else {**descriptions, **await ask_classic(node_id, classic, attempt)}

    async def ask_classic(node_id: int | None, group_ids: list[str], attempt: Deadline) -> _Described:
        response = await pool.send(
            DescribeGroupsRequest(groups=group_ids),
            DescribeGroupsResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
        )
        return {group.group_id: _described(group, node_id) for group in response.groups}

    await ask_coordinators("DescribeGroups", pool, deadline, ask, result)


def _described(
    group: DescribeGroupsResponse.DescribedGroup, coordinator: int | None
) -> GroupDescription | KafkaApiError:
    """Return the description of a group. Brokers before 4.0 report a missing group as state Dead (KIP-1043)."""
    if group.error_code == ErrorCode.NONE and group.group_state == _DEAD:
        return api_error(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} not found.")
    return result_of(group.error_code, group.error_message, _description(group, coordinator))


def _description(group: DescribeGroupsResponse.DescribedGroup, coordinator: int | None) -> GroupDescription:
    is_of_consumers = group.protocol_type == _CONSUMER_PROTOCOL_TYPE
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                host=member.client_host,
                metadata=member.member_metadata,
                assignment=member.member_assignment,
                assigned_partitions=partitions_of(member.member_assignment) if is_of_consumers else None,
            )
            for member in group.members
        ),
        coordinator=-1 if coordinator is None else coordinator,
    )


def _consumer_group(group: ConsumerGroupDescribeResponse.DescribedGroup, coordinator: int | None) -> GroupDescription:
    """Return a group of KIP-848."""
    return GroupDescription(
        group_id=group.group_id,
        state=group.group_state,
        protocol_type=_CONSUMER_PROTOCOL_TYPE,
        protocol=group.assignor_name,
        members=tuple(
            GroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host,
                metadata=b"",
                assignment=b"",
                assigned_partitions=_partitions(member.assignment),
                member_epoch=member.member_epoch,
                target_partitions=_partitions(member.target_assignment),
                is_upgraded=None if member.member_type == _UNKNOWN_MEMBER_TYPE else member.member_type == _UPGRADED,
            )
            for member in group.members
        ),
        coordinator=-1 if coordinator is None else coordinator,
        group_epoch=group.group_epoch,
        target_assignment_epoch=group.assignment_epoch,
    )


def _partitions(assignment: ConsumerGroupDescribeResponse.Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )


async def _delete(pool: ConnectionPool, deadline: Deadline, *, result: PerKeyResult[str, None]) -> None:
    async def ask(node_id: int | None, group_ids: list[str], attempt: Deadline) -> Mapping[str, KafkaApiError | None]:
        response = await pool.send(
            DeleteGroupsRequest(groups_names=group_ids),
            DeleteGroupsResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
        )
        return {group.group_id: result_of(group.error_code, group.group_id, None) for group in response.results}

    await ask_coordinators("DeleteGroups", pool, deadline, ask, result, attempt_ms=deadline.limit_ms)


def partitions_of(assignment: bytes) -> tuple[TopicPartition, ...] | None:
    """Decode a ConsumerProtocolAssignment of any version: an int16 version, then topics with arrays of int32.

    Returns None if the bytes have another format: members may send arbitrary bytes.
    """
    if not assignment:
        return ()
    partitions: list[TopicPartition] = []
    try:
        _, topics = struct.unpack_from(">hi", assignment)
        position = 6
        for _ in range(topics):
            (length,) = struct.unpack_from(">h", assignment, position)
            (name,) = struct.unpack_from(f">{length}s", assignment, position + 2)
            (count,) = struct.unpack_from(">i", assignment, position + 2 + length)
            position += 6 + length
            indexes = struct.unpack_from(f">{count}i", assignment, position)
            position += 4 * count
            partitions += (TopicPartition(name.decode(), index) for index in indexes)
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(partitions)
