"""CreateAcls on the wire."""

from __future__ import annotations

import pytest

from klamm.broker.handlers.api_030_create_acls import ROUTE
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.security.acls import AclResourceType, PatternType
from tests.support.acls import AclBroker, creation


def create(
    broker: AclBroker, *creations: CreateAclsRequest.AclCreation, version: int = 3, principal: str = "User:admin"
) -> list[tuple[int, str | None]]:
    request = CreateAclsRequest(creations=list(creations))
    answer = broker.ask(ROUTE, request, CreateAclsResponse, version, principal=principal)
    return [(result.error_code, result.error_message) for result in answer.results]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_acls_are_stored_in_one_commit_and_existing_ones_accepted(version: int) -> None:
    broker = AclBroker()
    assert create(broker, creation("a"), creation("b"), version=version) == [(ErrorCode.NONE, None)] * 2
    assert create(broker, creation("a"), version=version) == [(ErrorCode.NONE, None)]
    assert broker.store.commits == [2, 0]  # what is there already is answered when it is durable


def test_invalid_acl_is_rejected_and_others_stored() -> None:
    broker = AclBroker()
    outcomes = create(
        broker,
        creation("a"),
        creation("b", principal="alice"),
        creation("c", resource_type=AclResourceType.CLUSTER),
        creation("d", resource_pattern_type=PatternType.MATCH),
    )
    assert [code for code, _ in outcomes] == [ErrorCode.NONE] + [ErrorCode.INVALID_REQUEST] * 3
    assert outcomes[2][1] == "The only valid name for the CLUSTER resource is kafka-cluster"
    assert {row.resource_name for row in broker.store.rows} == {"a"}


def test_create_acls_without_alter_on_cluster_is_rejected() -> None:
    broker = AclBroker()
    outcomes = create(broker, creation("a"), creation("b"), principal="User:mallory")
    assert [code for code, _ in outcomes] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2
    assert broker.store.rows == set()


def test_create_acls_without_authorizer_is_security_disabled() -> None:
    assert create(AclBroker(authorizer=False), creation("a")) == [
        (ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")
    ]


def test_unknown_enum_value_closes_the_connection() -> None:
    with pytest.raises(ProtocolError):
        create(AclBroker(), creation("a", operation=0))
