"""The identity of a data directory: metadata and logs belong to the same cluster; lost metadata is rebuilt from logs.

The cluster id is stored in the metadata, and a copy next to the logs in Kafka's ``meta.properties``. A broker must not
treat logs with missing metadata as a new cluster: it would move the partitions of every topic aside.
"""

from __future__ import annotations

import itertools
import logging
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

from klamm.display import counted
from klamm.protocol.errors import CorruptBatchError
from klamm.storage.errors import DataDirectoryError
from klamm.storage.log.directories import LEADER_EPOCHS, read_epochs, read_topic_id
from klamm.storage.log.files import FilePool, write_atomically
from klamm.storage.log.segment import LogSegment
from klamm.storage.metadata.changes import PutConfig, PutTopic
from klamm.storage.metadata.schema import connect_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.metadata.changes import Change
    from klamm.storage.metadata.schema import Database

logger = logging.getLogger(__name__)

LOGS_DIRECTORY: Final = "logs"
"""Directory of all partitions, beside the metadata."""
META_PROPERTIES: Final = "meta.properties"
CLUSTER_ID_SETTING: Final = "cluster_id"
_ATTACHED: Final = ("", "-wal", "-shm")
"""Suffixes of the files that make up one SQLite database."""


class MetadataLostError(DataDirectoryError):
    """The metadata of existing logs are missing or damaged. ``--recover`` may help."""


