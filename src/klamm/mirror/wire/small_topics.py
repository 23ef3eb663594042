"""Writing a few records to a topic of the mirror itself, and waiting until they are acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.mirror.wire.connection import ConnectionLostError
from klamm.mirror.wire.produce_frames import PartitionRecords, TopicName, produce_body
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from klamm.mirror.wire.cluster import Cluster
    from klamm.protocol.records import Record


def write_records(cluster: Cluster, topic: str, records: Mapping[int, Sequence[Record]], *, timeout_s: float) -> None:
    """Write records by partition; blocks.

    Raises:
        ConnectionLostError: not all were acknowledged; the topic's metadata is forgotten and asked for anew next time.
    """
    if topic not in cluster.topics:
        cluster.refresh([topic])
    by_leader: dict[int, list[PartitionRecords]] = {}
    name = TopicName(topic, cluster.topic_id(topic).bytes)
    for partition, some in records.items():
        leader = cluster.leader(topic, partition)
        if leader is None:
            cluster.topics.pop(topic, None)
            raise ConnectionLostError(f"Partition {partition} of {topic} does not exist or has no leader now")
        by_leader.setdefault(leader, []).append(PartitionRecords(name, partition, memoryview(encode_batch(some))))
    for leader, batches in by_leader.items():
        _write_to(cluster, topic, leader, batches, timeout_s)


def _write_to(cluster: Cluster, topic: str, leader: int, batches: Iterable[PartitionRecords], timeout_s: float) -> None:
    connection = cluster.connection(leader)
    version = connection.version_of(ProduceRequest, at_least=3)
    answers: list[ProduceResponse] = []
    body = produce_body(version, list(batches), timeout_ms=int(timeout_s * 1000))
    connection.submit(ProduceRequest, version, body, ProduceResponse, lambda answer, _: answers.append(answer))
    connection.wait_for(lambda: bool(answers), timeout_s=timeout_s, what="Produce")
    codes = {partition.error_code for answer in answers[0].responses for partition in answer.partition_responses}
    if failed := sorted(codes - {int(ErrorCode.NONE)}):
        cluster.topics.pop(topic, None)
        names = ", ".join(ErrorCode(code).name for code in failed)
        raise ConnectionLostError(f"{topic}: records were refused: {names}")
