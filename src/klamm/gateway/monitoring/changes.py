"""Latest changes in the histories of the gateways of a cluster, for the page. Read from the ends of their topics."""

from __future__ import annotations

import asyncio
import heapq
import time
from itertools import islice
from typing import TYPE_CHECKING, Final

from klamm.gateway.history.log import ENTRIES
from klamm.gateway.upstream.internal_topic import PARTITION
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.kafka_client.errors import CLUSTER_ERRORS, error_words
from klamm.kafka_client.internal_topic import log_bounds, read_partition
from klamm.page.changes import MAX_CHANGES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.history.change import RecordedChange
    from klamm.kafka_client.connection.transport import ConnectionSettings

CHANGES_KEPT_S: Final = 10.0
"""Seconds for which the changes are kept, however often the page is requested."""
_TAIL_OFFSETS: Final = 100
"""Offsets at the end of a topic that are read. Each transaction of client configs ends with a marker, which has one."""
_TIMEOUT_S: Final = 3.0


class LatestChanges:
    """Latest changes that the gateways of a cluster have recorded. Used on the event loop only.

    Args:
        settings: Settings of connections to the upstream.
        topics: Topics of histories: keys of ``ENTRIES``.
        now: Monotonic clock, in seconds.
    """

    def __init__(
        self, settings: ConnectionSettings, topics: Sequence[str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._topics = topics
        self._now = now
        self._cluster = Cluster(settings, BufferPool(max_free_bytes=0))
        self._turn = asyncio.Lock()
        self._next_read = -float("inf")
        self._changes: Sequence[RecordedChange] = ()
        self.failure: str | None = None
        """Reason why the latest attempt to read failed. The changes read before are shown."""

    async def latest(self) -> Sequence[RecordedChange]:
        """Return the latest changes, the newest one first. A thread reads them."""
        async with self._turn:
            if self._now() >= self._next_read:
                try:
                    self._changes = await asyncio.to_thread(self._read)
                    self.failure = None
                except CLUSTER_ERRORS as error:
                    self.failure = error_words(error)
                self._next_read = self._now() + CHANGES_KEPT_S
            return self._changes

    async def close(self) -> None:
        """Close the connections."""
        async with self._turn:
            await asyncio.to_thread(self._cluster.close)

    def _read(self) -> Sequence[RecordedChange]:
        newest = (self._tail(topic) for topic in self._topics)
        return list(islice(heapq.merge(*newest, key=lambda change: change.at_ms, reverse=True), MAX_CHANGES))

    def _tail(self, topic: str) -> Sequence[RecordedChange]:
        """Return the changes at the end of a topic, the newest one first; none while the topic does not exist.

        Raises:
            ConnectionLostError: The topic cannot be read at present.
        """
        self._cluster.refresh([topic])
        if topic not in self._cluster.topics:
            return ()
        offsets = log_bounds(self._cluster, topic)[topic, PARTITION]
        last = range(max(offsets.start, offsets.stop - _TAIL_OFFSETS), offsets.stop)
        fetches = read_partition(self._cluster, (topic, PARTITION), last, timeout_s=_TIMEOUT_S)
        changes = dict.fromkeys(change for records, _ in fetches for change in ENTRIES[topic](records))
        # of one moment, the change that was written last comes first
        return sorted(changes, key=lambda change: change.at_ms)[::-1]
