"""Scripted broker: it gives the responses that a test defines and records the requests."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias
from uuid import UUID

from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.codec import decode, encode
from klamm.protocol.frames import body_position, read_request_header, response_header
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.fetch import FetchResponse
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.protocol.messages.produce import ProduceRequest, ProduceResponse
from tests.support.wire import read_frames

if TYPE_CHECKING:
    from types import TracebackType

    import pytest

    from klamm.kafka_client.pool.calls import Deadline
    from klamm.kafka_client.pool.node import PooledConnection
    from klamm.protocol.schema import Message

NODE_ID: Final = 7
REPLICA_ID: Final = 8
"""Node id of the second broker of ``redirect_fetches``."""
CLOSE: Final = object()
"""An answer that closes the connection instead."""
SILENCE: Final = object()
"""Response that is never sent."""
Answer: TypeAlias = "Message | bytes | object"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Received request."""

    api_key: int
    api_version: int
    client_id: str | None
    rest: bytes
    """Bytes after the client id."""

    def read(self, message_class: type[Message]) -> Message:
        """Return the body as a message."""
        header = read_request_header(
            self.api_key.to_bytes(2, "big") + self.api_version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
        )
        frame = memoryview(bytes(header.end) + self.rest)
        flexible = message_class.is_flexible(self.api_version)
        return decode(message_class, self.api_version, frame, body_position(frame, header, flexible=flexible))


Handler: TypeAlias = Callable[[Request], Answer]


