"""ApiVersions (key 18), v0-4.

Answers what is served, computed from the routes, and the features that are supported. From v3 on the client tells
its software's name and version (KIP-511), which are kept with the connection. The feature ``client.configs`` says
that keys 50 and 51 also mean KIP-649; clients send its requests to nobody who does not announce it.
``transaction.version`` 2 says that writing adds partitions to a transaction and that its end raises the epoch
(KIP-890).
An unknown version is answered by the connection itself, with a v0 body and UNSUPPORTED_VERSION.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from klamm.broker.route import Route
from klamm.protocol.api import Api, ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.broker.context import RequestContext

API: Final = Api(key=ApiKey.API_VERSIONS, min_version=0, max_version=4)
TRANSACTION_FEATURE: Final = "transaction.version"
_FEATURES: Final = ((CLIENT_CONFIGS_FEATURE, 1, 1), (TRANSACTION_FEATURE, 0, 2))
"""Name, least and largest level that is supported; the largest is in force."""
_FEATURES_EPOCH: Final = 0
"""Clients ignore features whose epoch is negative."""
_SOFTWARE_SINCE: Final = 3
_ZERO_SINCE: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


async def handle(request: ApiVersionsRequest, context: RequestContext) -> ApiVersionsResponse:
    """Tell what is served, and remember who asks."""
    if context.api_version >= _SOFTWARE_SINCE:
        name, version = request.client_software_name, request.client_software_version
        if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
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


def _features(context: RequestContext) -> Iterable[tuple[str, int, int]]:
    """Return what is supported; clients before v4 stumble over a least level of 0: such features are not told them."""
    return _FEATURES if context.api_version >= _ZERO_SINCE else (item for item in _FEATURES if item[1] > 0)


ROUTE: Final = Route(api=API, request=ApiVersionsRequest, handle=handle)
