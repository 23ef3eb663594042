"""Command ``klamm gateway``: start a gateway, print one line when it is ready, serve until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from typing import TYPE_CHECKING, Final, TextIO

from klamm.display import log_to_stderr, one_line
from klamm.gateway.app import GatewayApp, load_features, reload
from klamm.gateway.definitions import describe_unknown
from klamm.gateway.monitoring.metrics import GatewayMetrics
from klamm.gateway.processes.worker_pool import WorkerPool
from klamm.gateway.settings import GatewaySettings, parse_arguments, reject_unknown, unknown_names
from klamm.policy import PolicyLoadError
from klamm.properties import SettingsError
from klamm.server.signals import ProcessSignals, StartStoppedError, unless_stopped
from klamm.server.sockets import bind, bound_address, fastest_event_loop, start_listening

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run a gateway; return the exit code."""
    log_to_stderr()
    try:
        settings = parse_arguments(arguments)
        reject_unknown(settings)
    except SettingsError as error:
        sys.stderr.write(f"klamm gateway: {one_line(str(error))}\n")
        return EXIT_USAGE
    for name in unknown_names(settings):
        logger.info("%s, unless a policy reads it", describe_unknown(name))
    stdout = sys.stdout
    try:
        # Standard output has the ready line only.
        with contextlib.redirect_stdout(sys.stderr), asyncio.Runner(loop_factory=fastest_event_loop) as runner:
            runner.run(_serve(settings, arguments, stdout))
    except StartStoppedError:
        logger.info("Stopped during the start")
    except (SettingsError, PolicyLoadError, OSError) as error:
        sys.stderr.write(f"klamm gateway: {one_line(str(error))}\n")
        return EXIT_FAILED
    return EXIT_OK


async def _serve(settings: GatewaySettings, arguments: Sequence[str], stdout: TextIO) -> None:
    signals = ProcessSignals()
    scrapes = None if settings.metrics is None else bind(settings.metrics)
    if settings.processes == 1:
        features = await unless_stopped(signals.stop, load_features(settings))
        signals.reload = partial(reload, features)
        app = GatewayApp(settings, features)
    else:
        pool = WorkerPool(settings.processes, arguments, settings.shutdown_grace_s)
        signals.reload = pool.reload
        app = GatewayApp(settings, pool=pool)
    metrics = GatewayMetrics(app, settings)
    try:
        if scrapes is not None:
            start_listening(scrapes)
            await metrics.listen(scrapes)
            logger.info("Metrics on http://%s/metrics", bound_address(scrapes))
        await unless_stopped(signals.stop, app.start())
        servers = ",".join(settings.upstream.bootstrap_servers)
        stdout.write(f"klamm gateway ready on {app.base_address} (upstream {servers})\n")
        stdout.flush()
        await signals.stop.wait()
        logger.info("Stopping")
    finally:
        await app.stop()
        await metrics.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
