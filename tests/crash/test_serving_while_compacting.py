"""Response times during compaction and retention: other clients do not wait for them."""

from __future__ import annotations

import logging
import os
import random
import time
from typing import TYPE_CHECKING

from klamm.protocol.records import Record, encode_batch
from klamm.storage.log.segment_swap import WORK
from tests.support.klamm import KlammBroker
from tests.support.logs import batch
from tests.support.wire import SET, WireClient

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

IS_SOAK = bool(os.environ.get("KLAMM_SOAK"))
BATCHES = 60 if IS_SOAK else 30
RECORDS = 900
MIN_ANSWERS = 5
"""Responses while the compaction writes its files. If it held the event loop, there would be one at most."""


def test_small_produces_are_answered_while_a_large_log_is_compacted_and_removed() -> None:
    """A long run limits the response times. The bound is wide: without slices single answers take seconds."""
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

        work = broker.data_dir / "logs" / "large-0" / WORK
        answered_during_work = 0

        def answered_in(has_ended: Callable[[], bool]) -> list[float]:
            nonlocal answered_during_work
            times: list[float] = []
            limit = time.monotonic() + 240
            while len(times) < 300 or not has_ended():
                assert time.monotonic() < limit
                began = time.perf_counter()
                client.produce("small", 0, small)
                times.append(time.perf_counter() - began)
                answered_during_work += work.exists()
            return sorted(times)

        client.alter_topic("large", [("cleanup.policy", SET, "compact")])
        compacting = answered_in(lambda: "Compacted large-0" in broker.log_path.read_text())
        client.alter_topic("large", [("cleanup.policy", SET, "delete"), ("retention.ms", SET, "1")])
        removing = answered_in(lambda: "large-0: removed" in broker.log_path.read_text())

    slow = [times[int(len(times) * 0.99)] for times in (compacting, removing)]
    logger.warning("99 %% of the responses within %.3f s and %.3f s, %d beside the work", *slow, answered_during_work)
    assert answered_during_work >= MIN_ANSWERS
    assert not IS_SOAK or max(slow) < 0.25
