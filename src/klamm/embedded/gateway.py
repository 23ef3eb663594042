"""Gateway in a child process of a Python program: ``with klamm.Gateway(upstream) as gateway: ...``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from klamm.embedded.controls import config_text
from klamm.embedded.server_process import ServerProcess

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from types import TracebackType


class Gateway:
    """A klamm gateway in its own process, for tests and programs.

    It listens on free ports of the loopback interface, keeps the topology of the upstream in a temporary directory, and
    ends together with this process. As a context manager, it starts on entry and stops on exit; ``start()`` and
    ``stop()`` do the same. Not thread-safe.

    Args:
        upstream: Bootstrap servers of the upstream cluster.
        config: Settings of the gateway, as in gateway.properties. True and False become true and false.
        admin_only: Whether to serve no Produce and no Fetch.
        data_dir: Directory that keeps the topology. None means a temporary directory.
        listen: [NAME://]HOST:PORT for bootstrap; the broker with node id N is served on PORT + N. Port 0 means free
            ports.
        start_timeout_s: Time in seconds that the gateway may take to respond after its start.
        ends_with_parent: Whether the gateway ends when this process ends without ``stop()``.
    """

    def __init__(
        self,
        upstream: str,
        *,
        config: Mapping[str, object] | None = None,
        admin_only: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        listen: str = "127.0.0.1:0",
        start_timeout_s: float = 30.0,
        ends_with_parent: bool = True,
    ) -> None:
        self._upstream = upstream
        self._config = dict(config or {})
        self._admin_only = admin_only
        self._given_dir = None if data_dir is None else Path(data_dir)
        self._data_dir = self._given_dir
        scheme, separator, self._listen = listen.rpartition("://")
        self._scheme = scheme + separator
        self._start_timeout_s = start_timeout_s
        self._ends_with_parent = ends_with_parent
        self._address: str | None = None
        self._child: ServerProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Bootstrap server for clients: ``host:port``.

        Raises:
            RuntimeError: The gateway was never started.
        """
        if self._address is None:
            raise RuntimeError("The gateway has not been started: use it in a with statement or call start()")
        return self._address

    @property
    def pid(self) -> int | None:
        """Process id of the gateway, or None if it is not running."""
        return self._child.process.pid if self.is_running and self._child else None

    @property
    def is_running(self) -> bool:
        """Return whether the gateway's process is running."""
        return self._child is not None and self._child.process.poll() is None

    def log_text(self) -> str:
        """End of the log of the gateway's current or last process. Empty before the first start."""
        return self._child.log_text() if self._child else ""

    def start(self) -> Self:
        """Start the gateway and return when it responds. Does nothing if it is running.

        A gateway that ran before restarts on the same ports.

        Raises:
            BrokerStartError: The gateway exited, or did not respond in time.
        """
        if self.is_running:
            return self
        if self._data_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="klamm-gateway-"))
        if self._child is not None:  # the process ended by itself
            self._child.end(0.0)
        self._child = ServerProcess(
            "klamm.gateway.main",
            self._arguments(self._data_dir),
            name="gateway",
            remove=None if self._given_dir else self._data_dir,
            is_tied=self._ends_with_parent,
        )
        try:
            (self._address,) = self._child.wait_until_ready(self._start_timeout_s)
        finally:
            if not self._child.is_ready:
                self._child.end(0.0)
                self._remove_temporary_dir()
        return self

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop the gateway with SIGTERM, or SIGKILL after ``timeout_s`` seconds; remove its temporary directory."""
        if self._child is not None:
            self._child.end(timeout_s)
        self._remove_temporary_dir()

    def kill(self) -> None:
        """Kill the gateway's process immediately (SIGKILL). ``start()`` starts it again on the same ports."""
        if self._child is not None:
            self._child.end(0.0)

    def restart(self, timeout_s: float = 15.0) -> None:
        """Stop the gateway in order and start it again on the same ports.

        Raises:
            BrokerStartError: The gateway exited, or did not respond in time.
        """
        if self._child is not None:
            self._child.end(timeout_s)
        self.start()

    def __enter__(self) -> Self:
        """Start the gateway."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the gateway."""
        self.stop()

    def __repr__(self) -> str:
        """Return a representation with the address, the upstream and whether the gateway is running."""
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<klamm.Gateway {self._address or self._listen} -> {self._upstream} ({state})>"

    def _arguments(self, data_dir: Path) -> list[str]:
        is_any_port = self._listen.endswith(":0")
        listen = self._address if is_any_port and self._address is not None else self._listen
        arguments = ["--upstream", self._upstream, "--listen", f"{self._scheme}{listen}", "--data-dir", str(data_dir)]
        if self._admin_only:
            arguments.append("--admin-only")
        for name, value in self._config.items():
            arguments += ["--set", f"{name}={config_text(value)}"]
        return arguments

    def _remove_temporary_dir(self) -> None:
        if self._given_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None
