"""Put a rewritten segment in the place of those it was made of, so that a crash at any step loses nothing.

The new files are made in a directory of their own, with a list of the segments that they replace. Renaming that
directory is the moment of decision: before it a start throws the new files away, after it a start finishes what was
begun, however far it came.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from klamm.storage.log.aborted import SUFFIX
from klamm.storage.log.files import fsync_path
from klamm.storage.log.segment import DELETED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORK: Final = "compaction.cleaned"
"""Directory of new files that are not complete."""
READY: Final = "compaction.swap"
"""Directory of new files that are to take their places."""
_REPLACES: Final = "replaces"
_LOG: Final = ".log"
_INDEXES: Final = (".index", ".timeindex", SUFFIX)


class Disk:
    """The steps that replacing consists of. Tests put a crash between any two of them."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file or directory."""
        path.rename(target)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def fsync(self, path: Path) -> None:
        """Make a file or directory durable."""
        fsync_path(path)


DISK: Final = Disk()


def decide(directory: Path, bases: Sequence[int], disk: Disk = DISK) -> None:
    """Make the new files durable and let them be the ones that count. Runs in a thread.

    Args:
        directory: The partition's.
        bases: Base offsets of the segments that the new one replaces; it has the first one's.
        disk: Does the work.

    Raises:
        OSError: The disk refuses.
    """
    work = directory / WORK
    (work / _REPLACES).write_text(" ".join(map(str, bases)), encoding="ascii")
    for path in work.iterdir():
        disk.fsync(path)
    disk.fsync(work)
    disk.rename(work, directory / READY)
    disk.fsync(directory)


def take_places(directory: Path, disk: Disk = DISK) -> list[Path]:
    """Rename the old files away and the new ones into their places; what is done already is passed over.

    Returns:
        The old files under their last names.

    Raises:
        OSError: The disk refuses; a further call, or a start, goes on.
    """
    ready = directory / READY
    bases = [int(base) for base in (ready / _REPLACES).read_text(encoding="ascii").split()]
    put_away = []
    first = f"{bases[0]:020d}"
    old = [f"{base:020d}{suffix}" for base in bases[1:] for suffix in (_LOG, *_INDEXES)]
    if (ready / (first + _LOG)).exists():
        # Indexes before what they point into: a segment without them has them built anew.
        old += [first + suffix for suffix in (*_INDEXES, _LOG)]
    for name in old:
        path = directory / name
        if path.exists():
            target = directory / (name + DELETED)
            disk.rename(path, target)
            put_away.append(target)
    for suffix in (_LOG, *_INDEXES):
        path = ready / (first + suffix)
        if path.exists():
            disk.rename(path, directory / path.name)
    return put_away


def settle(directory: Path, disk: Disk = DISK) -> None:
    """Make it durable that the new files are in their places, and forget how they came there. Runs in a thread.

    Raises:
        OSError: The disk refuses.
    """
    ready = directory / READY
    disk.fsync(directory)
    disk.fsync(ready)
    disk.remove(ready / _REPLACES)
    disk.remove_directory(ready)


def discard(directory: Path) -> None:
    """Throw new files away: what they were to replace is gone. Runs in a thread.

    Raises:
        OSError: The disk refuses.
    """
    ready, work = directory / READY, directory / WORK
    shutil.rmtree(work, ignore_errors=True)
    if ready.exists():
        ready.rename(work)
        shutil.rmtree(work, ignore_errors=True)


def finish(directory: Path) -> None:
    """Finish at the start what a crash has left half done.

    Raises:
        OSError: The disk refuses.
    """
    ready = directory / READY
    if (ready / _REPLACES).exists():
        take_places(directory)
        settle(directory)
    for left in (ready, directory / WORK):
        shutil.rmtree(left, ignore_errors=True)
