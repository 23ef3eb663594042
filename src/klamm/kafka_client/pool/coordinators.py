"""Lookup of group coordinators on a connection pool (FindCoordinator)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.kafka_client.pool.keyed_calls import result_of
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from klamm.kafka_client.pool.deadline import Deadline
    from klamm.kafka_client.pool.pool import ConnectionPool
    from klamm.protocol.errors import KafkaApiError

_FIRST_WITH_SEVERAL_KEYS: Final = 4


async def find_coordinators(
    pool: ConnectionPool, deadline: Deadline, group_ids: Iterable[str]
) -> Mapping[str, int | KafkaApiError]:
    """Return the node id of each group's coordinator, or the error with which the cluster answers."""
    offered = await pool.offered_versions(deadline)
    if offered.get(FindCoordinatorRequest.API_KEY, (0, 0))[1] < _FIRST_WITH_SEVERAL_KEYS:
        return {group_id: await _find_one(pool, deadline, group_id) for group_id in group_ids}
    request = FindCoordinatorRequest(coordinator_keys=list(group_ids))
    response = await pool.send(
        request, FindCoordinatorResponse, deadline=deadline, min_version=_FIRST_WITH_SEVERAL_KEYS
    )
    return {
        found.key: result_of(found.error_code, found.error_message, found.node_id) for found in response.coordinators
    }


async def _find_one(pool: ConnectionPool, deadline: Deadline, group_id: str) -> int | KafkaApiError:
    """Look up the coordinator of one group, for brokers older than 3.0, which accept one group per request."""
    response = await pool.send(
        FindCoordinatorRequest(key=group_id),
        FindCoordinatorResponse,
        deadline=deadline,
        max_version=_FIRST_WITH_SEVERAL_KEYS - 1,
    )
    return result_of(response.error_code, response.error_message, response.node_id)
