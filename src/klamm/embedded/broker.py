"""Broker in a child process of a Python program: ``with klamm.Broker() as broker: broker.bootstrap_servers``."""

from __future__ import annotations

import errno
import random
import socket
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from klamm.embedded.channel import ControlChannel
from klamm.embedded.controls import BrokerControls, create_topic, new_topics
from klamm.embedded.server import ANY_PORT, EmbeddedServer
from klamm.embedded.server_process import BrokerStartError, ServerProcess

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path

    from klamm.embedded.controls import Topics

__tracebackhide__ = True
_CANNOT_LISTEN: Final = "cannot listen on"
_PORTS: Final = range(20_000, 32_000)
"""Range in which free ports are searched. It is below the range that operating systems use for outgoing connections.
Otherwise a client that tries to reconnect while the broker restarts could be assigned the broker's port.
"""
_FOR_TESTS: Final[Mapping[str, object]] = MappingProxyType({"group.initial.rebalance.delay.ms": 0})
"""Settings used unless ``config`` overrides them. Without this one, a group's first member would wait three seconds for
others. Kafka's own server.properties has the same line.
"""
_ATTEMPTS: Final = 5
"""Number of attempts to find free ports, in case other processes bind them at the same moment."""


class Broker(EmbeddedServer, BrokerControls):
    """A klamm broker in its own process, for tests and programs.

    It listens on a free port of the loopback interface and keeps its data in a temporary directory, which is removed at
    the end, or in ``data_dir``, which is kept. It ends together with this process, even if this process is killed. The
    broker uses the same ``sys.path`` as this process, so a policy class can be in a test module.

    As a context manager, it starts on entry and stops on exit; ``start()`` and ``stop()`` do the same. Not thread-safe.

    Args:
        brokers: Number of broker ids to present, each on its own port.
        topics: Topics to create in a new data directory: names; or by name the number of partitions, or a mapping with
            the arguments of ``create_topic``. Needs ``control``.
        config: Broker settings with Kafka's names, as in server.properties. True and False become true and false, lists
            are joined by commas. ``group.initial.rebalance.delay.ms`` defaults to 0, so that a first consumer does not
            wait 3 s for others.
        data_dir: Data directory. None means a temporary directory. Relative paths, also those in ``config``, are
            relative to the working directory of this process at construction.
        listen: HOST:PORT of the first broker id. Port 0 means free ports for all. NAME://HOST:PORT names the listener,
            which then need not be PLAINTEXT. For several listeners, set ``listeners`` in ``config`` instead, in which
            port 0 means a free port, too.
        start_timeout_s: Time in seconds that the broker may take to respond after its start.
        ends_with_parent: Whether the broker ends when this process ends without ``stop()``.
        control: Whether this program can inject faults, pause the broker, move its clock and read its contents. The
            broker then runs on asyncio's event loop, even where uvloop is installed.

    Raises:
        TypeError: ``topics`` are neither names nor a mapping, or a value of ``config`` cannot be one, such as None.
        ValueError: ``brokers`` is less than one, ``config`` has a key that an argument sets, ``topics`` have an unknown
            argument or are given without ``control``.
    """

    _arguments_by_config = MappingProxyType({"log.dirs": "data_dir", "log.dir": "data_dir"})

    def __init__(
        self,
        *,
        brokers: int = 1,
        topics: Topics = (),
        config: Mapping[str, object] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        listen: str = ANY_PORT,
        start_timeout_s: float = 30.0,
        ends_with_parent: bool = True,
        control: bool = False,
    ) -> None:
        if brokers < 1:
            raise ValueError(f"brokers={brokers}: must be at least 1")
        self._topics = new_topics(topics)
        if self._topics and not control:
            raise ValueError("topics: only a broker with control=True creates topics")
        super().__init__(
            "broker",
            config={**_FOR_TESTS, **(config or {})},
            data_dir=data_dir,
            listen=listen,
            start_timeout_s=start_timeout_s,
            ends_with_parent=ends_with_parent,
        )
        self._has_topics: Path | None = None
        """Data directory in which ``topics`` have been created."""
        self._brokers = brokers
        self._has_control = control
        self._wanted = f"{self._scheme}{self._listen}"
        self._in_use = ""
        """``_wanted`` with the ports in use. Empty before the first start."""

    @property
    def data_dir(self) -> Path:
        """Data directory of the broker.

        Raises:
            RuntimeError: A temporary directory does not exist, because the broker has not started yet or has stopped.
        """
        if self._data_dir is None:
            raise RuntimeError("The temporary data directory exists only while the broker runs")
        return self._data_dir

    @property
    def listeners(self) -> Mapping[str, str]:
        """Bootstrap servers by the name of the listener. ``bootstrap_servers`` are those of the first one.

        Raises:
            RuntimeError: The broker was never started.
        """
        from klamm.server.listeners import parse_listeners  # noqa: PLC0415  # start-up time

        if not self._in_use:
            raise RuntimeError("The broker has not been started: use it in a with statement or call start()")
        listeners = parse_listeners(self._in_use, advertised=None, configs=self._config, count=self._brokers)
        return {listener.name: ",".join(map(str, listener.listen)) for listener in listeners}

    def __repr__(self) -> str:
        """Return a representation with the addresses and whether the broker is running."""
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<klamm.Broker {','.join(self._addresses) or self._listen} ({state})>"

    def _control_channel(self) -> ControlChannel:
        if not self._has_control:
            raise RuntimeError("The broker was created without control: use klamm.Broker(control=True)")
        self._check_owner()
        if not isinstance(self._child, _Child) or self._child.channel is None or not self.is_running:
            raise RuntimeError("The broker is not running: call start() first")
        return self._child.channel

    def _start(self, data_dir: Path) -> tuple[str, ...]:
        for attempt in range(1, _ATTEMPTS + 1):
            listen = self._in_use or _with_free_ports(self._wanted, self._brokers)
            child = _Child(
                self._arguments(data_dir, listen),
                remove=self._removed_dir(data_dir),
                is_tied=self._ends_with_parent,
                directory=self._working_dir,
                moved_s=self._moved_s if self._has_control else None,
            )
            try:
                addresses = self._wait_until_ready(child)
            except BrokerStartError as error:
                if listen in {self._in_use, self._wanted} or attempt == _ATTEMPTS or _CANNOT_LISTEN not in str(error):
                    raise
            else:
                self._in_use = listen
                if self._topics and data_dir != self._has_topics:
                    self._create_topics(child)
                    self._has_topics = data_dir
                return addresses
        raise AssertionError("the last attempt returns or raises")

    def _create_topics(self, child: _Child) -> None:
        """Create the topics of the arguments, unless the data directory has them.

        Raises:
            ValueError: The name, the number of partitions or replicas, or a config of a topic is not allowed.
        """
        try:
            for topic, arguments in self._topics.items():
                try:
                    child.create_topic(topic, arguments)
                except ValueError as error:
                    raise ValueError(f"topics: {topic}: {error}") from None
        except BaseException:
            child.end(0.0)
            raise

    def _arguments(self, data_dir: Path, listen: str) -> list[str]:
        arguments = ["--data-dir", str(data_dir), "--brokers", str(self._brokers), "--listen", listen]
        return arguments + self._set_flags()


