"""Exactly once to a target with random lost responses and late duplicate requests."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pytest

from klamm.mirror.copy.copier import Copier
from klamm.mirror.copy.partition import PartitionId
from klamm.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.produce import ProduceRequest
from tests.support.copiers import copy_all, copy_settings, run_until
from tests.support.exactly_once import assert_exactly_once
from tests.support.frame_proxy import FrameProxy
from tests.support.mirror import Seen, create_topic, produce

if TYPE_CHECKING:
    from klamm.protocol.frames import RequestHeader

IS_SOAK: Final = bool(os.environ.get("KLAMM_SOAK"))
SEEDS: Final = range(20 if IS_SOAK else 1)
CHANCES: Final = {
    InitProducerIdRequest.API_KEY: 0.1,
    AddPartitionsToTxnRequest.API_KEY: 0.1,
    ProduceRequest.API_KEY: 0.1,
    EndTxnRequest.API_KEY: 0.2,
}
"""Probability that the response of a request is lost, by API key."""
LATEST_S: Final = 0.4
YEAR_2013: Final = 1_356_998_400_000
PARTITIONS: Final = 3
COUNT: Final = 600 if IS_SOAK else 200
AT_ONCE: Final = 20


class LateTarget(FrameProxy):
    """A target that loses responses. Some of these requests arrive a second time, up to 0.4 s later.

    For the broker this is the same as a request that was late, and that its repetition has overtaken.
    """

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address, replacements=dict.fromkeys(CHANCES, self._lose))
        host, port = address.rsplit(":", 1)
        self._late_for = (host, int(port))
        self._random = random.Random(seed)
        self._drawing = threading.Lock()
        self._timers: list[threading.Timer] = []
        self.lost = 0

    def _lose(self, header: RequestHeader, answer: memoryview) -> bytes | None:
        with self._drawing:
            if self._random.random() >= CHANCES[header.api_key]:
                return bytes(answer)
            self.lost += 1
            if self._random.random() < 0.7:
                requests = self.requests(header.api_key)
                frame = next(r.frame for r in reversed(requests) if r.header.correlation_id == header.correlation_id)
                timer = threading.Timer(self._random.uniform(0, LATEST_S), self._deliver, (frame,))
                self._timers.append(timer)
                timer.start()
        return None

    def _deliver(self, frame: bytes) -> None:
        with contextlib.suppress(OSError), socket.create_connection(self._late_for, timeout=10) as late:
            late.sendall(len(frame).to_bytes(4, "big") + frame)
            late.recv(4)

    def end(self) -> None:
        """Wait until every late request has arrived."""
        for timer in self._timers:
            timer.join()


@pytest.mark.parametrize("seed", SEEDS)
def test_records_arrive_once_despite_lost_and_late_requests(address: str, seed: int) -> None:
    """K894-39."""
    # given
    topic = f"late-{uuid4().hex[:6]}"
    alias = f"A{topic}"
    partitions = [PartitionId(topic, number, f"{alias}.{topic}") for number in range(PARTITIONS)]
    for name in (topic, partitions[0].remote_topic):
        create_topic(address, name, PARTITIONS, {"retention.ms": "-1"})
    create_topic(address, f"mm2-offsets.{alias}.internal", 5, {"cleanup.policy": "compact"})
    written: dict[int, list[Seen]] = {number: [] for number in range(PARTITIONS)}

    # when
    with LateTarget(address, seed) as target:
        copier = Copier(copy_settings(address, target.bootstrap_servers, alias=alias, shards=1), partitions)
        try:
            for first in range(0, COUNT, AT_ONCE):
                records = [
                    (at % PARTITIONS, Seen(None, b"%d" % at, (), YEAR_2013)) for at in range(first, first + AT_ONCE)
                ]
                produce(address, topic, records)
                for number, record in records:
                    written[number].append(record)
                run_until(copier, lambda: _count(copier) >= sum(map(len, written.values())))
        finally:
            copier.close()
        target.end()
        assert target.lost
    copy_all(copy_settings(address, address, alias=alias, shards=1), *partitions)
    # then
    assert_exactly_once(address, partitions[0].remote_topic, written)


def _count(copier: Copier) -> int:
    return sum(row.next_offset for row in copier.progress())
