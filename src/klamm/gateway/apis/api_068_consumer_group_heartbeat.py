"""ConsumerGroupHeartbeat (key 68), v0-1, in the gateway: policies on the names of groups.

Client configs may replace the interval in the response (KIP-649).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.wire import INT16, INT32, RESPONSE_HEAD, after_compact_string
from klamm.gateway.policies.policy_api import group_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from klamm.protocol.primitives import skip_tagged_fields

if TYPE_CHECKING:
    from klamm.gateway.frames.peer import ConnectionWatch

_JOINING: Final = 0
"""``member_epoch`` of a request by which a consumer joins."""


def heartbeat_interval_at(view: memoryview) -> int | None:
    """Return the position of ``heartbeat_interval_ms``, an int32, in a response.

    Args:
        view: Bytes of the frame, size included.

    Returns:
        The position; None if the response is an error.

    Raises:
        IndexError: The view ends before it.
        struct.error: The view ends before it.
        ProtocolError: The response is malformed.
    """
    position = skip_tagged_fields(view, RESPONSE_HEAD.size, len(view)) + INT32.size  # throttle_time_ms
    if INT16.unpack_from(view, position)[0] != ErrorCode.NONE:
        return None
    position = after_compact_string(view, position + INT16.size)  # error_message
    return after_compact_string(view, position) + INT32.size  # member_id and member_epoch


def _patch(watch: ConnectionWatch, client_id: str | None, frame: memoryview) -> None:
    position = heartbeat_interval_at(frame)
    if position is not None:
        (offered,) = INT32.unpack_from(frame, position)
        INT32.pack_into(frame, position, watch.heartbeat_interval_ms(offered, client_id))


POLICY: Final = group_policy(
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    lambda error: ConsumerGroupHeartbeatResponse(error_code=error.error_code, error_message=error.error_message),
    concerns=lambda request: request.member_epoch == _JOINING,
)
API: Final = RelayedApi(key=ApiKey.CONSUMER_GROUP_HEARTBEAT, versions=(0, 1), patch_response=_patch)
