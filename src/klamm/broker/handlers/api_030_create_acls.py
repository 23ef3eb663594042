"""CreateAcls (key 30), v1-3: one outcome per ACL. All valid ACLs are stored in one commit.

Requires ALTER on the cluster. SECURITY_DISABLED without an authorizer. An ACL that exists already is not an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.broker.requests.checks import require_cluster
from klamm.broker.security.acl_wire import read_acl
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from klamm.security.acls import AclOperation
from klamm.server.attempt import NONE, ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import RequestContext
    from klamm.protocol.errors import KafkaApiError

API: Final = Api(key=ApiKey.CREATE_ACLS, min_version=1, max_version=3)


async def handle(request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    """Create the ACLs."""
    slices = context.time_slice
    acls = await slices.listed(read_acl(creation) for creation in request.creations)

    async def step() -> Sequence[KafkaApiError | None]:
        require_cluster(context, AclOperation.ALTER)
        return await context.services.authorizer.create(acls, slices)

    outcomes, error = await attempt(step, api=API.key)
    answers = [error] * len(acls) if outcomes is None else [_answer(outcome) for outcome in outcomes]
    return CreateAclsResponse(
        results=await slices.listed(
            CreateAclsResponse.AclCreationResult(error_code=answer.error_code, error_message=answer.error_message)
            for answer in answers
        )
    )


def _answer(outcome: KafkaApiError | None) -> ApiError:
    return NONE if outcome is None else ApiError(outcome.error_code, outcome.error_message)


ROUTE: Final = Route(api=API, request=CreateAclsRequest, handle=handle)
