"""Broker in a child process that its parent controls: ``main([FD, MOVED_S, *arguments of klamm broker])``.

``FD`` is an inherited socket, the control channel. ``MOVED_S`` is the number of seconds by which the clock is ahead of
the machine's clock. Without this module, a broker has neither the channel nor the wrapped handlers nor this clock.

A command on the channel is a frame, ``[name, arguments]`` as JSON. Its answer has two frames: ``{"result": ...}`` or
``{"error": ..., "kind": ...}`` as JSON, and record batches. A frame is an uint32 with its size, and its bytes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import select
import socket
import struct
from typing import TYPE_CHECKING, Final

from klamm.broker.app import BrokerEnvironment
from klamm.broker.faults.commands import Answer, CommandError, Commands, MovableClock
from klamm.broker.faults.exchanges import filters_of
from klamm.broker.faults.injector import Injector
from klamm.broker.faults.requests import RequestLog
from klamm.broker.main import main as run_broker
from klamm.broker.routes import ROUTES
from klamm.faults.fault import FaultQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.context import Services

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


def main(arguments: Sequence[str]) -> int:
    """Run a broker; return the exit code."""
    fd, moved_s, *rest = arguments
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)  # a process that a policy starts must not get it
    control = _Control(channel, MovableClock(float(moved_s)))
    return run_broker(
        rest,
        BrokerEnvironment(
            new_event_loop=control.clock.new_event_loop,
            now_ms=control.clock.now_ms,
            routes=control.injector.routes(ROUTES),
            on_ready=control.start,
            on_stop=control.stop,
        ),
    )


class _Control:
    def __init__(self, sock: socket.socket, clock: MovableClock) -> None:
        self.clock = clock
        self._socket = sock
        self._faults = FaultQueue(random.SystemRandom().random)
        self._requests = RequestLog(clock.now_ms)
        self._channel: ControlServer | None = None
        self.injector = Injector(self._faults, self._requests)

    def start(self, services: Services) -> None:
        commands = Commands(
            services,
            faults=self._faults,
            requests=self._requests,
            clock=self.clock,
            filters=filters_of(ROUTES),
        )
        self._channel = ControlServer(self._socket, commands)
        self._channel.start()

    async def stop(self) -> None:
        self.injector.release()
        if self._channel is not None:
            await self._channel.close()
