"""Byte ranges of segment files, the content of a Fetch response before it is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from klamm.protocol.errors import StorageError

if TYPE_CHECKING:
    from klamm.storage.log.files import LogFile


class LogRange:
    """Whole batches of one segment, read from disk only when they are sent. Used on the event loop only.

    A range stays readable while its segment is part of the log, and after retention has removed the segment until
    ``file.delete.delay.ms`` is over. It fails once the segment was compacted or its topic was deleted.
    """

    __slots__ = ("_file", "_position", "_size", "end_offset")

    def __init__(self, file: LogFile, position: int, size: int, end_offset: int) -> None:
        self._file = file
        self._position = position
        self._size = size
        self.end_offset = end_offset
        """Upper limit of the offsets in the range, exclusive."""

    def __len__(self) -> int:
        """Return the size in bytes."""
        return self._size

    def read(self, start: int = 0, size: int | None = None) -> bytes:
        """Return ``size`` bytes from ``start``, or all bytes from there.

        Raises:
            StorageError: The read failed, or the file no longer contains these bytes.
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
        """Return the part of the range below a file position, at which a batch with offset ``end_offset`` starts."""
        return LogRange(self._file, self._position, max(position - self._position, 0), end_offset)
