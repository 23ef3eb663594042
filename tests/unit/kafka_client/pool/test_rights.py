"""Errors of missing rights."""

from __future__ import annotations

import pytest

from klamm.admin import AclFilter, ConfigResource, ResourceType, TopicPartition
from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.errors import api_error
from klamm.kafka_client.pool.rights import name_right
from klamm.protocol.errors import ErrorCode

ALICE = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice")
TOPIC, GROUP, CLUSTER = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


@pytest.mark.parametrize(
    ("code", "request_name", "key", "security", "expected"),
    [
        (TOPIC, "DescribeConfigs", ConfigResource(ResourceType.TOPIC, "t"), ALICE,
         "User:alice needs DESCRIBE_CONFIGS on topic t"),
        (TOPIC, "OffsetDelete", TopicPartition("t", 0), ALICE, "User:alice needs READ on topic t"),
        (GROUP, "OffsetDelete", TopicPartition("t", 0), ALICE, "User:alice needs DELETE on the group"),
        (GROUP, "DescribeGroups", "g", Security(), "User:ANONYMOUS needs DESCRIBE on group g"),
        (CLUSTER, "DeleteAcls", AclFilter(), Security(protocol="SSL"),
         "The principal of this login needs ALTER on the cluster"),
        (ErrorCode.INVALID_CONFIG, "DescribeConfigs", "t", ALICE, None),
    ],
)  # fmt: skip
def test_missing_acl_is_named(
    code: ErrorCode, request_name: str, key: object, security: Security, expected: str | None
) -> None:
    error = api_error(code)
    name_right(error, request_name, key, security)
    assert error.missing_right == expected
