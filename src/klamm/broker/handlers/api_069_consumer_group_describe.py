"""ConsumerGroupDescribe (key 69), v0-1 (KIP-848).

One entry per group. A group that does not exist or that is a classic group gets GROUP_ID_NOT_FOUND; clients then ask
DescribeGroups. v1 adds the protocol of each member (KIP-1099).
Requires DESCRIBE on the group, and on every topic that its members use. Authorized operations are returned on request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.consumer.model import NO_PARTITIONS, Assignment, ConsumerMember
from klamm.broker.groups.errors import InvalidGroupIdError
from klamm.broker.requests.checks import (
    OPERATIONS_OMITTED,
    authorized_operations,
    may_topic,
    require_coordinator,
    require_group,
)
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError, TopicAuthorizationError, UnsupportedVersionError
from klamm.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from klamm.security.acls import AclOperation, AclResourceType
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.CONSUMER_GROUP_DESCRIBE, min_version=0, max_version=1)
CLASSIC_MEMBER: Final = 0
CONSUMER_MEMBER: Final = 1


async def handle(request: ConsumerGroupDescribeRequest, context: RequestContext) -> ConsumerGroupDescribeResponse:
    """Return one entry per group. An error does not affect other groups."""
    return ConsumerGroupDescribeResponse(
        groups=[
            await _answer(group_id, context, has_operations=request.include_authorized_operations)
            async for group_id in context.time_slice.over(request.group_ids)
        ]
    )


async def _answer(
    group_id: str, context: RequestContext, *, has_operations: bool
) -> ConsumerGroupDescribeResponse.DescribedGroup:
    consumers = context.services.groups.consumers
    try:
        if not consumers.settings.serves_consumer_groups:
            raise UnsupportedVersionError
        require_group(context, AclOperation.DESCRIBE, group_id)
        if not group_id:
            raise InvalidGroupIdError
        require_coordinator(group_id, context.node_id, context.services.cluster)
        group = consumers.describe(group_id)
        described = ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id,
            group_state=group.state.value,
            group_epoch=group.group_epoch,
            assignment_epoch=group.assignment_epoch,
            assignor_name=group.assignor,
            members=await context.time_slice.listed(
                _member(member, target, context)
                for member, target in [
                    (member, group.target.get(member.member_id, NO_PARTITIONS)) for member in group.members.values()
                ]
            ),
        )
        await _check_topics(described, context)
    except KafkaApiError as error:
        return ConsumerGroupDescribeResponse.DescribedGroup(
            group_id=group_id, error_code=error.error_code, error_message=error.error_message
        )
    if has_operations:
        described.authorized_operations = authorized_operations(context, AclResourceType.GROUP, group_id)
    else:
        described.authorized_operations = OPERATIONS_OMITTED
    return described


async def _check_topics(group: ConsumerGroupDescribeResponse.DescribedGroup, context: RequestContext) -> None:
    """Require DESCRIBE on all topics of a group.

    Raises:
        TopicAuthorizationError: The principal lacks the right for one of them.
    """
    names = {name for member in group.members for name in member.subscribed_topic_names}
    for member in group.members:
        for assignment in (member.assignment, member.target_assignment):
            names.update(topic.topic_name for topic in assignment.topic_partitions)
    async for name in context.time_slice.over(names):
        if not may_topic(context, AclOperation.DESCRIBE, name):
            raise TopicAuthorizationError(
                "The group has described topic(s) that the client is not authorized to describe."
            )


def _member(
    member: ConsumerMember, target: Assignment, context: RequestContext
) -> ConsumerGroupDescribeResponse.Member:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topic_names),
        subscribed_topic_regex=member.topic_regex or "",
        assignment=_assignment(member.assigned, context),
        target_assignment=_assignment(target, context),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _assignment(assignment: Assignment, context: RequestContext) -> ConsumerGroupDescribeResponse.Assignment:
    """Return the wire form of an assignment. Topics that have been deleted are left out."""
    partitions = ((context.services.topics.by_id(topic_id), indexes) for topic_id, indexes in assignment.items())
    return ConsumerGroupDescribeResponse.Assignment(
        topic_partitions=[
            ConsumerGroupDescribeResponse.TopicPartitions(
                topic_id=topic.topic_id, topic_name=topic.name, partitions=sorted(indexes)
            )
            for topic, indexes in partitions
            if topic is not None
        ]
    )


ROUTE: Final = Route(api=API, request=ConsumerGroupDescribeRequest, handle=handle)
