"""Fetch requests of the data path, fetch sessions (KIP-227), and the results per partition.

In a fetch session the broker remembers the requested partitions, and the client sends only changes.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.protocol.messages.fetch import FetchRequest
from klamm.protocol.types import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from klamm.protocol.messages.fetch import FetchResponse

TOPIC_IDS_FROM: Final = 13
LAST_VERSION: Final = 17
"""Highest version in use. Newer versions add nothing that a mirror needs."""
Key = tuple[str, int]
"""Topic and partition."""

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_LAST_EPOCH: Final = 0x7FFFFFFF


class FetchLimits(NamedTuple):
    """Limits for the size and the wait of one fetch."""

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    rack_id: str = ""
    """``client.rack`` of the consumer: the leader names a replica in that rack to fetch from (KIP-392). Empty means
    none.
    """


class WantedRecords(NamedTuple):
    """A partition to fetch, and the offset to fetch from."""

    topic: str
    topic_id: UUID
    partition: int
    fetch_offset: int
    current_leader_epoch: int = -1
    """Leader epoch known to the client. A leader with another epoch rejects the request. -1 disables the check."""
    last_fetched_epoch: int = -1
    """Leader epoch of the batch before ``fetch_offset``, which the leader compares with its log. -1 disables the
    check.
    """


class EpochEnd(NamedTuple):
    """A leader epoch of a log, and the offset at which its records end."""

    leader_epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """Result of a fetch for one partition."""

    topic: str
    partition: int
    error_code: int
    end_offset: int
    """High watermark, or the last stable offset under read_committed."""
    aborted: tuple[AbortedTransaction, ...] | None
    """Aborted transactions. None under read_uncommitted."""
    records: memoryview
    diverging: EpochEnd | None = None
    """Point where the leader's log diverges from the records fetched before. None if no divergence was detected."""
    preferred_read_replica: int = -1
    """Node id of a nearer replica to fetch from instead; -1 means none."""
    log_start_offset: int = -1
    """Log start offset of the broker. -1: unknown."""


def fetch_request(
    wanted: Sequence[WantedRecords],
    limits: FetchLimits,
    *,
    read_committed: bool,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Mapping[tuple[str, int], UUID] = MappingProxyType({}),
) -> FetchRequest:
    """Return a Fetch request. Brokers fill the response in the order of ``wanted``.

    Args:
        wanted: Partitions to fetch. In an existing session, only new or changed ones.
        limits: Limits of the response.
        read_committed: Whether to read only up to the last stable offset.
        session_id: Id of the fetch session; 0 without a session or to create one.
        session_epoch: Epoch of the fetch session; -1 without a session, 0 to create one.
        forgotten: Partitions to remove from the session, with the ids of their topics.
    """
    topics: dict[tuple[str, UUID], FetchRequest.FetchTopic] = {}  # a topic that was created again has two ids
    for topic, topic_id, partition, fetch_offset, current_leader_epoch, last_fetched_epoch in wanted:
        entry = topics.get((topic, topic_id))
        if entry is None:
            entry = topics[topic, topic_id] = FetchRequest.FetchTopic(topic=topic, topic_id=topic_id)
        entry.partitions.append(
            FetchRequest.FetchPartition(
                partition=partition,
                fetch_offset=fetch_offset,
                partition_max_bytes=limits.partition_max_bytes,
                current_leader_epoch=current_leader_epoch,
                last_fetched_epoch=last_fetched_epoch,
            )
        )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=limits.max_wait_ms,
        min_bytes=limits.min_bytes,
        max_bytes=limits.max_bytes,
        isolation_level=int(read_committed),
        session_id=session_id,
        session_epoch=session_epoch,
        rack_id=limits.rack_id,
        topics=list(topics.values()),
        forgotten_topics_data=[
            FetchRequest.ForgottenTopic(topic=topic, topic_id=topic_id, partitions=[partition])
            for (topic, partition), topic_id in forgotten.items()
        ],
    )


