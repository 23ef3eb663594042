"""Blocking client with one connection and one request at a time, which knows exactly which requests were answered."""

from __future__ import annotations

import socket
import struct
import time
from typing import IO, TYPE_CHECKING, Final, Self, TypeVar

from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from klamm.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from klamm.protocol.messages.fetch import FetchRequest, FetchResponse
from klamm.protocol.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from klamm.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from klamm.protocol.primitives import skip_tagged_fields
from klamm.protocol.records import RecordBatch, iter_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from types import TracebackType
    from uuid import UUID

    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")

SET: Final = 0
APPEND: Final = 2
SUBTRACT: Final = 3

_TOPIC: Final = 2
_LATEST: Final = -1
_DEBUGGING_CONSUMER: Final = -2
"""Replica id of a consumer that may read from followers (``FetchRequest.DEBUGGING_CONSUMER_ID``)."""
_FETCH_BY_ID_SINCE: Final = 13
_COORDINATOR_LOAD_IN_PROGRESS: Final = 14
_HEADER: Final = struct.Struct(">ihhih")
_CLIENT_ID: Final = "wire"
_MAX_FETCH_BYTES: Final = 16 * 1024 * 1024


class RejectedError(RuntimeError):
    """The broker answered with an error code."""

    def __init__(self, action: str, error_code: int, error_message: str | None = None) -> None:
        super().__init__(f"{action}: error code {error_code} {error_message or ''}".rstrip())
        self.error_code = error_code


def read_frames(stream: IO[bytes]) -> Iterator[bytes]:
    """Yield the frames of a connection, each without its size, until it ends. A frame that is cut off is left out."""
    while len(size := stream.read(4)) == 4:
        frame = stream.read(int.from_bytes(size, "big"))
        if len(frame) < int.from_bytes(size, "big"):
            return
        yield frame


