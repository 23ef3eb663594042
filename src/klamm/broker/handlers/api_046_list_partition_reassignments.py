"""ListPartitionReassignments (key 46), v0 (KIP-455): always empty, because reassignments complete at once.

Kafka's TopicCommand and kafka-reassign-partitions send this before they show or change anything. Requires DESCRIBE on
the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.LIST_PARTITION_REASSIGNMENTS, min_version=0, max_version=0)


async def handle(_: ListPartitionReassignmentsRequest, context: RequestContext) -> ListPartitionReassignmentsResponse:
    """Return that no reassignment is in progress."""
    if not may_cluster(context, AclOperation.DESCRIBE):
        return ListPartitionReassignmentsResponse(
            error_code=CLUSTER_DENIED.error_code, error_message=CLUSTER_DENIED.error_message
        )
    return ListPartitionReassignmentsResponse(error_message=None)


ROUTE: Final = Route(api=API, request=ListPartitionReassignmentsRequest, handle=handle)
