"""Records of changes in their internal topic, and the reader of all that gateways have recorded in a cluster.

The key of a record is the resource, as the history shows it: ``TOPIC:orders``. The topic is not compacted: the upstream
deletes the oldest records beyond ``retention.bytes``.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from klamm.configs.operations import is_too_long
from klamm.gateway.client_configs.config_log import HISTORY_TOPIC, HISTORY_TOPIC_CONFIGS, history_entries
from klamm.gateway.upstream.internal_topic import InternalTopic
from klamm.history.change import TOO_LONG, Author, RecordedChange
from klamm.history.records import change_record as encode_change
from klamm.history.records import read_changes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.gateway.history.recorded_api import Change
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.records import Record

TOPIC: Final = "__klamm_change_history"
CLIENT_CONFIGS_TOPIC: Final = HISTORY_TOPIC
"""Topic with the changes of client configs."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {**HISTORY_TOPIC_CONFIGS, "max.message.bytes": str(1024 * 1024)}
_MAX_NAME_CHARACTERS: Final = 1000
"""Longest principal or client id in a record. Clients choose them, and each record of a request has them."""


def change_record(change: Change, author: Author, host: str, *, at_ms: int) -> Record:
    """Return the record of a change.

    Args:
        change: The change.
        author: Principal and client id of the request.
        host: Address of the client.
        at_ms: Time of the response, in milliseconds since the epoch.
    """
    shortened = Author(
        principal=_shortened(author.principal),
        client_id=None if author.client_id is None else _shortened(author.client_id),
    )
    return encode_change(
        change.resource.encode(),
        shortened,
        name=change.name,
        old=_kept(change.old),
        new=_kept(change.new),
        at_ms=at_ms,
        host=host,
        is_confirmed=change.is_confirmed,
    )


def change_entries(records: Iterable[Record]) -> Iterator[RecordedChange]:
    """Yield the entries of records of ``TOPIC``."""
    return read_changes_of(records, TOPIC, lambda key: (key or b"").decode(errors="replace"))


ENTRIES: Final = {TOPIC: change_entries, CLIENT_CONFIGS_TOPIC: history_entries}
"""Function that yields the entries of the records of a topic."""


def read_change_history(
    settings: ConnectionSettings, topics: Iterable[str], *, resource: str | None = None, limit: int = 1000
) -> tuple[RecordedChange, ...]:
    """Return the newest entries of the histories that gateways keep in a cluster, newest first.

    An entry that was written twice, because the first response was lost, is returned once.

    Args:
        settings: Settings of connections to the cluster.
        topics: ``TOPIC``, ``CLIENT_CONFIGS_TOPIC``, or both.
        resource: Resource as the history shows it. None for all.
        limit: Largest number of entries.

    Raises:
        InternalTopicGoneError: The cluster has no such topic, or the principal may not describe it.
        ConnectionLostError: A topic cannot be read.
    """
    newest = [_newest(settings, topic, resource, limit) for topic in topics]
    merged = heapq.merge(*newest, key=lambda entry: entry.at_ms, reverse=True)
    return tuple(islice(merged, limit))


def read_history_start(settings: ConnectionSettings, name: str) -> int | None:
    """Return the time of the oldest entry of a topic, in milliseconds since the epoch, if older ones were deleted.

    None: all are kept.

    Raises:
        InternalTopicGoneError, ConnectionLostError: As in ``read_change_history``.
    """
    topic = InternalTopic(settings, name)
    try:
        if topic.first_offset() == 0:
            return None
        entries = (entry.at_ms for records in topic.read_all() for entry in ENTRIES[name](records))
        return next(entries, None)
    finally:
        topic.close()


def _newest(settings: ConnectionSettings, name: str, resource: str | None, limit: int) -> Iterable[RecordedChange]:
    """Return the newest entries of one topic, newest first."""
    topic = InternalTopic(settings, name)
    try:
        entries = (entry for records in topic.read_all() for entry in ENTRIES[name](records))
        wanted = ((number, entry) for number, entry in enumerate(entries) if resource in (None, entry.resource))
        if name == CLIENT_CONFIGS_TOPIC:
            return [entry for _, entry in reversed(deque(wanted, maxlen=limit))]
        # A gateway that could not write for a while writes later than others.
        newest = heapq.nlargest(limit, wanted, key=lambda numbered: (numbered[1].at_ms, numbered[0]))
        return dict.fromkeys(entry for _, entry in newest)
    finally:
        topic.close()


def _kept(value: str | None) -> str | None:
    return TOO_LONG if value is not None and is_too_long(value) else value


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARACTERS else f"{name[:_MAX_NAME_CHARACTERS]}..."
