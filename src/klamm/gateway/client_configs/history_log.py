"""History of client configs in an internal topic of its own: one record for each config that a change sets or removes.

=========  ===========================================================================================================
Part       Contents
=========  ===========================================================================================================
key        The entity, as in ``config_log``
value      JSON: ``name``, ``old`` and ``new`` value (null: not set), ``principal`` and ``client_id`` of the request
timestamp  Time of the change
=========  ===========================================================================================================

The records of a change are in the transaction of the change itself, so there is no change without them. The topic is
not compacted: the upstream deletes the oldest records beyond ``retention.bytes``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document
from klamm.gateway.client_configs.config_log import decode_entity, encode_entity
from klamm.protocol.records import Record
from klamm.storage.metadata.changes import PutHistory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from klamm.client_configs.plan import ClientConfigChange
    from klamm.server.session import Author

logger = logging.getLogger(__name__)

HISTORY_TOPIC: Final = "__klamm_client_config_history"
HISTORY_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    # Some hundred thousand changes.
    "retention.bytes": str(128 * 1024 * 1024),
    "retention.ms": "-1",
    "segment.bytes": str(16 * 1024 * 1024),
}
_RECORD_VERSION: Final = 0


def history_records(changes: Iterable[tuple[ClientConfigChange, Author]], *, at_ms: int) -> list[Record]:
    """Return the records of changes, each with its author.

    Args:
        changes: Changes in the order in which they were made.
        at_ms: Time of the changes, in milliseconds since the epoch.
    """
    return [
        Record(
            key=encode_entity(change.entity),
            value=encode_document(
                {
                    "client_id": author.client_id,
                    "name": change.name,
                    "new": change.new,
                    "old": change.old,
                    "principal": author.principal,
                    "version": _RECORD_VERSION,
                }
            ),
            timestamp=at_ms,
        )
        for change, author in changes
    ]


def history_entries(records: Iterable[Record]) -> Iterator[PutHistory]:
    """Yield the entries of records of ``HISTORY_TOPIC``, as klamm's broker has them."""
    return read_entries(records, HISTORY_TOPIC, lambda key: str(decode_entity(key)))


def read_entries(
    records: Iterable[Record], topic: str, resource_of: Callable[[bytes | None], str]
) -> Iterator[PutHistory]:
    """Yield the entries of records. A record that cannot be read is skipped and logged.

    Args:
        records: The records.
        topic: Topic of the records, for the log.
        resource_of: Function that returns the resource for the key of a record.
    """
    for record in records:
        try:
            yield _entry(record, resource_of)
        except RecordFormatError as error:
            logger.warning("Record %d of %s was skipped: %s", record.offset, topic, error)


def _entry(record: Record, resource_of: Callable[[bytes | None], str]) -> PutHistory:
    document = decode_document(record.value)
    entry = PutHistory(
        at_ms=record.timestamp,
        resource=resource_of(record.key),
        name=_text(document, "name") or "",
        old=_text(document, "old"),
        new=_text(document, "new"),
        principal=_text(document, "principal") or "",
        client_id=_text(document, "client_id"),
        host=_text(document, "host"),
        is_confirmed=document.get("is_confirmed") is not False,
    )
    if not entry.is_readable:
        raise RecordFormatError(f"no time of a change: {record.timestamp} ms")
    return entry


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise RecordFormatError(f"{name} must be a string: {value!r}")
    return value
