"""A cluster in memory for the data path: it records requests, and the test decides when and how they are answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from klamm.kafka_client.connection.buffers import FrameBuffer
    from klamm.protocol.schema import Message

POOL = BufferPool(max_free_bytes=0)


@dataclass
class Asked:
    """A request that was sent, and a way to answer it."""

    node: int
    lane: int
    request: Any
    version: int
    _on_response: Callable[[Any, FrameBuffer], None]

    def answer(self, response: Message) -> None:
        """Deliver a response as the client would have decoded it from the wire."""
        content = bytes(encode(response, self.version))
        memory = POOL.take(len(content))
        memory.data[: len(content)] = content
        self._on_response(decode(type(response), self.version, memoryview(memory.data)[: len(content)], 0), memory)
        memory.release()


@dataclass
class FakeConnection:
    """A connection of ``FakeSource``."""

    node: int
    lane: int
    asked: list[Asked]
    version: int
    closed: bool = False
    is_broken: bool = False
    silence_s: float = 0.0
    """Seconds without a byte, of the request in flight."""

    def version_of(self, _: object, *, at_most: int = 32767, at_least: int = 0) -> int:
        return max(at_least, min(at_most, self.version))

    def submit(
        self, request_class: Any, version: int, body: Sequence[bytes | bytearray | memoryview], _: object, answered: Any
    ) -> None:
        if self.is_broken:
            raise ConnectionLostError("broken")
        request = decode(request_class, version, memoryview(b"".join(body)), 0)
        self.asked.append(Asked(self.node, self.lane, request, version, answered))

    def write(self) -> None:
        pass

    def silent_s(self, _: float) -> float:
        return self.silence_s

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeSource:
    """Replacement of ``klamm.kafka_client.data.cluster.Cluster``. All partitions of a topic have the same leader."""

    leaders: dict[str, int | None] = field(default_factory=dict)
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    log_start: int = 0
    log_end: int = 0
    last_stable_offset: int | None = None
    """None: equal to ``log_end``."""
    unanswered: set[int] = field(default_factory=set)
    """Timestamps for which no leader returns an offset."""
    version: int = 17
    offset_of_timestamp: int = -1
    asked: list[Asked] = field(default_factory=list)
    refreshed: list[list[str]] = field(default_factory=list)
    connections: dict[tuple[int, int], FakeConnection] = field(default_factory=dict)

    def refresh(self, topics: Iterable[str]) -> None:
        self.refreshed.append(list(topics))

    def leader(self, topic: str, _: int) -> int | None:
        return self.leaders.get(topic)

    def leader_epoch(self, topic: str, _: int) -> int:
        return self.epochs.get(topic, -1)

    def topic_id(self, topic: str) -> UUID:
        return self.topic_ids.get(topic, UUID(int=0))

    def list_offsets(
        self, keys: Iterable[tuple[str, int]], where: int, *, read_committed: bool = False
    ) -> dict[tuple[str, int], int]:
        if where in self.unanswered:
            return {}
        stable = self.log_end if self.last_stable_offset is None else self.last_stable_offset
        latest = stable if read_committed else self.log_end
        return dict.fromkeys(keys, {-1: latest, -2: self.log_start}.get(where, self.offset_of_timestamp))

    def connection(self, node: int, lane: int) -> FakeConnection:
        connection = self.connections.get((node, lane))
        if connection is None or connection.closed:
            connection = FakeConnection(node, lane, self.asked, self.version)
            self.connections[node, lane] = connection
        return connection

    def take_asked(self) -> list[Asked]:
        """Return the requests since the last call, by node and lane."""
        out = sorted(self.asked, key=lambda each: (each.node, each.lane))
        self.asked.clear()
        return out
