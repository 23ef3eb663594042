"""Writing a few records to a topic of the mirror itself, and waiting until they are acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.mirror.wire.connection import ConnectionLostError
from klamm.mirror.wire.produce_frames import LAST_IN_TRANSACTION, PartitionRecords, TopicName, produce_body
from klamm.protocol.errors import ErrorCode, error_name
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.mirror.wire.cluster import Cluster
    from klamm.mirror.wire.connection import Connection
    from klamm.protocol.records import Record

_DONE: Final = frozenset({int(ErrorCode.NONE), int(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)})
_LAST_VERSION: Final = 32767


class RecordsRefusedError(ConnectionLostError):
    """A broker answered that it did not take records; ``codes`` are Kafka's error codes."""

    def __init__(self, topic: str, codes: Iterable[int]) -> None:
        self.codes = frozenset(codes)
        super().__init__(f"{topic}: records were refused: {', '.join(map(error_name, sorted(self.codes)))}")


def write_records(cluster: Cluster, topic: str, records: Mapping[int, Sequence[Record]], *, timeout_s: float) -> None:
    """Write records by partition; blocks.

    Raises:
        ConnectionLostError: not all were acknowledged; the topic's metadata is forgotten and asked for anew next time.
    """
    batches = {partition: encode_batch(some) for partition, some in records.items()}
    write_batches(cluster, topic, batches, timeout_s=timeout_s)


def write_batches(
    cluster: Cluster,
    topic: str,
    batches: Mapping[int, bytes | bytearray],
    *,
    timeout_s: float,
    transactional_id: str | None = None,
) -> None:
    """Write one batch for each partition; blocks.

    Raises:
        ConnectionLostError: not all were acknowledged; the topic's metadata is forgotten and asked for anew next time.
    """
    if topic not in cluster.topics:
        cluster.refresh([topic])
    by_leader: dict[int, list[PartitionRecords]] = {}
    name = TopicName(topic, cluster.topic_id(topic).bytes)
    for partition, batch in batches.items():
        leader = cluster.leader(topic, partition)
        if leader is None:
            cluster.topics.pop(topic, None)
            raise ConnectionLostError(f"Partition {partition} of {topic} does not exist or has no leader now")
        by_leader.setdefault(leader, []).append(PartitionRecords(name, partition, memoryview(batch)))
    try:
        for leader, some in by_leader.items():
            connection = cluster.connection(leader)
            if failed := _write_to(connection, some, timeout_s=timeout_s, transactional_id=transactional_id):
                raise RecordsRefusedError(topic, failed)
    except ConnectionLostError:
        cluster.topics.pop(topic, None)
        raise


def _write_to(
    connection: Connection, batches: Sequence[PartitionRecords], *, timeout_s: float, transactional_id: str | None
) -> set[int]:
    """Write to one node; returns the error codes of what it did not take."""
    last = _LAST_VERSION if transactional_id is None else LAST_IN_TRANSACTION
    version = connection.version_of(ProduceRequest, at_least=3, at_most=last)
    answers: list[ProduceResponse] = []
    body = produce_body(version, batches, timeout_ms=int(timeout_s * 1000), transactional_id=transactional_id)
    connection.submit(ProduceRequest, version, body, ProduceResponse, lambda answer, _: answers.append(answer))
    connection.wait_for(lambda: bool(answers), timeout_s=timeout_s, what="Produce")
    codes = {partition.error_code for answer in answers[0].responses for partition in answer.partition_responses}
    return codes - _DONE
