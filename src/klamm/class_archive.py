"""Archive of loaded Java classes (class data sharing), with which a JVM starts with half of the CPU time.

The JVM checks that the jars of its class path are those of the archive. It ignores an archive that does not fit.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import time
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

_SILENT: Final = "-Xlog:cds*=off"
"""JVM option without which the JVM prints lines about classes that it cannot archive and archives that do not fit."""
_SUFFIX: Final = ".jsa"
_TRY_AGAIN_S: Final = 86_400.0
"""Seconds after which a failed attempt to write an archive is repeated. A full disk may have space again."""
_MAX_ARCHIVES: Final = 3
"""Archives of one name that are kept: those that were used last. One of Spark has about 180 MB."""


class ClassArchive:
    """Archive of the classes that one program loads from one class path.

    Several processes may write and use the same archive. A process that dies while it writes leaves a file that the
    next writer replaces. A mapped archive may be deleted.

    Args:
        directory: Directory of the archives.
        name: First part of the file's name.
        identity: Everything that makes another archive necessary: the Java program, the class path, its jars.
    """

    def __init__(self, directory: Path, name: str, identity: Iterable[object]) -> None:
        digest = hashlib.sha256("\n".join(map(str, identity)).encode()).hexdigest()[:16]
        self._name = name
        self._stem = directory / f"{name}-{digest}"

    @property
    def path(self) -> Path:
        """File of the archive."""
        return self._stem.with_suffix(_SUFFIX)

    @property
    def is_usable(self) -> bool:
        """Whether the archive is written, by this user or by root. Java runs the code that it contains."""
        try:
            return _is_private(self.path.parent) and self.path.stat().st_uid in {0, os.geteuid()}
        except OSError:
            return False

    @property
    def has_failed(self) -> bool:
        """Whether an attempt to write it failed within the last day."""
        try:
            return time.time() - self._failure.stat().st_mtime < _TRY_AGAIN_S
        except OSError:
            return False

    @property
    def failure(self) -> str:
        """Error of the latest attempt to write it."""
        try:
            return self._failure.read_text(encoding="utf-8").strip()
        except OSError:
            return f"{self.path.parent} is not writable"

    @property
    def _failure(self) -> Path:
        return self._stem.with_suffix(".failed")

    def options(self) -> Sequence[str]:
        """Return the JVM options that use the archive, or none if there is no archive."""
        if not self.is_usable:
            return ()
        with contextlib.suppress(OSError):
            os.utime(self.path)  # the archives that were used last are kept
        return (f"-XX:SharedArchiveFile={self.path}", _SILENT)

    def write(self, train: Callable[[Sequence[str]], None], *, waits: bool = True) -> bool:
        """Write the archive unless it exists. Return whether it exists now.

        Args:
            train: Runs a JVM with the given options to its orderly end. The archive gets the classes that this JVM
                loads.
            waits: Whether to wait for another process that writes it. False: return at once.
        """
        try:
            with lock(self._stem.with_suffix(".lock"), waits=waits):
                if _is_private(self.path.parent) and not (self.is_usable or self.has_failed):
                    self._write(train)
        except OSError:  # the directory is not writable, or another process writes
            pass
        return self.is_usable

    def _write(self, train: Callable[[Sequence[str]], None]) -> None:
        fresh = self._stem.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        try:
            train((f"-XX:ArchiveClassesAtExit={fresh}", _SILENT))
            with fresh.open("rb") as written:
                os.fsync(written.fileno())
            fresh.rename(self.path)
            self._failure.unlink(missing_ok=True)
        except (
            OSError,
            RuntimeError,
            subprocess.SubprocessError,
        ) as error:  # Java starts without an archive, too
            fresh.unlink(missing_ok=True)
            with _created(self._failure) as failure:
                failure.truncate()
                failure.write(f"{type(error).__name__}: {error}\n")
        for old in sorted(self.path.parent.glob(f"{self._name}-*{_SUFFIX}"), key=_used_at)[:-_MAX_ARCHIVES]:
            old.unlink(missing_ok=True)


def _is_private(directory: Path) -> bool:
    """Return whether a directory is this user's or root's, and not open to everybody."""
    status = directory.stat()
    return status.st_uid in {0, os.geteuid()} and not status.st_mode & stat.S_IWOTH


def _created(file: Path) -> IO[str]:
    """Open a file for writing. Another user's symbolic link in its place is not followed (ELOOP)."""
    return os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+")


def _used_at(archive: Path) -> float:
    try:
        return archive.stat().st_mtime
    except OSError:
        return 0.0


@contextlib.contextmanager
def lock(file: Path, *, waits: bool = True) -> Iterator[None]:
    """Hold a lock that several processes share. The kernel releases the lock of a process that dies.

    Args:
        file: File that stands for the lock. It is created with its directory.
        waits: Whether to wait for another holder.

    Raises:
        BlockingIOError: Another process holds the lock, and ``waits`` is False.
        OSError: The file cannot be created.
    """
    file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)  # root's archive in an image is read by its other users
    with _created(file) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        yield
