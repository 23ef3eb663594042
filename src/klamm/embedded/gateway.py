"""Gateway in a child process of a Python program: ``with klamm.Gateway(upstream) as gateway: ...``."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from klamm.embedded.server import ANY_PORT, EmbeddedServer
from klamm.embedded.server_process import ServerProcess

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from pathlib import Path


class Gateway(EmbeddedServer):
    """A klamm gateway in its own process, for tests and programs.

    It listens on free ports of the loopback interface, keeps the topology of the upstream in a temporary directory, and
    ends together with this process. As a context manager, it starts on entry and stops on exit; ``start()`` and
    ``stop()`` do the same. Not thread-safe.

    Args:
        upstream: Bootstrap servers of the upstream cluster.
        config: Settings of the gateway, as in gateway.properties. True and False become true and false,
            lists are joined by commas.
        admin_only: Whether to serve no Produce and no Fetch.
        data_dir: Directory that keeps the topology. None means a temporary directory. Relative paths, also those in
            ``config``, are relative to the working directory of this process at construction.
        listen: [NAME://]HOST:PORT for bootstrap; the broker with node id N is served on PORT + N. Port 0 means free
            ports. ``listeners`` in ``config`` is the same.
        start_timeout_s: Time in seconds that the gateway may take to respond after its start.
        ends_with_parent: Whether the gateway ends when this process ends without ``stop()``.

    Raises:
        ValueError: ``config`` has a key that an argument sets.
    """

    _arguments_by_config = MappingProxyType(
        {"upstream.bootstrap.servers": "upstream", "admin.only": "admin_only", "data.dir": "data_dir"}
    )

    def __init__(
        self,
        upstream: str,
        *,
        config: Mapping[str, object] | None = None,
        admin_only: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        listen: str = ANY_PORT,
        start_timeout_s: float = 30.0,
        ends_with_parent: bool = True,
    ) -> None:
        super().__init__(
            "gateway",
            config=dict(config or {}),
            data_dir=data_dir,
            listen=listen,
            start_timeout_s=start_timeout_s,
            ends_with_parent=ends_with_parent,
        )
        self._upstream = upstream
        self._admin_only = admin_only

    def stop(self, timeout_s: float = 15.0) -> None:
        """Stop the gateway with SIGTERM, or SIGKILL after ``timeout_s`` seconds; remove its temporary directory."""
        super().stop(timeout_s)

    def restart(self, timeout_s: float = 15.0) -> None:
        """Stop the gateway in order and start it again on the same ports.

        Args:
            timeout_s: Time in seconds after which the gateway is killed instead (SIGKILL).

        Raises:
            BrokerStartError: The gateway exited, or did not respond in time.
        """
        super().restart(timeout_s)

    def __repr__(self) -> str:
        """Return a representation with the address, the upstream and whether the gateway is running."""
        state = f"pid {self.pid}" if self.is_running else "not running"
        return f"<klamm.Gateway {','.join(self._addresses) or self._listen} -> {self._upstream} ({state})>"

    def _start(self, data_dir: Path) -> tuple[str, ...]:
        return self._wait_until_ready(
            ServerProcess(
                "klamm.gateway.main",
                self._arguments(data_dir),
                name=self._name,
                remove=self._removed_dir(data_dir),
                is_tied=self._ends_with_parent,
                directory=self._working_dir,
            )
        )

    def _arguments(self, data_dir: Path) -> list[str]:
        is_any_port = self._listen.endswith(":0")
        (listen,) = self._addresses if is_any_port and self._addresses else (self._listen,)
        arguments = ["--upstream", self._upstream, "--listen", f"{self._scheme}{listen}", "--data-dir", str(data_dir)]
        if self._admin_only:
            arguments.append("--admin-only")
        return arguments + self._set_flags()