class StubBroker:
    """One node and one topic, on a port of 127.0.0.1; a context manager.

    Args:
        features: Features announced in ApiVersions.
        versions: First and last version per API key, in addition to those that a client needs to connect and produce.
        handlers: Responses by API key; a later ``answer`` replaces them.
    """

    def __init__(
        self,
        *,
        features: Mapping[str, tuple[int, int]] | None = None,
        versions: Mapping[int, tuple[int, int]] | None = None,
        topic: str = "stub",
    ) -> None:
        self._features = features or {}
        self._versions = {0: (3, 9), 3: (0, 9), 18: (0, 4), **(versions or {})}
        self._topic = topic
        self._handlers: dict[int, Handler] = {0: _produced, 3: self._metadata, 18: self._api_versions}
        self._requests: list[Request] = []
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def bootstrap_servers(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def answer(self, api_key: int, handler: Handler) -> None:
        """Answer requests of a key from now on."""
        self._handlers[api_key] = handler

    def handler(self, api_key: int) -> Handler:
        """Return what answers requests of a key now."""
        return self._handlers[api_key]

    def requests(self, api_key: int) -> list[Request]:
        """Return the requests received so far, oldest first."""
        with self._changed:
            return [request for request in self._requests if request.api_key == api_key]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait until a condition on the received requests holds.

        Raises:
            TimeoutError: It did not hold in time.
        """
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"Not within {timeout_s} s; came: {[request.api_key for request in self._requests]}")

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for closing in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                closing.shutdown(socket.SHUT_RDWR)
            closing.close()
        for thread in self._threads:
            thread.join(30)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            for frame in read_frames(stream):
                if not self._answer(connection, frame):
                    return

    def _answer(self, connection: socket.socket, frame: bytes) -> bool:
        header = read_request_header(frame)
        request = Request(
            api_key=header.api_key,
            api_version=header.api_version,
            client_id=header.client_id,
            rest=bytes(frame[header.end :]),
        )
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()
        handler = self._handlers.get(header.api_key)
        answer = CLOSE if handler is None else handler(request)
        if answer is CLOSE:
            return False
        if answer is SILENCE:
            return True
        flexible = not isinstance(answer, bytes) and _is_flexible(answer, header.api_version)
        body = answer if isinstance(answer, bytes) else bytes(encode(_message(answer), header.api_version))
        connection.sendall(response_header(header.correlation_id, len(body), flexible=flexible) + body)
        return True

    def _api_versions(self, request: Request) -> Answer:
        request.read(ApiVersionsRequest)
        return ApiVersionsResponse(
            api_keys=[
                ApiVersionsResponse.ApiVersion(api_key=key, min_version=lowest, max_version=highest)
                for key, (lowest, highest) in self._versions.items()
            ],
            supported_features=[
                ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=lowest, max_version=highest)
                for name, (lowest, highest) in self._features.items()
            ],
            finalized_features=[
                ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
                for name, (_, level) in self._features.items()
            ],
        )

    def _metadata(self, request: Request) -> Answer:
        decoded = request.read(MetadataRequest)
        assert isinstance(decoded, MetadataRequest)
        others = [topic.name for topic in decoded.topics or [] if topic.name != self._topic]
        partition = MetadataResponse.MetadataResponsePartition(
            partition_index=0, leader_id=NODE_ID, leader_epoch=0, replica_nodes=[NODE_ID], isr_nodes=[NODE_ID]
        )
        return MetadataResponse(
            brokers=[MetadataResponse.MetadataResponseBroker(node_id=NODE_ID, host="127.0.0.1", port=self.port)],
            cluster_id="stub",
            controller_id=NODE_ID,
            topics=[
                MetadataResponse.MetadataResponseTopic(name=self._topic, topic_id=UUID(int=1), partitions=[partition]),
                *(MetadataResponse.MetadataResponseTopic(name=name, error_code=3) for name in others),
            ],
        )


def _message(answer: object) -> Message:
    from klamm.protocol.schema import Message as MessageClass  # noqa: PLC0415  # only to narrow the type

    assert isinstance(answer, MessageClass), answer
    return answer


def _is_flexible(answer: object, version: int) -> bool:
    message = _message(answer)
    return message.API_KEY != ApiVersionsResponse.API_KEY and message.is_flexible(version)


def _produced(request: Request) -> Answer:
    produced = request.read(ProduceRequest)
    assert isinstance(produced, ProduceRequest)
    if produced.acks == 0:
        return SILENCE
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(index=partition.index, error_message=None)
                    for partition in topic.partition_data
                ],
            )
            for topic in produced.topic_data
        ]
    )


@contextlib.contextmanager
def closed_after_versions() -> Iterator[socket.socket]:
    """Yield a connection to a broker that has already sent its ApiVersions response and closed its side."""
    sasl_handshake = ApiVersionsResponse.ApiVersion(api_key=17, min_version=0, max_version=1)
    response = bytes(encode(ApiVersionsResponse(api_keys=[sasl_handshake]), 3))
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as connected,
        listener.accept()[0] as accepted,
    ):
        accepted.sendall(response_header(0, len(response), flexible=False) + response)
        accepted.shutdown(socket.SHUT_WR)
        yield connected


def form_cluster(brokers: Mapping[int, StubBroker]) -> None:
    """Let brokers, by node id, name each other in Metadata responses, without topics."""
    answer = MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node_id, host="127.0.0.1", port=broker.port)
            for node_id, broker in brokers.items()
        ],
        cluster_id="stub",
        controller_id=min(brokers),
    )
    for broker in brokers.values():
        broker.answer(3, lambda _: answer)


def redirect_fetches(leader: StubBroker, replica: StubBroker, *, topic: str = "stub") -> None:
    """Let the leader of a partition name a preferred read replica instead of sending records (KIP-392)."""
    metadata = leader.handler(3)

    def with_replica(request: Request) -> Answer:
        answer = metadata(request)
        assert isinstance(answer, MetadataResponse)
        answer.brokers.append(
            MetadataResponse.MetadataResponseBroker(node_id=REPLICA_ID, host="127.0.0.1", port=replica.port)
        )
        return answer

    for broker in (leader, replica):
        broker.answer(3, with_replica)
    partition = FetchResponse.PartitionData(high_watermark=9, preferred_read_replica=REPLICA_ID)
    redirection = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic=topic, partitions=[partition])])
    leader.answer(FetchResponse.API_KEY, lambda _: redirection)


def take_turns(monkeypatch: pytest.MonkeyPatch, *node_ids: int) -> None:
    """Let pools send the requests for any node to these nodes in turn, instead of the least loaded one."""
    order = itertools.cycle(node_ids)

    async def next_node(pool: ConnectionPool, deadline: Deadline) -> PooledConnection:
        return await pool._nodes[next(order)].link(deadline)

    monkeypatch.setattr(ConnectionPool, "_any_node", next_node)


def produced_acks(requests: list[Request]) -> list[int]:
    """Return ``acks`` of each Produce request, oldest first."""
    acks = []
    for request in requests:
        produced = request.read(ProduceRequest)
        assert isinstance(produced, ProduceRequest)
        acks.append(produced.acks)
    return acks
