"""Interface of a client family in the interop tests, independent of library and language."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tests.support.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One record and its place on the broker."""

    partition: int
    offset: int
    """-1: the broker had the record already and did not return its offset."""
    value: int


class RunningProducer(Worker):
    """Producer of the numbers 0, 1, 2, ... at a steady pace, with a list of the acknowledged ones."""

    def __init__(self, bootstrap_servers: str, topic: str, *, count: int, records_per_s: int) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.count = count
        self.records_per_s = records_per_s
        self.acknowledged: list[Delivery] = []
        self.failures: list[str] = []
        super().__init__(f"producer of {topic}")

    def paced(self) -> Iterator[int]:
        """Yield 0 to ``count - 1``, at most ``records_per_s`` per second, until stopped."""
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
    """Group member with a list of its records. ``stop`` makes it leave the group in order."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.topic = topic
        self.group = group
        self.assignment: frozenset[int] = frozenset()
        self.delivered: list[Delivery] = []
        super().__init__(f"member of {group}")


class Admin(Protocol):
    """Admin client of a family. Every method raises when the broker rejects the request."""

    def create_topic(self, name: str, *, partitions: int, configs: Mapping[str, str]) -> None:
        """Create a topic with one replica."""

    def create_partitions(self, name: str, *, total: int) -> None:
        """Raise the number of partitions to ``total``."""

    def partition_count(self, name: str) -> int:
        """Return the number of partitions; 0 if the topic does not exist."""

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
    """Clients of one family."""

    name: str
    admin: AdminFactory
    producer: type[RunningProducer]
    consumer: type[RunningConsumer]
    alters_incrementally: bool
    """False: the client only has the older AlterConfigs, which replaces all configs of a resource."""
    needs_java: bool = False


class AdminFactory(Protocol):
    """Function that connects an admin client."""

    def __call__(self, bootstrap_servers: str) -> Admin:
        """Return a connected admin."""
