"""Flows that keep offsets by replay: their topics, one copier without Spark, and what consumers read by offset."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError

from klamm.kafka_client.data.cluster import LATEST
from klamm.mirror.copy.equal_offsets import ReplaySettings
from klamm.mirror.copy.partition import PartitionId
from klamm.mirror.spark.worker import new_copier
from klamm.protocol.codec import decode, encode
from klamm.protocol.frames import response_header
from klamm.protocol.messages.describe_producers import DescribeProducersRequest
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from tests.support.copiers import copy_all, copy_settings, is_done
from tests.support.frame_proxy import FrameProxy, RecordedRequest
from tests.support.mirror import assign_from_beginning, create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.mirror.copy.settings import CopySettings
    from klamm.mirror.progress.partition_progress import PartitionProgress
    from klamm.protocol.frames import RequestHeader

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


class Content(NamedTuple):
    """A record without its offset."""

    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def contents(address: str, topic: str, isolation_level: str, partition: int = 0) -> dict[int, Content]:
    """Read a partition to its end and return the records by offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 20,
        }
    )
    records: dict[int, Content] = {}
    try:
        assign_from_beginning(consumer, topic, [partition])
        while True:
            message = consumer.poll(30)
            assert message is not None, f"{topic} could not be read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return records
            offset = message.offset()
            assert offset is not None
            headers: tuple[tuple[str, bytes | None], ...] = tuple(message.headers() or ())  # type: ignore[arg-type]  # as a list
            records[offset] = Content(message.timestamp()[1], message.key(), message.value(), headers)
    finally:
        consumer.close()


class EqualFlow:
    """A topic, its remote topic, and copiers of it. Most tests use its first partition only.

    Args:
        source: Address of the source cluster.
        target: Address of the target cluster.
        source_configs: Configs of the source topic, besides unlimited retention.
        target_configs: Same for the remote topic.
        partitions: Number of partitions.
    """

    def __init__(
        self,
        source: str,
        target: str,
        *,
        source_configs: Mapping[str, str] | None = None,
        target_configs: Mapping[str, str] | None = None,
        partitions: int = 1,
    ) -> None:
        self.source, self.target = source, target
        self.topic = f"equal-{uuid4().hex[:8]}"
        self.alias = f"A{self.topic}"
        self.remote_topic = f"{self.alias}.{self.topic}"
        self.partitions = [PartitionId(self.topic, number, self.remote_topic) for number in range(partitions)]
        self.partition = self.partitions[0]
        create_topic(source, self.topic, partitions, {"retention.ms": "-1"} | dict(source_configs or {}))
        create_topic(target, self.remote_topic, partitions, {"retention.ms": "-1"} | dict(target_configs or {}))
        create_topic(target, f"mm2-offsets.{self.alias}.internal", 1, {"cleanup.policy": "compact"})

    def settings(self, *, target: str = "", barrier_s: float = 0.2) -> CopySettings:
        """Return the settings of a copier. The target's address may be that of a proxy."""
        settings = copy_settings(self.source, target or self.target, alias=self.alias)
        return replace(settings, replay=ReplaySettings(id_prefix=self.alias, barrier_s=barrier_s))

    def copy(self, *, timeout_s: float = 60.0) -> PartitionProgress:
        """Copy until the partition is complete or stopped, and return its progress."""
        (row,) = copy_all(self.settings(), self.partition, timeout_s=timeout_s)
        return row

    def assert_equal(self, partition: int = 0) -> dict[int, Content]:
        """Compare what consumers read on both sides, by offset, and return it."""
        expected = contents(self.source, self.topic, "read_committed", partition)
        for isolation_level in ISOLATION_LEVELS:
            assert contents(self.target, self.remote_topic, isolation_level, partition) == expected, isolation_level
        return expected

    @property
    def producer_id(self) -> int:
        """Producer id that writes the remote partition."""
        replay = self.settings().replay
        assert replay is not None
        return replay.producer_id(self.partition)


class LateWrite(FrameProxy):
    """A target that keeps one write of a partition back. A write is a batch or a request with markers.

    Args:
        flow: Flow whose writes are counted.
        number: Number of the write to keep, from 0. -1: none.
        before_first: Called before the first write is forwarded.
        before_states: Called before the first request for the states of producers is forwarded.
    """

    def __init__(
        self,
        flow: EqualFlow,
        *,
        number: int = -1,
        before_first: Callable[[], None] | None = None,
        before_states: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(flow.target)
        self._address = flow.target
        self._producer_id = flow.producer_id.to_bytes(8)
        self._number = number
        self._before_first = before_first
        self._before_states = before_states
        self._counting = threading.Lock()
        self.kept: bytes | None = None
        """Frame of the write that was kept back."""
        self.kept_key = -1
        """API key of that write."""
        self.writes = 0

    def _is_forwarded(self, request: RecordedRequest) -> bool:
        if request.header.api_key == DescribeProducersRequest.API_KEY and self._before_states is not None:
            self._before_states()
            self._before_states = None
        if request.header.api_key not in (0, 27) or self._producer_id not in request.frame:
            return True
        with self._counting:
            number = self.writes
            self.writes += 1
        if number == 0 and self._before_first is not None:
            self._before_first()
        if number != self._number:
            return True
        self.kept, self.kept_key = request.frame, request.header.api_key
        return False

    def deliver(self) -> None:
        """Send the kept write to the target and wait for its answer."""
        assert self.kept is not None
        host, port = self._address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=30) as late:
            late.sendall(len(self.kept).to_bytes(4, "big") + self.kept)
            assert late.recv(4)


class SlowReplicas(FrameProxy):
    """A target that has records in the leader's log that are not replicated: consumers get a lower latest offset.

    Args:
        flow: Flow with the target.
        high_watermark: Latest offset for consumers.
    """

    def __init__(self, flow: EqualFlow, high_watermark: int) -> None:
        super().__init__(flow.target)
        self._high_watermark = high_watermark
        self._of_consumers: list[RequestHeader] = []
        """Headers of requests for the latest offset by clients that are no replicas."""

    def _is_forwarded(self, request: RecordedRequest) -> bool:
        if request.header.api_key == ListOffsetsRequest.API_KEY:
            body = request.read(ListOffsetsRequest)
            if body.replica_id == -1 and body.topics[0].partitions[0].timestamp == LATEST:
                self._of_consumers.append(request.header)
        return True

    def _answer(self, header: RequestHeader, frame: bytes) -> bytes | None:
        if not any(header is each for each in self._of_consumers):
            return super()._answer(header, frame)
        version = header.api_version
        flexible = ListOffsetsResponse.is_flexible(version)
        message = decode(ListOffsetsResponse, version, memoryview(frame), 5 if flexible else 4)
        for answer in message.topics[0].partitions:
            answer.offset = min(answer.offset, self._high_watermark)
        data = bytes(encode(message, version))
        return response_header(header.correlation_id, len(data), flexible=flexible) + data


class DiedError(Exception):
    """A copier ended without any further request."""


def copy_until_kept(flow: EqualFlow, target: LateWrite) -> bool:
    """Copy until a write is kept back and end the copier at once. Return whether a write was kept."""
    copier = new_copier(flow.settings(target=target.bootstrap_servers), [flow.partition])

    def should_end() -> bool:
        if target.kept is not None:
            raise DiedError
        return all(map(is_done, copier.progress()))

    try:
        copier.run(should_end)
    except DiedError:
        return True
    finally:
        copier.close()
    return False
