"""The broker's end of the control channel: a socket that only the parent process has.

A command is a frame, ``[name, arguments]`` as JSON. Its answer has two frames: ``{"result": ...}`` or ``{"error": ...,
"kind": ...}`` as JSON, and record batches. A frame is an uint32 with its size, and its bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import select
import struct
from typing import TYPE_CHECKING, Final

from klamm.broker.faults.commands import Answer, CommandError

if TYPE_CHECKING:
    import socket

    from klamm.broker.faults.commands import Commands

logger = logging.getLogger(__name__)

_SIZE: Final = struct.Struct(">I")
PAUSE: Final = "pause"
"""Command after whose answer the whole broker stands still, until the next command or the end of the channel."""


class ControlServer:
    """Server of the parent's commands, one at a time.

    Args:
        sock: Connected socket.
        commands: Commands of the broker.
    """

    def __init__(self, sock: socket.socket, commands: Commands) -> None:
        self._socket = sock
        self._commands = commands
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start serving."""
        self._task = asyncio.get_running_loop().create_task(self._serve(), name="control channel")

    async def close(self) -> None:
        """Stop serving."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _serve(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._socket)
        try:
            while True:
                (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
                name, arguments = json.loads(await reader.readexactly(size))
                body, data = await self._answer(name, arguments)
                writer.write(_SIZE.pack(len(body)) + body + _SIZE.pack(len(data)) + data)
                await writer.drain()
                if name == PAUSE:
                    self._stand_still()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the parent has closed its end
        finally:
            writer.close()

    async def _answer(self, name: str, arguments: dict[str, object]) -> tuple[bytes, bytes]:
        try:
            answer = Answer() if name == PAUSE else await self._commands.run(name, arguments)
        except CommandError as error:
            return json.dumps({"error": str(error), "kind": error.kind}).encode(), b""
        except Exception as error:  # the parent reports it: the broker itself continues
            logger.exception("Command %s of the parent process failed", name)
            return json.dumps({"error": repr(error), "kind": "failure"}).encode(), b""
        return json.dumps({"result": answer.result}).encode(), answer.data

    def _stand_still(self) -> None:
        """Block the event loop until the next command arrives or the parent's end is closed."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.poll()
