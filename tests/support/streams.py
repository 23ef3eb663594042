"""What a peer does with a connection of asyncio's streams."""

from __future__ import annotations

import asyncio

_WITHIN_S = 0.3


async def is_closed(reader: asyncio.StreamReader, *, within_s: float = _WITHIN_S) -> bool:
    """Return whether the peer closes the connection within some seconds, without sending anything."""
    try:
        return await asyncio.wait_for(reader.read(1), within_s) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
