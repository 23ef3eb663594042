"""Record formats of heartbeats, checkpoints and offset syncs, as MirrorMaker 2 writes them.

They use Kafka's primitive types: big-endian integers, and strings of UTF-8 after a length of two bytes. All records
are in partition 0.
"""

from __future__ import annotations

import struct
from typing import Final, Self

from klamm.lazy_dataclass import dataclass

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_OFFSETS: Final = struct.Struct(">qq")
_VERSION: Final = 0


class FormatError(ValueError):
    """The bytes are not a record of the expected format."""


class _Reader:
    """Sequential reader of a key or value."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, layout: struct.Struct) -> int:
        try:
            (value,) = layout.unpack_from(self._data, self._at)
        except struct.error as error:
            raise FormatError(f"The record ends after {len(self._data)} bytes") from error
        self._at += layout.size
        return int(value)

    def count(self, layout: struct.Struct) -> int:
        if (value := self.number(layout)) < 0:
            raise FormatError(f"{value} is no partition, offset or time")
        return value

    def text(self) -> str:
        size = self.number(_INT16)
        if size < 0 or self._at + size > len(self._data):
            raise FormatError(f"A string of {size} bytes exceeds the record")
        raw = self._data[self._at : self._at + size]
        self._at += size
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError("A string is not UTF-8") from error

    def version(self) -> None:
        if (version := self.number(_INT16)) != _VERSION:
            raise FormatError(f"Version {version} is unknown")


def _text(value: str) -> bytes:
    raw = value.encode()
    return _INT16.pack(len(raw)) + raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Record of the topic ``heartbeats`` (Kafka's ``Heartbeat``)."""

    source_alias: str
    target_alias: str
    timestamp: int
    """Milliseconds since the epoch."""

    def key(self) -> bytes:
        """Return the record key."""
        return _text(self.source_alias) + _text(self.target_alias)

    def value(self) -> bytes:
        """Return the record value."""
        return _INT16.pack(_VERSION) + _INT64.pack(self.timestamp)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Self:
        """Parse a record.

        Raises:
            FormatError: The record is not a heartbeat.
        """
        keys, values = _Reader(key), _Reader(value)
        values.version()
        return cls(source_alias=keys.text(), target_alias=keys.text(), timestamp=values.count(_INT64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Translated offset of a consumer group on the target (Kafka's ``Checkpoint``)."""

    group: str
    topic: str
    """Remote topic."""
    partition: int
    upstream_offset: int
    """Committed offset of the group on the source."""
    downstream_offset: int
    metadata: str = ""

    def key(self) -> bytes:
        """Return the record key."""
        return _text(self.group) + _text(self.topic) + _INT32.pack(self.partition)

    def value(self) -> bytes:
        """Return the record value."""
        offsets = _OFFSETS.pack(self.upstream_offset, self.downstream_offset)
        return _INT16.pack(_VERSION) + offsets + _text(self.metadata)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Self:
        """Parse a record.

        Raises:
            FormatError: The record is not a checkpoint.
        """
        keys, values = _Reader(key), _Reader(value)
        values.version()
        return cls(
            group=keys.text(),
            topic=keys.text(),
            partition=keys.count(_INT32),
            upstream_offset=values.count(_INT64),
            downstream_offset=values.count(_INT64),
            metadata=values.text(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetSync:
    """Source offset and target offset of the same record (Kafka's ``OffsetSync``)."""

    topic: str
    """Source topic."""
    partition: int
    upstream_offset: int
    downstream_offset: int

    def key(self) -> bytes:
        """Return the record key."""
        return _text(self.topic) + _INT32.pack(self.partition)

    def value(self) -> bytes:
        """Return the record value, which has no version."""
        return _OFFSETS.pack(self.upstream_offset, self.downstream_offset)

    @classmethod
    def parse(cls, key: bytes, value: bytes) -> Self:
        """Parse a record.

        Raises:
            FormatError: The record is not an offset sync.
        """
        keys, values = _Reader(key), _Reader(value)
        return cls(
            topic=keys.text(),
            partition=keys.count(_INT32),
            upstream_offset=values.count(_INT64),
            downstream_offset=values.count(_INT64),
        )
