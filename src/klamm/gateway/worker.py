"""One worker process of a gateway: ``python -m klamm.gateway.worker DESCRIPTOR NUMBER ARGUMENTS...``.

Its parent (``worker_pool``) passes accepted connections to it. It has no ports of its own.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.display import log_to_stderr
from klamm.gateway.app import GatewayApp, load_features, reload
from klamm.gateway.monitoring.metrics import GatewayMetrics
from klamm.gateway.monitoring.status import process_status
from klamm.gateway.processes import control
from klamm.gateway.processes.passed_connections import PassedConnections
from klamm.gateway.settings import parse_arguments
from klamm.page.views import encoded
from klamm.policy import PolicyLoadError
from klamm.properties import SettingsError
from klamm.server.signals import ProcessSignals
from klamm.server.sockets import fastest_event_loop

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from klamm.gateway.settings import GatewaySettings

logger = logging.getLogger(__name__)

EXIT_FAILED: Final = 1
REPORT_S: Final = 1.0


def main(arguments: Sequence[str]) -> int:
    """Run a worker; return the exit code."""
    log_to_stderr(f"%(asctime)s %(levelname)s %(name)s: worker {arguments[1]}: %(message)s")
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
    signals, passed = ProcessSignals(), PassedConnections(end)
    features = await load_features(settings)
    app = GatewayApp(settings, features, passed=passed)
    signals.reload = passed.on_reload = partial(reload, features)
    passed.on_stop = signals.stop.set
    metrics = GatewayMetrics(app, settings)
    try:
        await app.start()
        passed.send({"ready": True, "why_not_ready": app.why_not_ready()})
        work = [signals.stop.wait(), _report(app, passed, metrics, settings), _answer(app, metrics, passed)]
        if settings.metrics is not None:
            work.append(metrics.activity.keep_sampling())
        await _first_of(*work)
    finally:
        await app.stop()


async def _first_of(*work: Coroutine[Any, Any, object]) -> None:
    """Wait until one of some coroutines has ended, and cancel the others. An error of that one is raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    for task in done:
        task.result()


async def _report(
    app: GatewayApp, passed: PassedConnections, metrics: GatewayMetrics, settings: GatewaySettings
) -> None:
    """Send the number of connections, and the metrics if they are served, again and again."""
    while True:
        passed.send(
            {
                "connections": app.connections,
                "received": passed.received,
                "why_not_ready": app.why_not_ready(),
                "remark": app.remark(),
            }
        )
        if settings.metrics is not None:
            await passed.send_long("page", metrics.page())
        await asyncio.sleep(REPORT_S)


async def _answer(app: GatewayApp, metrics: GatewayMetrics, passed: PassedConnections) -> None:
    """Send the status of this process whenever the parent asks for it."""
    questions: asyncio.Queue[int] = asyncio.Queue()
    passed.on_status = questions.put_nowait
    while True:
        number = await questions.get()
        try:
            status = await encoded({"number": number, **await process_status(app, metrics.activity)})
        except Exception:
            logger.exception("The status of this process cannot be reported")
        else:
            await passed.send_long("status", status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
