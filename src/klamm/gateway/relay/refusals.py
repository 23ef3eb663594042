"""Rejections of clients whose client id, or whose use of an API, a policy denies.

=========================================  ===========================================================================
Requests                                   Response to a denied client
=========================================  ===========================================================================
ApiVersions and logins                     as always. They come before the principal is known.
Metadata                                   as always, so that the client reaches the broker that rejects it. Clients
                                           have no clear way to report an error in it.
Fetch, ListOffsets, OffsetForLeaderEpoch   TOPIC_AUTHORIZATION_FAILED for each partition. The consumers of Kafka report
                                           it, and repeat such requests silently after other errors.
InitProducerId                             CLUSTER_AUTHORIZATION_FAILED, because librdkafka repeats it after other
                                           errors; and a throttle time of a second. The Java producer fails its records,
                                           and sends the next InitProducerId at once, more than 5,000 per second.
FindCoordinator for a transactional id     TRANSACTIONAL_ID_AUTHORIZATION_FAILED. librdkafka repeats it after other
                                           errors.
all others that have an error code         POLICY_VIOLATION for each part, or for the whole request. The Java client
                                           sends GetTelemetrySubscriptions beside its other requests, and a closed
                                           connection would fail those, too.
all others                                 The connection is closed. The Java client reconnects with a backoff, and
                                           reports a timeout.
=========================================  ===========================================================================
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.wire import response_frame
from klamm.gateway.relay.logins import LOGIN_APIS
from klamm.protocol.api import ApiKey, api_name
from klamm.protocol.error_response import error_response
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.gateway.frames.wire import RequestHead
    from klamm.protocol.schema import Message
    from klamm.server.attempt import ApiError

ADMITTED_APIS: Final = LOGIN_APIS | {ApiKey.METADATA}
"""APIs that are served whatever the client id is."""
TWO_REQUESTS: Final = frozenset({ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ApiKey.ALTER_USER_SCRAM_CREDENTIALS})
"""API keys with two kinds of requests (KIP-649). They are not decoded to reject them."""
_CODES: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        ApiKey.FETCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ApiKey.LIST_OFFSETS: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ApiKey.INIT_PRODUCER_ID: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""Error in place of that of the policy."""
_TRANSACTION: Final = 1
"""``key_type`` of FindCoordinator for a transactional id."""
_PAUSE_MS: Final = 1000


def rejection(request: Message, api_version: int, error: ApiError) -> Message | None:
    """Return the response to a request of a denied client; None if no response can report the error.

    Args:
        request: The request.
        api_version: Version of the request.
        error: Error of the policy.
    """
    code = _CODES.get(request.API_KEY, error.error_code)
    if isinstance(request, FindCoordinatorRequest) and request.key_type == _TRANSACTION:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    response = error_response(request, api_version, ErrorCode(code), error.error_message)
    if request.API_KEY == ApiKey.INIT_PRODUCER_ID and response is not None:
        response.throttle_time_ms = _PAUSE_MS  # type: ignore[attr-defined]  # of this response
    return response


def rejection_frame(head: RequestHead, request: Message, error: ApiError) -> bytes:
    """Return the response frame to a rejected request.

    Raises:
        ProtocolError: No response to this request can report the error.
    """
    response = rejection(request, head.api_version, error)
    if response is None:
        raise rejected(head, error)
    return response_frame(response, head.api_version, head.correlation_id)


def rejected(head: RequestHead, error: ApiError) -> ProtocolError:
    """Return the error that closes the connection of a denied client, where no response can report it."""
    name = f"{api_name(head.api_key)} of client id {(head.client_id or '')[:100]!r}"
    return ProtocolError(f"{name} is rejected: {error.error_message}")
