"""The questions handlers ask the authorizer, and what a denial is answered with (Kafka's AuthHelper)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from klamm.broker.attempt import ApiError
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    GroupAuthorizationError,
    KafkaApiError,
    TopicAuthorizationError,
)
from klamm.protocol.types import ResourceType
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from klamm.security.authorization import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext

_CLUSTER_KINDS: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS})
NOT_ASKED: Final = -(1 << 31)
"""Value of ``authorized_operations`` when nobody asked for them."""
CLUSTER_DENIED: Final = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
TOPIC_DENIED: Final = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
GROUP_DENIED: Final = ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")


def may_cluster(context: RequestContext, operation: AclOperation) -> bool:
    """Tell whether the principal may do something to the cluster."""
    return context.services.authorizer.is_allowed(context.session, operation, AclResourceType.CLUSTER, CLUSTER_NAME)


def may_topic(context: RequestContext, operation: AclOperation, name: str) -> bool:
    """Tell whether the principal may do something to a topic, existing or not."""
    authorizer = context.services.authorizer
    # Asked for every partition that is read: without an authorizer it costs next to nothing.
    return not authorizer.is_enabled or authorizer.is_allowed(context.session, operation, AclResourceType.TOPIC, name)


def may_group(context: RequestContext, operation: AclOperation, group_id: str) -> bool:
    """Tell whether the principal may do something to a group, existing or not."""
    return context.services.authorizer.is_allowed(context.session, operation, AclResourceType.GROUP, group_id)


def may_transactional_id(context: RequestContext, operation: AclOperation, transactional_id: str) -> bool:
    """Tell whether the principal may use a transactional id."""
    return context.services.authorizer.is_allowed(
        context.session, operation, AclResourceType.TRANSACTIONAL_ID, transactional_id
    )


def may_write_somewhere(context: RequestContext) -> bool:
    """Tell whether there is a topic, existing or not, that the principal may write to."""
    return context.services.authorizer.is_allowed_on_any(context.session, AclOperation.WRITE, AclResourceType.TOPIC)


def require_cluster(context: RequestContext, operation: AclOperation) -> None:
    """Refuse who may not do something to the cluster.

    Raises:
        ClusterAuthorizationError: As said.
    """
    if not may_cluster(context, operation):
        raise ClusterAuthorizationError(CLUSTER_DENIED.error_message)


def require_topic(context: RequestContext, operation: AclOperation, name: str) -> None:
    """Refuse who may not do something to a topic; said before anybody looks whether it exists.

    Raises:
        TopicAuthorizationError: As said.
    """
    if not may_topic(context, operation, name):
        raise TopicAuthorizationError(TOPIC_DENIED.error_message)


def require_group(context: RequestContext, operation: AclOperation, group_id: str) -> None:
    """Refuse who may not do something to a group; said before anybody looks whether it exists.

    Raises:
        GroupAuthorizationError: As said.
    """
    if not may_group(context, operation, group_id):
        raise GroupAuthorizationError(GROUP_DENIED.error_message)


def require_config_right(context: RequestContext, operation: AclOperation, kind: int, name: str) -> None:
    """Refuse who may not see or change the configs of a resource; said before anybody looks whether it exists.

    Raises:
        TopicAuthorizationError: Of a topic.
        GroupAuthorizationError: Of a group.
        ClusterAuthorizationError: Of anything else that is known.
    """
    if kind == ResourceType.TOPIC:
        require_topic(context, operation, name)
    elif kind == ResourceType.GROUP:
        require_group(context, operation, name)
    elif kind in _CLUSTER_KINDS:
        require_cluster(context, operation)


class NamedResource(Protocol):
    """A resource in a request for configs."""

    resource_type: int
    resource_name: str


async def config_denials(
    context: RequestContext, operation: AclOperation, resources: Sequence[NamedResource]
) -> list[KafkaApiError | None]:
    """Return the refusal of each resource, None where there is none; gives way to others."""
    denials: list[KafkaApiError | None] = []
    async for resource in context.time_slice.over(resources):
        try:
            require_config_right(context, operation, resource.resource_type, resource.resource_name)
        except KafkaApiError as error:
            denials.append(error)
        else:
            denials.append(None)
    return denials


def authorized_operations(context: RequestContext, resource_type: AclResourceType, name: str) -> int:
    """Return the bits of what the principal may do to a resource (KIP-430)."""
    authorizer, session = context.services.authorizer, context.session
    return sum(
        1 << operation
        for operation in OPERATIONS[resource_type]
        if authorizer.is_allowed(session, operation, resource_type, name)
    )


def cluster_operations(context: RequestContext) -> int:
    """Return the bits of what the principal may do to the cluster; none when it may not even describe it."""
    if not may_cluster(context, AclOperation.DESCRIBE):
        return 0
    return authorized_operations(context, AclResourceType.CLUSTER, CLUSTER_NAME)
