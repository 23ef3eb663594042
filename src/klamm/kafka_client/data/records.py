"""Blocking reads and writes of few records, for the mirror's internal topics."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final

from klamm.kafka_client.data.batches import Treatment, walk
from klamm.kafka_client.data.fetch import (
    LAST_VERSION,
    TOPIC_IDS_FROM,
    FetchLimits,
    WantedRecords,
    fetch_request,
    fetched_partitions,
    throttled_s,
)
from klamm.kafka_client.data.produce import LAST_IN_TRANSACTION, PartitionRecords, TopicName, produce_body
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import decode_records

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.data.cluster import Cluster
    from klamm.kafka_client.data.fetch import FetchedPartition
    from klamm.protocol.records import Record

_DONE: Final = frozenset({int(ErrorCode.NONE), int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)})
_LAST_VERSION: Final = 32767
_FETCH_BYTES: Final = 4 * 1024 * 1024
_PARTITION_FETCH_BYTES: Final = 1024 * 1024
_MAX_THROTTLED_S: Final = 30.0
"""Longest time that a fetch waits for a quota. By default a broker looks back eleven seconds, so a longer wait means
that others use up the quota, or that a batch is too large for it.
"""


class RecordsRejectedError(ConnectionLostError):
    """A broker rejected records. ``codes`` are Kafka's error codes."""

    def __init__(self, topic: str, codes: Iterable[int]) -> None:
        self.codes = frozenset(codes)
        super().__init__(f"{topic}: records were rejected: {', '.join(map(error_name, sorted(self.codes)))}")


def write_batches(
    cluster: Cluster,
    topic: str,
    batches: Mapping[int, bytes | bytearray],
    *,
    timeout_s: float,
    transactional_id: str | None = None,
) -> None:
    """Write one batch per partition and wait for the acknowledgements.

    Raises:
        ConnectionLostError: Not all batches were acknowledged. The topic's metadata is discarded and refreshed by the
            next call.
    """
    if topic not in cluster.topics:
        cluster.refresh([topic])
    by_leader: dict[int, list[PartitionRecords]] = {}
    name = TopicName(topic, cluster.topic_id(topic).bytes)
    for partition, batch in batches.items():
        leader = cluster.leader(topic, partition)
        if leader is None:
            cluster.topics.pop(topic, None)
            raise ConnectionLostError(f"Partition {partition} of {topic} does not exist or has no leader at present")
        by_leader.setdefault(leader, []).append(PartitionRecords(name, partition, memoryview(batch)))
    try:
        for leader, some in by_leader.items():
            connection = cluster.connection(leader)
            if failed := _write_to(connection, some, timeout_s=timeout_s, transactional_id=transactional_id):
                raise RecordsRejectedError(topic, failed)
    except ConnectionLostError:
        cluster.topics.pop(topic, None)
        raise


def _write_to(
    connection: Connection, batches: Sequence[PartitionRecords], *, timeout_s: float, transactional_id: str | None
) -> set[int]:
    """Write to one node and return the error codes of the rejected batches."""
    last = _LAST_VERSION if transactional_id is None else LAST_IN_TRANSACTION
    version = connection.version_of(ProduceRequest, at_least=3, at_most=last)
    answers: list[ProduceResponse] = []
    body = produce_body(version, batches, timeout_ms=int(timeout_s * 1000), transactional_id=transactional_id)
    connection.submit(ProduceRequest, version, body, ProduceResponse, lambda answer, _: answers.append(answer))
    connection.wait_for(lambda: bool(answers), timeout_s=timeout_s, what="Produce")
    codes = {partition.error_code for answer in answers[0].responses for partition in answer.partition_responses}
    return codes - _DONE


