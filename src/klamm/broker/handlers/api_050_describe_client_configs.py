"""DescribeClientConfigs (key 50, KIP-649) and DescribeUserScramCredentials (key 50, KIP-554), both v0.

Both APIs have the same key; a request is recognized by its shape.

=====================  =======================================================================  ========================
Request                Response                                                                 Requires
=====================  =======================================================================  ========================
``resolve_entity``     entities that match a filter, for operators                              DESCRIBE_CONFIGS on the
false                                                                                           cluster
``resolve_entity``     configs that apply to the requesting application, which thereby          nothing; the entity is
true                   registers the keys it supports                                           the logged-in principal
SCRAM                  mechanisms and iterations of users, never salts or keys                  DESCRIBE on the cluster
=====================  =======================================================================  ========================

Errors of DescribeClientConfigs are top-level, with null entries.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import CLUSTER_DENIED, may_cluster
from klamm.client_config_runtime.messages import describe_client_configs
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from klamm.protocol.shapes import decode_by_shape
from klamm.security.acls import AclOperation
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, min_version=0, max_version=0)

AnyRequest: TypeAlias = DescribeClientConfigsRequest | DescribeUserScramCredentialsRequest
AnyResponse: TypeAlias = DescribeClientConfigsResponse | DescribeUserScramCredentialsResponse
CredentialsResult: TypeAlias = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult


def decode_raw(api_version: int, frame: memoryview, position: int) -> AnyRequest:
    """Decode whichever of the two requests it is, from after the client id.

    Raises:
        ProtocolError: The body has the shape of neither request.
    """
    return decode_by_shape(
        DescribeClientConfigsRequest, DescribeUserScramCredentialsRequest, api_version, frame, position
    )


async def handle(request: AnyRequest, context: RequestContext) -> AnyResponse:
    """Respond to either of the two requests."""
    if isinstance(request, DescribeUserScramCredentialsRequest):
        return await _describe_credentials(request, context)
    return await describe_client_configs(
        context.services.client_configs,
        request,
        context.session,
        client_id=context.client_id,
        is_allowed=request.resolve_entity or may_cluster(context, AclOperation.DESCRIBE_CONFIGS),
        slices=context.time_slice,
    )


async def _describe_credentials(
    request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    """Return the credentials of the requested users. Without users, return those of all users."""
    if not may_cluster(context, AclOperation.DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            error_code=CLUSTER_DENIED.error_code, error_message=CLUSTER_DENIED.error_message
        )
    slices = context.time_slice
    occurrences = Counter(await slices.listed(user.name for user in request.users or ()))
    names = occurrences or Counter(context.services.credentials.users)
    return DescribeUserScramCredentialsResponse(
        error_message="",
        results=await slices.listed(
            _credentials_of(name, context, is_duplicate=count > 1) for name, count in names.items()
        ),
    )


def _credentials_of(name: str, context: RequestContext, *, is_duplicate: bool) -> CredentialsResult:
    if is_duplicate:
        return CredentialsResult(
            user=name,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        )
    infos = context.services.credentials.describe(name)
    if not infos:
        return CredentialsResult(
            user=name,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {name}",
        )
    return CredentialsResult(
        user=name,
        error_message="",
        credential_infos=[
            DescribeUserScramCredentialsResponse.CredentialInfo(mechanism=mechanism, iterations=iterations)
            for mechanism, iterations in infos
        ],
    )


ROUTE: Final = Route(api=API, request=DescribeClientConfigsRequest, handle=handle, decode_raw=decode_raw)
