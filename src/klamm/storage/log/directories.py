"""Partition directories: their names, the topic they belong to, and directories that were put aside.

A directory that no partition uses any more is renamed, never reused: ``<topic>-<partition>.<uuid>-delete`` for a
deleted topic, ``<topic>-<partition>.<uuid>-stray`` for one that no topic claims. The names are Kafka's (LocalLog). A
new UUID in every name keeps two directories from ever competing for one name.
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from klamm.storage.log.checkpoints import PARTITION_METADATA, read_topic_id, write_topic_id

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

logger = logging.getLogger(__name__)

DELETED: Final = "-delete"
STRAY: Final = "-stray"
STRAY_RETENTION_MS: Final = 7 * 86_400_000
"""How long a stray directory stays: its records may be all that is left of a topic whose metadata was lost."""
_MAX_NAME_BYTES: Final = 255
_PARTITION: Final = re.compile(r".+-[0-9]+")


def is_partition(directory: Path) -> bool:
    """Return whether a directory holds the log of some partition, going by its name and its files."""
    if _PARTITION.fullmatch(directory.name) is None:
        return False
    return (directory / PARTITION_METADATA).exists() or any(directory.glob("[0-9]*.log"))


def put_aside(directory: Path, suffix: str, now_ms: int) -> Path:
    """Rename a partition's directory so that it can be removed later; return the new path.

    The modification time of the directory records when this happened.

    Args:
        directory: The directory of a partition.
        suffix: ``DELETED`` or ``STRAY``.
        now_ms: The clock, in milliseconds since the epoch.

    Raises:
        OSError: The directory cannot be renamed and still has its old name.
    """
    topic, _, partition = directory.name.rpartition("-")
    ending = f"-{partition}.{uuid4().hex}{suffix}"
    target = directory.with_name(topic[: _MAX_NAME_BYTES - len(ending)] + ending)
    directory.rename(target)
    os.utime(target, (now_ms / 1000, now_ms / 1000))
    return target


def stray_since_ms(directory: Path) -> int:
    """Return when a directory became a stray, in milliseconds since the epoch."""
    return int(directory.stat().st_mtime * 1000)


def is_claimed(directory: Path, topic_id: UUID) -> bool:
    """Return whether an existing directory belongs to a topic, given that it lies under the name of its partition.

    A directory without a readable topic id is the topic's own: the id is durable before the first record is
    written, so it can only have been damaged since. It is written again.

    Raises:
        OSError: ``partition.metadata`` cannot be read.
    """
    found = read_topic_id(directory)
    if found is None:
        logger.warning(
            "%s has no readable topic id. It lies under the name of topic id %s and is used for it.",
            directory,
            topic_id,
        )
        with suppress(OSError):  # on a full disk the next start warns again
            write_topic_id(directory, topic_id)
    return found is None or found == topic_id