class WireClient:
    """One connection to one broker. An ``OSError`` from any method means: no response, and the outcome is unknown."""

    def __init__(self, address: str, *, timeout_s: float = 60.0, client_id: str = _CLIENT_ID) -> None:
        host, _, port = address.rpartition(":")
        self._client_id = client_id
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self.socket.makefile("rb")
        self._correlation_id = 0

    @property
    def port(self) -> int:
        """Port of the client's side."""
        number: int = self.socket.getsockname()[1]
        return number

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self.socket.close()

    def ask(self, request: Message, answer: type[AnyResponse], version: int) -> AnyResponse:
        """Send a request and wait for its response.

        Raises:
            OSError: The connection broke before the response arrived.
        """
        self.send(request, version)
        return self.receive(answer, version)

    def send(self, request: Message, version: int) -> None:
        """Send a request without waiting for its answer."""
        self._correlation_id += 1
        self.socket.sendall(self._frame(request, version))

    def receive(self, answer: type[AnyResponse], version: int) -> AnyResponse:
        """Wait for the response to the last request."""
        body = self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])
        assert struct.unpack_from(">i", body)[0] == self._correlation_id
        offset = skip_tagged_fields(memoryview(body), 4, len(body)) if answer.is_flexible(version) else 4
        return decode(answer, version, body, offset)

    def time_raw(self, request: Message, version: int) -> float:
        """Return the seconds from sending a request to the last byte of its response."""
        self._correlation_id += 1
        frame = self._frame(request, version)
        began = time.perf_counter()
        self.socket.sendall(frame)
        self.read_exactly(struct.unpack(">i", self.read_exactly(4))[0])
        return time.perf_counter() - began

    def _frame(self, request: Message, version: int) -> bytes:
        return request_frame(request, version, correlation_id=self._correlation_id, client_id=self._client_id)

    def read_exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionResetError("The broker closed the connection")
        return data

    def create_topic(self, name: str, *, partitions: int = 1) -> UUID:
        """Create a topic and return its id."""
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, assignments=[], configs=[]
        )
        answer = self.ask(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, 7)
        (result,) = answer.topics
        _check(f"Creating {name}", result.error_code, result.error_message)
        return result.topic_id

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        topic = DeleteTopicsRequest.DeleteTopicState(name=name)
        (result,) = self.ask(DeleteTopicsRequest(topics=[topic], timeout_ms=10_000), DeleteTopicsResponse, 6).responses
        _check(f"Deleting {name}", result.error_code, result.error_message)

    def topic_ids(self) -> Mapping[str, UUID]:
        """Return the id of every topic."""
        answer = self.ask(MetadataRequest(topics=None, allow_auto_topic_creation=False), MetadataResponse, 12)
        return {topic.name or "": topic.topic_id for topic in answer.topics}

    def new_producer_id(self) -> tuple[int, int]:
        """Return a producer id and epoch for an idempotent producer without transactions.

        A broker that has just started may answer COORDINATOR_LOAD_IN_PROGRESS: the request is repeated for ten seconds.
        """
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        for _ in range(100):
            answer = self.ask(request, InitProducerIdResponse, 4)
            if answer.error_code != _COORDINATOR_LOAD_IN_PROGRESS:
                break
            time.sleep(0.1)
        _check("InitProducerId", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    def produce(self, topic: str, partition: int, batch: bytes | bytearray) -> int:
        """Append one batch with acks=all and return its base offset.

        Raises:
            RejectedError: The broker rejects the batch.
        """
        data = ProduceRequest.PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name=topic, partition_data=[data])],
        )
        ((result,),) = (topic.partition_responses for topic in self.ask(request, ProduceResponse, 9).responses)
        _check(f"Produce to {topic}-{partition}", result.error_code, result.error_message)
        return int(result.base_offset)

    def fetch(self, topic: str, partition: int, offset: int) -> tuple[Sequence[RecordBatch], int]:
        """Return whole batches from (about) an offset on, and the high watermark. Wait while a quota is exceeded."""
        wanted = FetchRequest.FetchPartition(
            partition=partition,
            current_leader_epoch=-1,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=_MAX_FETCH_BYTES,
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_MAX_FETCH_BYTES,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=[wanted])],
            forgotten_topics_data=[],
        )
        answer = self.ask(request, FetchResponse, 12)
        _check("Fetch", answer.error_code)
        while answer.throttle_time_ms and not answer.responses:  # the broker reads the next request after that time
            answer = self.ask(request, FetchResponse, 12)
        ((result,),) = (topic.partitions for topic in answer.responses)
        _check(f"Fetch of {topic}-{partition} at {offset}", result.error_code)
        return tuple(iter_batches(result.records or b"", allow_partial_tail=True)), int(result.high_watermark)

    def serves(self, topic_id: UUID, partitions: Iterable[int]) -> bool:
        """Return whether the broker leads partitions of the topic with this id. Before Kafka 3.1 it cannot tell.

        By its name, a broker of Kafka serves the log of a deleted topic until it has applied the metadata of the new
        one, which it reports before. What is written to that log is lost with it.
        """
        if self.largest_version(ApiKey.FETCH) < _FETCH_BY_ID_SINCE:
            return True
        topic = FetchRequest.FetchTopic(
            topic_id=topic_id,
            partitions=[
                FetchRequest.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1)
                for each in partitions
            ],
        )
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, session_epoch=-1, topics=[topic])
        answer = self.ask(request, FetchResponse, _FETCH_BY_ID_SINCE)
        codes = [answer.error_code, *(each.error_code for topic in answer.responses for each in topic.partitions)]
        return not any(codes)

    def largest_version(self, api_key: ApiKey) -> int:
        """Return the largest version of an API that the broker offers. -1: it does not offer the API."""
        offered = self.ask(ApiVersionsRequest(), ApiVersionsResponse, 2).api_keys
        return next((each.max_version for each in offered if each.api_key == api_key), -1)

    def read_to_end(self, topic: str, partition: int, offset: int = 0) -> Iterator[RecordBatch]:
        """Yield every batch from the one that holds ``offset`` up to the high watermark."""
        while True:
            batches, high_watermark = self.fetch(topic, partition, offset)
            yield from batches
            offset = batches[-1].last_offset + 1 if batches else offset
            if offset >= high_watermark:
                return
            assert batches, f"Nothing at offset {offset} of {topic}-{partition}, though it ends at {high_watermark}"

    def end_offset(self, topic: str, partition: int, *, by_any_replica: bool = False) -> int:
        """Return the offset of the next record. Any replica answers with its log end, only a leader otherwise."""
        wanted = ListOffsetsRequest.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=_LATEST
        )
        request = ListOffsetsRequest(
            replica_id=_DEBUGGING_CONSUMER if by_any_replica else -1,
            isolation_level=0,
            topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[wanted])],
        )
        ((result,),) = (topic.partitions for topic in self.ask(request, ListOffsetsResponse, 7).topics)
        _check(f"End of {topic}-{partition}", result.error_code)
        return int(result.offset)

    def alter_topic(self, name: str, changes: Sequence[tuple[str, int, str | None]]) -> None:
        """Apply (config name, operation, value) to a topic by one IncrementalAlterConfigs."""
        answer = self.ask(alter_topic_request(name, changes), IncrementalAlterConfigsResponse, 1)
        (result,) = answer.responses
        _check(f"Altering {name}", result.error_code, result.error_message)

    def topic_configs(self, name: str) -> Mapping[str, str | None]:
        """Return the effective configs of a topic."""
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=None
        )
        (result,) = self.ask(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4).results
        _check(f"Describing {name}", result.error_code, result.error_message)
        return {config.name: config.value for config in result.configs}


def request_frame(request: Message, version: int, *, correlation_id: int = 1, client_id: str = _CLIENT_ID) -> bytes:
    """Return a whole request frame: length, header, body."""
    name = client_id.encode()
    tags = b"\x00" if request.is_flexible(version) else b""
    body = tags + bytes(encode(request, version))
    size = _HEADER.size - 4 + len(name) + len(body)
    return _HEADER.pack(size, request.API_KEY, version, correlation_id, len(name)) + name + body


def alter_topic_request(name: str, changes: Sequence[tuple[str, int, str | None]]) -> IncrementalAlterConfigsRequest:
    """Build an IncrementalAlterConfigs of one topic from (config name, operation, value)."""
    configs = [
        IncrementalAlterConfigsRequest.AlterableConfig(name=key, config_operation=operation, value=value)
        for key, operation, value in changes
    ]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=_TOPIC, resource_name=name, configs=configs
    )
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)


def _check(action: str, error_code: int, error_message: str | None = None) -> None:
    if error_code != 0:
        raise RejectedError(action, error_code, error_message)
