"""LeaveGroup for a static member. librdkafka never sends it, because static members are meant to return."""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any, Final

from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import raise_for_code
from klamm.kafka_client.pool.coordinators import find_coordinators
from klamm.kafka_client.pool.keyed_calls import KeyedCall, result_of
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.errors import ErrorCode, KafkaApiError, ProtocolError
from klamm.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from klamm.kafka_client.pool.deadline import Deadline

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

    async def ask(node_id: int | None, asked: list[str], attempt: Deadline) -> Mapping[str, KafkaApiError | None]:
        response = await pool.send(
            request,
            LeaveGroupResponse,
            deadline=attempt,
            node_id=node_id,
            looked_up=True,
            min_version=_FIRST_VERSION_WITH_INSTANCES,
        )
        raise_for_code(response.error_code)
        refused = next((member.error_code for member in response.members if member.error_code), ErrorCode.NONE)
        return {group_id: result_of(refused, None, None)}

    def settle(_: str, outcome: KafkaApiError | None) -> None:
        if outcome is not None:
            raise outcome

    find = functools.partial(find_coordinators, pool, deadline)
    await KeyedCall(what="LeaveGroup", ask=ask, settle=settle, find=find).run(pool, deadline, [group_id])
