"""Our own broker as its users start it: the ``klamm broker`` command in a process that can be killed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.class_archives import CACHE
from tests.support.kafka import NO_PROPERTIES
from tests.support.probe import broker_count_of
from tests.support.processes import CHILD_TIMEOUT_S, LoggedProcess, free_port, stop_process, wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

_STOP_TIMEOUT_S = 60.0


class KlammBroker(LoggedProcess):
    """A klamm broker on a port and a directory that outlive its process.

    Args:
        properties: Broker settings, as ``--set name=value``.
        brokers: How many broker ids it presents, each on a port of its own.
        options: Further command line options.
        data_dir: Where it keeps its data; None: a temporary directory that goes with the block.
    """

    def __init__(
        self,
        properties: Mapping[str, str] = NO_PROPERTIES,
        *,
        brokers: int = 1,
        options: Sequence[str] = (),
        data_dir: Path | None = None,
    ) -> None:
        self.host = "127.0.0.1"
        self.ports = tuple(free_port() for _ in range(brokers))
        self._scratch = Path(tempfile.mkdtemp(prefix="klamm-broker-"))
        self.data_dir = data_dir or self._scratch / "data"
        super().__init__("The klamm broker", self._scratch / "broker.log")
        self._properties = dict(properties)
        self._options = tuple(options)

    @property
    def bootstrap_servers(self) -> str:
        """Addresses of all broker ids, comma separated."""
        return ",".join(f"{self.host}:{port}" for port in self.ports)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of everything that belongs to it."""
        return (self.pid,) if self.is_running else ()

    def command(self) -> list[str | Path]:
        """Return the command line that starts it."""
        settings = [part for name, value in self._properties.items() for part in ("--set", f"{name}={value}")]
        return [
            Path(sys.executable).with_name("klamm"),
            "broker",
            "--listen",
            self.bootstrap_servers,
            "--data-dir",
            self.data_dir,
            "--brokers",
            str(len(self.ports)),
            *settings,
            *self._options,
        ]

    def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            RuntimeError: It ended; the message ends with its log.
            TimeoutError: It did not answer within ``CHILD_TIMEOUT_S``.
        """
        self.launch()
        wait_until(
            lambda: broker_count_of(self.host, self.ports[-1]) == len(self.ports),
            timeout_s=CHILD_TIMEOUT_S,
            what=f"the klamm broker, see {self.log_path}",
            alive=self.check_alive,
        )

    def stop(self) -> int:
        """Shut it down in an orderly way and return its exit status (0 when it never ran)."""
        return stop_process(self._process, grace_s=_STOP_TIMEOUT_S) if self._process is not None else 0

    def restart(self, node_id: int = 1, *, kill: bool = False) -> None:
        """Stop the broker, in order or by SIGKILL, and wait until it serves again on its port and data."""
        assert node_id == 1, "One process, one restart"
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()

    def keep_logs(self) -> Path:
        """Copy the broker's output to ``.cache/klamm-logs`` and return where it is."""
        kept = CACHE / "klamm-logs" / f"{self._scratch.name}.log"
        kept.parent.mkdir(parents=True, exist_ok=True)
        if self.log_path.is_file():
            shutil.copy(self.log_path, kept)
        return kept

    def __enter__(self) -> Self:
        """Start and wait."""
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop; keep the log when the block failed."""
        self.stop()
        if kind is not None:
            self.keep_logs()
        shutil.rmtree(self._scratch, ignore_errors=True)
