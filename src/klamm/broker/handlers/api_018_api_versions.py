"""ApiVersions (key 18), v0-5.

Returns the served APIs, which are derived from the routes, and the supported features. From v3 on the request contains
name and version of the client software (KIP-511), which are stored with the connection.

===========================  =====================================================================================
Feature                      Meaning
===========================  =====================================================================================
``client.configs``           Keys 50 and 51 also have the requests of KIP-649. Clients send those only to brokers
                             that announce this feature.
``group.version`` 1          Consumer groups of KIP-848 are served.
``metadata.version`` 33      Level of Kafka 4.4. UIs derive the version of the cluster and the functions that they offer
                             from it (kafka-ui: incremental changes of configs, quotas).
``transaction.version`` 2    Writing adds partitions to a transaction, and the end of a transaction increments the
                             producer epoch (KIP-890).
===========================  =====================================================================================

From v5 on, the request may name the cluster and the broker that the client expects at this address, both or neither.
If this is another one, the response is REBOOTSTRAP_REQUIRED (KIP-1242).
For an unknown version, the connection itself responds with a v0 body and UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from klamm.server.route import Route
from klamm.server.session import is_software

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.API_VERSIONS, min_version=0, max_version=5)
TRANSACTION_FEATURE: Final = "transaction.version"
GROUP_FEATURE: Final = "group.version"
METADATA_FEATURE: Final = "metadata.version"
_FEATURES: Final = (
    (CLIENT_CONFIGS_FEATURE, 1, 1),
    (GROUP_FEATURE, 0, 1),
    (METADATA_FEATURE, 7, 33),
    (TRANSACTION_FEATURE, 0, 2),
)
"""Name, minimum and maximum supported level; the maximum is finalized.

A finalized ``client.configs`` distinguishes klamm from Kafka: a gateway in front of Kafka only announces its support.
"""
_FEATURES_EPOCH: Final = 0
"""Epoch of the finalized features. Clients ignore features with a negative epoch."""
_SOFTWARE_SINCE: Final = 3
_ZERO_SINCE: Final = 4
_NO_NODE: Final = -1


async def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Return APIs and features, and store the client's software."""
    if context.api_version >= _SOFTWARE_SINCE:
        name, version = request.client_software_name, request.client_software_version
        if not is_software(name, version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        error_code = _check_destination(request, context)
        if error_code is not ErrorCode.NONE:
            return ApiVersionsResponse(error_code=error_code)
        context.session.software_name, context.session.software_version = name, version
    return ApiVersionsResponse(
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version)
            for api in context.services.apis
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=least, max_version=largest)
            for name, least, largest in _features(context)
        ],
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=largest, max_version_level=largest)
            for name, _, largest in _FEATURES
        ],
    )


def _check_destination(request: ApiVersionsRequest, context: RequestContext) -> ErrorCode:
    """Return REBOOTSTRAP_REQUIRED if the client expects another cluster or broker here (v5, KIP-1242)."""
    if request.cluster_id is None and request.node_id == _NO_NODE:
        return ErrorCode.NONE
    if request.cluster_id is None or request.node_id == _NO_NODE:
        return ErrorCode.INVALID_REQUEST
    is_here = request.cluster_id == context.services.cluster.cluster_id and request.node_id == context.node_id
    return ErrorCode.NONE if is_here else ErrorCode.REBOOTSTRAP_REQUIRED


def _features(context: RequestContext) -> Iterable[tuple[str, int, int]]:
    """Return the supported features.

    Clients before v4 reject features with a minimum level of 0, so they do not get those.
    """
    return _FEATURES if context.api_version >= _ZERO_SINCE else (item for item in _FEATURES if item[1] > 0)


ROUTE: Final = Route(api=API, request=ApiVersionsRequest, handle=handle)
