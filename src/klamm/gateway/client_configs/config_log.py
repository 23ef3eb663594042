"""Records of client configs in their compacted internal topic: one record for each entity, with all its configs.

=========  ===========================================================================================================
Part       Contents
=========  ===========================================================================================================
key        JSON: ``user``, and ``client-id`` if the entity has one. null is the default of its type.
value      JSON: ``configs``, and ``principal`` and ``client_id`` of the request that made the change. A tombstone for
           an entity without configs.
header     ``change``: id of the change, on its last record. Its writer waits until it has read it.
=========  ===========================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_configs.definitions import usable_configs
from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document, excerpt, is_text
from klamm.history.records import change_record, read_changes_of
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from klamm.client_config_runtime.skipped_records import SkippedRecords
    from klamm.client_configs.plan import ClientConfigChange
    from klamm.history.change import Author, RecordedChange


TOPIC: Final = "__klamm_client_configs"
TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    # A gateway that starts reads the whole topic. Small segments are compacted soon.
    "segment.bytes": str(4 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
    # The writer of a change reads it back before it can be compacted.
    "min.compaction.lag.ms": "600000",
}
_CHANGE: Final = "change"
_RECORD_VERSION: Final = 0


def config_records(
    configs: Mapping[ClientConfigEntity, Mapping[str, str]],
    changed: Iterable[tuple[ClientConfigEntity, Author]],
    *,
    change_id: str,
    at_ms: int,
) -> list[Record]:
    """Return the records of a change.

    Args:
        configs: All configs after the change.
        changed: Entities that the change concerns, each with the author of its last change.
        change_id: Id of the change.
        at_ms: Time of the change, in milliseconds since the epoch.
    """
    records = [
        Record(key=encode_entity(entity), value=_encode_value(configs.get(entity), author), timestamp=at_ms)
        for entity, author in changed
    ]
    records[-1] = records[-1]._replace(headers=((_CHANGE, change_id.encode()),))
    return records


def change_ids(records: Iterable[Record]) -> set[str]:
    """Return the ids of the changes that records complete."""
    return {
        (value or b"").decode(errors="replace")
        for record in records
        for name, value in record.headers
        if name == _CHANGE
    }


def apply_records(
    configs: dict[ClientConfigEntity, dict[str, str]], records: Sequence[Record], skipped: SkippedRecords
) -> None:
    """Update configs by records in the order of the log. Records and values that cannot be used are skipped."""
    for record in records:
        try:
            entity = decode_entity(record.key)
            own, reasons = usable_configs(_decode_value(record.value))
        except RecordFormatError as error:
            skipped.put(record.key, str(error))
            continue
        skipped.put(record.key, f"{entity}: {'; '.join(reasons)}" if reasons else "")
        if own:
            configs[entity] = own
        else:
            configs.pop(entity, None)


def encode_entity(entity: ClientConfigEntity) -> bytes:
    """Return the key of a record that concerns an entity."""
    return encode_document({kind.value: name for kind, name in entity.components})


def _encode_value(configs: Mapping[str, str] | None, author: Author) -> bytes | None:
    if not configs:
        return None
    return encode_document(
        {
            "client_id": author.client_id,
            "configs": dict(configs),
            "principal": author.principal,
            "version": _RECORD_VERSION,
        }
    )


def decode_entity(key: bytes | None) -> ClientConfigEntity:
    """Return the entity that a record concerns.

    Raises:
        RecordFormatError: The key has another format.
    """
    document = decode_document(key)
    user, client_id = document.get(EntityType.USER.value, 0), document.get(EntityType.CLIENT_ID.value)
    if not _is_name(user) or not _is_name(client_id):
        raise RecordFormatError(f"the key must have a user, and may have a client id: {excerpt(key)}")
    if EntityType.CLIENT_ID.value in document:
        return ClientConfigEntity.of_client(user, client_id)
    return ClientConfigEntity.of_user(user)


def _decode_value(value: bytes | None) -> dict[str, str]:
    """Return the configs of a value. Fields added by later versions are ignored."""
    if value is None:
        return {}
    configs = decode_document(value).get("configs")
    if not isinstance(configs, dict) or not all(isinstance(text, str) for text in configs.values()):
        raise RecordFormatError(f"the value must have configs: {excerpt(value)}")
    return configs


def _is_name(value: object) -> bool:
    return value is None or is_text(value)


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
