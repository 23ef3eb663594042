"""Broker in a child process that its parent controls: ``main([FD, MOVED_S, *arguments of klamm broker])``.

``FD`` is an inherited socket, the control channel. ``MOVED_S`` is the number of seconds by which the clock is ahead of
the machine's clock. Without this module, a broker has neither the channel nor the wrapped handlers nor this clock.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from klamm.broker.faults.channel import ControlServer
from klamm.broker.faults.clock import MovableClock
from klamm.broker.faults.commands import Commands
from klamm.broker.faults.exchanges import filters_of
from klamm.broker.faults.injector import Injector
from klamm.broker.faults.requests import RequestLog
from klamm.broker.main import main as run_broker
from klamm.broker.routes import ROUTES
from klamm.broker.surroundings import Surroundings
from klamm.faults.fault import FaultQueue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.broker.services import Services


def main(arguments: Sequence[str]) -> int:
    """Run a broker; return the exit code."""
    fd, moved_s, *rest = arguments
    channel = socket.socket(fileno=int(fd))
    channel.set_inheritable(False)  # a process that a policy starts must not get it
    control = _Control(channel, MovableClock(float(moved_s)))
    return run_broker(
        rest,
        Surroundings(
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
        self._faults = FaultQueue()
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
