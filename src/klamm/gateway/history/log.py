"""Records of changes in their internal topic, and the reader of all that gateways have recorded in a cluster.

=========  ===========================================================================================================
Part       Contents
=========  ===========================================================================================================
key        The resource, as the history shows it: ``TOPIC:orders``
value      JSON: ``name``, ``old`` and ``new`` value (null: not set), ``principal``, ``client_id`` and ``host`` of the
           request. ``is_confirmed`` is false if the response of the upstream was lost, or leaves
           in doubt whether the change was made.
timestamp  Time of the response
=========  ===========================================================================================================

The topic is not compacted: the upstream deletes the oldest records beyond ``retention.bytes``.
"""

from __future__ import annotations

import heapq
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from klamm.client_configs.json_records import encode_document
from klamm.configs.operations import is_too_long
from klamm.gateway.client_configs.history_log import HISTORY_TOPIC, HISTORY_TOPIC_CONFIGS, history_entries, read_entries
from klamm.gateway.upstream.internal_topic import InternalTopic
from klamm.protocol.records import Record
from klamm.storage.metadata.changes import TOO_LONG, PutHistory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.gateway.history.recorded_api import Change
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.server.session import Author

TOPIC: Final = "__klamm_change_history"
CLIENT_CONFIGS_TOPIC: Final = HISTORY_TOPIC
"""Topic with the changes of client configs."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {**HISTORY_TOPIC_CONFIGS, "max.message.bytes": str(1024 * 1024)}
_RECORD_VERSION: Final = 0
_MOST_NAME_CHARACTERS: Final = 1000
"""Longest principal or client id in a record. Clients choose them, and each record of a request has them."""


def change_record(change: Change, author: Author, host: str, *, at_ms: int) -> Record:
    """Return the record of a change.

    Args:
        change: The change.
        author: Principal and client id of the request.
        host: Address of the client.
        at_ms: Time of the response, in milliseconds since the epoch.
    """
    document = {
        "client_id": None if author.client_id is None else _shortened(author.client_id),
        "host": host,
        "name": change.name,
        "new": _kept(change.new),
        "old": _kept(change.old),
        "principal": _shortened(author.principal),
        "version": _RECORD_VERSION,
    }
    if not change.is_confirmed:
        document["is_confirmed"] = False
    return Record(key=change.resource.encode(), value=encode_document(document), timestamp=at_ms)


def change_entries(records: Iterable[Record]) -> Iterator[PutHistory]:
    """Yield the entries of records of ``TOPIC``."""
    return read_entries(records, TOPIC, lambda key: (key or b"").decode(errors="replace"))


def read_change_history(
    settings: ConnectionSettings, topics: Iterable[str], *, resource: str | None = None, limit: int = 1000
) -> tuple[PutHistory, ...]:
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
    found = [_newest(settings, topic, resource, limit) for topic in topics]
    merged = heapq.merge(*found, key=lambda entry: entry.at_ms, reverse=True)
    return tuple(islice(merged, limit))


def _newest(settings: ConnectionSettings, name: str, resource: str | None, limit: int) -> Iterable[PutHistory]:
    """Return the newest entries of one topic, newest first."""
    topic = InternalTopic(settings, name)
    try:
        wanted = (
            (number, entry) for number, entry in enumerate(_entries(topic, name)) if resource in (None, entry.resource)
        )
        if name == CLIENT_CONFIGS_TOPIC:
            return [entry for _, entry in reversed(deque(wanted, maxlen=limit))]
        # A gateway that could not write for a while writes later than others.
        newest = heapq.nlargest(limit, wanted, key=lambda numbered: (numbered[1].at_ms, numbered[0]))
        return dict.fromkeys(entry for _, entry in newest)
    finally:
        topic.close()


def _entries(topic: InternalTopic, name: str) -> Iterator[PutHistory]:
    entries_of = history_entries if name == CLIENT_CONFIGS_TOPIC else change_entries
    for records in topic.read_all():
        yield from entries_of(records)


def _kept(value: str | None) -> str | None:
    return TOO_LONG if value is not None and is_too_long(value) else value


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_NAME_CHARACTERS else f"{name[:_MOST_NAME_CHARACTERS]}..."
