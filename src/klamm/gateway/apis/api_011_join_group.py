"""JoinGroup (key 11), v0-9, in the gateway: policies on the names of groups.

Client configs may replace the session timeout (KIP-649).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.wire import INT16, INT32, after_compact_string
from klamm.gateway.policies.policy_api import group_policy
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from klamm.protocol.primitives import skip_tagged_fields

if TYPE_CHECKING:
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.frames.wire import RequestHead

_FLEXIBLE_SINCE: Final = 6


def session_timeout_at(view: memoryview, api_version: int, body: int) -> int:
    """Return the position of ``session_timeout_ms``, an int32, in a request.

    Args:
        view: Bytes of the frame, size included.
        api_version: Version of the request.
        body: Position after the client id.

    Raises:
        IndexError: The view ends before it.
        struct.error: The view ends before it.
        ProtocolError: The request is malformed.
    """
    if api_version >= _FLEXIBLE_SINCE:
        return after_compact_string(view, skip_tagged_fields(view, body, len(view)))
    length: int = INT16.unpack_from(view, body)[0]
    return body + INT16.size + max(length, 0)


def _patch(watch: ConnectionWatch, head: RequestHead, frame: memoryview, body: int) -> None:
    position = session_timeout_at(frame, head.api_version, body)
    (requested,) = INT32.unpack_from(frame, position)
    INT32.pack_into(frame, position, watch.session_timeout_ms(requested, head.client_id))


POLICY: Final = group_policy(
    JoinGroupRequest, JoinGroupResponse, lambda error: JoinGroupResponse(error_code=error.error_code, members=[])
)
API: Final = RelayedApi(key=ApiKey.JOIN_GROUP, versions=(0, 9), patch_request=_patch)
