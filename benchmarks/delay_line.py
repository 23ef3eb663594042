"""A line that takes its time: ``python -m benchmarks.delay_line MILLISECONDS LISTEN_PORT TARGET_PORT``.

What comes in on one end of a connection leaves on the other after so many milliseconds, in both directions; as much as
comes may be on its way. All on 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

import uvloop

_HOST: Final = "127.0.0.1"
_CHUNK: Final = 1024 * 1024


async def _serve(delay_s: float, listen_port: int, target_port: int) -> None:
    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(_HOST, target_port, limit=_CHUNK)
        await asyncio.gather(_carry(reader, far_writer, delay_s), _carry(far_reader, writer, delay_s))

    server = await asyncio.start_server(join, _HOST, listen_port, limit=_CHUNK)
    await server.serve_forever()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    now = asyncio.get_running_loop().time
    on_its_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def deliver() -> None:
        while True:
            due, chunk = await on_its_way.get()
            await asyncio.sleep(due - now())
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deliver())
        while chunk := await _read(reader):
            on_its_way.put_nowait((now() + delay_s, chunk))
        on_its_way.put_nowait((now() + delay_s, b""))


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(_CHUNK)
    except ConnectionError:
        return b""


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1]) / 1e3, int(sys.argv[2]), int(sys.argv[3])))