def fetch_once(
    cluster: Cluster,
    leader: int,
    wanted: Sequence[WantedRecords],
    limits: FetchLimits,
    *,
    read_committed: bool,
    timeout_s: float,
) -> Iterator[FetchedPartition]:
    """Fetch from the leader of partitions, outside of any fetch session, and wait for its response.

    Partitions for which the leader names a preferred read replica (KIP-392) are then fetched from that replica. Each
    call begins at the leader, so an error of a replica does not last. A fetch that a quota does not allow is repeated
    after the throttle time, for up to 30 seconds.

    Args:
        cluster: Cluster with the metadata of the topics.
        leader: Node id of the leader.
        wanted: Partitions to fetch.
        limits: Limits of each response.
        read_committed: Whether to read only up to the last stable offset.
        timeout_s: Limit for each response in seconds. The throttle time is not part of it.

    Yields:
        The results per partition. Their records are valid until the next one is requested.

    Raises:
        ConnectionLostError: A node does not respond, it rejects the whole fetch, or a quota does not allow it in time.
    """
    by_partition = {(one.topic, one.partition): one for one in wanted}
    by_replica: dict[int, list[WantedRecords]] = {}
    fetch = functools.partial(_fetch, limits=limits, read_committed=read_committed, timeout_s=timeout_s)
    for fetched in fetch(cluster.connection(leader), wanted):
        if fetched.preferred_read_replica < 0:
            yield fetched
        else:
            by_replica.setdefault(fetched.preferred_read_replica, []).append(
                by_partition[fetched.topic, fetched.partition]
            )
    for replica, some in by_replica.items():
        yield from fetch(cluster.connection(replica), some)


def _fetch(
    connection: Connection,
    wanted: Sequence[WantedRecords],
    *,
    limits: FetchLimits,
    read_committed: bool,
    timeout_s: float,
) -> Iterator[FetchedPartition]:
    """Fetch from one node."""
    version = connection.version_of(FetchRequest, at_most=LAST_VERSION)
    request = fetch_request(wanted, limits, read_committed=read_committed)
    left_s = _MAX_THROTTLED_S
    while True:
        response = connection.call(request, FetchResponse, version=version, timeout_s=timeout_s)
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLostError(f"Fetch: {error_name(response.error_code)}")
        if not (wait_s := throttled_s(response)):
            break
        left_s -= wait_s
        if left_s < 0:
            connection.close()  # the broker would not read another request
            raise ConnectionLostError(f"Fetch: a quota of the broker does not allow it for another {wait_s:g} s")
        time.sleep(wait_s)
    names = {one.topic_id: one.topic for one in wanted}
    with_topic_ids = version >= TOPIC_IDS_FROM
    return fetched_partitions(response, names, with_topic_ids=with_topic_ids, read_committed=read_committed)


def read_records(
    cluster: Cluster, topic: str, partition: int, fetch_offset: int, *, timeout_s: float, max_wait_ms: int
) -> tuple[list[Record], int]:
    """Read the committed records of one fetch and wait for them.

    Args:
        cluster: The cluster, with fresh metadata of the topic.
        topic: Topic to read.
        partition: Partition to read.
        fetch_offset: First wanted offset.
        timeout_s: Limit for the response in seconds.
        max_wait_ms: Time in milliseconds that the broker may wait for a first record.

    Returns:
        The records of whole batches, which may start before ``fetch_offset``, and the offset of the next read. The
        offset is unchanged if there is nothing to read, for example because an open transaction hides the following
        records.

    Raises:
        ConnectionLostError: The partition cannot be read at present.
    """
    leader = cluster.leader(topic, partition)
    if leader is None:
        raise ConnectionLostError(f"Partition {partition} of {topic} has no leader at present")
    wanted = WantedRecords(topic, cluster.topic_id(topic), partition, fetch_offset)
    limits = FetchLimits(_FETCH_BYTES, _PARTITION_FETCH_BYTES, min_bytes=1, max_wait_ms=max_wait_ms)
    answers = fetch_once(cluster, leader, [wanted], limits, read_committed=True, timeout_s=timeout_s)
    answer = next(answers, None)
    if answer is None:
        raise ConnectionLostError(f"Fetch response has no entry for partition {partition} of {topic}")
    if answer.error_code != ErrorCode.NONE:
        raise ConnectionLostError(f"Partition {partition} of {topic}: {error_name(answer.error_code)}")
    records: list[Record] = []
    for fetched in walk(answer.records, fetch_offset, answer.aborted):
        fetch_offset = fetched.next_offset
        if fetched.treatment is not Treatment.DROP:
            records += decode_records(fetched.batch)
    return records, fetch_offset
