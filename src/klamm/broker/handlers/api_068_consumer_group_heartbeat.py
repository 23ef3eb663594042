"""ConsumerGroupHeartbeat (key 68), v0-1 (KIP-848).

A member joins, stays and leaves by heartbeats. Each response has its epoch, the interval until the next heartbeat, and
its partitions if they changed; it is sent when the change of the group is durable. v1 adds the regular expression and
member ids that clients choose. Session timeout and interval that the broker enforces for the client
(``client.config.enforcement``) replace those of the group with its next heartbeat.
Requires READ on the group and DESCRIBE on every topic in the request. A regular expression finds only topics with
DESCRIBE.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.consumer.model import (
    JOIN_EPOCH,
    Assignment,
    HeartbeatAttempt,
    HeartbeatReply,
    assignment_of,
)
from klamm.broker.groups.consumer.requests import check_heartbeat, matching_topics
from klamm.broker.requests.checks import TOPIC_DENIED, may_topic, require_coordinator, require_group
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import KafkaApiError, TopicAuthorizationError, UnsupportedVersionError
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, min_version=0, max_version=1)


async def handle(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> ConsumerGroupHeartbeatResponse:
    """Take the member one step further."""
    consumers = context.services.groups.consumers
    try:
        if not consumers.settings.serves_consumer_groups:
            raise UnsupportedVersionError
        require_group(context, AclOperation.READ, request.group_id)
        async for name in context.time_slice.over(request.subscribed_topic_names or ()):
            if not may_topic(context, AclOperation.DESCRIBE, name):
                raise TopicAuthorizationError(TOPIC_DENIED.error_message)
        require_coordinator(request.group_id, context.node_id, context.services.cluster)
        check_heartbeat(request, context.api_version, consumers.settings.consumer_limits.assignors)
        if request.member_epoch < JOIN_EPOCH:
            reply = await consumers.leave(
                request.group_id, request.member_id, request.instance_id, request.member_epoch
            )
        else:
            reply = await consumers.heartbeat(request.group_id, _attempt(request, context))
    except KafkaApiError as error:
        return ConsumerGroupHeartbeatResponse(error_code=error.error_code, error_message=error.error_message)
    return _response(reply)


def _attempt(request: ConsumerGroupHeartbeatRequest, context: RequestContext) -> HeartbeatAttempt:
    services, names = context.services, request.subscribed_topic_names
    enforced = services.enforcement.of_member(
        context.session, context.client_id, is_joining=request.member_epoch == JOIN_EPOCH
    )

    def resolve(pattern: str) -> frozenset[str]:
        return matching_topics(
            pattern,
            (topic.name for topic in services.topics.all()),
            lambda name: may_topic(context, AclOperation.DESCRIBE, name),
        )

    owned: Assignment | None = None
    if request.topic_partitions is not None:
        owned = assignment_of((topic.topic_id, topic.partitions) for topic in request.topic_partitions)
    return HeartbeatAttempt(
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.session.client_host}",
        timings=services.groups.consumers.timings.of_member(request.group_id, enforced),
        resolve=resolve,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topic_names=None if names is None else frozenset(names),
        topic_regex=request.subscribed_topic_regex,
        server_assignor=request.server_assignor,
        owned=owned,
    )


def _response(reply: HeartbeatReply) -> ConsumerGroupHeartbeatResponse:
    assignment = None
    if reply.assignment is not None:
        assignment = ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in reply.assignment.items()
            ]
        )
    return ConsumerGroupHeartbeatResponse(
        member_id=reply.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=reply.heartbeat_interval_ms,
        assignment=assignment,
    )


ROUTE: Final = Route(api=API, request=ConsumerGroupHeartbeatRequest, handle=handle)