def _with_free_ports(listeners: str, count: int) -> str:
    """Return listeners with free ports in place of each port 0, so that a restart can use the same ones."""
    fixed = []
    for part in listeners.split(","):
        address, _, port = part.strip().rpartition(":")
        name, separator, host = address.rpartition("://")
        free = _free_addresses(host, count) if port == "0" else ()
        fixed += [f"{name}{separator}{address}" for address in free] or [part]
    return ",".join(fixed)


def _free_addresses(host: str, count: int) -> tuple[str, ...]:
    """Return addresses on which no process listens at present."""
    addresses: list[str] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host.strip("[]"), port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise BrokerStartError(
                    f"{_CANNOT_LISTEN} {host}: {error}"
                ) from error  # not a port conflict: it would fail on every port
        addresses.append(f"{host}:{port}")
        if len(addresses) == count:
            return tuple(addresses)
    raise BrokerStartError(f"{_CANNOT_LISTEN} {host}: no free port in {_PORTS.start}..{_PORTS.stop - 1}")


class _Child(ServerProcess):
    """One process of the broker, with its control channel.

    Args:
        arguments: Arguments of ``klamm broker``.
        remove: Directory that the process removes when this one has vanished.
        is_tied: Whether the process ends when this one has vanished.
        directory: Working directory. None means that of this process.
        moved_s: Seconds by which the clock of a broker with a control channel is ahead; None means no control channel.
    """

    def __init__(
        self, arguments: list[str], *, remove: Path | None, is_tied: bool, directory: Path | None, moved_s: float | None
    ) -> None:
        self.channel = None if moved_s is None else ControlChannel()
        module, fds = "klamm.broker.main", []
        if self.channel is not None:
            module, fds = "klamm.broker.faults.main", [self.channel.inherited_fd]
            arguments = [str(self.channel.inherited_fd), str(moved_s), *arguments]
        try:
            super().__init__(
                module, arguments, name="broker", remove=remove, is_tied=is_tied, directory=directory, pass_fds=fds
            )
        except BaseException:
            self._close_channel()
            raise
        if self.channel is not None:
            self.channel.started()

    def create_topic(self, topic: str, arguments: Mapping[str, Any]) -> None:
        """Create a topic unless it exists. Needs a control channel."""
        if self.channel is not None and not self.channel.call("has_topic", topic=topic)[0]:
            create_topic(self.channel, topic, **arguments)

    def _close_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()

    def end(self, timeout_s: float) -> None:
        """End the process. A paused broker continues, so that it can stop in order."""
        self._close_channel()
        super().end(timeout_s)
