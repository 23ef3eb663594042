"""Command ``klamm broker``: start a broker, print one line when it is ready, serve until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import shutil
import sys
from typing import TYPE_CHECKING, Final, TextIO

from klamm.broker.app import BrokerApp
from klamm.broker.cluster import AdvertisedBroker
from klamm.broker.garbage import GarbageSettings
from klamm.broker.settings import BrokerSettings, describe_unknown, parse_arguments, unknown_names
from klamm.broker.surroundings import PLAIN, Surroundings
from klamm.display import log_to_stderr
from klamm.policy import PolicyLoadError
from klamm.properties import SettingsError
from klamm.protocol.errors import StorageError
from klamm.server.listeners import ANY_HOSTS, Address, Listener, own_host_name
from klamm.server.signals import ProcessSignals
from klamm.server.sockets import bind, bound_address, start_listening
from klamm.storage.errors import DataDirectoryError

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
_MIN_FREE_BYTES: Final = 256 * 1024

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str], surroundings: Surroundings = PLAIN) -> int:
    """Run a broker; return the exit code."""
    log_to_stderr()
    try:
        settings = parse_arguments(arguments)
    except SettingsError as error:
        sys.stderr.write(f"klamm broker: {error}\n")
        return EXIT_USAGE
    for name in unknown_names(settings.static_configs):
        logger.info("%s, without an effect unless a policy reads it", describe_unknown(name))
    stdout = sys.stdout
    try:
        with contextlib.redirect_stdout(
            sys.stderr
        ):  # standard output has the ready line only; output of policies goes to standard error
            _run(settings, stdout, surroundings)
    except (DataDirectoryError, PolicyLoadError, SettingsError, StorageError, OSError) as error:
        sys.stderr.write(f"klamm broker: {error}{_disk_hint(settings.data_dir)}\n")
        return EXIT_FAILED
    return EXIT_OK


def _disk_hint(data_dir: Path) -> str:
    """Return what to do if the disk is full, which is the reason of many other errors."""
    try:
        is_full = shutil.disk_usage(data_dir).free < _MIN_FREE_BYTES
    except OSError:
        is_full = False
    return f". The disk of {data_dir} is full: free some space, then start the broker again" if is_full else ""


def _run(settings: BrokerSettings, stdout: TextIO, surroundings: Surroundings) -> None:
    # All sockets are bound before the data directory is opened, so a port in use fails early.
    sockets = {listener.name: [bind(address) for address in listener.listen] for listener in settings.listeners}
    scrapes = None if settings.metrics is None else bind(settings.metrics)
    with asyncio.Runner(loop_factory=surroundings.new_event_loop) as runner:
        runner.run(_serve(settings, sockets, scrapes, stdout, surroundings))


async def _serve(
    settings: BrokerSettings,
    sockets: Mapping[str, Sequence[socket.socket]],
    scrapes: socket.socket | None,
    stdout: TextIO,
    surroundings: Surroundings,
) -> None:
    signals = ProcessSignals()
    nodes = _nodes(settings, sockets)
    gc.disable()  # until GarbageSettings are applied: almost every object that a start creates stays
    app = await BrokerApp.start(settings, nodes, surroundings)
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
        surroundings.on_ready(app.services)
        first = settings.listeners[0]
        addresses = ",".join(str(at) for at in _listened(first, sockets[first.name]))
        stdout.write(f"klamm broker ready on {addresses} (data in {settings.data_dir})\n")
        stdout.flush()
        await signals.stop.wait()
        logger.info("Stopping")
    finally:
        await surroundings.on_stop()
        await app.stop()


def _listened(listener: Listener, sockets: Sequence[socket.socket]) -> list[Address]:
    """Return the addresses of a listener with the host as configured.

    A certificate may be issued for the host name and not for its IP address.
    """
    bound = [bound_address(sock) for sock in sockets]
    return [Address(host=asked.host or at.host, port=at.port) for asked, at in zip(listener.listen, bound, strict=True)]


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
