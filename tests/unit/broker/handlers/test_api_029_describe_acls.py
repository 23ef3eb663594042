"""DescribeAcls on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.handlers import api_030_create_acls
from klamm.broker.handlers.api_029_describe_acls import ROUTE
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from klamm.security.acls import AclOperation, AclPermission, PatternType
from tests.support.acls import AclBroker, creation

ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def describe(broker: AclBroker, version: int = 3, principal: str = "User:admin", **wanted: Any) -> DescribeAclsResponse:
    request = DescribeAclsRequest(
        **{"resource_name_filter": None, "principal_filter": None, "host_filter": None, **ANY, **wanted}
    )
    return broker.ask(ROUTE, request, DescribeAclsResponse, version, principal=principal)


@pytest.fixture
def broker() -> AclBroker:
    made = AclBroker()
    acls = [
        creation("orders"),
        creation("orders", "User:bob", operation=AclOperation.WRITE, permission_type=AclPermission.DENY),
        creation("ord", resource_pattern_type=PatternType.PREFIXED),
        creation("other"),
    ]
    made.ask(api_030_create_acls.ROUTE, CreateAclsRequest(creations=acls), CreateAclsResponse, 3)
    return made


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_reported_by_resource_pattern(broker: AclBroker, version: int) -> None:
    answer = describe(broker, version)
    assert answer.error_code == ErrorCode.NONE
    patterns = {
        (resource.resource_name, resource.pattern_type): [
            (acl.principal, acl.host, acl.operation, acl.permission_type) for acl in resource.acls
        ]
        for resource in answer.resources
    }
    assert patterns == {
        ("ord", 4): [("User:alice", "*", 3, 3)],
        ("orders", 3): [("User:alice", "*", 3, 3), ("User:bob", "*", 4, 2)],
        ("other", 3): [("User:alice", "*", 3, 3)],
    }


def test_filter_matches_acls_of_a_name_or_a_user(broker: AclBroker) -> None:
    applying = describe(broker, resource_name_filter="orders", pattern_type_filter=PatternType.MATCH)
    assert [resource.resource_name for resource in applying.resources] == ["ord", "orders"]
    of_bob = describe(broker, principal_filter="User:bob")
    assert [acl.principal for resource in of_bob.resources for acl in resource.acls] == ["User:bob"]


def test_describe_acls_without_describe_on_cluster_is_rejected(broker: AclBroker) -> None:
    answer = describe(broker, principal="User:mallory")
    assert (answer.error_code, answer.resources) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])


def test_describe_acls_without_authorizer_is_security_disabled() -> None:
    answer = describe(AclBroker(authorizer=False))
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.SECURITY_DISABLED,
        "No Authorizer is configured on the broker",
    )


def test_unknown_enum_value_closes_the_connection(broker: AclBroker) -> None:
    with pytest.raises(ProtocolError):
        describe(broker, operation=0)
