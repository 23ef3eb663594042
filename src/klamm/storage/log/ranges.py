"""Byte ranges of segment files: what a Fetch response consists of before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from klamm.storage.log.files import LogFile


class LogRange:
    """Whole batches of one segment, which stay on disk until they are read. Loop-confined.

    A range stays readable while its segment is served, and after retention has retired the segment until
    ``file.delete.delay.ms`` is over. It fails once the segment was compacted or its topic deleted.
    """

    __slots__ = ("_file", "_position", "_size", "end_offset")

    def __init__(self, file: LogFile, position: int, size: int, end_offset: int) -> None:
        self._file = file
        self._position = position
        self._size = size
        self.end_offset = end_offset
        """No batch of the range reaches beyond this offset."""

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """Return ``size`` bytes from ``start`` on, or all that follow.

        Raises:
            StorageError: The disk refuses, or the file does not hold these bytes any more.
        """
        wanted = self._size - start if size is None else min(size, self._size - start)
        try:
            data = self._file.read(wanted, self._position + start)
        except OSError as error:
            raise StorageError(f"Cannot read {self._file.path}: {error}") from error
        if len(data) != wanted:
            raise StorageError(f"Cannot read {self._file.path}: it ends before byte {self._position + self._size}")
        return data

    def cut(self, position: int, end_offset: int) -> LogRange:
        """Return the part below a position in the file, where a batch with ``end_offset`` begins."""
        return LogRange(self._file, self._position, max(position - self._position, 0), end_offset)
