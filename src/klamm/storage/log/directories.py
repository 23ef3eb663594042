"""Partition directories: names, topic ids, and directories that were renamed because no partition uses them.

An unused directory is renamed, never reused: ``<topic>-<partition>.<uuid>-delete`` for a deleted topic,
``<topic>-<partition>.<uuid>-stray`` for one that belongs to no topic. The names are Kafka's (LocalLog). Each name has a
new UUID, so two directories never compete for one name.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.storage.log.checkpoints import PARTITION_METADATA, read_topic_id, write_topic_id
from klamm.storage.log.files import fsync_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from uuid import UUID

logger = logging.getLogger(__name__)

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
    found = read_topic_id(directory)
    if found is None:
        logger.warning(
            "%s has no readable topic id. By its name it belongs to topic id %s and is used for it.",
            directory,
            topic_id,
        )
        with suppress(OSError):  # with a full disk, the next start logs the warning again
            write_topic_id(directory, topic_id)
    return found is None or found == topic_id


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
