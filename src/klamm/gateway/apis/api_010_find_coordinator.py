"""FindCoordinator (key 10), v0-6, in the gateway: the addresses of the coordinators are replaced.

A rejected request for a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED: librdkafka repeats it after other
errors.
"""

from __future__ import annotations

from typing import Final

from klamm.gateway.frames.addresses import AddressCarrier
from klamm.gateway.relay.api import RelayedApi
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

_TRANSACTION: Final = 1
"""``key_type`` of a transactional id."""


def _rejected_with(request: FindCoordinatorRequest) -> ErrorCode | None:
    return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.key_type == _TRANSACTION else None


API: Final = RelayedApi(
    key=ApiKey.FIND_COORDINATOR,
    versions=(0, 6),
    rejected_with=_rejected_with,
    addresses=AddressCarrier(
        response=FindCoordinatorResponse,
        addressed=lambda response: [(each.node_id, each) for each in (response, *response.coordinators)],
    ),
)
