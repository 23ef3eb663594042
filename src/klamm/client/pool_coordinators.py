"""Requests to group coordinators on a connection pool, with a new lookup when a coordinator has moved."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.client.errors import RETRIABLE_CODES, ConnectionLostError, api_error
from klamm.client.pool import Deadline
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from klamm.client.pool import ConnectionPool

_FIRST_WITH_SEVERAL_KEYS: Final = 4
_ATTEMPT_MS: Final = 15_000
"""Time without a response after which the coordinator is looked up again, as another broker may have taken over."""
_PAUSE_S: Final = 0.1

Ask: TypeAlias = "Callable[[int, list[str], Deadline], Awaitable[Collection[str]]]"
"""Function that sends a request for some groups to their coordinator and returns the groups to retry.

It sends with ``looked_up``, so that a failed coordinator is looked up again immediately.
"""


async def ask_coordinators(
    pool: ConnectionPool,
    deadline: Deadline,
    group_ids: Collection[str],
    ask: Ask,
    fail: Callable[[str, Exception], None],
) -> None:
    """Send a request to the coordinator of each group, until all have responded or the deadline has passed.

    Args:
        pool: The connection pool.
        deadline: Deadline of the whole call.
        group_ids: The groups.
        ask: Function that sends the request to one coordinator.
        fail: Callback for a group whose coordinator lookup failed permanently.

    Raises:
        TimeoutError: For some group, no coordinator responded before the deadline.
    """
    waiting = list(group_ids)
    while waiting:
        if deadline.passed():
            raise TimeoutError(f"Groups {', '.join(waiting)}: no coordinator responded within {deadline.limit_ms} ms")
        again: list[str] = []
        for node_id, groups in (await _by_coordinator(pool, deadline, waiting, fail)).items():
            if node_id is None:
                again += groups
                continue
            attempt = Deadline(min(deadline.left_ms(), _ATTEMPT_MS))
            try:
                again += await ask(node_id, groups, attempt)
            except (TimeoutError, ConnectionLostError):
                again += groups
        waiting = again
        if waiting:
            await pool.pause(min(_PAUSE_S, deadline.left_s()))


async def _by_coordinator(
    pool: ConnectionPool, deadline: Deadline, group_ids: Collection[str], fail: Callable[[str, Exception], None]
) -> Mapping[int | None, list[str]]:
    """Return the groups by the node id of their coordinator. The key None holds groups without a coordinator so far."""
    found: dict[int | None, list[str]] = defaultdict(list)
    for answer in await _look_up(pool, deadline, group_ids):
        if answer.key not in group_ids:
            continue
        if answer.error_code in RETRIABLE_CODES:
            found[None].append(answer.key)
        elif answer.error_code != ErrorCode.NONE:
            fail(answer.key, api_error(answer.error_code, answer.error_message))
        else:
            found[answer.node_id].append(answer.key)
    return found


async def _look_up(
    pool: ConnectionPool, deadline: Deadline, group_ids: Collection[str]
) -> list[FindCoordinatorResponse.Coordinator]:
    offered = await pool.offered_versions(deadline)
    if offered.get(FindCoordinatorRequest.API_KEY, (0, 0))[1] >= _FIRST_WITH_SEVERAL_KEYS:
        request = FindCoordinatorRequest(coordinator_keys=list(group_ids))
        response = await pool.send(
            request, FindCoordinatorResponse, deadline=deadline, min_version=_FIRST_WITH_SEVERAL_KEYS
        )
        return response.coordinators
    return [await _look_up_one(pool, deadline, group_id) for group_id in group_ids]


async def _look_up_one(pool: ConnectionPool, deadline: Deadline, group_id: str) -> FindCoordinatorResponse.Coordinator:
    """Look up the coordinator of one group, for brokers older than 3.0, which accept one group per request."""
    response = await pool.send(
        FindCoordinatorRequest(key=group_id),
        FindCoordinatorResponse,
        deadline=deadline,
        max_version=_FIRST_WITH_SEVERAL_KEYS - 1,
    )
    return FindCoordinatorResponse.Coordinator(
        key=group_id,
        node_id=response.node_id,
        error_code=response.error_code,
        error_message=response.error_message,
    )
