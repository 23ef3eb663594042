"""A broker that is killed (SIGKILL) while transactions run: each is atomic, and none blocks forever."""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tests.support.processes import wait_until
from tests.support.transaction_wire import (
    TransactionClient,
    Who,
    committed_offset,
    find_group_coordinator,
    read_committed,
    wait_for_markers,
)
from tests.support.wire import SET, WireClient
from tests.support.workers import Worker

if TYPE_CHECKING:
    from tests.support.probe import Cluster

_KILLS: Final = 60 if os.environ.get("KLAMM_SOAK") else 3
_TOPIC: Final = "transfers"
_PARTITIONS: Final = 3
_MOMENTS_S: Final = (0.1, 0.8)
"""The broker dies after a time between these."""
_COMMITTED, _ABORTED, _UNKNOWN, _OPEN = "committed", "aborted", "unknown", "open"


@dataclass(slots=True, kw_only=True)
class _Ledger:
    """What one producer knows of its transactions; it lives through every crash."""

    number: int
    knows_v2: bool
    """It speaks KIP-890's versions; else the old ones."""
    ends: dict[int, str] = field(default_factory=dict)
    """Number of the transaction -> how it ended, as far as the producer was told."""
    written: dict[int, set[int]] = field(default_factory=dict)
    """Number of the transaction -> partitions with an acknowledged record."""

    @property
    def group(self) -> str:
        """Group whose offset each transaction sets to its own number."""
        return f"group-{self.number}"

    def value(self, transaction: int, partition: int) -> str:
        """The record of a transaction in a partition."""
        return f"{self.number}:{transaction}:{partition}"


class _Transferring(Worker):
    """One transaction after the other, until the broker is gone."""

    def __init__(self, address: str, ledger: _Ledger) -> None:
        self._address = address
        self._ledger = ledger
        self._sequences: dict[int, int] = {}
        super().__init__(f"transactions of {ledger.number}")

    def _work(self) -> None:
        try:
            with WireClient(self._address, timeout_s=30) as client:
                ours = TransactionClient(client, f"transfer-{self._ledger.number}")
                ours.find_coordinator()
                code, identity = ours.init(4)
                assert code == 0
                find_group_coordinator(client, self._ledger.group)
                while not self._stop.is_set():
                    identity = self._transfer(ours, identity)
        except OSError:
            return

    def _transfer(self, ours: TransactionClient, identity: Who) -> Who:
        ledger = self._ledger
        number = len(ledger.ends)
        ledger.ends[number], ledger.written[number] = _OPEN, set()
        partitions = [(number + step) % _PARTITIONS for step in range(1 + number % _PARTITIONS)]
        if not ledger.knows_v2:
            assert ours.add(identity, 3, _TOPIC, *partitions) == [0] * len(partitions)
            assert ours.add_offsets(identity, 3, ledger.group) == 0
        for partition in partitions:
            sequence = self._sequences.get(partition, 0)
            value = ledger.value(number, partition)
            version = 12 if ledger.knows_v2 else 9
            assert ours.produce(identity, version, _TOPIC, partition, value, sequence=sequence) == 0
            self._sequences[partition] = sequence + 1
            ledger.written[number].add(partition)
        assert ours.commit_offset(identity, 5 if ledger.knows_v2 else 3, ledger.group, _TOPIC, number) == 0
        is_commit = random.random() < 0.7
        ledger.ends[number] = _UNKNOWN if is_commit else _ABORTED
        code, following = ours.end(identity, 5 if ledger.knows_v2 else 4, commit=is_commit)
        assert code == 0
        if is_commit:
            ledger.ends[number] = _COMMITTED
        if ledger.knows_v2:
            self._sequences.clear()
        return following if ledger.knows_v2 else identity


def test_transactions_are_atomic_across_kills(crashing: Cluster) -> None:
    # given
    ledgers = [_Ledger(number=number, knows_v2=number % 2 == 0) for number in range(4)]
    with WireClient(crashing.bootstrap_servers, timeout_s=30) as client:
        client.create_topic(_TOPIC, partitions=_PARTITIONS)
        client.alter_topic(_TOPIC, [("message.timestamp.type", SET, "LogAppendTime")])  # markers are stamped too
        _settle(client, ledgers)
    moments = random.Random()
    enough = 5 * _KILLS
    for kill in range(_KILLS):
        # when
        workers = [_Transferring(crashing.bootstrap_servers, ledger) for ledger in ledgers]
        time.sleep(moments.uniform(*_MOMENTS_S))
        if kill == _KILLS - 1:  # a busy machine has ended few of them before each kill
            wait_until(lambda: _count(ledgers) > enough, timeout_s=60, what=f"{enough} transactions")
        for worker in workers:
            worker.check()
        crashing.restart(kill=True)
        for worker in workers:
            worker.stop(60)
        # then
        with WireClient(crashing.bootstrap_servers, timeout_s=30) as client:
            _settle(client, ledgers)
            _verify(client, ledgers)
    assert _count(ledgers) > enough


def _count(ledgers: list[_Ledger]) -> int:
    return sum(len(ledger.ends) for ledger in ledgers)


def _settle(client: WireClient, ledgers: list[_Ledger]) -> None:
    """End the open transactions, as the next producer of each transactional id does, so that they block no reader."""
    for ledger in ledgers:
        ours = TransactionClient(client, f"transfer-{ledger.number}")
        ours.find_coordinator()
        assert ours.init(4)[0] == 0
        find_group_coordinator(client, ledger.group)
    for partition in range(_PARTITIONS):
        wait_for_markers(client, _TOPIC, partition)


def _verify(client: WireClient, ledgers: list[_Ledger]) -> None:
    values_by_partition = {partition: read_committed(client, _TOPIC, partition) for partition in range(_PARTITIONS)}
    for partition, values in values_by_partition.items():
        assert len(values) == len(set(values)), f"Partition {partition} holds a record twice"
        for ledger in ledgers:
            own = [int(value.split(":")[1]) for value in values if value.startswith(f"{ledger.number}:")]
            assert own == sorted(own), f"Partition {partition} is out of order for producer {ledger.number}"
    for ledger in ledgers:
        visible = set()
        for number, how in ledger.ends.items():
            there = {
                partition
                for partition, values in values_by_partition.items()
                if ledger.value(number, partition) in set(values)
            }
            allowed = {
                _COMMITTED: [ledger.written[number]],
                _UNKNOWN: [ledger.written[number], set()],
            }.get(how, [set()])
            assert there in allowed, f"Transaction {number} of {ledger.number} ({how}) is in {there}"
            if there:
                visible.add(number)
        assert committed_offset(client, ledger.group, _TOPIC, stable=True) == (0, max(visible, default=-1))
