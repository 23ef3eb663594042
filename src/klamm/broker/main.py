"""Command ``klamm broker``: start a broker, print one line when it is ready, serve until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, Final, TextIO

from klamm.broker.app import DEFAULT_ENVIRONMENT, BrokerApp, BrokerEnvironment
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.settings import BrokerSettings, describe_unknown, parse_arguments, unknown_names
from klamm.display import log_to_stderr, one_line
from klamm.policy import PolicyLoadError
from klamm.properties import SettingsError
from klamm.protocol.errors import StorageError
from klamm.server.listeners import ANY_HOSTS, Address, Listener, own_host_name
from klamm.server.signals import ProcessSignals, StartStoppedError
from klamm.server.sockets import bind, bound_address, start_listening
from klamm.storage.errors import DataDirectoryError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

_NEW: Final = 0
_FULL: Final = 2
_THRESHOLDS: Final = (5_000, 5, 20)
"""Thresholds of Python's garbage collector, by generation. The first is seven times the default, so most objects of a
request are freed before a collection. One collection visits 30,000 objects, which takes some milliseconds.
"""
EVERYTHING_EVERY_S: Final = 900.0
"""Seconds after which all objects are collected. Frozen objects that became garbage stay in memory for so long."""
EVERYTHING_AFTER: Final = 200
"""Number of freezes after which all objects are collected as well. Each freezes at most 30,000 objects that may become
garbage.
"""


class GarbageSettings:
    """Garbage collector settings that never hold the event loop for long.

    A full collection visits every object. With 10,000 topics this takes a tenth of a second, and a request that creates
    some hundred thousand objects triggers several of them. After each collection that includes older objects, all
    survivors are frozen: the collector then skips them. They are either long-lived (topics, configs, code) or belong to
    such a request, which frees them by reference counting. From time to time all objects are unfrozen for one full
    collection.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._looked_at_everything = now_s()
        self._times_set_aside = 0

    def apply(self) -> None:
        """Freeze all existing objects and enable the collector. Call this once, after all state is loaded.

        Nothing is collected first: of what a start creates, some hundred objects are garbage, and finding them takes
        15 ms of the start.
        """
        gc.freeze()
        gc.set_threshold(*_THRESHOLDS)
        gc.callbacks.append(self.on_collection)
        gc.enable()

    def on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """Freeze the survivors after a collection; unfreeze all objects before a due full one. Called by Python."""
        if info["generation"] == _NEW:
            return
        if phase == "stop":
            gc.freeze()
            self._times_set_aside += 1
        elif info["generation"] == _FULL and self._is_time():
            self._looked_at_everything = self._now_s()
            self._times_set_aside = 0
            gc.unfreeze()

    def _is_time(self) -> bool:
        is_much = self._times_set_aside >= EVERYTHING_AFTER
        return is_much or self._now_s() - self._looked_at_everything >= EVERYTHING_EVERY_S


EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_MIN_FREE_BYTES: Final = 256 * 1024


def main(arguments: Sequence[str], environment: BrokerEnvironment = DEFAULT_ENVIRONMENT) -> int:
    """Run a broker; return the exit code."""
    log_to_stderr()
    try:
        settings = parse_arguments(arguments)
    except SettingsError as error:
        sys.stderr.write(f"klamm broker: {one_line(str(error))}\n")
        return EXIT_USAGE
    for name in unknown_names(settings.static_configs):
        logger.info("%s, without an effect unless a policy reads it", describe_unknown(name))
    stdout = sys.stdout
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # standard output has the ready line only; output of policies goes to standard error
            _run(settings, stdout, environment)
    except StartStoppedError:
        logger.info("Stopped during the start")
    except (DataDirectoryError, PolicyLoadError, SettingsError, StorageError, OSError) as error:
        sys.stderr.write(f"klamm broker: {one_line(f'{error}{_disk_hint(settings.data_dir)}')}\n")
        return EXIT_FAILED
    return EXIT_OK


def _disk_hint(data_dir: Path) -> str:
    """Return what to do if the disk is full, which is the reason of many other errors."""
    try:
        is_full = shutil.disk_usage(data_dir).free < _MIN_FREE_BYTES
    except OSError:
        is_full = False
    return f". The disk of {data_dir} is full: free some space, then start the broker again" if is_full else ""


def _run(settings: BrokerSettings, stdout: TextIO, environment: BrokerEnvironment) -> None:
    # All sockets are bound before the data directory is opened, so a port in use fails early.
    sockets = {listener.name: [bind(address) for address in listener.listen] for listener in settings.listeners}
    scrapes = None if settings.metrics is None else bind(settings.metrics)
    with asyncio.Runner(loop_factory=environment.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, scrapes, stdout, environment))


async def _serve(
    settings: BrokerSettings,
    sockets: Mapping[str, Sequence[socket.socket]],
    scrapes: socket.socket | None,
    stdout: TextIO,
    environment: BrokerEnvironment,
) -> None:
    signals = ProcessSignals()
    nodes = _nodes(settings, sockets)
    gc.disable()  # until GarbageSettings are applied: almost every object that a start creates stays
    app = await BrokerApp.start(settings, nodes, environment, stop=signals.stop)
    try:
        for sock in (*itertools.chain(*sockets.values()), *([] if scrapes is None else [scrapes])):
            start_listening(sock)
        for name, of_listener in sockets.items():
            app.listen(name, dict(zip(settings.node_ids, of_listener, strict=True)))
        if scrapes is not None:
            await app.listen_for_scrapes(scrapes)
            logger.info("Metrics on http://%s/metrics", bound_address(scrapes))
        GarbageSettings().apply()
        signals.reload = app.reload
        environment.on_ready(app.services)
        first = settings.listeners[0]
        addresses = ",".join(str(at) for at in _listened(first, sockets[first.name]))
        stdout.write(f"klamm broker ready on {addresses} (data in {settings.data_dir})\n")
        stdout.flush()
        await signals.stop.wait()
        logger.info("Stopping")
    finally:
        await environment.on_stop()
        await app.stop()


def _listened(listener: Listener, sockets: Sequence[socket.socket]) -> list[Address]:
    """Return the addresses of a listener with the host as configured.

    A certificate may be issued for the host name and not for its IP address.
    """
    bound = [bound_address(sock) for sock in sockets]
    return [
        Address(host=configured.host or at.host, port=at.port)
        for configured, at in zip(listener.listen, bound, strict=True)
    ]


def _nodes(
    settings: BrokerSettings, sockets: Mapping[str, Sequence[socket.socket]]
) -> dict[str, tuple[AdvertisedBroker, ...]]:
    """Return the advertised brokers by listener name."""
    advertised = {}
    for listener in settings.listeners:
        addresses = _listened(listener, sockets[listener.name])
        if listener.advertise is not None:
            addresses = [
                Address(host=wanted.host, port=wanted.port or bound.port)
                for wanted, bound in zip(listener.advertise, addresses, strict=True)
            ]
        elif not listener.listen[0].host:
            addresses = [Address(host=own_host_name(), port=bound.port) for bound in addresses]
        elif listener.listen[0].host in ANY_HOSTS:
            logger.warning(
                "Listener %s advertises %s. Clients on other machines cannot connect to that address: set"
                " advertised.listeners (--advertise)",
                listener.name,
                addresses[0],
            )
        advertised[listener.name] = tuple(
            AdvertisedBroker(node_id=node_id, host=address.host, port=address.port, rack=rack)
            for node_id, address, rack in zip(settings.node_ids, addresses, settings.racks, strict=True)
        )
    return advertised


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
