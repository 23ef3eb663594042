"""LeaveGroup for a static member. librdkafka never sends it, because static members are meant to return."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from klamm.client.errors import RETRIABLE_CODES, raise_for_code
from klamm.client.pool import ConnectionPool
from klamm.client.pool_coordinators import ask_coordinators
from klamm.client.transport import ConnectionSettings
from klamm.protocol.errors import KafkaApiError, ProtocolError
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from collections.abc import Collection

    from klamm.client.pool import Deadline

logger = logging.getLogger(__name__)

_TIMEOUT_MS: Final = 5_000
_FIRST_VERSION_WITH_INSTANCES: Final = 3


def leave_group(settings: dict[str, Any], group_id: str, group_instance_id: str) -> None:
    """Leave a group as a static member. If that fails, the session timeout removes the member, as after a crash.

    Args:
        settings: kafka-python's settings for servers, security and ``client_id``.
        group_id: Id of the group.
        group_instance_id: Id of the static member.
    """
    settings = dict(settings)
    servers = settings.pop("bootstrap_servers")
    pool = ConnectionPool(ConnectionSettings.of_keywords(servers, settings), timeout_ms=_TIMEOUT_MS)
    try:
        pool.submit(lambda deadline: _leave(pool, deadline, group_id, group_instance_id)).result()
    except (KafkaApiError, ProtocolError, OSError) as error:
        logger.info("Member %s did not leave group %s: %s", group_instance_id, group_id, error)
    finally:
        pool.close()


async def _leave(pool: ConnectionPool, deadline: Deadline, group_id: str, group_instance_id: str) -> None:
    request = LeaveGroupRequest(
        group_id=group_id,
        members=[LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=group_instance_id)],
    )
    errors: list[Exception] = []

    async def ask(node_id: int, groups: list[str], attempt: Deadline) -> Collection[str]:
        answer = await pool.send(
            request,
            LeaveGroupResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            min_version=_FIRST_VERSION_WITH_INSTANCES,
        )
        codes = [answer.error_code, *(member.error_code for member in answer.members)]
        if RETRIABLE_CODES.intersection(codes):
            return groups
        for code in codes:
            raise_for_code(code)
        return ()

    await ask_coordinators(pool, deadline, [group_id], ask, lambda _, error: errors.append(error))
    if errors:
        raise errors[0]
