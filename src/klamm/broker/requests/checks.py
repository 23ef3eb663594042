"""Checks of handlers: authorization, the errors of denied requests (Kafka's AuthHelper), and the number of entries.

Every check comes before the check whether the resource exists. So a denied client cannot find out which topics or
groups exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.groups.errors import NotCoordinatorError
from klamm.protocol.errors import (
    ClusterAuthorizationError,
    ErrorCode,
    GroupAuthorizationError,
    InvalidRequestError,
    KafkaApiError,
    TopicAuthorizationError,
)
from klamm.protocol.types import ResourceType
from klamm.security.acls import CLUSTER_NAME, AclOperation, AclResourceType
from klamm.security.authorization import OPERATIONS
from klamm.server.attempt import ApiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.cluster import ClusterInfo
    from klamm.broker.context import RequestContext

_CLUSTER_KINDS: Final = frozenset({ResourceType.BROKER, ResourceType.BROKER_LOGGER, ResourceType.CLIENT_METRICS})
OPERATIONS_OMITTED: Final = -(1 << 31)
"""Value of ``authorized_operations`` in a response when the request did not ask for them."""
CLUSTER_DENIED: Final = ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")
TOPIC_DENIED: Final = ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
GROUP_DENIED: Final = ApiError(ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")


def may_cluster(context: RequestContext, operation: AclOperation) -> bool:
    """Return whether the principal may perform an operation on the cluster."""
    return context.services.authorizer.is_allowed(context.session, operation, AclResourceType.CLUSTER, CLUSTER_NAME)


def may_topic(context: RequestContext, operation: AclOperation, name: str) -> bool:
    """Return whether the principal may perform an operation on a topic. The topic need not exist."""
    authorizer = context.services.authorizer
    # Fetch calls this for every partition, so the case without an authorizer is the cheap one.
    return not authorizer.is_enabled or authorizer.is_allowed(context.session, operation, AclResourceType.TOPIC, name)


def may_group(context: RequestContext, operation: AclOperation, group_id: str) -> bool:
    """Return whether the principal may perform an operation on a group. The group need not exist."""
    return context.services.authorizer.is_allowed(context.session, operation, AclResourceType.GROUP, group_id)


def may_transactional_id(context: RequestContext, operation: AclOperation, transactional_id: str) -> bool:
    """Return whether the principal may perform an operation on a transactional id."""
    return context.services.authorizer.is_allowed(
        context.session, operation, AclResourceType.TRANSACTIONAL_ID, transactional_id
    )


def may_write_somewhere(context: RequestContext) -> bool:
    """Return whether the principal may write to at least one topic, existing or not."""
    return context.services.authorizer.is_allowed_on_any(context.session, AclOperation.WRITE, AclResourceType.TOPIC)


def require_cluster(context: RequestContext, operation: AclOperation) -> None:
    """Require the right to perform an operation on the cluster.

    Raises:
        ClusterAuthorizationError: The principal lacks the right.
    """
    if not may_cluster(context, operation):
        raise ClusterAuthorizationError(CLUSTER_DENIED.error_message)


def require_topic(context: RequestContext, operation: AclOperation, name: str) -> None:
    """Require the right to perform an operation on a topic. The topic need not exist.

    Raises:
        TopicAuthorizationError: The principal lacks the right.
    """
    if not may_topic(context, operation, name):
        raise TopicAuthorizationError(TOPIC_DENIED.error_message)


def require_group(context: RequestContext, operation: AclOperation, group_id: str) -> None:
    """Require the right to perform an operation on a group. The group need not exist.

    Raises:
        GroupAuthorizationError: The principal lacks the right.
    """
    if not may_group(context, operation, group_id):
        raise GroupAuthorizationError(GROUP_DENIED.error_message)


def config_denial(context: RequestContext, operation: AclOperation, kind: int, name: str) -> KafkaApiError | None:
    """Return the authorization error for the configs of a resource; None when access is allowed.

    The resource need not exist. A resource type that the broker does not know passes; it is rejected later.
    """
    if kind == ResourceType.TOPIC:
        return None if may_topic(context, operation, name) else TopicAuthorizationError(TOPIC_DENIED.error_message)
    if kind == ResourceType.GROUP:
        return None if may_group(context, operation, name) else GroupAuthorizationError(GROUP_DENIED.error_message)
    if kind not in _CLUSTER_KINDS or may_cluster(context, operation):
        return None
    return ClusterAuthorizationError(CLUSTER_DENIED.error_message)


def authorized_operations(context: RequestContext, resource_type: AclResourceType, name: str) -> int:
    """Return the bit set of operations that the principal may perform on a resource (KIP-430)."""
    authorizer, session = context.services.authorizer, context.session
    return sum(
        1 << operation
        for operation in OPERATIONS[resource_type]
        if authorizer.is_allowed(session, operation, resource_type, name)
    )


def cluster_operations(context: RequestContext) -> int:
    """Return the bit set of operations on the cluster (KIP-430); 0 when the principal may not describe the cluster."""
    if not may_cluster(context, AclOperation.DESCRIBE):
        return 0
    return authorized_operations(context, AclResourceType.CLUSTER, CLUSTER_NAME)


# A request with many resources is processed in time slices, one resource after the other. A single resource is
# processed without a pause, so its entries are limited to what takes some milliseconds.
MAX_CONFIGS: Final = 10_000
"""Maximum number of configs of one resource."""
MAX_QUOTA_ENTRIES: Final = 1_000
"""Maximum number of components or values of one entity with quotas, or of components of a filter."""
MAX_LEAVING_MEMBERS: Final = 20_000


def count_error(entries: Sequence[object], maximum: int, kind: str) -> InvalidRequestError | None:
    """Return the error for a resource with more than ``maximum`` entries, else None. ``kind`` names the entries."""
    if len(entries) <= maximum:
        return None
    return InvalidRequestError(f"{len(entries)} {kind} are more than the {maximum} that are allowed at once")


def check_count(entries: Sequence[object], maximum: int, kind: str) -> None:
    """Check the number of entries of a resource.

    Raises:
        InvalidRequestError: There are more than ``maximum``.
    """
    error = count_error(entries, maximum, kind)
    if error is not None:
        raise error


def require_coordinator(group_id: str, node_id: int, cluster: ClusterInfo) -> None:
    """Check that a broker coordinates the group.

    Raises:
        NotCoordinatorError: Another broker coordinates the group.
    """
    if len(cluster.nodes) > 1 and cluster.coordinator(group_id) != node_id:
        raise NotCoordinatorError
