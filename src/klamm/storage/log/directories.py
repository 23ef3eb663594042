"""Partition directories, and Kafka's small text files: checkpoints of offsets and leader epochs, topic ids.

An unused directory is renamed, never reused: ``<topic>-<partition>.<uuid>-delete`` for a deleted topic,
``<topic>-<partition>.<uuid>-stray`` for one that belongs to no topic. The names are Kafka's (LocalLog). Each name has a
new UUID, so two directories never compete for one name.

``LeaderEpochs`` is the content of a leader epoch checkpoint in memory (Kafka's LeaderEpochFileCache, KIP-101, KIP-320).
"""

from __future__ import annotations

import base64
import errno
import logging
import os
import re
import shutil
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from uuid import UUID, uuid4

from klamm.protocol.errors import CorruptBatchError
from klamm.storage.log.files import fsync_path, read_small, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from klamm.storage.log.segment import LogSegment

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
OFFLINE: Final = "klamm-offline"
"""File in a partition directory after a failed fsync: the page cache may contain records that are not on disk."""
PARTITION_METADATA: Final = "partition.metadata"
BALLAST: Final = "klamm-ballast"
BALLAST_BYTES: Final = 1024 * 1024
"""Enough for the log start offsets of 20,000 partitions."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_VERSION: Final = "0"
_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


class EpochStart(NamedTuple):
    """A leader epoch and its first offset."""

    epoch: int
    start_offset: int


def read_offsets(path: Path) -> dict[str, int]:
    """Read an offset checkpoint: offsets by directory name (``topic-partition``). A missing file is empty.

    A damaged or unreadable file is logged and treated as empty, as in Kafka: the recovery of each log then checks all
    of its segments.
    """
    offsets = {}
    for line in _read_lines(path):
        topic, _, rest = line.rpartition(" ")
        topic, _, partition = topic.rpartition(" ")
        try:
            offset = int(rest)
            name = f"{topic}-{int(partition)}"
        except ValueError:
            offset, name = -1, ""
        if 0 <= offset <= _MAX_INT64:
            offsets[name] = offset
        else:
            logger.warning("%s: an unreadable line is ignored: %r", path, line)
    return offsets


def write_offsets(path: Path, offsets: Mapping[str, int]) -> None:
    """Write an offset checkpoint durably."""
    lines = []
    for name, offset in offsets.items():
        topic, _, partition = name.rpartition("-")
        lines.append(f"{topic} {partition} {offset}")
    write_atomically(path, _text(lines), durable=True)


class Checkpoints(NamedTuple):
    """Contents of the three checkpoint files at one moment."""

    number: int
    """Sequence number of the moment."""
    start_offsets: dict[str, int]
    recovery_points: dict[str, int]
    compacted: dict[str, int]


class Ballast:
    """File whose only purpose is its disk space. On a full disk, the removal of old records gets it.

    Before a file of old records is renamed, the log start offset must be durable, and that takes new blocks. Without a
    reserve, a full disk would stay full.
    """

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / BALLAST

    def spend(self, step: Callable[[], Result]) -> Result:
        """Return the result of a step. If the disk is full, release half of the file and repeat the step.

        The rest is kept for the next attempt, because producers may take the released space first.

        Raises:
            OSError: The step failed for another reason, or nothing of the file is left.
        """
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno not in _FULL or not self._release():
                    raise

    def _release(self) -> bool:
        """Cut the file in half, and return whether that has released space."""
        try:
            with self._path.open("r+b", buffering=0) as file:
                size = file.seek(0, os.SEEK_END)
                os.ftruncate(file.fileno(), size // 2)
        except OSError:
            return False
        return size > 0

    def refill(self) -> None:
        """Extend the file to its full size, or as far as the disk has space."""
        with suppress(OSError):
            missing = BALLAST_BYTES - (self._path.stat().st_size if self._path.exists() else 0)
            if missing > 0:
                with self._path.open("ab", buffering=0) as file:
                    file.write(os.urandom(missing))  # zeros might be compressed or left out


class CheckpointFiles:
    """The three checkpoint files. Several threads write them, but an older state never replaces a newer one."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._written = 0
        self._start_offsets: dict[str, int] | None = None
        """Log start offsets in the file; None before the first write."""
        self.ballast = Ballast(data_dir)

    def write(self, state: Checkpoints) -> None:
        """Write the files durably.

        Raises:
            OSError: A file cannot be written. On a full disk, new log start offsets have used up the ballast before.
        """
        with self._lock:
            if state.number < self._written:
                return
            write = partial(self._write, state)
            if state.start_offsets == self._start_offsets:  # frees nothing, so the ballast is left to a later state
                write()
            else:
                self.ballast.spend(write)
            self._start_offsets = state.start_offsets
            self._written = state.number  # only now: an older state must not count as written by a failed newer one
            self.ballast.refill()

    def _write(self, state: Checkpoints) -> None:
        # Start offsets first: after a crash in between, deleted records must not reappear.
        write_offsets(self._data_dir / LOG_START_OFFSETS, state.start_offsets)
        write_offsets(self._data_dir / RECOVERY_POINTS, state.recovery_points)
        write_offsets(self._data_dir / CLEANER_OFFSETS, state.compacted)