def fetched_partitions(
    response: FetchResponse, names: Mapping[UUID, str], *, with_topic_ids: bool, read_committed: bool
) -> Iterator[FetchedPartition]:
    """Iterate over the results per partition in a Fetch response.

    Topics with an id that was not requested are skipped, as in Kafka's own clients. A response about a topic that was
    deleted and created again meanwhile may contain such an id.

    Args:
        response: The response.
        names: Topic names by id, as requested.
        with_topic_ids: Whether the version is 13 or newer, which identifies topics by id.
        read_committed: Whether the request was read_committed.
    """
    for topic in response.responses:
        name = names.get(topic.topic_id) if with_topic_ids else topic.topic
        if name is None:
            continue
        for partition in topic.partitions:
            yield FetchedPartition(
                topic=name,
                partition=partition.partition_index,
                error_code=partition.error_code,
                end_offset=partition.last_stable_offset if read_committed else partition.high_watermark,
                aborted=_aborted(partition) if read_committed else None,
                records=memoryview(partition.records or b""),
                diverging=_diverging(partition),
                preferred_read_replica=partition.preferred_read_replica,
                log_start_offset=partition.log_start_offset,
            )


def throttled_s(response: FetchResponse) -> float:
    """Return after how many seconds to repeat a fetch that a quota did not allow. 0: the response is final.

    Such a response has no partitions, and the broker does not read the connection for this time (KIP-219). This is for
    fetches outside of sessions: in a session, a response without partitions also means that there is nothing new.
    """
    return 0.0 if response.responses or response.error_code else response.throttle_time_ms / 1000


def _diverging(partition: FetchResponse.PartitionData) -> EpochEnd | None:
    diverging = partition.diverging_epoch
    return None if diverging is None or diverging.end_offset < 0 else EpochEnd(diverging.epoch, diverging.end_offset)


def _aborted(partition: FetchResponse.PartitionData) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in partition.aborted_transactions or ()
    )


class FetchSessionHandler:
    """Client side of the fetch session with one broker. No I/O; one request at a time.

    A broker that creates no session, or does not support them (before version 7), responds with session id 0. It then
    gets a full request each time.
    """

    def __init__(self) -> None:
        self._session_id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._wanted: dict[Key, WantedRecords] = {}
        self._changed: dict[Key, WantedRecords] = {}
        self._forgotten: dict[Key, UUID] = {}
        self.names: dict[UUID, str] = {}
        """Topic names by id, for all partitions ever requested."""

    def __len__(self) -> int:
        """Return the number of partitions."""
        return len(self._wanted)

    def __iter__(self) -> Iterator[Key]:
        """Iterate over the partitions."""
        return iter(tuple(self._wanted))

    def __contains__(self, key: Key) -> bool:
        """Return whether a partition is being fetched."""
        return key in self._wanted

    def offset(self, key: Key) -> int:
        """Return the next fetch offset of a partition, or -1 if it is not being fetched."""
        partition = self._wanted.get(key)
        return -1 if partition is None else partition.fetch_offset

    def want(self, wanted: WantedRecords) -> None:
        """Add a partition to the next request, or change its fetch offset.

        If its topic was deleted and created again, a new session begins. The broker knows partitions by topic id, so it
        would report UNKNOWN_TOPIC_ID for the partition of the deleted topic with every response.
        """
        key = (wanted.topic, wanted.partition)
        before = self._wanted.get(key)
        if before == wanted:
            return
        topic_id = self._forgotten.get(key) if before is None else before.topic_id
        if topic_id is not None and topic_id != wanted.topic_id:
            self.reset()
        self.names[wanted.topic_id] = wanted.topic
        self._wanted[key] = self._changed[key] = wanted
        self._forgotten.pop(key, None)

    def forget(self, key: Key) -> None:
        """Remove a partition from the session."""
        wanted = self._wanted.pop(key, None)
        self._changed.pop(key, None)
        if wanted is not None:
            self._forgotten[key] = wanted.topic_id

    def reset(self) -> None:
        """Send a full request next time: the session is lost because the broker or its connection has changed."""
        self._session_id, self._epoch = _NO_SESSION, _FIRST_EPOCH

    def request(self, limits: FetchLimits, *, read_committed: bool) -> FetchRequest:
        """Return the next request. After sending it, call ``answered`` with the response's session id, or ``reset``."""
        is_full = self._epoch == _FIRST_EPOCH
        wanted = self._wanted if is_full else self._changed
        request = fetch_request(
            list(wanted.values()),
            limits,
            read_committed=read_committed,
            session_id=self._session_id,
            session_epoch=self._epoch,
            forgotten={} if is_full else self._forgotten,
        )
        self._changed, self._forgotten = {}, {}
        return request

    def answered(self, session_id: int) -> None:
        """Advance the session after a response without a top-level error."""
        if session_id == _NO_SESSION:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == _LAST_EPOCH else self._epoch + 1
