"""Files of partition logs, and byte ranges of them. Ten thousand partitions share a few hundred file descriptors."""

from __future__ import annotations

import errno
import os
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.protocol.errors import StorageError
from klamm.storage.descriptors import EXHAUSTED, SPARE

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

DEFAULT_MAX_OPEN: Final = 512
_CLOSED: Final = -1
_KEEP_SIZE: Final = 1
"""FALLOC_FL_KEEP_SIZE of Linux."""


class FsyncError(OSError):
    """fsync failed. The kernel may have dropped the written pages, and the next fsync would succeed without them."""


class FilePool:
    """Open descriptors of log files, limited in number. A file that is not used for long is closed.

    Used on the event loop only. Eviction is a clock (second chance), so a use only sets a flag.
    """

    def __init__(self, max_open: int = DEFAULT_MAX_OPEN) -> None:
        self.max_open = max_open
        self.open_files: deque[LogFile] = deque()

    def open(self, path: str, flags: int) -> int:
        """Open a file. If the process has no free descriptor, other files of the pool are closed.

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
        """Close up to ``count`` files, so that others can be opened."""
        for _ in range(count):
            if not self._close_one():
                return

    def _close_one(self) -> bool:
        while self.open_files:
            oldest = self.open_files.popleft()
            if oldest.is_open:
                oldest.close()
                return True
        return False

    def opened(self, file: LogFile) -> None:
        """Register a newly opened file, and close another one if the pool is full."""
        # The new file is not part of the sweep. It would be closed at once, or be lost to the pool while it is open.
        while len(self.open_files) >= max(self.max_open, 1):
            oldest = self.open_files.popleft()
            if oldest is file:  # registered before it was closed by its segment
                continue
            if oldest.is_open and oldest.used:
                oldest.used = False
                self.open_files.append(oldest)
            else:
                oldest.close()
        self.open_files.append(file)

    def writev(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write at a position, and return the number of bytes written. Tests replace this to make writes fail."""
        return os.pwritev(descriptor, buffers, position)

    def close(self) -> None:
        """Close all files."""
        while self.open_files:
            self.open_files.popleft().close()


