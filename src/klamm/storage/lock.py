"""Lock of a data directory: an advisory lock that the system releases when the process ends, for any reason."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from klamm.storage.errors import DataDirectoryError, DataDirectoryLockedError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

LOCK_FILE_NAME: Final = "klamm.lock"


class DataDirectoryLock:
    """Exclusive lock on a data directory, held from construction until ``release``.

    ``flock`` also rejects a second lock by the same process, which POSIX record locks would allow. The file is not
    removed on release: otherwise two processes could lock two different files of the same name.

    Raises:
        DataDirectoryLockedError: Another process holds the lock. The message contains its pid.
        DataDirectoryError: The directory cannot be created or written.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_FILE_NAME
        try:
            make_durable_directory(data_dir)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirectoryError(f"Cannot use the data directory {data_dir}: {error.strerror or error}") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise DataDirectoryLockedError(
                f"The data directory {data_dir} is in use by process {holder}; stop it or choose another --data-dir"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode("ascii"), 0)

    def release(self) -> None:
        """Release the lock. A second call has no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DataDirectoryLock:
        """Return the held lock."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()


def make_durable_directory(path: Path) -> None:
    """Create a directory with its parents durably, with access only for the broker's own user."""
    missing = []
    here = path
    while not here.exists():
        missing.append(here)
        here = here.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(directory.parent, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
