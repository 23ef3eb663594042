"""A single record, as produced and consumed."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Record headers in order; keys may repeat. A key that is not UTF-8 keeps its bytes as surrogate escapes."""


class TimestampType(IntEnum):
    """Bit 3 of ``attributes`` (``message.timestamp.type``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """A record. It is a named tuple because millions are created: half the cost of a frozen dataclass."""

    key: bytes | None
    value: bytes | None
    """Value of the record. None means a tombstone."""
    headers: RecordHeaders = ()
    timestamp: int = -1
    """Timestamp in milliseconds since the epoch; -1 means none."""
    offset: int = 0
