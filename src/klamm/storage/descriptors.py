"""File descriptors of the process: how many there may be, how they are shared out, and some kept for storage.

Sockets and files draw on one limit (RLIMIT_NOFILE). Without shares, connections of strangers would use it up, and logs
could neither be written nor flushed.
"""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BASE: Final = 48
"""What a broker holds besides logs and connections: event loop, standard streams, metadata, threads that flush."""
_MAX_LOG_FILES: Final = 4096
_MIN_LOG_FILES: Final = 16
_MIN_CONNECTIONS: Final = 16
_SPARE: Final = 16
LENT: Final = 8
"""What opening a log needs at most."""
EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system answers when the process, or all of them, have no descriptor left."""
_WITHOUT_LIMITS: Final = 1024
"""What is assumed where the system has no such limit (Windows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorShares:
    """What the descriptors of the process are for."""

    limit: int
    """The soft limit of the process."""
    log_files: int
    """How many files of partition logs stay open."""
    connections: int
    """How many connections of clients there may be."""

    @classmethod
    def of(cls, limit: int, *, listeners: int = 1) -> DescriptorShares:
        """Share out a limit: a third for logs, what is left for connections."""
        free = limit - _BASE - _SPARE - listeners
        log_files = min(max(free // 3, _MIN_LOG_FILES), _MAX_LOG_FILES)
        return cls(limit=limit, log_files=log_files, connections=max(free - log_files, _MIN_CONNECTIONS))


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one, as a JVM does; returns the limit in force.

    A system that refuses, or has no such limits, leaves it as it is.
    """
    try:
        import resource  # noqa: PLC0415  # not on every platform
    except ModuleNotFoundError:
        return _WITHOUT_LIMITS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MAX_LOG_FILES * 16
    # macOS reports no hard limit and refuses to set none, nor more than it has for a process.
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
    """Descriptors that are open for nothing, so that storage can open a file when the process has no other left.

    Safe for threads. A file that was opened here is closed by ``close``, which makes its descriptor a spare one again
    without giving it up in between: connections that wait to be accepted take any that is free.
    """

    def __init__(self, count: int = _SPARE) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._spare: list[int] = []
        self._source: int | None = None
        """Stays open, to make spare ones of. None: none are kept."""

    def keep(self) -> None:
        """Set the descriptors aside.

        Raises:
            OSError: There are not so many.
        """
        with self._lock:
            if self._source is None:
                self._source = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            while len(self._spare) < self._count:
                self._spare.append(os.dup(self._source))

    def release(self) -> None:
        """Give all of them back."""
        with self._lock:
            if self._source is not None:
                os.close(self._source)
                self._source = None
            while self._spare:
                os.close(self._spare.pop())

    def open(self, path: Path | str, flags: int, mode: int = 0o644) -> int:
        """Open a file as ``os.open`` does; takes a spare descriptor when the process has no other.

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
        """Give some descriptors back for the time of a block that opens and closes several files.

        On the event loop no connection is accepted meanwhile, so they are there again behind the block.
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
        """Close a file; its descriptor becomes a spare one when some of these are missing."""
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
"""Those of the process: descriptors belong to it, and not to any object in it."""
