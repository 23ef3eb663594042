"""The fetching half of a copier: one fetch in flight per leader, answers queued per partition."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from klamm.mirror.wire import cluster as clusters
from klamm.mirror.wire.connection import Connection, ConnectionLostError
from klamm.mirror.wire.fetch_frames import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    FetchedPartition,
    WantedRecords,
    fetch_request,
    fetched_partitions,
)
from klamm.mirror.wire.partition_copy import CopyState, PartitionCopy
from klamm.protocol.codec import encode
from klamm.protocol.errors import CorruptBatchError, ErrorCode, error_name
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from uuid import UUID

    from klamm.mirror.wire.buffers import FrameBuffer
    from klamm.mirror.wire.cluster import Cluster
    from klamm.mirror.wire.copier import CopySettings

logger = logging.getLogger(__name__)

_REFRESH_EVERY_S: Final = 300.0
_RETRY_S: Final = 0.2
_LATE_S: Final = 40.0
ON_LOSS_KEY: Final = "klamm.on.source.loss"
"""The key that says whether to go on where records of the source are gone for good."""


class Fetcher:
    """Keeps the partitions of a copier supplied. Thread-confined to it."""

    def __init__(
        self,
        settings: CopySettings,
        source: Cluster,
        copies: Mapping[tuple[str, int], PartitionCopy],
        clock: Callable[[], float],
        *,
        on_recreated: Callable[[str], None],
    ) -> None:
        """Make one.

        Args:
            settings: of the flow.
            source: where to fetch from.
            copies: the partitions, by topic and number.
            clock: seconds that never go back.
            on_recreated: called with a topic of the source that was deleted and created again.
        """
        self._settings = settings
        self._on_recreated = on_recreated
        self._source = source
        self._copies = copies
        self._clock = clock
        self._in_flight: dict[int, tuple[Connection, float]] = {}
        self._turn = 0
        self._topic_ids: dict[str, UUID] = {}
        self.refresh_at = 0.0

    def expect(self, topic: str, topic_id: UUID) -> None:
        """Say which topic is meant by a name, from now on: one of another id is not fetched for it."""
        if topic_id != ZERO_UUID:
            self._topic_ids[topic] = topic_id

    def send(self, now: float) -> None:
        """Send a fetch to each leader that has none in flight and partitions with room.

        Raises:
            ConnectionLostError: the source is away.
        """
        if not self._copies:
            return
        if now >= self.refresh_at:
            self._refresh(now)
        for leader, wanted in self._wanted(now).items():
            try:
                self._send_to(leader, wanted, now)
            except ConnectionLostError as error:
                # Only what this node leads waits; its partitions may have new leaders soon.
                self.refresh_at = min(self.refresh_at, now + _RETRY_S)
                for entry in wanted:
                    self._copies[entry.topic, entry.partition].wait(f"source: {error}", retry_at=now + _RETRY_S)

    def _refresh(self, now: float) -> None:
        self.refresh_at = now + _RETRY_S
        self._source.refresh(sorted({topic for topic, _ in self._copies}))
        self.refresh_at = now + _REFRESH_EVERY_S
        for topic in {topic for topic, _ in self._copies}:
            topic_id = self._source.topic_id(topic)
            if topic_id == ZERO_UUID:
                continue
            if self._topic_ids.setdefault(topic, topic_id) != topic_id:
                self._on_recreated(topic)

    def _stop(self, copy: PartitionCopy, reason: str) -> None:
        copy.stop(reason)
        partition = copy.partition_id
        logger.error("%s: %s-%d stops: %s", self._settings.flow, partition.topic, partition.partition, reason)

    def _wanted(self, now: float) -> dict[int, list[WantedRecords]]:
        room = self._settings.buffer_bytes - sum(copy.pending_bytes for copy in self._copies.values())
        if room <= 0:
            return {}
        out: dict[int, list[WantedRecords]] = {}
        keys = list(self._copies)
        # Brokers fill an answer in the order asked for: everybody comes first in turn.
        self._turn += 1
        for at in range(len(keys)):
            topic, partition = keys[(self._turn + at) % len(keys)]
            copy = self._copies[topic, partition]
            leader = self._source.leader(topic, partition)
            if leader in self._in_flight or not self._has_room(copy, now):
                continue
            if leader is None:
                copy.wait("no leader on the source", retry_at=now + _RETRY_S)
                self.refresh_at = min(self.refresh_at, now + _RETRY_S)
                continue
            topic_id = self._topic_ids.get(topic, ZERO_UUID)
            out.setdefault(leader, []).append(WantedRecords(topic, topic_id, partition, copy.fetch_offset))
        return out

    def _has_room(self, copy: PartitionCopy, now: float) -> bool:
        stopped = copy.state is CopyState.STOPPED
        return (
            not stopped
            and now >= copy.retry_at
            and copy.pending_bytes < self._settings.fetch_limits.partition_max_bytes
        )

    def _send_to(self, leader: int, wanted: list[WantedRecords], now: float) -> None:
        connection = self._source.connection(leader)
        with_ids = all(entry.topic_id != ZERO_UUID for entry in wanted)
        version = connection.version_of(FetchRequest, at_most=LAST_VERSION if with_ids else TOPIC_IDS_FROM - 1)
        request = fetch_request(wanted, self._settings.fetch_limits, read_committed=self._settings.read_committed)
        names = {entry.topic_id: entry.topic for entry in wanted}
        asked = {(entry.topic, entry.partition): entry.fetch_offset for entry in wanted}

        def on_response(response: FetchResponse, memory: FrameBuffer) -> None:
            self._in_flight.pop(leader, None)
            self._take(response, memory, names, asked, with_topic_ids=version >= TOPIC_IDS_FROM)

        self._in_flight[leader] = (connection, now)
        connection.submit(FetchRequest, version, [encode(request, version)], FetchResponse, on_response)
        connection.write()

    def _take(
        self,
        response: FetchResponse,
        memory: FrameBuffer,
        names: Mapping[UUID, str],
        asked: Mapping[tuple[str, int], int],
        *,
        with_topic_ids: bool,
    ) -> None:
        now = self._clock()
        if response.error_code != ErrorCode.NONE:
            logger.info("%s: a fetch was refused with error code %d", self._settings.flow, response.error_code)
            self.refresh_at = min(self.refresh_at, now + _RETRY_S)
            return
        read_committed = self._settings.read_committed
        for fetched in fetched_partitions(
            response, names, with_topic_ids=with_topic_ids, read_committed=read_committed
        ):
            key = (fetched.topic, fetched.partition)
            copy = self._copies.get(key)
            if copy is None or copy.state is CopyState.STOPPED or copy.fetch_offset != asked.get(key):
                continue  # it begins elsewhere by now
            if fetched.error_code == ErrorCode.NONE:
                self._queue(copy, fetched, memory)
            else:
                self._refused(copy, fetched.error_code, now)

    def _queue(self, copy: PartitionCopy, fetched: FetchedPartition, memory: FrameBuffer) -> None:
        copy.fetched(end_offset=fetched.end_offset)
        try:
            copy.take(fetched.records, memory, fetched.aborted)
        except CorruptBatchError as error:
            self._stop(copy, f"the source's bytes are damaged: {error}")

    def _refused(self, copy: PartitionCopy, error_code: int, now: float) -> None:
        if error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._out_of_range(copy, now)
            return
        copy.wait(f"the source refuses a fetch: {error_name(error_code)}", retry_at=now + _RETRY_S)
        self.refresh_at = min(self.refresh_at, now + _RETRY_S)

    def _out_of_range(self, copy: PartitionCopy, now: float) -> None:
        key = (copy.partition_id.topic, copy.partition_id.partition)
        first = self._source.list_offsets([key], clusters.EARLIEST).get(key)
        end = self._source.list_offsets([key], clusters.LATEST).get(key)
        if first is None or end is None:
            copy.wait("the source does not tell which offsets it holds", retry_at=now + _RETRY_S)
        elif first <= copy.fetch_offset <= end:
            copy.wait(f"the source did not have offset {copy.fetch_offset} for a moment", retry_at=now + _RETRY_S)
        elif copy.fetch_offset < first and self._settings.continue_after_loss:
            logger.warning(
                "%s: %s-%d: offsets %d to %d were purged on the source before they were mirrored; going on at %d",
                self._settings.flow, *key, copy.fetch_offset, first - 1, first,
            )  # fmt: skip
            copy.skip_to(first)
        elif copy.fetch_offset < first:
            self._stop(
                copy,
                f"offset {copy.fetch_offset} is not there any more: the source holds {first} to {end}. Records were "
                f"purged before they were mirrored. {ON_LOSS_KEY}=continue goes on at {first}",
            )
        else:
            self._stop(
                copy,
                f"offset {copy.fetch_offset} is not there yet: the source holds {first} to {end}. It lost records, or "
                f"the topic was created again. Write a position to go on",
            )

    def sweep(self, now: float) -> None:
        """Forget fetches whose connection broke or which were never answered."""
        for leader, (connection, sent_at) in list(self._in_flight.items()):
            if now - sent_at > _LATE_S:
                connection.close()
            if connection.closed:
                del self._in_flight[leader]
                self.refresh_at = min(self.refresh_at, now + _RETRY_S)
