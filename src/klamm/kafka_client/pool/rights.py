"""Rights that requests of the admin client need, for errors that name the missing one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.errors import is_denial
from klamm.protocol.types import TopicPartition

if TYPE_CHECKING:
    from klamm.kafka_client.connection.security import Security
    from klamm.protocol.errors import KafkaApiError

_CLUSTER: Final = "CLUSTER"
_OPERATIONS: Final = {
    "AlterClientConfigs": "ALTER_CONFIGS",
    "AlterClientQuotas": "ALTER_CONFIGS",
    "AlterConfigs": "ALTER_CONFIGS",
    "AlterPartitionReassignments": "ALTER",
    "AlterUserScramCredentials": "ALTER",
    "ConsumerGroupDescribe": "DESCRIBE",
    "CreateAcls": "ALTER",
    "CreatePartitions": "ALTER",
    "CreateTopics": "CREATE",
    "DeleteAcls": "ALTER",
    "DeleteGroups": "DELETE",
    "DeleteTopics": "DELETE",
    "DescribeAcls": "DESCRIBE",
    "DescribeClientConfigs": "DESCRIBE_CONFIGS",
    "DescribeClientQuotas": "DESCRIBE_CONFIGS",
    "DescribeConfigs": "DESCRIBE_CONFIGS",
    "DescribeGroups": "DESCRIBE",
    "DescribeLogDirs": "DESCRIBE",
    "DescribeQuorum": "DESCRIBE",
    "DescribeTopicPartitions": "DESCRIBE",
    "DescribeUserScramCredentials": "DESCRIBE",
    "ElectLeaders": "ALTER",
    "IncrementalAlterConfigs": "ALTER_CONFIGS",
    "ListConfigResources": "DESCRIBE_CONFIGS",
    "ListOffsets": "DESCRIBE",
    "ListPartitionReassignments": "DESCRIBE",
    "Metadata": "DESCRIBE",
    "OffsetCommit": "READ",
    "OffsetDelete": "DELETE",
    "OffsetFetch": "DESCRIBE",
}
"""Operation by request, on the resource that the error code names. OffsetDelete needs READ on the topics."""


def name_right(error: KafkaApiError, request: str, key: object, security: Security) -> None:
    """Add the missing right and the principal to an error that an ACL causes; leave other errors unchanged.

    Args:
        error: Error of a response.
        request: Name of the request, without ``Request``.
        key: Resource of the request to which the error belongs; None for the request as a whole.
        security: Security settings of the connection.
    """
    if error.missing_right is not None or not is_denial(error) or request not in _OPERATIONS:
        return
    kind = error.error_code.name.removesuffix("_AUTHORIZATION_FAILED")
    operation = "READ" if (request, kind) == ("OffsetDelete", "TOPIC") else _OPERATIONS[request]
    if kind == _CLUSTER:
        resource = "the cluster"
    elif isinstance(key, TopicPartition):
        resource = f"topic {key.topic}" if kind == "TOPIC" else f"the {kind.lower()}"
    else:
        resource = f"{kind.lower()} {getattr(key, 'name', key)}"
    error.missing_right = f"{security.principal} needs {operation} on {resource}"
