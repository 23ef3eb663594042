"""Life cycle of a server in a child process: base of ``klamm.Broker`` and ``klamm.Gateway``."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Self

from klamm.configs.values import config_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from klamm.embedded.server_process import ServerProcess

__tracebackhide__ = True
ANY_PORT: Final = "127.0.0.1:0"
"""Default address: a free port of the loopback interface."""
_LISTENERS: Final = "listeners"


class EmbeddedServer(ABC):
    """A server in its own process, with a data directory and addresses that survive a restart. Not thread-safe.

    It belongs to the process that started it. A process forked from that one can use its addresses, but cannot stop it.

    Args:
        name: Name of the command, for messages and the temporary directory.
        config: Settings of the command.
        data_dir: Data directory. None means a temporary directory, which is removed when the server stops. Relative
            paths, also those in ``config``, are relative to the working directory of this process at construction.
        listen: [NAME://]HOST:PORT. Port 0 means free ports.
        start_timeout_s: Time in seconds that the server may take to respond after its start.
        ends_with_parent: Whether the server ends when this process ends without ``stop()``.

    Raises:
        TypeError: A value cannot be a config, such as None.
        ValueError: A config is set by an argument.
    """

    _arguments_by_config: ClassVar[Mapping[str, str]]
    """Arguments that set a config, by the name of the config."""

    def __init__(
        self,
        name: str,
        *,
        config: Mapping[str, object],
        data_dir: str | os.PathLike[str] | None,
        listen: str,
        start_timeout_s: float,
        ends_with_parent: bool,
    ) -> None:
        self._name = name
        self._config = {key: config_text(key, value) for key, value in config.items()}
        self._check_config(listen)
        listen = self._config.pop(_LISTENERS, listen)
        try:
            self._created_in = Path.cwd()
        except FileNotFoundError:  # removed
            self._created_in = Path()
        self._given_dir = None if data_dir is None else self._created_in / data_dir
        self._data_dir = self._given_dir
        scheme, separator, self._listen = listen.rpartition("://")
        self._scheme = scheme + separator
        self._start_timeout_s = start_timeout_s
        self._ends_with_parent = ends_with_parent
        self._addresses: tuple[str, ...] = ()
        self._child: ServerProcess | None = None
        self._starter: int | None = None
        """Process id of the process that started the server. None: it has not been started, or was stopped."""

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap servers for clients: ``host:port``, several separated by commas.

        Raises:
            RuntimeError: The server was never started.
        """
        if not self._addresses:
            raise RuntimeError(f"The {self._name} has not been started: use it in a with statement or call start()")
        return ",".join(self._addresses)

    @property
    def pid(self) -> int | None:
        """Process id of the server, or None if it is not running."""
        return self._child.process.pid if self.is_running and self._child else None

    @property
    def is_running(self) -> bool:
        """Return whether the server's process is running."""
        if self._child is None:
            return False
        if self._is_of_other_process():
            return _exists(self._child.process.pid)  # only its parent process can poll it
        return self._child.process.poll() is None

    def log_text(self) -> str:
        """End of the log of the server's current or last process. Empty before the first start."""
        return self._child.log_text() if self._child else ""

    # --- life cycle ---------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server and return when it responds. Does nothing if it is running.

        A server that ran before restarts on the same ports with the same data, unless ``stop`` removed them. If that
        fails, its data remain, so that another call can recover them.

        Raises:
            BrokerStartError: The server exited, or did not respond in time.
            RuntimeError: It was started, and not stopped, by the process from which this one was forked.
        """
        if self.is_running:
            return self
        self._check_owner()
        is_first_start = self._starter is None
        if self._data_dir is None:
            prefix = "klamm-" if self._name == "broker" else f"klamm-{self._name}-"
            self._data_dir = Path(tempfile.mkdtemp(prefix=prefix))
        if self._child is not None:  # the process ended by itself
            self._child.end(0.0)
        self._starter = os.getpid()
        try:
            self._addresses = self._start(self._data_dir)
        except BaseException:
            if is_first_start:
                self._remove_temporary_dir()
            raise
        return self

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop the server with SIGTERM, or SIGKILL after ``timeout_s`` seconds, and remove its temporary directory.

        Does nothing in a process that was forked from the one that started the server.
        """
        if self._is_of_other_process():
            return
        try:
            if self._child is not None:
                self._child.end(timeout_s)
        finally:  # also after another Ctrl-C
            self._remove_temporary_dir()

    def kill(self) -> None:
        """Kill the server's process immediately (SIGKILL). Its data remain, so that ``start()`` can recover them.

        Raises:
            RuntimeError: This process was forked from the one that started the server.
        """
        self._check_owner()
        if self._child is not None:
            self._child.end(0.0)

    def restart(self, timeout_s: float = 10.0) -> None:
        """Stop the server cleanly and start it again on the same ports with the same data.

        Args:
            timeout_s: Time in seconds after which the server is killed instead (SIGKILL).

        Raises:
            BrokerStartError: The server exited, or did not respond in time.
            RuntimeError: This process was forked from the one that started the server.
        """
        self._check_owner()
        if self._child is not None:
            self._child.end(timeout_s)
        self.start()

    def __enter__(self) -> Self:
        """Start the server."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server."""
        self.stop()

    async def __aenter__(self) -> Self:
        """Start the server in a thread, so that the event loop is not blocked.

        If the call is cancelled, it waits until the server responds, and stops it.
        """
        starting = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            while not starting.done():  # a thread cannot be cancelled
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([starting])
            if starting.exception() is None:
                await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the server in a thread."""
        await asyncio.to_thread(self.stop)

    def _check_config(self, listen: str) -> None:
        """Reject configs that an argument sets.

        Raises:
            ValueError: There is one.
        """
        arguments = dict(self._arguments_by_config)
        if listen != ANY_PORT:
            arguments[_LISTENERS] = "listen"
        for name, argument in arguments.items():
            if name in self._config:
                raise ValueError(f"config {name}={self._config[name]}: use the argument {argument} instead")

    # --- for subclasses -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, data_dir: Path) -> tuple[str, ...]:
        """Set ``_child`` to a new process and return its addresses.

        Raises:
            BrokerStartError: The process exited, or did not respond in time. It has ended.
        """

    def _wait_until_ready(self, child: ServerProcess) -> tuple[str, ...]:
        """Wait for a new process and return its addresses.

        Raises:
            BrokerStartError: As in ``_start``.
        """
        self._child = child
        try:
            return child.wait_until_ready(self._start_timeout_s)
        finally:
            if not child.is_ready:
                child.end(0.0)

    def _is_of_other_process(self) -> bool:
        return self._starter not in {None, os.getpid()}

    def _check_owner(self) -> None:
        """Reject a process that was forked from the one that started the server.

        Raises:
            RuntimeError: This is such a process.
        """
        if self._is_of_other_process():
            raise RuntimeError(
                f"This {self._name} belongs to process {self._starter}, which started it. "
                f"Start another {self._name} in the forked process"
            )

    @property
    def _working_dir(self) -> Path | None:
        """Working directory of a process of the server: where the server was created, so that relative paths stay.

        None: that directory is gone, such as one that a test has created and removed.
        """
        return self._created_in if self._created_in.is_absolute() and self._created_in.is_dir() else None

    def _removed_dir(self, data_dir: Path) -> Path | None:
        """Return the directory that the process removes when this one has vanished; None means that it is kept."""
        return None if self._given_dir else data_dir

    def _set_flags(self) -> list[str]:
        """Return the settings as command line flags."""
        return [text for name, value in self._config.items() for text in ("--set", f"{name}={value}")]

    def _remove_temporary_dir(self) -> None:
        self._starter = None
        if self._given_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
