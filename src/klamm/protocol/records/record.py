"""One record, as a producer made it and a consumer sees it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeAlias

RecordHeaders: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""Keys may repeat and keep their order. A key that is not UTF-8 keeps its bytes as surrogate escapes."""


class TimestampType(IntEnum):
    """Bit 3 of ``attributes`` (``message.timestamp.type``)."""

    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


class Record(NamedTuple):
    """A record. A named tuple, since it is made by the million: half the cost of a frozen dataclass."""

    key: bytes | None
    value: bytes | None
    """None is a tombstone."""
    headers: RecordHeaders = ()
    timestamp: int = -1
    """Milliseconds since the epoch; -1 means none."""
    offset: int = 0
