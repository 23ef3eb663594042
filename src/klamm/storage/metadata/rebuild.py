"""Rebuilding of lost metadata from the logs (``klamm broker --recover``)."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from klamm.protocol.errors import CorruptBatchError
from klamm.storage.log.directories import LEADER_EPOCHS, read_epochs, read_topic_id
from klamm.storage.log.files import FilePool
from klamm.storage.log.segment import LogSegment
from klamm.storage.metadata.changes import PutConfig, PutTopic
from klamm.storage.metadata.identity import partition_directories

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from uuid import UUID

    from klamm.storage.metadata.changes import Change

logger = logging.getLogger(__name__)

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
    for topic, found in sorted(ids.items()):
        # A deleted topic of the same name may have left directories. The topic id with the most directories wins.
        topic_id = max(found, key=lambda each: (found[each], each.int))
        replicas = tuple((node_ids[partition % len(node_ids)],) for partition in range(counts[topic]))
        changes.append(PutTopic(topic_id=topic_id, name=topic, is_internal=topic in internal, partitions=replicas))
        changes += [PutConfig(resource_type=_TOPIC, resource_name=topic, name=name, value="-1") for name in _KEEP]
        logger.warning("Topic %s is recovered with %d partitions and without retention", topic, counts[topic])
    return changes


def largest_leader_epoch(logs: Path) -> int:
    """Return the largest leader epoch in the checkpoints of the logs, -1 if there is none."""
    found = (read_epochs(path / LEADER_EPOCHS) for path, _, _ in partition_directories(logs))
    return max((epochs[-1].epoch for epochs in found if epochs), default=-1)


def largest_producer_id(logs: Path) -> int:
    """Return the largest producer id in the logs, -1 if there is none. Reads the headers of all batches."""
    return max((head for path, _, _ in partition_directories(logs) for head in _producer_ids(path)), default=-1)


def _producer_ids(directory: Path) -> Iterator[int]:
    pool = FilePool()
    for path in directory.glob("*.log"):
        if path.stem.isdigit():
            segment = LogSegment(pool=pool, directory=directory, base_offset=int(path.stem), created_ms=0)
            with suppress(CorruptBatchError):  # clients cannot read the records after the damage either
                for head in segment.walk(0):
                    yield head.producer_id
            segment.close()
