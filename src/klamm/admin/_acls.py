"""DescribeAcls, CreateAcls and DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.admin._calls import check_acl, check_acl_filter, controller_change
from klamm.kafka_client.acls import describe_acls_request, described_acls
from klamm.kafka_client.errors import api_error
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.kafka_client.pool.pool import CONTROLLER
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.protocol.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from klamm.protocol.messages.describe_acls import DescribeAclsResponse
from klamm.security.acls import Acl

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.admin.results import PerKeyResult
    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError
    from klamm.security.acls import AclFilter

_FIRST_WITH_PATTERNS = 1


async def describe(pool: ConnectionPool, deadline: Deadline, wanted: AclFilter) -> tuple[Acl, ...]:
    """Return the ACLs that match a filter.

    Raises:
        KafkaApiError: The filter has an unknown field, the broker rejects the request, or has no authorizer
            (SECURITY_DISABLED).
        UnsupportedVersionError: The broker is older than Kafka 2.0.
    """
    if (invalid := check_acl_filter(wanted)) is not None:
        raise invalid
    response = await pool.send(
        describe_acls_request(wanted),
        DescribeAclsResponse,
        deadline=deadline,
        min_version=_FIRST_WITH_PATTERNS,
    )
    pool.check(response)
    return described_acls(response)


async def create(
    pool: ConnectionPool, deadline: Deadline, acls: Collection[Acl], *, result: PerKeyResult[Acl, None]
) -> None:
    """Create ACLs. An ACL that already exists counts as created."""

    async def ask(node_id: int | None, acls: list[Acl], attempt: Deadline) -> Mapping[Acl, KafkaApiError | None]:
        response = await pool.send(
            CreateAclsRequest(creations=[_creation(acl) for acl in acls]),
            CreateAclsResponse,
            deadline=attempt,
            node_id=node_id,
            min_version=_FIRST_WITH_PATTERNS,
        )
        # Results are in the order of the request and do not repeat the ACLs.
        return {
            acl: result_of(outcome.error_code, outcome.error_message, None)
            for acl, outcome in zip(acls, response.results, strict=False)
        }

    call = KeyedCall(what="CreateAcls", ask=ask, settle=result.settle, node_id=CONTROLLER, check=check_acl)
    await call.run(pool, deadline, acls)


def _creation(acl: Acl) -> CreateAclsRequest.AclCreation:
    return CreateAclsRequest.AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


async def delete(
    pool: ConnectionPool,
    deadline: Deadline,
    filters: Collection[AclFilter],
    *,
    result: PerKeyResult[AclFilter, tuple[Acl, ...]],
) -> None:
    """Delete the ACLs that match each filter. If one of them cannot be deleted, its filter fails."""

    async def ask(
        node_id: int | None, filters: list[AclFilter], attempt: Deadline
    ) -> Mapping[AclFilter, tuple[Acl, ...] | KafkaApiError]:
        response = await pool.send(
            DeleteAclsRequest(filters=[_filter(wanted) for wanted in filters]),
            DeleteAclsResponse,
            deadline=attempt,
            node_id=node_id,
            min_version=_FIRST_WITH_PATTERNS,
        )
        # Results are in the order of the request and do not repeat the filters.
        return {wanted: _deletions(result) for wanted, result in zip(filters, response.filter_results, strict=False)}

    call = controller_change("DeleteAcls", ask, result.settle, check=check_acl_filter)
    await call.run(pool, deadline, filters)


def _filter(wanted: AclFilter) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=wanted.resource_type,
        resource_name_filter=wanted.resource_name,
        pattern_type_filter=wanted.pattern_type,
        principal_filter=wanted.principal,
        host_filter=wanted.host,
        operation=wanted.operation,
        permission_type=wanted.permission,
    )


def _deletions(result: DeleteAclsResponse.DeleteAclsFilterResult) -> tuple[Acl, ...] | KafkaApiError:
    errors = [(result.error_code, result.error_message)]
    errors += [(acl.error_code, acl.error_message) for acl in result.matching_acls]
    rejected = next(((code, message) for code, message in errors if code != ErrorCode.NONE), None)
    return tuple(map(_deleted, result.matching_acls)) if rejected is None else api_error(*rejected)


def _deleted(acl: DeleteAclsResponse.DeleteAclsMatchingAcl) -> Acl:
    return Acl.from_wire(
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission=acl.permission_type,
    )