class LogFile:
    """A log file, opened at first use. Used on the event loop only; threads use ``fsync_path``."""

    __slots__ = ("_descriptor", "_is_gone", "_is_reserved", "_name", "_pool", "_size", "used")

    def __init__(self, pool: FilePool, path: Path | str, *, size: int | None = None) -> None:
        """Name a file, which need not exist.

        Args:
            pool: Pool of file descriptors.
            path: Path of the file.
            size: Size on disk if it is known, to save a system call.
        """
        self._name = str(path)
        self._size = size
        self.used = False
        self._pool = pool
        self._descriptor = _CLOSED
        self._is_gone = False
        self._is_reserved = False

    @property
    def path(self) -> Path:
        """The path. It is a string inside, because most of the files of 20,000 partitions are never opened."""
        return Path(self._name)

    @property
    def is_open(self) -> bool:
        """Return whether the file is open."""
        return self._descriptor != _CLOSED

    @property
    def descriptor(self) -> int:
        """The open descriptor. Opening creates a missing file.

        Raises:
            OSError: The file cannot be opened, or was closed by ``give_up``.
        """
        return self.opened(os.O_CREAT)

    def opened(self, flags: int = 0) -> int:
        """Return the open descriptor of an existing file.

        Raises:
            OSError: The file cannot be opened, or was closed by ``give_up``.
        """
        if self._descriptor == _CLOSED:
            if self._is_gone:
                raise FileNotFoundError(errno.ENOENT, "The file was given up", self._name)
            self._descriptor = self._pool.open(self._name, os.O_RDWR | flags)
            self._pool.opened(self)
        self.used = True
        return self._descriptor

    def size(self) -> int:
        """Return the size on disk; 0 if the file does not exist."""
        if self._size is not None:
            return self._size
        try:
            return os.stat(self._name).st_size
        except FileNotFoundError:
            return 0

    def read(self, size: int, position: int) -> bytes:
        """Read up to ``size`` bytes at ``position``. The result is shorter only at the end of the file.

        Raises:
            OSError: The file does not exist or cannot be read.
        """
        return os.pread(self.opened(), size, position)

    def write(self, buffers: Sequence[Buffer], size: int, position: int) -> None:
        """Write buffers of ``size`` bytes in total at ``position``, completely or not at all.

        Raises:
            OSError: The write failed. The file is truncated to ``position``.
        """
        descriptor = self.descriptor
        self._size = None
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
        """Preallocate disk space for ``size`` bytes without changing the file's size.

        Has no effect on file systems and platforms that do not support it.

        Raises:
            OSError: The disk is too full.
        """
        self._is_reserved = reserve_room(self.descriptor, size)

    def trim(self, size: int) -> None:
        """Release the preallocated space after the file's ``size`` bytes."""
        if self._is_reserved:
            os.ftruncate(self.descriptor, size)
            self._is_reserved = False

    def truncate(self, size: int) -> None:
        """Truncate the file."""
        self._size = None
        os.ftruncate(self.descriptor, size)

    def forget_cached(self) -> None:
        """Drop the file's pages from the page cache, so that reads return the bytes on disk.

        After a failed fsync, the page cache contains pages marked clean that never reached the disk. Dirty pages are
        kept.
        """
        if hasattr(os, "posix_fadvise"):  # missing on macOS
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor. The next use opens the file again."""
        if self._descriptor != _CLOSED:
            SPARE.close(self._descriptor)
            self._descriptor = _CLOSED

    def give_up(self) -> None:
        """Close the file for good. It is never opened again, because another file may now have its path."""
        self.close()
        self._is_gone = True

    def rename(self, path: Path) -> None:
        """Rename the file. An existing file at ``path`` is replaced."""
        os.replace(self._name, path)
        self.moved_to(path)

    def moved_to(self, path: Path) -> None:
        """Record that the file was renamed. The next use opens it by its new name."""
        self.close()
        self._name, self._size = str(path), None

    def remove(self) -> None:
        """Delete the file if it exists."""
        self.close()
        self._size = None
        with suppress(FileNotFoundError):
            os.unlink(self._name)


def reserve_room(descriptor: int, size: int) -> bool:
    """Preallocate space after the end of a file, and return whether the platform supports it.

    ``os.posix_fallocate`` is not used: it changes the file's size, so a crash would leave a log that ends with zeros.

    Raises:
        OSError: The disk is too full.
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
    """Make a file or directory durable. It opens its own descriptor, so any thread may call it.

    Raises:
        FsyncError: The disk failed.
        OSError: The file cannot be opened. Its state on disk is unchanged.
    """
    descriptor = SPARE.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise FsyncError(error.errno, error.strerror, str(path)) from error
    finally:
        SPARE.close(descriptor)


def write_atomically(path: Path, text: str, *, durable: bool) -> None:
    """Replace a small file atomically: after a crash it has either the old or the new content."""
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


class LogRange:
    """Whole batches of one segment, read from disk only when they are sent. Used on the event loop only.

    A range stays readable while its segment is part of the log, and after retention or compaction has removed the
    segment until ``file.delete.delay.ms`` is over. It fails once its topic was deleted.
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

    def send_to(self, socket: int, start: int, size: int) -> int:
        """Copy up to ``size`` bytes from ``start`` on to a socket inside the kernel, and return how many it took.

        Raises:
            BlockingIOError: The socket takes none at present.
            ConnectionError: The peer has closed the connection.
            StorageError: The read failed, or the file no longer contains these bytes.
        """
        try:
            sent = os.sendfile(socket, self._file.opened(), self._position + start, min(size, self._size - start))
        except (BlockingIOError, ConnectionError):
            raise
        except OSError as error:
            raise StorageError(f"Cannot read {self._file.path}: {error}") from error
        if not sent:
            raise StorageError(f"Cannot read {self._file.path}: it ends before byte {self._position + self._size}")
        return sent

    def cut(self, position: int, end_offset: int) -> LogRange:
        """Return the range up to a file position. ``end_offset`` is the offset at that position."""
        return LogRange(self._file, self._position, max(position - self._position, 0), end_offset)


def read_small(path: Path) -> str:
    """Return the text of a small file. Faster than ``Path.read_text``, which matters for 20,000 partitions.

    Raises:
        OSError: The file does not exist or cannot be read.
        UnicodeDecodeError: It is not a text file.
    """
    descriptor = SPARE.open(path, os.O_RDONLY)
    try:
        with open(descriptor, "rb", buffering=0, closefd=False) as file:
            return file.read().decode("utf-8")
    finally:
        SPARE.close(descriptor)
