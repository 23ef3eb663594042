"""What a peer does with a connection of asyncio's streams."""

from __future__ import annotations

import asyncio

_WITHIN_S = 0.3


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Return whether the peer closes the connection within 0.3 s, without sending anything."""
    try:
        return await asyncio.wait_for(reader.read(1), _WITHIN_S) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
