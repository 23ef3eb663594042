"""Logs of source topics, as promotions and demotions need them.

They are requested in a thread of their own: a source that does not respond holds up no other topic.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.display import counted
from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.data.cluster import Cluster
from klamm.mirror.replica.errors import PromotionError, PromotionWaitsError
from klamm.mirror.replica.leader_partition import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.types import PartitionTuple, TopicPartition

_WAIT_S: Final = 0.2
"""Seconds for which a caller waits for a source that has responded to all requests before."""
_MAX_PAUSE_S: Final = 15.0
"""Longest time in seconds between two calls for the same request. Callers that wait call again every 0.5 s, unless the
promotion of another topic takes longer.
"""

NOT_NAMED: Final = "it is not known what the source got since; "
"""Beginning of the result of a promotion as long as the source has not named its log ends."""


class SourceLogs(NamedTuple):
    """Logs of one source topic."""

    cluster_id: str
    topic_id: UUID
    """All zeros: the topic does not exist, or the source has no topic ids."""
    partitions: int
    bounds: Mapping[PartitionTuple, range]
    """Offsets of each partition. Those without a leader that responds are missing."""

    def check_continues(self, key: PartitionTuple, remote: TopicPartition, log_end: int) -> None:
        """Check that the source has the offset at which a remote partition ends.

        Args:
            key: Source partition.
            remote: Remote partition.
            log_end: Log end at its promotion. -1: klamm did not hand it over.

        Raises:
            PromotionError: It does not, or klamm did not hand the partition over.
        """
        topic, index = key
        if log_end == UNKNOWN:
            raise PromotionError(f"klamm did not hand {remote.name} over: delete the remote topic to mirror it")
        if (bounds := self.bounds.get(key)) is None:
            raise PromotionError(f"{topic}-{index} has no leader on the source")
        if not bounds.start <= log_end <= bounds.stop:
            raise PromotionError(
                f"{topic}-{index} has the offsets {bounds.start} to {bounds.stop} on the source, and {remote.name} "
                f"continues at {log_end}: it cannot be mirrored on"
            )

    def describe_more(self, key: PartitionTuple, log_end: int, partitions: int) -> str:
        """Return what the source got after a promotion, as the beginning of its result. Empty: nothing.

        ``NOT_NAMED``: the partition has no leader that responds.

        Args:
            key: Source partition.
            log_end: Log end at its promotion.
            partitions: Number of partitions of the topic at its promotion.
        """
        if (bounds := self.bounds.get(key)) is None:
            return NOT_NAMED
        counts = (bounds.stop - log_end, "offset"), (self.partitions - partitions, "partition")
        more = " and ".join(counted(count, name) for count, name in counts if count > 0)
        return f"the source has {more} more, which are not on the target; " if more else ""


class SourceLogReader:
    """Reader of source logs. Call its methods from one thread."""

    def __init__(self, source: ConnectionSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._cluster = Cluster(source, BufferPool(max_free_bytes=0))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="source-logs")
        self._requests: dict[str, Future[SourceLogs]] = {}
        self._called_at: dict[str, float] = {}
        """Time of the latest call for each topic."""

    def read(self, topic: str) -> SourceLogs:
        """Return the logs of a topic. They are not older than the first of the calls that waited for them.

        What was requested for a caller that did not come back in time is forgotten, and requested again.

        Raises:
            PromotionWaitsError: The source has not responded yet: call it again.
            ConnectionLostError: The source does not respond.
        """
        now = self._clock()
        if now > self._called_at.get(topic, now) + _MAX_PAUSE_S:
            self.forget(topic)
        self._called_at[topic] = now
        is_slow = any(not each.done() for each in self._requests.values())
        if (request := self._requests.get(topic)) is None:
            request = self._requests[topic] = self._thread.submit(self._read, topic)
        if not wait([request], 0 if is_slow else _WAIT_S).done:
            raise PromotionWaitsError(f"the source has not named the log ends of {topic} yet")
        self.forget(topic)
        return request.result()

    def forget(self, topic: str) -> None:
        """Forget what was requested for a topic, so that the next call requests it again."""
        self._requests.pop(topic, None)
        self._called_at.pop(topic, None)

    def _read(self, topic: str) -> SourceLogs:
        self._cluster.refresh([topic])
        state = self._cluster.topics.get(topic)
        partitions = [] if state is None else [(topic, index) for index in state.partitions]
        bounds = self._cluster.log_bounds(partitions)
        return SourceLogs(self._cluster.cluster_id, self._cluster.topic_id(topic), len(partitions), bounds)

    def close(self) -> None:
        """Close the connections, when a request in progress has ended."""
        self._thread.submit(self._cluster.close)
        self._thread.shutdown(wait=False)
