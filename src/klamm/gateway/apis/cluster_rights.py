"""Rights of a client on the cluster, which the upstream knows.

The gateway has no ACLs. It asks the upstream, over the client's own connection, which operations on the cluster the
client may perform (KIP-430).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import ErrorCode, UnsupportedVersionError
from klamm.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.types import ResourceType
from klamm.security.acls import AclOperation

if TYPE_CHECKING:
    from klamm.gateway.relay.filter import FilterContext

_ALL_BROKERS: Final = ""
"""Name of the resource with the default configs of all brokers."""
_SOME_CONFIG: Final = "log.retention.ms"
_AUTHORIZED: Final = frozenset({ErrorCode.NONE, ErrorCode.POLICY_VIOLATION})


async def may(operation: AclOperation, context: FilterContext) -> bool:
    """Return whether the upstream authorizes the client's principal for an operation on the cluster.

    Kafka reports the authorized operations only to principals that may DESCRIBE the cluster. For all others, a request
    that needs just this operation and changes nothing shows it. So it does if the upstream lacks DescribeCluster. A
    client whose right cannot be found out does not have it.
    """
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    with contextlib.suppress(UnsupportedVersionError):
        response = await context.call(request, DescribeClusterResponse)
        if response.error_code == ErrorCode.NONE:
            operations = response.cluster_authorized_operations
            if operations >> operation & 1:
                return True
            if operations >> AclOperation.DESCRIBE & 1:
                return False
    try:
        if operation is AclOperation.DESCRIBE_CONFIGS:
            return await _may_describe_brokers(context)
        return await _may_alter_brokers(context)
    except UnsupportedVersionError:
        return False


async def _may_describe_brokers(context: FilterContext) -> bool:
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=_ALL_BROKERS, configuration_keys=[_SOME_CONFIG]
            )
        ]
    )
    results = (await context.call(request, DescribeConfigsResponse)).results
    return [result.error_code for result in results] == [ErrorCode.NONE]


async def _may_alter_brokers(context: FilterContext) -> bool:
    """Return whether an empty alteration is accepted. A policy of the upstream is asked after the authorization."""
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=ResourceType.BROKER, resource_name=_ALL_BROKERS, configs=[]
            )
        ],
        validate_only=True,
    )
    responses = (await context.call(request, IncrementalAlterConfigsResponse)).responses
    return bool(responses) and {each.error_code for each in responses} <= _AUTHORIZED
