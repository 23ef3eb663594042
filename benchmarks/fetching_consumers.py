"""Fetches by librdkafka's consumers, each in a process of its own, as an application runs them."""

from __future__ import annotations

import multiprocessing
import time
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

_AT_ONCE: Final = 1_000
_WAIT_S: Final = 60.0


class Consumers:
    """Consumers that read their partitions from start to end, as often as they are asked to.

    Args:
        settings: ``bootstrap.servers`` and, for TLS, what librdkafka needs for it.
        topic: what they read.
        shares: the partitions of each.
        records: number of records in each partition.
    """

    def __init__(self, settings: Mapping[str, str], topic: str, shares: Sequence[Sequence[int]], records: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipes: list[Connection] = []
        self._processes = []
        for share in shares:
            ours, theirs = context.Pipe()
            assigned = [TopicPartition(topic, number, 0) for number in share]
            process = context.Process(target=_consume, args=(settings, assigned, records, theirs))
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def read(self, times: int) -> float:
        """Read all partitions some times; return the seconds until the last consumer was done.

        Raises:
            RuntimeError: a consumer got no record for a minute, or an error.
        """
        began = time.monotonic()
        for pipe in self._pipes:
            pipe.send(times)
        errors = [error for pipe in self._pipes if (error := pipe.recv())]
        if errors:
            raise RuntimeError(f"{len(errors)} consumers failed; the first: {errors[0]}")
        return time.monotonic() - began

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.send(0)
            pipe.close()
        for process in self._processes:
            process.join()


def _consume(settings: Mapping[str, str], assigned: Sequence[TopicPartition], records: int, orders: Connection) -> None:
    """Read the partitions as often as each order says; 0 is the end."""
    consumer = Consumer({"group.id": "benchmark", "enable.auto.commit": False, **settings})
    while times := orders.recv():
        error = None
        for _ in range(times):
            consumer.assign(list(assigned))
            error = error or _read(consumer, records * len(assigned))
        orders.send(error)
    consumer.close()


def _read(consumer: Consumer, left: int) -> str | None:
    """Read that many records; return what went wrong, if anything did."""
    while left > 0:
        got = consumer.consume(min(left, _AT_ONCE), timeout=_WAIT_S)
        if not got:
            return f"No record for {_WAIT_S:g} s; {left} are missing"
        for message in got:
            if (error := message.error()) is not None:
                return str(error)
        left -= len(got)
    return None
