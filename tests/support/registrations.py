"""Registration records in memory, with a disk that can refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class MemoryRecords:
    """Keeps the records of the registration topic in a list."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.fail_next_append = False

    def read_all(self) -> Iterable[tuple[bytes | None, bytes | None]]:
        """Return what was appended."""
        return list(self.records)

    async def append(self, key: bytes, value: bytes) -> None:
        """Append, or refuse once."""
        if self.fail_next_append:
            self.fail_next_append = False
            raise StorageError("No space left on device")
        self.records.append((key, value))
