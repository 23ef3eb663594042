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

If a step fails while the broker runs, the log has either all old segments or the new one, because ``take_places`` gives
the files their old names back. ``clean_up`` undoes or completes the replacement before the next one.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

from klamm.storage.log.files import fsync_path
from klamm.storage.log.segment import ABORTED_SUFFIX, deleted_path

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


class UndoneError(OSError):
    """The new files could not take their places, and all files have their old names."""


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
    for suffix in _INDEXES:
        # After a power cut, the new log file may be in its place and the renames of the old indexes lost. A new index
        # replaces such an old one, also if it is empty.
        (work / f"{bases[0]:020d}{suffix}").touch()
    for path in work.iterdir():
        disk.fsync(path)
    disk.fsync(work)
    disk.rename(work, directory / READY)
    disk.fsync(directory)


def take_places(directory: Path, disk: Disk = DISK) -> dict[Path, Path]:
    """Rename the old files, and move the new ones into the partition directory. Completed steps are skipped.

    Returns:
        The new path of each old file by its former one.

    Raises:
        UndoneError: A file operation failed. Files that this call had renamed have their old names again.
        OSError: A file operation failed, and so did the attempt to undo the others. The next start continues.
    """
    ready = directory / READY
    renamed: list[tuple[Path, Path]] = []
    try:
        bases = [int(base) for base in (ready / _REPLACES).read_text(encoding="ascii").split()]
        first = f"{bases[0]:020d}"
        old = [f"{base:020d}{suffix}" for base in bases[1:] for suffix in (_LOG, *_INDEXES)]
        if (ready / (first + _LOG)).exists():
            # Indexes before their log file: a log file without indexes gets them rebuilt, but an index must not stay
            # behind for the new log file.
            old += [first + suffix for suffix in (*_INDEXES, _LOG)]
        renames = [(directory / name, deleted_path(directory / name)) for name in old]
        renames += [(ready / (first + suffix), directory / (first + suffix)) for suffix in (_LOG, *_INDEXES)]
        for path, target in renames:
            if path.exists():
                disk.rename(path, target)
                renamed.append((path, target))
    except OSError as error:
        for path, target in reversed(renamed):
            disk.rename(target, path)
        raise UndoneError(error.errno, error.strerror, error.filename) from error
    return {path: target for path, target in renamed if path.parent == directory}


def settle(directory: Path, disk: Disk = DISK) -> None:
    """Make the moved files durable, and remove the directory of the replacement. Runs in a thread.

    Raises:
        OSError: A file operation failed. ``clean_up`` or the next start repeats the step.
    """
    ready = directory / READY
    disk.fsync(directory)
    disk.fsync(ready)
    disk.remove(ready / _REPLACES)
    disk.remove_directory(ready)


def clean_up(directory: Path, disk: Disk = DISK) -> None:
    """Remove the files of an earlier replacement that was abandoned or has failed. Runs in a thread.

    If the new files are in their places, ``settle`` is repeated. If none of them is, they are deleted: the old segments
    are valid, or are deleted themselves.

    Raises:
        OSError: A file operation failed. Another call, or the next start, continues.
    """
    ready, work = directory / READY, directory / WORK
    if (ready / _REPLACES).exists() and not any(ready.glob("*" + _LOG)):
        settle(directory, disk)
    shutil.rmtree(work, ignore_errors=True)
    if ready.exists():
        disk.fsync(directory)  # the old files may have their names back only in the page cache
        disk.rename(ready, work)
        disk.fsync(directory)  # a start after a power cut must not put only some of the new files in place
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
