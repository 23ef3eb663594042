"""Fetch requests of the data path, and what their answers say per partition."""

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
"""Newer versions add nothing that a mirror reads."""


class FetchLimits(NamedTuple):
    """How much one fetch may bring, and how long it may wait."""

    max_bytes: int
    partition_max_bytes: int
    min_bytes: int
    max_wait_ms: int
    rack_id: str = ""
    """The asker's ``client.rack``: a leader names the replica of that rack to fetch from (KIP-392). Empty: none."""


class WantedRecords(NamedTuple):
    """From where on records of a partition are wanted."""

    topic: str
    topic_id: UUID
    partition: int
    fetch_offset: int
    current_leader_epoch: int = -1
    """Of the leader as the asker knows it: a leader of another epoch refuses. -1: not checked."""
    last_fetched_epoch: int = -1
    """Leader epoch of the batch before ``fetch_offset``, which the leader compares with its log. -1: not checked."""


class EpochEnd(NamedTuple):
    """A leader epoch of a log, and where its records end."""

    leader_epoch: int
    end_offset: int


class FetchedPartition(NamedTuple):
    """What a fetch says about one partition."""

    topic: str
    partition: int
    error_code: int
    end_offset: int
    """High watermark, or last stable offset under read_committed."""
    aborted: tuple[AbortedTransaction, ...] | None
    """None under read_uncommitted."""
    records: memoryview
    diverging: EpochEnd | None = None
    """Where the leader's log parts from what was read before; None: nowhere, as far as the leader was asked."""
    preferred_read_replica: int = -1
    """The node to fetch from instead, as it is nearer; -1: none."""


def fetch_request(
    wanted: Sequence[WantedRecords],
    limits: FetchLimits,
    *,
    read_committed: bool,
    session_id: int = 0,
    session_epoch: int = -1,
    forgotten: Mapping[tuple[str, int], UUID] = MappingProxyType({}),
) -> FetchRequest:
    """Return a Fetch request; brokers fill it in the order of ``wanted``.

    Args:
        wanted: what is asked for; in a session that goes on what is new or changed.
        limits: of the answer.
        read_committed: whether to read up to the last stable offset only.
        session_id: 0 without a session, and to begin one.
        session_epoch: -1 without a session, 0 to begin one.
        forgotten: partitions that leave the session, with their topics' ids.
    """
    topics: dict[str, FetchRequest.FetchTopic] = {}
    for topic, topic_id, partition, fetch_offset, current_leader_epoch, last_fetched_epoch in wanted:
        entry = topics.get(topic)
        if entry is None:
            entry = topics[topic] = FetchRequest.FetchTopic(topic=topic, topic_id=topic_id)
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
    """Yield what an answer says per partition.

    Args:
        response: the answer.
        names: topic names by id, as they were asked for.
        with_topic_ids: version 13 or newer: topics are told by id.
        read_committed: what was asked for.
    """
    for topic in response.responses:
        name = names[topic.topic_id] if with_topic_ids else topic.topic
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
            )


def _diverging(partition: FetchResponse.PartitionData) -> EpochEnd | None:
    found = partition.diverging_epoch
    return None if found is None or found.end_offset < 0 else EpochEnd(found.epoch, found.end_offset)


def _aborted(partition: FetchResponse.PartitionData) -> tuple[AbortedTransaction, ...]:
    return tuple(
        AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
        for aborted in partition.aborted_transactions or ()
    )
