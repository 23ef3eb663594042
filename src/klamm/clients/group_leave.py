"""LeaveGroup for a static member. librdkafka never sends it, because static members are meant to return."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from klamm.client.errors import raise_for_code
from klamm.client.pool import ConnectionPool
from klamm.client.transport import ConnectionSettings
from klamm.protocol.errors import KafkaApiError, ProtocolError
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from klamm.client.pool import Deadline

logger = logging.getLogger(__name__)

_TIMEOUT_MS: Final = 5_000
_GROUP: Final = 0
_LAST_VERSION_WITH_ONE_KEY: Final = 3
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
    found = await pool.send(
        FindCoordinatorRequest(key=group_id, key_type=_GROUP),
        FindCoordinatorResponse,
        deadline=deadline,
        max_version=_LAST_VERSION_WITH_ONE_KEY,
    )
    raise_for_code(found.error_code, found.error_message)
    answer = await pool.send(
        LeaveGroupRequest(
            group_id=group_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id="", group_instance_id=group_instance_id)],
        ),
        LeaveGroupResponse,
        deadline=deadline,
        node_id=found.node_id,
        min_version=_FIRST_VERSION_WITH_INSTANCES,
    )
    raise_for_code(answer.error_code)
    for member in answer.members:
        raise_for_code(member.error_code)
