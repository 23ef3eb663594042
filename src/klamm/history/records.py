"""Recorded changes as records of an internal topic, one record for each config that a change sets or removes.

=========  ===========================================================================================================
Part       Contents
=========  ===========================================================================================================
key        The resource; each topic has its own form
value      JSON: ``name``, ``old`` and ``new`` value (null: not set), ``principal`` and ``client_id`` of the request,
           in some topics the ``host`` of the client. ``is_confirmed`` is false if the response of the upstream was
           lost, or leaves in doubt whether the change was made.
timestamp  Time of the change
=========  ===========================================================================================================
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document
from klamm.history.change import RecordedChange
from klamm.protocol.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from klamm.history.change import Author

logger = logging.getLogger(__name__)

_RECORD_VERSION: Final = 0


def change_record(
    key: bytes,
    author: Author,
    *,
    name: str,
    old: str | None,
    new: str | None,
    at_ms: int,
    host: str | None = None,
    is_confirmed: bool = True,
) -> Record:
    """Return the record of a change.

    Args:
        key: Key of the record, from the resource.
        author: Principal and client id of the request.
        name: Name of the config.
        old: Value before the change. None: not set.
        new: Value after the change. None: not set.
        at_ms: Time of the change, in milliseconds since the epoch.
        host: Address of the client. None: not recorded in this topic.
        is_confirmed: Whether the change was made for certain.
    """
    document: dict[str, Any] = {
        "client_id": author.client_id,
        "name": name,
        "new": new,
        "old": old,
        "principal": author.principal,
        "version": _RECORD_VERSION,
    }
    if host is not None:
        document["host"] = host
    if not is_confirmed:
        document["is_confirmed"] = False
    return Record(key=key, value=encode_document(document), timestamp=at_ms)


def read_changes_of(
    records: Iterable[Record], topic: str, resource_of: Callable[[bytes | None], str]
) -> Iterator[RecordedChange]:
    """Yield the changes of records. A record that cannot be read is skipped and logged.

    Args:
        records: The records.
        topic: Topic of the records, for the log.
        resource_of: Function that returns the resource for the key of a record.
    """
    for record in records:
        try:
            yield _read_change(record, resource_of)
        except RecordFormatError as error:
            logger.warning("Record %d of %s was skipped: %s", record.offset, topic, error)


def _read_change(record: Record, resource_of: Callable[[bytes | None], str]) -> RecordedChange:
    document = decode_document(record.value)
    change = RecordedChange(
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
    if not change.is_readable:
        raise RecordFormatError(f"no time of a change: {record.timestamp} ms")
    return change


def _text(document: Mapping[str, Any], name: str) -> str | None:
    value = document.get(name)
    if value is not None and not isinstance(value, str):
        raise RecordFormatError(f"{name} must be a string: {value!r}")
    return value