def partition_directories(logs: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the directory, topic name and partition of every partition directory, in no particular order."""
    if not logs.is_dir():
        return
    for path in logs.iterdir():
        topic, _, partition = path.name.rpartition("-")
        if topic and partition.isascii() and partition.isdigit() and path.is_dir():
            yield path, topic, int(partition)


def check_metadata(
    metadata: Path, logs: Path, *, was_clean: bool, connect: Callable[[Path], Database] = connect_sqlite
) -> None:
    """Reject metadata that cannot belong to the logs next to them.

    Args:
        metadata: SQLite file. It may be missing if there are no partitions either.
        logs: Directory of all partitions.
        was_clean: Whether the last run stopped cleanly, so that the file need not be checked for damage.
        connect: Function that opens a connection. Crash tests pass their own.

    Raises:
        MetadataLostError: The metadata are missing, empty or damaged.
        DataDirectoryError: The file cannot be read, or belongs to another cluster than the logs, or the logs of its
            topics are missing.
    """
    holds_partitions = any(True for _ in partition_directories(logs))
    if not metadata.exists() or metadata.stat().st_size == 0:
        if holds_partitions:
            raise metadata_lost(metadata, "is missing" if not metadata.exists() else "is empty")
        return
    try:
        with closing(connect(metadata)) as database:
            verdict = "ok" if was_clean else next(iter(database.execute("PRAGMA quick_check(1)")))[0]
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            cluster_id = _setting(database, CLUSTER_ID_SETTING) if "settings" in tables else None
            topics = next(iter(database.execute("SELECT count(*) FROM topics")))[0] if "topics" in tables else 0
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not is_damage(error):
            raise DataDirectoryError(f"Cannot read {metadata}: {error}") from error
        raise metadata_lost(metadata, f"is damaged ({error})") from error
    if verdict != "ok":
        raise metadata_lost(metadata, f"is damaged ({verdict})")
    is_ours = not tables or "settings" in tables
    if holds_partitions and is_ours and cluster_id is None:
        raise metadata_lost(metadata, "holds no cluster id")
    beside = read_cluster_id(logs)
    if cluster_id is not None and beside is None and topics and not holds_partitions:
        raise DataDirectoryError(
            f"{metadata} has {counted(topics, 'topic')}, whose records are missing: {logs} has no partition and no"
            f" {META_PROPERTIES}. Mount or put back the directory. To start with empty topics, write the line"
            f" cluster.id={cluster_id} to {logs / META_PROPERTIES}"
        )
    if cluster_id is not None and beside is not None and cluster_id != beside:
        raise DataDirectoryError(
            f"{metadata} belongs to the cluster {cluster_id}, but {logs / META_PROPERTIES} to the cluster {beside};"
            " put back the metadata and logs that belong together"
        )


def is_damage(error: Exception) -> bool:
    """Return whether an error of SQLite shows damaged content, and not only a failed read.

    An operational error without a code is one of Python's sqlite3, for a text that is not UTF-8.
    """
    return not (isinstance(error, sqlite3.OperationalError) and hasattr(error, "sqlite_errorcode"))


def _setting(database: Database, name: str) -> str | None:
    row = next(iter(database.execute("SELECT value FROM settings WHERE name = ?", (name,))), None)
    return None if row is None else str(row[0])


def metadata_lost(metadata: Path, reason: str) -> MetadataLostError:
    """Return the error for metadata that are gone or damaged."""
    return MetadataLostError(
        f"{metadata} {reason}. It holds the topics, configs, ACLs, logins, group offsets and the id of the cluster"
        f" whose records are in {metadata.parent / LOGS_DIRECTORY}. Put back a copy of it (with the files -wal and"
        " -shm, if it has them). Without a copy, start once with --recover: this makes new metadata with the topics"
        " that have records in the log directory. It loses all configs, ACLs, logins, quotas, client configs, group"
        " offsets and empty topics"
    )


def put_metadata_aside(metadata: Path) -> Path | None:
    """Rename the files of an abandoned database. Return the new name, None if there was no file."""
    asides = (metadata.with_stem(f"{metadata.stem}-lost-{number}") for number in itertools.count(1))
    aside = next(path for path in asides if not any(file.exists() for file in _files(path)))
    moved = False
    for old, new in zip(_files(metadata), _files(aside), strict=True):
        if old.exists():
            old.rename(new)
            moved = True
    return aside if moved else None


def protect_metadata(metadata: Path) -> None:
    """Restrict the metadata, which contain SCRAM keys, to the broker's own user. Create the file if necessary.

    SQLite creates the ``-wal`` and ``-shm`` files with the permissions of the database file.

    Raises:
        OSError: The file cannot be created, or belongs to another user.
    """
    metadata.touch(mode=0o600)
    for path in _files(metadata):
        if path.exists() and path.stat().st_mode & 0o077:
            path.chmod(0o600)


def _files(metadata: Path) -> list[Path]:
    return [metadata.with_name(metadata.name + suffix) for suffix in _ATTACHED]


def read_cluster_id(logs: Path) -> str | None:
    """Return the cluster id stored next to the logs; None if there is none."""
    try:
        lines = (logs / META_PROPERTIES).read_bytes().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return None
    values = dict(line.split("=", 1) for line in lines if "=" in line)
    return values.get("cluster.id") or None


def write_cluster_id(logs: Path, cluster_id: str) -> None:
    """Store the cluster id durably next to the logs, unless it is already there."""
    if read_cluster_id(logs) != cluster_id:
        write_atomically(logs / META_PROPERTIES, f"version=1\ncluster.id={cluster_id}\n", durable=True)


_TOPIC: Final = 2
"""Kafka's resource type of topics."""
_KEEP: Final = ("retention.ms", "retention.bytes")
"""Configs set to unlimited, because their defaults could delete records of a topic that had other values."""


def topics_in(logs: Path, *, node_ids: Sequence[int], internal: AbstractSet[str]) -> list[Change]:
    """Return the changes that create the topics of the existing partition directories.

    A topic gets as many partitions as its last directory indicates. Its configs are lost, so it gets unlimited
    retention: with the default, the next retention check could delete records that were meant to stay.

    Args:
        logs: Directory of all partitions.
        node_ids: Broker ids; partitions are assigned to them round-robin.
        internal: Names of internal topics.
    """
    counts: dict[str, int] = defaultdict(int)
    ids: dict[str, Counter[UUID]] = defaultdict(Counter)
    for path, topic, partition in partition_directories(logs):
        topic_id = read_topic_id(path)
        if topic_id is None:
            logger.warning("%s has no topic id; it is skipped and stays as it is", path)
            continue
        ids[topic][topic_id] += 1
        counts[topic] = max(counts[topic], partition + 1)
    changes: list[Change] = []
    for topic, votes in sorted(ids.items()):
        # A deleted topic of the same name may have left directories. The topic id with the most directories wins.
        topic_id = max(votes, key=lambda each: (votes[each], each.int))
        replicas = tuple((node_ids[partition % len(node_ids)],) for partition in range(counts[topic]))
        changes.append(PutTopic(topic_id=topic_id, name=topic, is_internal=topic in internal, partitions=replicas))
        changes += [PutConfig(resource_type=_TOPIC, resource_name=topic, name=name, value="-1") for name in _KEEP]
        logger.warning("Topic %s is recovered with %d partitions and without retention", topic, counts[topic])
    return changes


def largest_leader_epoch(logs: Path) -> int:
    """Return the largest leader epoch in the checkpoints of the logs, -1 if there is none."""
    epochs_of_logs = (read_epochs(path / LEADER_EPOCHS) for path, _, _ in partition_directories(logs))
    return max((epochs[-1].epoch for epochs in epochs_of_logs if epochs), default=-1)


_NEVER_ALLOCATED: Final = 1 << 62
"""A producer id that allocation, which starts at 0, never reaches."""


def largest_producer_id(logs: Path) -> int:
    """Return the largest producer id in the logs that a broker has allocated, -1 if there is none.

    Reads the headers of all batches. As in Kafka, a client may write with a producer id of its own. Ids after a very
    large one would not fit into 64 bits.
    """
    ids = (producer_id for path, _, _ in partition_directories(logs) for producer_id in _producer_ids(path))
    return max((producer_id for producer_id in ids if producer_id < _NEVER_ALLOCATED), default=-1)


def _producer_ids(directory: Path) -> Iterator[int]:
    pool = FilePool()
    for path in directory.glob("*.log"):
        if path.stem.isdigit():
            segment = LogSegment(pool=pool, directory=directory, base_offset=int(path.stem), created_ms=0)
            with suppress(CorruptBatchError):  # clients cannot read the records after the damage either
                for head in segment.walk(0):
                    yield head.producer_id
            segment.close()
