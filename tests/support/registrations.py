"""Registration records in memory, with a disk that can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.broker.internal_records import InternalRecords
from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


class MemoryRecords(InternalRecords):
    """Keeps the records of the registration topic in a list."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.fail_next_append = False

    def read_all(self) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Return what was appended."""
        return iter(list(self.records))

    async def append(self, key: bytes, value: bytes) -> None:
        """Append, or refuse once."""
        if self.fail_next_append:
            self.fail_next_append = False
            raise StorageError("No space left on device")
        self.records.append((key, value))
