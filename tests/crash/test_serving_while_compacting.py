"""Response times during compaction and retention: other clients do not wait for them."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from klamm.protocol.records import Record, encode_batch
from tests.support.klamm import KlammBroker
from tests.support.logs import batch
from tests.support.wire import SET, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

BATCHES = 60 if os.environ.get("KLAMM_SOAK") else 30
RECORDS = 900


def test_small_produces_are_answered_while_a_large_log_is_compacted_and_removed() -> None:
    """The bound is wide, since tests share the machine: without slices single answers take seconds."""
    generator = random.Random(1)
    value = generator.randbytes(1000)
    small = bytes(batch("x" * 100))
    with KlammBroker({"log.cleaner.backoff.ms": "100"}) as broker, WireClient(broker.bootstrap_servers) as client:
        for topic in ("large", "small"):
            client.create_topic(topic)
        client.alter_topic("large", [("segment.bytes", SET, str(8 << 20))])
        for _ in range(BATCHES):
            keys = [b"k%d" % generator.randrange(5000) for _ in range(RECORDS)]
            now_ms = time.time_ns() // 1_000_000
            records = [Record(key, value, (), now_ms, index) for index, key in enumerate(keys)]
            client.produce("large", 0, bytes(encode_batch(records)))

        def answered_in(has_ended: Callable[[], bool]) -> list[float]:
            times: list[float] = []
            limit = time.monotonic() + 240
            while len(times) < 300 or not has_ended():
                assert time.monotonic() < limit
                began = time.perf_counter()
                client.produce("small", 0, small)
                times.append(time.perf_counter() - began)
            return sorted(times)

        client.alter_topic("large", [("cleanup.policy", SET, "compact")])
        compacting = answered_in(lambda: "Compacted large-0" in broker.log_path.read_text())
        client.alter_topic("large", [("cleanup.policy", SET, "delete"), ("retention.ms", SET, "1")])
        removing = answered_in(lambda: "large-0: removed" in broker.log_path.read_text())

    for times in (compacting, removing):
        assert times[int(len(times) * 0.99)] < 0.25
