"""One process per data directory: an advisory lock that ends with the process, however it ends."""

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
    """Holds the exclusive lock on a data directory from construction to ``release``.

    ``flock`` is used because it also keeps out a second opening by the same process, which POSIX record locks allow.
    The file stays behind after a release: removing it would let two processes lock two different files.

    Raises:
        DataDirectoryLockedError: another holder is alive; the message names its pid.
        DataDirectoryError: the directory cannot be created or written.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / LOCK_FILE_NAME
        try:
            make_durable_directory(data_dir)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataDirectoryError(f"Cannot use the data directory {data_dir}: {error}") from error
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
        """Give the directory free; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> DataDirectoryLock:
        """Return the held lock."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the directory free."""
        self.release()


def make_durable_directory(path: Path) -> None:
    """Create ``path`` with its parents, for the broker's own user only, so that the new entries survive a power cut."""
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
