"""ApiVersions (key 18), v0-5, in the gateway: the versions that both the upstream and the gateway serve.

The gateway's own requests on the client's connection use the upstream's versions from the same response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.relay.api import RelayedApi
from klamm.gateway.relay.filter import Filter, Forward, Reply
from klamm.kafka_client.connection.connection import offered_versions
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.server.session import is_software

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.gateway.relay.filter import FilterContext, FilterResult

_SOFTWARE_SINCE: Final = 3


def intersect(
    response: ApiVersionsResponse,
    served: Mapping[int, tuple[int, int]],
    features: Mapping[str, tuple[int, int]],
) -> ApiVersionsResponse:
    """Return a response with the APIs and versions that both sides serve, and further features.

    All other fields are unchanged. The last version of ApiVersions itself is that of the upstream if it is lower, as
    for any other API.
    """
    apis = []
    for api in response.api_keys:
        first, last = served.get(api.api_key, (1, 0))
        first, last = max(first, api.min_version), min(last, api.max_version)
        if first <= last:
            apis.append(ApiVersionsResponse.ApiVersion(api_key=api.api_key, min_version=first, max_version=last))
    return ApiVersionsResponse(
        error_code=response.error_code,
        api_keys=apis,
        throttle_time_ms=response.throttle_time_ms,
        supported_features=[
            *(feature for feature in response.supported_features if feature.name not in features),
            *(
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=first, max_version=last)
                for name, (first, last) in features.items()
            ),
        ],
        finalized_features_epoch=response.finalized_features_epoch,
        finalized_features=response.finalized_features,
        zk_migration_ready=response.zk_migration_ready,
    )


def response_version(body: memoryview, api_version: int) -> int:
    """Return the version of a response: 0 if that of the request is not served.

    Raises:
        ProtocolError: The response is malformed.
    """
    if len(body) < 2:  # noqa: PLR2004 - bytes of the error code
        raise ProtocolError("ApiVersions response ends before its error code")
    return 0 if int.from_bytes(body[:2]) == ErrorCode.UNSUPPORTED_VERSION else api_version


def unsupported_version(first: int, last: int) -> ApiVersionsResponse:
    """Return the response, in version 0, to a request of a version that is not served (KIP-511)."""
    own = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])


def _decide(_request: None, context: FilterContext) -> FilterResult:
    served, features = context.served, context.supported_features
    first, last = served[ApiKey.API_VERSIONS]
    if not first <= context.api_version <= last:
        return Reply(response=unsupported_version(first, last), version=0)
    if context.watch is not None:
        request = context.decode(ApiVersionsRequest)
        name, version = request.client_software_name, request.client_software_version
        if context.api_version >= _SOFTWARE_SINCE and not is_software(name, version):
            return Reply(response=ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST))
        context.watch.on_software(name, version)
    keep_versions = context.keep_versions  # not the context, which has the frame

    def inspect(response: ApiVersionsResponse) -> ApiVersionsResponse:
        if response.error_code == ErrorCode.NONE:
            keep_versions(offered_versions(response))
        return intersect(response, served, features)

    return Forward(inspect=inspect)


API: Final = RelayedApi(
    key=ApiKey.API_VERSIONS,
    versions=(0, 5),
    is_before_login=True,
    is_always_admitted=True,
    answers_any_version=True,
    filter=Filter(request=None, response=ApiVersionsResponse, decide=_decide, response_version=response_version),
)
