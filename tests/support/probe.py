"""Probe of a Kafka broker on a plain socket: whether it responds, and which brokers it knows."""

from __future__ import annotations

import socket
import struct
from typing import Protocol


class Cluster(Protocol):
    """Interface of a cluster that tests use: real Apache Kafka or klamm."""

    @property
    def bootstrap_servers(self) -> str:
        """Addresses, comma separated."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of everything that belongs to it."""

    def restart(self, node_id: int = 1, *, kill: bool = False) -> None:
        """Stop a node, in order or by SIGKILL, and wait until it serves again on its port and data."""


def broker_count_of(host: str, port: int) -> int:
    """Return the number of brokers that a node reports in Metadata v0; 0 if it does not respond."""
    # One impossible topic name: the answer names the brokers, and nothing is created.
    body = struct.pack(">hhihih", 3, 0, 1, -1, 1, 1) + b"\x00"
    try:
        with socket.create_connection((host, port), timeout=2.0) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            with connection.makefile("rb") as stream:
                stream.read(4 + 4)
                return int(struct.unpack(">i", stream.read(4))[0])
    except (OSError, struct.error):
        return 0
