"""History of client configs in an internal topic of its own. The key of a record is the entity, as in ``config_log``.

The records of a change are in the transaction of the change itself, so there is no change without them. The topic is
not compacted: the upstream deletes the oldest records beyond ``retention.bytes``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.gateway.client_configs.config_log import decode_entity, encode_entity
from klamm.history.records import change_record, read_changes_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from klamm.client_configs.plan import ClientConfigChange
    from klamm.history.change import Author, RecordedChange
    from klamm.protocol.records import Record

HISTORY_TOPIC: Final = "__klamm_client_config_history"
HISTORY_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    # Some hundred thousand changes.
    "retention.bytes": str(128 * 1024 * 1024),
    "retention.ms": "-1",
    "segment.bytes": str(16 * 1024 * 1024),
}


def history_records(changes: Iterable[tuple[ClientConfigChange, Author]], *, at_ms: int) -> list[Record]:
    """Return the records of changes, each with its author.

    Args:
        changes: Changes in the order in which they were made.
        at_ms: Time of the changes, in milliseconds since the epoch.
    """
    return [
        change_record(
            encode_entity(change.entity), author, name=change.name, old=change.old, new=change.new, at_ms=at_ms
        )
        for change, author in changes
    ]


def history_entries(records: Iterable[Record]) -> Iterator[RecordedChange]:
    """Yield the changes of records of ``HISTORY_TOPIC``, as klamm's broker has them."""
    return read_changes_of(records, HISTORY_TOPIC, lambda key: str(decode_entity(key)))
