"""File descriptors of the process: the limit, its division between logs and connections, and spare ones for storage.

Sockets and files share one limit (RLIMIT_NOFILE). Without a division, client connections could use up all descriptors,
and logs could neither be written nor flushed.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BASE: Final = 72
"""Descriptors used for neither logs nor connections: event loop, standard streams, metadata, scrapes of metrics."""
_MAX_LOG_FILES: Final = 4096
_MIN_LOG_FILES: Final = 16
_MIN_CONNECTIONS: Final = 16
FLUSH_THREADS: Final = 16
"""Number of concurrent fsyncs, each with one open file. A journaling file system commits all that wait together."""
LENT: Final = 8
"""Largest number of descriptors that opening a log needs."""
_SPARE: Final = FLUSH_THREADS + LENT
"""With slow disks, all flush threads hold a reserved descriptor at once, and the event loop still needs its own."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Error numbers for no free descriptor, in the process or in the system."""
_WITHOUT_LIMITS: Final = 1024
"""Assumed limit on systems without one (Windows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorShares:
    """Division of the process's descriptors between logs and connections."""

    limit: int
    """Soft limit of the process."""
    log_files: int
    """Largest number of log files that stay open."""
    connections: int
    """Largest number of client connections."""

    @classmethod
    def of(cls, limit: int, *, listeners: int = 1) -> DescriptorShares:
        """Divide a limit: one third of the free descriptors for log files, the rest for connections."""
        free = limit - _BASE - _SPARE - listeners
        log_files = min(max(free // 3, _MIN_LOG_FILES), _MAX_LOG_FILES)
        return cls(limit=limit, log_files=log_files, connections=max(free - log_files, _MIN_CONNECTIONS))


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as a JVM does, and return the resulting limit.

    The limit stays unchanged on a system that rejects this or has no such limit.
    """
    try:
        import resource  # noqa: PLC0415  # not on every platform
    except ModuleNotFoundError:
        return _WITHOUT_LIMITS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_LOG_FILES * 16
    # macOS reports no hard limit, but rejects an unlimited soft limit and one above its limit per process.
    for wanted in [hard] if hard != resource.RLIM_INFINITY else [1 << 20, 1 << 16, 10_240]:
        if wanted <= soft:
            break
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            continue
        return wanted
    return soft


class SpareDescriptors:
    """Reserved descriptors, so that storage can still open a file when the process has no free descriptor.

    Thread-safe. ``close`` turns the descriptor of a file opened here back into a reserved one atomically (``dup2``). If
    it were closed and opened again, a waiting connection could take it in between.
    """

    def __init__(self, count: int = _SPARE) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._source: int | None = None
        """Open descriptor that the reserved ones are duplicates of. None: none are reserved."""

    def keep(self) -> None:
        """Reserve the descriptors.

        Raises:
            OSError: The process has too few free descriptors.
        """
        with self._lock:
            if self._source is None:
                self._source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            while len(self._spare) < self._count:
                self._spare.append(os.dup(self._source))

    def release(self) -> None:
        """Release all reserved descriptors."""
        with self._lock:
            if self._source is not None:
                os.close(self._source)
                self._source = None
            while self._spare:
                os.close(self._spare.pop())

    def open(self, path: Path | str, flags: int, mode: int = 0o644) -> int:
        """Open a file like ``os.open``. If the process has no free descriptor, use a reserved one.

        Raises:
            OSError: The file cannot be opened.
        """
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                with self._lock:
                    if not self._spare:
                        raise
                    os.close(self._spare.pop())

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Release some reserved descriptors for a block that opens and closes several files.

        If the block runs on the event loop, no connection is accepted meanwhile, so the descriptors are free again
        afterwards.
        """
        with self._lock:
            for _ in range(min(LENT, len(self._spare))):
                os.close(self._spare.pop())
        try:
            yield
        finally:
            with self._lock, suppress(OSError):
                while self._source is not None and len(self._spare) < self._count:
                    self._spare.append(os.dup(self._source))

    def close(self, descriptor: int) -> None:
        """Close a file. Its descriptor becomes a reserved one if some of these are in use."""
        if self._source is None or len(self._spare) == self._count:
            os.close(descriptor)
            return
        with self._lock:
            if self._source is None or len(self._spare) == self._count:
                os.close(descriptor)
            else:
                os.dup2(self._source, descriptor, inheritable=False)
                self._spare.append(descriptor)


SPARE: Final = SpareDescriptors()
"""The reserved descriptors of this process. A global, because descriptors belong to the process."""
