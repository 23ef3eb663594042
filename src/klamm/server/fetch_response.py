"""The body of a Fetch response, v4-18, as a list of pieces.

Records are never copied into the body. A piece with records is a range of a log file, which is read only when the
connection can send it.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import field
from typing import TYPE_CHECKING, Final, Protocol

from klamm.lazy_dataclass import dataclass
from klamm.protocol.codec import encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import write_uvarint

if TYPE_CHECKING:
    from collections.abc import Container, Sequence
    from uuid import UUID

    from klamm.protocol.messages.fetch import FetchResponse
    from klamm.server.route import Piece

FLEXIBLE_SINCE: Final = 12
TOPIC_IDS_SINCE: Final = 13
_LOG_START_OFFSET_SINCE: Final = 5
_SESSIONS_SINCE: Final = 7
_READ_REPLICA_SINCE: Final = 11
_NODE_ENDPOINTS_SINCE: Final = 16
_INT32: Final = struct.Struct(">i")
_NO_TAGS: Final = b"\x00"


def new_session_id(taken: Container[int]) -> int:
    """Return a random id of a fetch session (KIP-227), 1 to 2^31-2, that no other session has.

    Args:
        taken: Ids of all sessions.
    """
    while (session_id := 1 + secrets.randbelow(2**31 - 2)) in taken:
        pass
    return session_id


class AbortedRange(Protocol):
    """Aborted transaction of a response."""

    @property
    def producer_id(self) -> int:
        """Return the producer id."""
        ...

    @property
    def first_offset(self) -> int:
        """Return the offset of its first record."""
        ...


@dataclass(slots=True, kw_only=True)
class PartitionRead:
    """One partition of a Fetch response."""

    topic: str
    topic_id: UUID
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Piece = b""
    """Never null, which librdkafka cannot parse. A range is read from disk when the connection can send it."""
    aborted: Sequence[AbortedRange] = ()
    """Aborted transactions that a ``read_committed`` consumer has to filter out."""
    current_leader: tuple[int, int] | None = None
    """Leader id and leader epoch, if another broker id leads the partition (KIP-951)."""
    preferred_read_replica: int = -1
    """Broker id from which a consumer has to fetch instead (KIP-392); -1 for none."""
    diverging_epoch: tuple[int, int] | None = None
    """Largest common epoch and its end offset, if the client's log has diverged from this one (KIP-595)."""


@dataclass(slots=True, kw_only=True)
class FetchedBody:
    """The body of a Fetch response."""

    error_code: ErrorCode = ErrorCode.NONE
    session_id: int = 0
    partitions: Sequence[PartitionRead] = ()
    node_endpoints: list[FetchResponse.NodeEndpoint] = field(default_factory=list)
    throttle_time_ms: int = 0

    def is_flexible(self, version: int) -> bool:
        """Return whether the response header has tagged fields."""
        return version >= FLEXIBLE_SINCE

    def error_codes(self) -> tuple[int, ...]:
        """Return the error codes of the response and of each partition."""
        return (self.error_code, *(partition.error_code for partition in self.partitions))

    def buffers(self, version: int) -> Sequence[Piece]:
        """Return the encoded body in pieces."""
        flexible = version >= FLEXIBLE_SINCE
        topics: dict[UUID | str, list[PartitionRead]] = {}
        for partition in self.partitions:
            name = partition.topic_id if version >= TOPIC_IDS_SINCE else partition.topic
            topics.setdefault(name, []).append(partition)
        pieces: list[Piece] = []
        head = bytearray(_INT32.pack(self.throttle_time_ms))
        if version >= _SESSIONS_SINCE:
            head += struct.pack(">hi", self.error_code, self.session_id)
        _write_count(head, len(topics), flexible)
        for name, partitions in topics.items():
            _write_topic(head, name, flexible)
            _write_count(head, len(partitions), flexible)
            for partition in partitions:
                _write_partition(head, partition, version)
                if partition.records:
                    pieces += (head, partition.records)
                    head = bytearray()
                if flexible:
                    _write_partition_tags(head, partition)
            if flexible:
                head += _NO_TAGS
        if flexible:
            self._write_tags(head, version)
        pieces.append(head)
        return pieces

    def _write_tags(self, out: bytearray, version: int) -> None:
        if version < _NODE_ENDPOINTS_SINCE or not self.node_endpoints:
            out += _NO_TAGS
            return
        endpoints = bytearray()
        write_uvarint(endpoints, len(self.node_endpoints) + 1)
        for endpoint in self.node_endpoints:
            endpoints += encode(endpoint, version, flexible=True)
        out += b"\x01\x00"
        write_uvarint(out, len(endpoints))
        out += endpoints


def _write_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _write_topic(out: bytearray, name: UUID | str, flexible: bool) -> None:
    if not isinstance(name, str):
        out += name.bytes
        return
    text = name.encode()
    if flexible:
        write_uvarint(out, len(text) + 1)
    else:
        out += struct.pack(">h", len(text))
    out += text


def _write_partition(out: bytearray, item: PartitionRead, version: int) -> None:
    """Write all fields of a partition before its records, including their length."""
    out += struct.pack(">ihqq", item.partition, item.error_code, item.high_watermark, item.last_stable_offset)
    if version >= _LOG_START_OFFSET_SINCE:
        out += struct.pack(">q", item.log_start_offset)
    flexible = version >= FLEXIBLE_SINCE
    _write_count(out, len(item.aborted), flexible)  # empty instead of null
    for aborted in item.aborted:
        out += struct.pack(">qq", aborted.producer_id, aborted.first_offset)
        if flexible:
            out += _NO_TAGS
    if version >= _READ_REPLICA_SINCE:
        out += _INT32.pack(item.preferred_read_replica)
    _write_count(out, len(item.records), flexible)


def _write_partition_tags(out: bytearray, item: PartitionRead) -> None:
    tags = []
    if item.diverging_epoch is not None:
        tags.append((0, struct.pack(">iq", *item.diverging_epoch) + _NO_TAGS))
    if item.current_leader is not None:
        tags.append((1, struct.pack(">ii", *item.current_leader) + _NO_TAGS))
    out.append(len(tags))
    for tag, value in tags:
        out += bytes((tag, len(value))) + value
