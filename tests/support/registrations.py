"""Registration records in memory, with an append that can fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.broker.internal_records import InternalRecords
from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryRecords(InternalRecords):
    """Records of the registration topic, in a list."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.fail_next_append = False

    def read_all(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Return all appended records."""
        return iter(list(self.records))

    async def append(self, key: bytes, value: bytes) -> None:
        """Append a record, or fail once."""
        if self.fail_next_append:
            self.fail_next_append = False
            raise StorageError("No space left on device")
        self.records.append((key, value))
