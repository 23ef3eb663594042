"""One worker process of a gateway: ``python -m klamm.gateway.worker DESCRIPTOR NUMBER ARGUMENTS...``.

Its parent (``worker_pool``) passes accepted connections to it. It has no ports of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from klamm.gateway import control
from klamm.gateway.app import GatewayApp
from klamm.gateway.hooks import start_hooks
from klamm.gateway.metrics import GatewayMetrics
from klamm.gateway.passed_connections import PassedConnections
from klamm.gateway.settings import parse_arguments
from klamm.policy import PolicyLoadError
from klamm.properties import SettingsError
from klamm.server.signals import ProcessSignals
from klamm.server.sockets import fastest_event_loop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.settings import GatewaySettings

EXIT_FAILED: Final = 1
REPORT_S: Final = 1.0
_PART: Final = 30_000
"""Characters of a page of metrics in one message. JSON makes at most four bytes of each ASCII character."""


def main(arguments: Sequence[str]) -> int:
    """Run a worker; return the exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s %(levelname)s %(name)s: worker {arguments[1]}: %(message)s",
    )
    end = socket.socket(fileno=int(arguments[0]))
    settings = parse_arguments(arguments[2:])
    settings = replace(settings, data_dir=settings.data_dir / f"worker-{arguments[1]}")
    try:
        with asyncio.Runner(loop_factory=fastest_event_loop) as runner:
            runner.run(_serve(settings, end))
    except (SettingsError, PolicyLoadError, OSError) as error:
        control.send(end, {"failed": str(error)})
        return EXIT_FAILED
    return 0


async def _serve(settings: GatewaySettings, end: socket.socket) -> None:
    signals, dealt = ProcessSignals(), PassedConnections(end)
    interception = await start_hooks(settings)
    app = GatewayApp(settings, interception, dealt=dealt)
    signals.reload = dealt.on_reload = interception.reload
    dealt.on_stop = signals.stop.set
    metrics = GatewayMetrics(app)
    try:
        await app.start()
        dealt.send({"ready": True})
        while not signals.stop.is_set():
            dealt.send(
                {
                    "connections": app.connections,
                    "received": dealt.received,
                    "why_not_ready": app.why_not_ready(),
                }
            )
            if settings.metrics is not None:
                _send_page(dealt, metrics.page())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(signals.stop.wait(), REPORT_S)
    finally:
        await app.stop()


def _send_page(dealt: PassedConnections, page: str) -> None:
    for start in range(0, len(page), _PART):
        dealt.send({"page": page[start : start + _PART], "is_last": start + _PART >= len(page)})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
