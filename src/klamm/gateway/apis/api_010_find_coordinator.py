"""FindCoordinator (key 10), v0-6, in the gateway: the addresses of the coordinators are replaced.

A coordinator for which the gateway has no port is reported as COORDINATOR_NOT_AVAILABLE, so clients retry.

A rejected request for a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED: librdkafka repeats it after other
errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from collections.abc import Collection

_TRANSACTION: Final = 1
"""``key_type`` of a transactional id."""


def _rejected_with(request: FindCoordinatorRequest) -> ErrorCode | None:
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.key_type == _TRANSACTION else None


def _leave_out(response: FindCoordinatorResponse, left: Collection[int]) -> None:
    coordinators: tuple[Any, ...] = (response, *response.coordinators)
    for each in coordinators:
        if each.node_id in left:
            each.node_id, each.host, each.port = -1, "", -1
            each.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


API: Final = RelayedApi(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    rejected_with=_rejected_with,
    addresses=AddressCarrier(
        response=FindCoordinatorResponse,
        addressed=lambda response: [(each.node_id, each) for each in (response, *response.coordinators)],
        leave_out=_leave_out,
    ),
)
