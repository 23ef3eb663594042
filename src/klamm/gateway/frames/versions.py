"""ApiVersions as clients see it: the versions that both the upstream and the gateway serve."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.api_versions import ApiVersionsResponse

if TYPE_CHECKING:
    from collections.abc import Mapping


NO_FEATURES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({})


def intersect(
    response: ApiVersionsResponse,
    served: Mapping[int, tuple[int, int]],
    features: Mapping[str, tuple[int, int]] = NO_FEATURES,
) -> ApiVersionsResponse:
    """Return a response with the APIs and versions that both sides serve, and further features.

    All other fields are unchanged.

    The last version of ApiVersions itself is that of the upstream if it is lower, as for any other API.
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


def read_api_versions(body: memoryview, api_version: int) -> tuple[ApiVersionsResponse, int]:
    """Decode an ApiVersions response; return it with its version, which is 0 when the request's was not served.

    Raises:
        ProtocolError: The response is malformed.
    """
    if len(body) < 2:  # noqa: PLR2004 - bytes of the error code
        raise ProtocolError("ApiVersions response ends before its error code")
    if int.from_bytes(body[:2]) == ErrorCode.UNSUPPORTED_VERSION:
        api_version = 0
    return decode(ApiVersionsResponse, api_version, body), api_version


def unsupported_version(served: Mapping[int, tuple[int, int]]) -> ApiVersionsResponse:
    """Return the response, in version 0, to an ApiVersions request of a version that is not served (KIP-511)."""
    first, last = served[ApiKey.API_VERSIONS]
    own = ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=first, max_version=last)
    return ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
