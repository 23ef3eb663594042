"""DeleteAcls on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from klamm.broker.handlers import api_030_create_acls
from klamm.broker.handlers.api_031_delete_acls import ROUTE
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from tests.support.acls import AclBroker, creation

ANY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def acl_filter(name: str | None, **more: Any) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        **{"resource_name_filter": name, "principal_filter": None, "host_filter": None, **ANY, **more}
    )


@pytest.fixture
def broker() -> AclBroker:
    made = AclBroker()
    acls = [creation("a"), creation("a", "User:bob"), creation("b")]
    made.ask(api_030_create_acls.ROUTE, CreateAclsRequest(creations=acls), CreateAclsResponse, 3)
    made.store.commits.clear()
    return made


@pytest.mark.parametrize("version", [1, 2, 3])
def test_matching_acls_are_removed_and_reported_in_one_commit(broker: AclBroker, version: int) -> None:
    request = DeleteAclsRequest(
        filters=[acl_filter("a"), acl_filter(None, principal_filter="User:alice"), acl_filter("none")]
    )
    answer = broker.ask(ROUTE, request, DeleteAclsResponse, version)
    results = [
        [(acl.resource_name, acl.principal, acl.error_code) for acl in result.matching_acls]
        for result in answer.filter_results
    ]
    assert results == [
        [("a", "User:alice", 0), ("a", "User:bob", 0)],
        [("a", "User:alice", 0), ("b", "User:alice", 0)],
        [],
    ]
    assert broker.store.rows == set()
    assert broker.store.commits == [3]


def test_delete_acls_without_alter_on_cluster_is_rejected(broker: AclBroker) -> None:
    request = DeleteAclsRequest(filters=[acl_filter(None), acl_filter("a")])
    answer = broker.ask(ROUTE, request, DeleteAclsResponse, 3, principal="User:mallory")
    assert [(result.error_code, result.matching_acls) for result in answer.filter_results] == [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    ] * 2
    assert len(broker.store.rows) == 3


def test_invalid_filter_is_rejected_and_others_apply(broker: AclBroker) -> None:
    request = DeleteAclsRequest(filters=[acl_filter(None, operation=99), acl_filter("b")])
    answer = broker.ask(ROUTE, request, DeleteAclsResponse, 3)
    assert [result.error_code for result in answer.filter_results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert {row.resource_name for row in broker.store.rows} == {"a"}


def test_delete_acls_without_authorizer_is_security_disabled() -> None:
    answer = AclBroker(authorizer=False).ask(
        ROUTE, DeleteAclsRequest(filters=[acl_filter(None)]), DeleteAclsResponse, 3
    )
    assert [result.error_code for result in answer.filter_results] == [ErrorCode.SECURITY_DISABLED]