def read_epochs(path: Path) -> list[EpochStart]:
    """Read a leader epoch checkpoint. A missing file is empty; a damaged one is logged and treated as empty."""
    epochs: list[EpochStart] = []
    for line in _read_lines(path):
        epoch, _, offset = line.partition(" ")
        try:
            entry = EpochStart(int(epoch), int(offset))
        except ValueError:
            entry = EpochStart(-1, -1)
        is_possible = 0 <= entry.epoch <= _MAX_INT32 and 0 <= entry.start_offset <= _MAX_INT64
        if not is_possible or (epochs and entry <= epochs[-1]):
            logger.warning("%s is damaged and ignored, because of the line %r", path, line)
            return []
        epochs.append(entry)
    return epochs


def write_epochs(path: Path, epochs: Iterable[EpochStart]) -> None:
    """Write a leader epoch checkpoint."""
    write_atomically(path, _text([f"{entry.epoch} {entry.start_offset}" for entry in epochs]), durable=False)


def read_topic_id(directory: Path) -> UUID | None:
    """Return the topic id of a partition directory; None if it has no readable one.

    Raises:
        OSError: The file exists but cannot be read.
    """
    path = directory / PARTITION_METADATA
    try:
        lines = read_small(path).splitlines()
        values = dict(line.split(": ", 1) for line in lines if ": " in line)
        return UUID(bytes=base64.urlsafe_b64decode(values["topic_id"] + "=="))
    except FileNotFoundError:
        return None
    except (KeyError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        logger.warning("%s is damaged and ignored: %r", path, error)
        return None


def write_topic_id(directory: Path, topic_id: UUID) -> None:
    """Write the topic id of a partition directory durably.

    Raises:
        OSError: The file cannot be written.
    """
    text = base64.urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")
    write_atomically(directory / PARTITION_METADATA, f"version: 0\ntopic_id: {text}", durable=True)


def _read_lines(path: Path) -> list[str]:
    try:
        lines = read_small(path).splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        logger.warning("%s is damaged and ignored: %s", path, error)
        return []
    if len(lines) < 2 or lines[0] != _VERSION or lines[1] != str(len(lines) - 2):  # noqa: PLR2004  # version and count
        logger.warning("%s is damaged and ignored", path)
        return []
    return lines[2:]


def _text(lines: list[str]) -> str:
    return "\n".join([_VERSION, str(len(lines)), *lines]) + "\n"


UNDEFINED: Final = EpochStart(-1, -1)


class LeaderEpochs:
    """Leader epochs in ascending order, each with its first offset. Used on the event loop only."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / LEADER_EPOCHS
        self._entries: list[EpochStart] = []

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if there is none."""
        return self._entries[-1].epoch if self._entries else -1

    def load(
        self, segments: Sequence[LogSegment], start_offset: int, end_offset: int, begun: Sequence[EpochStart]
    ) -> None:
        """Read the checkpoint file. If it is missing or damaged, rebuild it from the batches of the log.

        The file is written without an fsync, so after a power cut it may be an older one.

        Args:
            segments: The log.
            start_offset: Log start offset. Epochs that end at or before it are removed, from the file by the next
                ``assign``. Each start of the broker adds at most one epoch, so this happens often enough.
            end_offset: End of the log. Epochs that start at or after it are removed.
            begun: Epochs of the batches that recovery has read. Missing ones are added.

        Raises:
            OSError: A file cannot be read or written.
        """
        self._entries = read_epochs(self.path)
        if not self._entries and any(segment.size for segment in segments):
            for segment in segments:
                with suppress(CorruptBatchError):
                    for head in segment.walk(0):
                        if head.partition_leader_epoch > self.latest:
                            self._entries.append(EpochStart(head.partition_leader_epoch, head.base_offset))
            write_epochs(self.path, self._entries)
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            write_epochs(self.path, kept)
        self._entries = kept[max(sum(entry.start_offset <= start_offset for entry in kept) - 1, 0) :]
        for entry in begun:
            self.assign(*entry)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Start an epoch at an offset. An epoch that is not newer than the latest one has no effect.

        As in Kafka, known epochs that start at this offset or later are removed: their records are no longer there.

        Raises:
            OSError: The file cannot be written.
        """
        if epoch > self.latest:
            kept = (entry for entry in self._entries if entry.start_offset < start_offset)
            entries = [*kept, EpochStart(epoch, start_offset)]
            write_epochs(self.path, entries)
            self._entries = entries

    def has_started_since(self, offset: int) -> bool:
        """Return whether the latest epoch starts at this offset or later."""
        return bool(self._entries) and self._entries[-1].start_offset >= offset

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch of ``offset``, -1 if it is unknown."""
        return max((entry.epoch for entry in self._entries if entry.start_offset <= offset), default=-1)

    def end_offset_of(self, epoch: int, log_end_offset: int) -> EpochStart:
        """Return the largest known epoch up to ``epoch`` and its end offset; ``UNDEFINED`` if there is none."""
        if epoch < 0 or epoch > self.latest:
            return UNDEFINED
        if epoch == self.latest:
            return EpochStart(epoch, log_end_offset)
        following = next(entry for entry in self._entries if entry.epoch > epoch)
        floor = max((entry.epoch for entry in self._entries if entry.epoch <= epoch), default=epoch)
        return EpochStart(floor, following.start_offset)


DELETED: Final = "-delete"
STRAY: Final = "-stray"
STRAY_RETENTION_MS: Final = 7 * 86_400_000
"""Time for which a stray directory is kept. Its records may be all that remains of a topic with lost metadata."""
_MAX_NAME_BYTES: Final = 255
_PARTITION: Final = re.compile(r".+-[0-9]+")


def is_partition(directory: Path) -> bool:
    """Return whether a directory contains a partition log, judging by its name and files."""
    if _PARTITION.fullmatch(directory.name) is None:
        return False
    return (directory / PARTITION_METADATA).exists() or any(directory.glob("[0-9]*.log"))


def put_aside(directory: Path, suffix: str, now_ms: int) -> Path:
    """Rename a partition directory so that it can be removed later, and return the new path.

    The time of the renaming is recorded as the modification time of the directory.

    Args:
        directory: Partition directory.
        suffix: ``DELETED`` or ``STRAY``.
        now_ms: Current time, milliseconds since the epoch.

    Raises:
        OSError: The directory cannot be renamed and keeps its name.
    """
    topic, _, partition = directory.name.rpartition("-")
    ending = f"-{partition}.{uuid4().hex}{suffix}"
    target = directory.with_name(topic[: _MAX_NAME_BYTES - len(ending)] + ending)
    directory.rename(target)
    os.utime(target, (now_ms / 1000, now_ms / 1000))
    return target


def stray_since_ms(directory: Path) -> int:
    """Return the time at which a directory became a stray, in milliseconds since the epoch."""
    return int(directory.stat().st_mtime * 1000)


def is_claimed(directory: Path, topic_id: UUID) -> bool:
    """Return whether an existing directory, which has the name of a topic's partition, belongs to the topic id.

    A directory without a readable topic id belongs to the topic: the id was durable before the first record was
    written, so the file can only have been damaged since. It is written again.

    Raises:
        OSError: ``partition.metadata`` cannot be read.
    """
    directory_id = read_topic_id(directory)
    if directory_id is None:
        logger.warning(
            "%s has no readable topic id. By its name it belongs to topic id %s and is used for it.",
            directory,
            topic_id,
        )
        with suppress(OSError):  # with a full disk, the next start logs the warning again
            write_topic_id(directory, topic_id)
    return directory_id is None or directory_id == topic_id


def remove_all(paths: Sequence[Path]) -> None:
    """Remove renamed files and directories. A failure is logged and does not affect the others."""
    for path in paths:
        try:
            if path.name.endswith((DELETED, STRAY)):
                # After a power cut, the directory must not reappear under its old name without its topic id.
                fsync_path(path.parent)
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.warning("%s cannot be removed; the next start of the broker tries again: %s", path, error)


def segment_bytes(directories: Sequence[Path]) -> list[int]:
    """Return the size of all segments in each directory in bytes, without indexes; 0 for a missing directory."""
    return [_of(directory) for directory in directories]


def _of(directory: Path) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat().st_size for entry in entries if entry.name.endswith(".log"))
    except FileNotFoundError:  # deleted or compacted at this moment
        return 0
