"""Fleet of producers that follow dynamic configs, in a separate process.

kafka-python leaves the sockets of rejected connections to the garbage collector, which pytest would report. The process
also keeps the fleet's processor time out of the tests' measurements.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Self

from klamm.clients import ConfigUpdate, KafkaProducer
from tests.support.processes import CHILD_TIMEOUT_S

if TYPE_CHECKING:
    from types import TracebackType


class Fleet:
    """Process of the fleet, and the configs that its producers received; a context manager.

    Args:
        servers: Addresses of the brokers.
        size: Number of producers, named ``follower-0`` and so on.
        interval_s: Interval of each producer's requests.
    """

    def __init__(self, servers: str, *, size: int, interval_s: float) -> None:
        self.seen: tuple[list[tuple[float, str]], ...] = tuple([] for _ in range(size))
        """Times (monotonic clock) and values of ``acks`` that each producer applied."""
        self._command = [sys.executable, "-m", "tests.support.followers", servers, str(size), str(interval_s)]
        self._ready = threading.Event()

    def __enter__(self) -> Self:
        """Start the process, and wait until all producers are connected."""
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        assert self._ready.wait(CHILD_TIMEOUT_S), "The fleet did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(CHILD_TIMEOUT_S)
        self._reader.join(CHILD_TIMEOUT_S)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if words == ["ready"]:
                self._ready.set()
            else:
                self.seen[int(words[0])].append((float(words[1]), words[2]))


def main(servers: str, size: int, interval_s: float) -> None:
    """Run the producers until stdin ends."""
    lock = threading.Lock()

    def record_update(number: int, update: ConfigUpdate) -> None:
        with lock:
            sys.stdout.write(f"{number} {time.monotonic()} {update.effective['acks']}\n")
            sys.stdout.flush()

    fleet = [
        KafkaProducer(
            bootstrap_servers=servers,
            client_id=f"follower-{number}",
            acks=1,
            enable_idempotence=False,
            metadata_max_age_ms=int(interval_s * 1000),
            reconnect_backoff_max_ms=200,
            on_dynamic_config_change=functools.partial(record_update, number),
        )
        for number in range(size)
    ]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0 if fleet else 1)  # closing hundreds of producers in order would take minutes


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
