"""Watch over connections that wait for a peer, so that peers that are lost or hostile cannot fill the memory.

=====================  ==============================================================================================
Limit                  Effect
=====================  ==============================================================================================
``STUCK_S``            A connection is closed when one side has taken none of its bytes for this long. Kafka's clients
                       read at all times; the time is that of ``connections.max.idle.ms``, after which Kafka closes
                       a connection on which nothing moves.
``ENDED_S``            A client that has closed its side gets no responses after this time. Clients close a connection
                       as a whole, for example when a response takes longer than ``request.timeout.ms``. A client that
                       has sent a part of a request that is decoded, and no more for this time, is closed, too, and
                       one that has to log in.
``MAX_UNREAD_BYTES``  While all connections together keep more bytes, those on which nothing has moved for
                       ``SHORT_S`` are closed, the largest first. Clients that read slowly, but do read, stay.
=====================  ==============================================================================================
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.gateway.relay.shared import Shared

logger = logging.getLogger(__name__)

STUCK_S: Final = 600.0
ENDED_S: Final = 30.0
MAX_UNREAD_BYTES: Final = 256 * 1024 * 1024
SHORT_S: Final = 2.0
INTERVAL_S: Final = 1.0
_CHECKS_OF_ALL: Final = 10
"""Number of intervals after which all connections are checked, even though few bytes are kept."""


def close_stalled(shared: Shared, now: float, *, max_bytes: int = MAX_UNREAD_BYTES) -> None:
    """Close the connections that have exceeded a limit."""
    for relay in shared.connections:
        relay.expire(now, STUCK_S, ENDED_S)
    if shared.memory.backlog.kept_bytes <= max_bytes:
        return
    for relay in sorted(shared.connections, key=lambda each: each.kept_bytes, reverse=True):
        if shared.memory.backlog.kept_bytes <= max_bytes or not relay.kept_bytes:
            return
        relay.expire(now, SHORT_S, ENDED_S)


async def watch_stalls(shared: Shared) -> None:
    """Check the connections at regular intervals, until cancelled."""
    loop = asyncio.get_running_loop()
    check = 0
    while True:
        await asyncio.sleep(INTERVAL_S)
        check = (check + 1) % _CHECKS_OF_ALL
        if check == 0 or shared.memory.backlog.kept_bytes > MAX_UNREAD_BYTES:
            try:
                close_stalled(shared, loop.time())
            except Exception:
                logger.exception("Stalled connections cannot be closed, trying again")
