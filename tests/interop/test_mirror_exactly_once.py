"""Fencing of a shard's earlier tasks: live ones, dead ones in a transaction, and ones with other shards."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.records.source_offsets import shard_of
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.copiers import copy_all, copy_settings, run_until
from tests.support.exactly_once import assert_exactly_once
from tests.support.frame_proxy import FrameProxy
from tests.support.mirror import Seen, create_topic, produce
from tests.support.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from klamm.mirror.copy.settings import CopySettings
    from klamm.protocol.frames import RequestHeader

YEAR_2013 = 1_356_998_400_000
LONG_S = 3_600.0
"""A transaction that does not end by itself while a test lasts."""


class Flow:
    """A topic with one partition, its remote topic, and copiers of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._topic = f"once-{uuid4().hex[:6]}"
        self._alias = f"A{self._topic}"
        self.partition = PartitionId(self._topic, 0, f"{self._alias}.{self._topic}")
        for name in (self._topic, self.partition.remote_topic):
            create_topic(address, name, 1, {"retention.ms": "-1"})
        create_topic(address, f"mm2-offsets.{self._alias}.internal", 5, {"cleanup.policy": "compact"})
        self.written: list[Seen] = []
        self._copied = 0

    def write(self, count: int) -> None:
        first = len(self.written)
        more = [Seen(None, b"%d" % number, (), YEAR_2013) for number in range(first, first + count)]
        produce(self.address, self._topic, [(0, record) for record in more])
        self.written += more

    def settings(self, *, shards: int = 1, interval_s: float = 0.05, target: str = "") -> CopySettings:
        return copy_settings(
            self.address,
            target or self.address,
            alias=self._alias,
            shards=shards,
            shard=shard_of(self._topic, 0, shards),
            interval_s=interval_s,
        )

    def copy(self, *, shards: int = 1) -> None:
        copy_all(self.settings(shards=shards), self.partition)
        self._copied = len(self.written)

    @contextlib.contextmanager
    def caught_in_a_transaction(self, *, shards: int = 1) -> Iterator[Copier]:
        """A copier in a thread that has written everything and not committed; it is shut at the end, not ended."""
        copier = Copier(self.settings(shards=shards, interval_s=LONG_S), [self.partition])
        gone = threading.Event()
        new = len(self.written) - self._copied

        def stop_when_gone() -> None:
            if gone.is_set():
                raise _GoneError

        def run() -> None:
            with contextlib.suppress(_GoneError):
                copier.run(lambda: False, stop_when_gone)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(
                lambda: any(row.records >= new for row in copier.progress()),
                timeout_s=60,
                what="records in an open transaction",
            )
            yield copier
        finally:
            gone.set()
            thread.join()
            copier.close()

    def assert_copied_exactly_once(self) -> None:
        assert_exactly_once(self.address, self.partition.remote_topic, {0: self.written})


class _GoneError(Exception):
    """Error that ends a copier's thread like a SIGKILL: the target gets no further request."""


@pytest.fixture
def flow(address: str) -> Flow:
    return Flow(address)


def test_open_transaction_of_dead_task_ends_before_successor_reads_source_offsets(flow: Flow) -> None:
    """K894-39: it does not wait for the transaction to time out either."""
    flow.write(50)
    with flow.caught_in_a_transaction():
        pass
    flow.copy()
    flow.assert_copied_exactly_once()


def test_live_predecessor_is_fenced_and_its_records_stay_uncommitted(flow: Flow) -> None:
    """K894-39: it learns of it when it writes again, and begins where its successor ended."""
    flow.write(50)
    with flow.caught_in_a_transaction() as predecessor:
        flow.copy()
        flow.assert_copied_exactly_once()
        flow.write(10)
        wait_until(lambda: _records(predecessor) == 60, timeout_s=60, what="the predecessor to begin again")
    flow.copy()
    flow.assert_copied_exactly_once()


class LateEndTxn(FrameProxy):
    """Target that loses the response to an EndTxn, and processes the same EndTxn again within the next transaction.

    For the broker, the order of events is the same as if the request was late and its repetition overtook it.
    """

    def __init__(self, address: str, remote_topic: str) -> None:
        replacements = {EndTxnRequest.API_KEY: self._end_txn, ProduceRequest.API_KEY: self._produce}
        super().__init__(address, replacements=replacements)
        self._address = address
        self._remote_topic = remote_topic.encode()
        self._late: bytes | None = None
        self.loses_response = threading.Event()
        self.delivers_again = threading.Event()

    def _end_txn(self, _: RequestHeader, answer: memoryview) -> bytes | None:
        if not self.loses_response.is_set():
            return bytes(answer)
        self.loses_response.clear()
        self._late = self.requests(EndTxnRequest.API_KEY)[-1].frame
        return None

    def _produce(self, _: RequestHeader, answer: memoryview) -> bytes | None:
        """Process the late EndTxn after a batch was appended and before the client knows it."""
        if not self.delivers_again.is_set() or self._remote_topic not in bytes(answer):
            return bytes(answer)
        self.delivers_again.clear()
        assert self._late is not None
        host, port = self._address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=10) as late:
            late.sendall(len(self._late).to_bytes(4, "big") + self._late)
            assert late.recv(4)
        return None


def test_late_end_txn_does_not_end_next_transaction(flow: Flow) -> None:
    """K894-39: it would commit records without their source offset, and they would be copied again."""
    with LateEndTxn(flow.address, flow.partition.remote_topic) as target:
        copier = Copier(flow.settings(target=target.bootstrap_servers), [flow.partition])
        try:
            flow.write(10)
            run_until(copier, lambda: _is_committed(copier, 10))
            target.loses_response.set()
            flow.write(10)
            run_until(copier, lambda: _is_committed(copier, 20))
            assert not target.loses_response.is_set()
            target.delivers_again.set()
            flow.write(10)
            run_until(copier, lambda: _is_committed(copier, 30))
            assert not target.delivers_again.is_set()
        finally:
            copier.close()
    flow.assert_copied_exactly_once()


def _is_committed(copier: Copier, next_offset: int) -> bool:
    return all(row.next_offset >= next_offset for row in copier.progress())


def _records(copier: Copier) -> int:
    return sum(row.records for row in copier.progress())


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2)])
def test_changed_shard_count_fences_previous_shards(flow: Flow, before: int, after: int) -> None:
    """K894-39: their transactional ids are others, so they are fenced by name."""
    flow.write(20)
    flow.copy(shards=before)
    flow.write(20)
    with flow.caught_in_a_transaction(shards=before):
        flow.copy(shards=after)
        flow.assert_copied_exactly_once()
    flow.write(5)
    flow.copy(shards=after)
    flow.assert_copied_exactly_once()
