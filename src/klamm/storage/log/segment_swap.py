"""Replacement of old segments by a rewritten one after a compaction, safe against a crash at every step.

The new files are first complete and durable in their own directory, together with the list ``replaces`` of the segments
that they replace. Renaming that directory is the commit point. After it, the remaining steps are only renames, and each
can be repeated.

    step                                                           after a crash here, the next start
    1. ``rewrite``: write the new files to compaction.cleaned      deletes them; the old segments are valid
    2. ``decide``: write ``replaces``, fsync all files             deletes them; the old segments are valid
    3. ``decide``: rename to compaction.swap, fsync (commit)       either as in step 2, or repeats steps 4 and 5
    4. ``take_places``: rename old files to *.deleted, move the    repeats steps 4 and 5, skipping what is done
       new files to the partition directory
    5. ``settle``: fsync, remove ``replaces``, then the directory  repeats 4 and 5; without ``replaces`` everything is
                                                                   in place, and the directory is deleted

``finish`` runs these actions at the next start of the broker. After it, ``recovery`` deletes the *.deleted files.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from klamm.storage.log.files import fsync_path
from klamm.storage.log.segment import ABORTED_SUFFIX, DELETED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

WORK: Final = "compaction.cleaned"
"""Directory of new files that are not complete yet."""
READY: Final = "compaction.swap"
"""Directory of complete new files that replace old ones."""
_REPLACES: Final = "replaces"
_LOG: Final = ".log"
_INDEXES: Final = (".index", ".timeindex", ABORTED_SUFFIX)


class Disk:
    """The file operations of a replacement. Tests replace this class to crash between any two of them."""

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
    """Make the new files durable and commit the replacement. Runs in a thread.

    Args:
        directory: Partition directory.
        bases: Base offsets of the replaced segments. The new segment has the first of them.
        disk: File operations.

    Raises:
        OSError: A file operation failed. The old segments are still valid.
    """
    work = directory / WORK
    (work / _REPLACES).write_text(" ".join(map(str, bases)), encoding="ascii")
    for path in work.iterdir():
        disk.fsync(path)
    disk.fsync(work)
    disk.rename(work, directory / READY)
    disk.fsync(directory)


def take_places(directory: Path, disk: Disk = DISK) -> list[Path]:
    """Rename the old files, and move the new ones into the partition directory. Completed steps are skipped.

    Returns:
        The new paths of the old files.

    Raises:
        OSError: A file operation failed. Another call, or the next start, continues.
    """
    ready = directory / READY
    bases = [int(base) for base in (ready / _REPLACES).read_text(encoding="ascii").split()]
    put_away = []
    first = f"{bases[0]:020d}"
    old = [f"{base:020d}{suffix}" for base in bases[1:] for suffix in (_LOG, *_INDEXES)]
    if (ready / (first + _LOG)).exists():
        # Indexes before their log file: a log file without indexes gets them rebuilt, but an index must not stay behind
        # for the new log file.
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
    """Make the moved files durable, and remove the directory of the replacement. Runs in a thread.

    Raises:
        OSError: A file operation failed. The next start repeats the step.
    """
    ready = directory / READY
    disk.fsync(directory)
    disk.fsync(ready)
    disk.remove(ready / _REPLACES)
    disk.remove_directory(ready)


def discard(directory: Path) -> None:
    """Delete the new files of a replacement whose old segments are already deleted. Runs in a thread.

    Raises:
        OSError: A file operation failed.
    """
    ready, work = directory / READY, directory / WORK
    shutil.rmtree(work, ignore_errors=True)
    if ready.exists():
        ready.rename(work)
        shutil.rmtree(work, ignore_errors=True)


def finish(directory: Path) -> None:
    """Complete or undo at start a replacement that a crash interrupted.

    Raises:
        OSError: A file operation failed.
    """
    ready = directory / READY
    if (ready / _REPLACES).exists():
        take_places(directory)
        settle(directory)
    for left in (ready, directory / WORK):
        shutil.rmtree(left, ignore_errors=True)
