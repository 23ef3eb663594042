"""Files of partition logs: ten thousand partitions share a few hundred descriptors."""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.storage.descriptors import EXHAUSTED, SPARE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Buffer: TypeAlias = bytes | bytearray | memoryview

DEFAULT_MAX_OPEN: Final = 512
_CLOSED: Final = -1
_KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE of Linux."""


class FsyncError(OSError):
    """fsync failed. The kernel may have dropped what was written, and the next fsync would succeed without it."""


class FilePool:
    """Keeps descriptors open up to a limit; the one that was not used for long is closed. Loop-confined.

    Eviction goes round like a clock (second chance), so that a use costs no more than setting a flag.
    """

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN) -> None:
        self._max_open = max_open
        self._open: deque[LogFile] = deque()

    @property
    def open_count(self) -> int:
        """Descriptors that are open now."""
        return sum(file.is_open for file in self._open)

    def open(self, path: Path, flags: int) -> int:
        """Open a file; when the process has no descriptor left, others of the pool are closed for it.

        Raises:
            OSError: The file cannot be opened.
        """
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, 0o644)
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
            if not self._close_one():
                return SPARE.open(path, flags)

    def close_some(self, count: int) -> None:
        """Close up to so many files, so that others can be opened."""
        for _ in range(count):
            if not self._close_one():
                return

    def _close_one(self) -> bool:
        while self._open:
            oldest = self._open.popleft()
            if oldest.is_open:
                oldest.close()
                return True
        return False

    def opened(self, file: LogFile) -> None:
        """Take note of a new descriptor; close another one when there are too many."""
        self._open.append(file)
        while len(self._open) > self._max_open:
            oldest = self._open.popleft()
            if oldest.is_open and oldest.used and oldest is not file:
                oldest.used = False
                self._open.append(oldest)
            elif oldest is not file:
                oldest.close()

    def writev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write at a position; returns how many bytes were taken. Tests put a failing disk here."""
        return os.pwritev(descriptor, buffers, position)

    def close(self) -> None:
        """Close all."""
        while self._open:
            self._open.popleft().close()


class LogFile:
    """One file, opened when it is used. Loop-confined; ``fsync_path`` is for threads."""

    __slots__ = ("_descriptor", "_is_gone", "_is_reserved", "_pool", "path", "used")

    def __init__(self, pool: FilePool, path: Path) -> None:
        self.path = path
        self.used = False
        self._pool = pool
        self._descriptor = _CLOSED
        self._is_gone = False
        self._is_reserved = False

    @property
    def is_open(self) -> bool:
        """Whether a descriptor is held."""
        return self._descriptor != _CLOSED

    @property
    def descriptor(self) -> int:
        """The open descriptor; the file is created when it does not exist.

        Raises:
            OSError: The file cannot be opened, or was given up.
        """
        return self._opened(os.O_CREAT)

    def _opened(self, flags: int = 0) -> int:
        if self._descriptor == _CLOSED:
            if self._is_gone:
                raise FileNotFoundError(errno.ENOENT, "The file was given up", str(self.path))
            self._descriptor = self._pool.open(self.path, os.O_RDWR | flags)
            self._pool.opened(self)
        self.used = True
        return self._descriptor

    def size(self) -> int:
        """Bytes on disk; 0 when it does not exist."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes at ``position``; fewer only at the end of the file.

        Raises:
            OSError: The file does not exist, or the disk refuses.
        """
        return os.pread(self._opened(), size, position)

    def write(self, buffers: Sequence[Buffer], size: int, position: int) -> None:
        """Write buffers of ``size`` bytes in all at ``position``: all of it, or nothing stays.

        Raises:
            OSError: The disk refuses; the file is cut back to ``position``.
        """
        descriptor = self.descriptor
        try:
            written = self._pool.writev(descriptor, buffers, position)
            if written != size:
                rest = memoryview(b"".join(buffers))
                while written < size:
                    written += self._pool.writev(descriptor, [rest[written:]], position + written)
        except OSError:
            os.ftruncate(descriptor, position)
            raise

    def reserve(self, size: int) -> None:
        """Have the disk set aside room for ``size`` bytes; the file stays as long as it is.

        A file system or a platform that cannot do so is passed over.

        Raises:
            OSError: There is not so much room.
        """
        self._is_reserved = reserve_room(self.descriptor, size)

    def trim(self, size: int) -> None:
        """Give back what was set aside behind ``size`` bytes, which are all there is."""
        if self._is_reserved:
            os.ftruncate(self.descriptor, size)
            self._is_reserved = False

    def truncate(self, size: int) -> None:
        """Cut the file."""
        os.ftruncate(self.descriptor, size)

    def forget_cached(self) -> None:
        """Drop the file's pages from the page cache, so that reads show what the disk has.

        After an fsync that failed, the cache holds pages as clean that the disk never received. Pages that still wait
        to be written stay.
        """
        if hasattr(os, "posix_fadvise"):  # not on macOS
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Give the descriptor back; the next use opens the file again."""
        if self._descriptor != _CLOSED:
            SPARE.close(self._descriptor)
            self._descriptor = _CLOSED

    def give_up(self) -> None:
        """Close for good: another file may have taken the path, so this one must never be opened again."""
        self.close()
        self._is_gone = True

    def rename(self, path: Path) -> None:
        """Move the file; an existing one at ``path`` is replaced."""
        self.path.replace(path)
        self.path = path

    def remove(self) -> None:
        """Delete the file if it is there."""
        self.close()
        self.path.unlink(missing_ok=True)


def reserve_room(descriptor: int, size: int) -> bool:
    """Set room aside behind the end of a file without making it longer; False where that cannot be done.

    Python's ``posix_fallocate`` would make it longer, and a crash would leave a log that ends in zeros.

    Raises:
        OSError: There is not so much room.
    """
    import ctypes  # noqa: PLC0415 -- slow to import, and few topics ask for this

    allocate = getattr(ctypes.CDLL(None, use_errno=True), "fallocate", None)
    if allocate is None:
        return False
    if allocate(descriptor, _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)) == 0:
        return True
    code = ctypes.get_errno()
    if code in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        raise OSError(code, os.strerror(code))
    return False


def fsync_path(path: Path) -> None:
    """Make a file or directory durable by a descriptor of its own, so that any thread may do it.

    Raises:
        FsyncError: The disk has failed.
        OSError: The file cannot be opened; what was written to it is as it was.
    """
    descriptor = SPARE.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FsyncError(error.errno, error.strerror, str(path)) from error
    finally:
        SPARE.close(descriptor)


def write_atomically(path: Path, text: str, *, durable: bool) -> None:
    """Replace a small file as a whole: a crash leaves the old or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = SPARE.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        with open(descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)
        if durable:
            os.fsync(descriptor)
    finally:
        SPARE.close(descriptor)
    temporary.replace(path)
    if durable:
        fsync_path(path.parent)
