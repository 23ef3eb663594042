"""AlterClientConfigs (key 51, KIP-649) and AlterUserScramCredentials (key 51, KIP-554), both v0.

Both APIs have the same key; a request is recognized by its shape.

AlterClientConfigs: an entity is a user, or a client id of a user, each by name or the default. Atomic per entity, not
across entities; the response repeats every entry of the request with its outcome. Requires ALTER_CONFIGS on the
cluster.

AlterUserScramCredentials: one outcome per user, all valid changes in one commit. Clients send the salted password, of
which only the derived keys are stored. Requires ALTER on the cluster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.broker.requests.checks import may_cluster, require_cluster
from klamm.broker.security.credentials import CredentialDeletion, upsertion_from_salted_password
from klamm.client_config_runtime.messages import alter_client_configs
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.messages.alter_client_configs import AlterClientConfigsRequest, AlterClientConfigsResponse
from klamm.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from klamm.protocol.shapes import decode_by_shape
from klamm.security.acls import AclOperation
from klamm.security.scram import ScramMechanism
from klamm.server.attempt import ApiError, attempt
from klamm.server.route import Route

if TYPE_CHECKING:
    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS, min_version=0, max_version=0)

AnyRequest: TypeAlias = AlterClientConfigsRequest | AlterUserScramCredentialsRequest
AnyResponse: TypeAlias = AlterClientConfigsResponse | AlterUserScramCredentialsResponse


def decode_raw(api_version: int, frame: memoryview, position: int) -> AnyRequest:
    """Decode whichever of the two requests it is, from after the client id.

    Raises:
        ProtocolError: The body has the shape of neither request.
    """
    return decode_by_shape(AlterClientConfigsRequest, AlterUserScramCredentialsRequest, api_version, frame, position)


async def handle(request: AnyRequest, context: RequestContext) -> AnyResponse:
    """Respond to either of the two requests."""
    if isinstance(request, AlterUserScramCredentialsRequest):
        return await _alter_credentials(request, context)
    return await alter_client_configs(
        context.services.client_configs,
        request,
        author=context.author,
        is_allowed=may_cluster(context, AclOperation.ALTER_CONFIGS),
        slices=context.time_slice,
    )


async def _alter_credentials(
    request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    deletions = [
        CredentialDeletion(user=deletion.name, mechanism=ScramMechanism.from_wire(deletion.mechanism))
        async for deletion in context.time_slice.over(request.deletions)
    ]

    async def step() -> dict[str, ApiError]:
        require_cluster(context, AclOperation.ALTER)
        upsertions = [
            upsertion_from_salted_password(
                upsertion.name,
                ScramMechanism.from_wire(upsertion.mechanism),
                salted_password=bytes(upsertion.salted_password),
                salt=bytes(upsertion.salt),
                iterations=upsertion.iterations,
            )
            async for upsertion in context.time_slice.over(request.upsertions)
        ]
        return await context.services.credentials.alter(
            deletions, upsertions, author=context.author, time_slice=context.time_slice
        )

    outcomes, error = await attempt(step, api=API.key)
    if outcomes is None:
        names = [*(deletion.name for deletion in request.deletions), *(each.name for each in request.upsertions)]
        outcomes = dict.fromkeys(names, error)
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult(
                user=user, error_code=outcome.error_code, error_message=outcome.error_message
            )
            async for user, outcome in context.time_slice.over(outcomes.items())
        ]
    )


ROUTE: Final = Route(api=API, request=AlterClientConfigsRequest, handle=handle, decode_raw=decode_raw)
