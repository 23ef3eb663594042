"""Checks of Java's ``KafkaAdminClient`` before a request is sent. Messages are Kafka's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.kafka_client.errors import api_error
from klamm.protocol.errors import ErrorCode, InvalidRequestError, InvalidTopicError
from klamm.security.acls import AclOperation, AclPermission, AclResourceType, PatternType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.protocol.errors import KafkaApiError
    from klamm.protocol.types import TopicPartition
    from klamm.security.acls import Acl, AclFilter
    from klamm.security.scram import ScramMechanism


def check_topic(name: str) -> KafkaApiError | None:
    """Return the error of an empty topic name, which no request can carry."""
    return None if name else InvalidTopicError(f"The given topic name '{name}' cannot be represented in a request.")


def check_partition(partition: TopicPartition) -> KafkaApiError | None:
    """Return the error of a partition with an empty topic name or a negative index."""
    if partition.partition < 0:
        return InvalidTopicError(f"The given partition index {partition.partition} is not valid.")
    return check_topic(partition.topic)


def check_acl(acl: Acl) -> KafkaApiError | None:
    """Return the error of an ACL to create with an open or unknown field."""
    fields = {
        "Resource type": acl.resource_type if acl.resource_type <= AclResourceType.ANY else None,
        "Resource pattern type": acl.pattern_type if acl.pattern_type <= PatternType.MATCH else None,
        "Operation": acl.operation if acl.operation <= AclOperation.ANY else None,
        "Permission type": acl.permission if acl.permission <= AclPermission.ANY else None,
    }
    indefinite = next((f"{field} is {value.name}" for field, value in fields.items() if value is not None), None)
    return None if indefinite is None else InvalidRequestError(f"Invalid ACL creation: {indefinite}")


def check_acl_filter(wanted: AclFilter) -> KafkaApiError | None:
    """Return the error of a filter with an unknown field."""
    if all((wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission)):
        return None
    return InvalidRequestError("The AclBindingFilter must not contain UNKNOWN elements.")


def check_scram(user: str, alterations: Iterable[tuple[ScramMechanism, str | None]]) -> KafkaApiError | None:
    """Return the error of a user's SCRAM credentials to set or delete.

    Args:
        user: Name of the user.
        alterations: Mechanism and password of each credential. A deletion has the password None.
    """
    if not user:
        return api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    for mechanism, password in alterations:
        if password == "":
            return api_error(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Password must not be empty")
        if not mechanism:
            return api_error(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return None
