"""What a client family does in the interop tests, whatever library or language it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.support.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One record where a broker put it."""

    partition: int
    offset: int
    """-1: the client was told that the broker had it already, but not where."""
    value: int


class RunningProducer(Worker):
    """Sends the numbers 0, 1, 2, ... at a steady pace and keeps what was acknowledged."""

    def __init__(self, bootstrap_servers: str, topic: str, *, count: int, records_per_s: int) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.count = count
        self.records_per_s = records_per_s
        self.acknowledged: list[Delivery] = []
        self.failures: list[str] = []
        super().__init__(f"producer of {topic}")

    def paced(self) -> Iterator[int]:
        """Yield 0 to ``count - 1``, not faster than ``records_per_s``, until stopped."""
        start = time.monotonic()
        for number in range(self.count):
            if number % 100 == 0:
                if self._stop.is_set():
                    return
                ahead_s = number / self.records_per_s - (time.monotonic() - start)
                if ahead_s > 0:
                    time.sleep(ahead_s)
            yield number


class RunningConsumer(Worker):
    """A member of a group; keeps what it was given. ``stop`` makes it leave the group in order."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.group = group
        self.assignment: frozenset[int] = frozenset()
        self.delivered: list[Delivery] = []
        super().__init__(f"member of {group}")


class Admin(Protocol):
    """Administration in a family's own words; every method raises when the broker refuses."""

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic with one replica."""

    def create_partitions(self, name: str, *, total: int) -> None:
        """Raise the number of partitions to ``total``."""

    def partition_count(self, name: str) -> int:
        """Return the number of partitions; 0 when there is no such topic."""

    def describe_config(self, name: str) -> Mapping[str, str]:
        """Return the effective value of every config of a topic."""

    def alter_config(self, name: str, configs: Mapping[str, str]) -> None:
        """Set some configs of a topic."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""

    def close(self) -> None:
        """Close the connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The parts of one client family."""

    name: str
    admin: AdminFactory
    producer: type[RunningProducer]
    consumer: type[RunningConsumer]
    alters_incrementally: bool
    """False: the client only has the older AlterConfigs, which replaces everything that was set."""
    needs_java: bool = False


class AdminFactory(Protocol):
    """Connects an admin."""

    def __call__(self, bootstrap_servers: str) -> Admin:
        """Return a connected admin."""
