"""Client registrations: the keys that a client supports, by user, client id and software version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document, excerpt
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TOPIC: Final = "__client_config_registrations"
"""Name of the internal topic for registrations."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Configs of the topic. Records never expire and are not compacted, as one key holds all software versions of an
entity.
"""

MAX_KEYS: Final = 100
MAX_BYTES: Final = 32 * 1024
UNKNOWN_CLIENT: Final = "unknown"
_RECORD_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registration of one software version of one ``<user, client-id>``, with the keys it supports."""

    entity: ClientConfigEntity
    client_information: str
    """``name/version`` of the client software, or ``unknown``."""
    supported_configs: tuple[str, ...]
    """Supported keys without duplicates, in the client's order. Empty means that it supports none."""


def client_information(software_name: str | None, software_version: str | None) -> str:
    """Return ``name/version`` of the client software as reported under KIP-511, or ``unknown``."""
    if not software_name:
        return UNKNOWN_CLIENT
    return f"{software_name}/{software_version or UNKNOWN_CLIENT}"


def registration(entity: ClientConfigEntity, information: str, supported_configs: Sequence[str]) -> Registration:
    """Validate a request and return its registration.

    Raises:
        InvalidRequestError: More than 100 keys, more than 32 KiB of keys, or an empty key.
    """
    if len(supported_configs) > MAX_KEYS:
        raise InvalidRequestError(f"{len(supported_configs)} supported configs exceed the limit of {MAX_KEYS}")
    size = sum(len(name.encode()) for name in supported_configs)
    if size > MAX_BYTES:
        raise InvalidRequestError(f"Supported configs of {size} bytes exceed the limit of {MAX_BYTES}")
    if "" in supported_configs:
        raise InvalidRequestError("The supported configs contain an empty name")
    return Registration(
        entity=entity, client_information=information, supported_configs=tuple(dict.fromkeys(supported_configs))
    )


def encode_key(entity: ClientConfigEntity) -> bytes:
    """Return the record key of a ``<user, client-id>``: JSON with sorted keys."""
    return encode_document({EntityType.CLIENT_ID.value: entity.client_id, EntityType.USER.value: entity.user})


def encode_value(registered: Registration) -> bytes:
    """Return the record value: JSON with sorted keys."""
    return encode_document(
        {
            "client_information": registered.client_information,
            "supported_configs": registered.supported_configs,
            "version": _RECORD_VERSION,
        }
    )


def decode_key(key: bytes | None) -> ClientConfigEntity:
    """Decode a record key.

    Raises:
        RecordFormatError: The bytes are not the key of a registration.
    """
    document = decode_document(key)
    user, client_id = document.get(EntityType.USER.value), document.get(EntityType.CLIENT_ID.value)
    if not isinstance(user, str) or not isinstance(client_id, str):
        raise RecordFormatError(f"Registration key must have a user and a client id: {excerpt(key)}")
    return ClientConfigEntity.of_client(user, client_id)


def decode_value(entity: ClientConfigEntity, value: bytes) -> Registration:
    """Decode a record value that is not a tombstone. Fields added by later versions are ignored.

    Raises:
        RecordFormatError: The bytes are not the value of a registration.
    """
    document = decode_document(value)
    information, supported = document.get("client_information"), document.get("supported_configs")
    if not isinstance(information, str) or not isinstance(supported, list) or not _all_strings(supported):
        raise RecordFormatError(f"Registration value must have client information and configs: {excerpt(value)}")
    return Registration(entity=entity, client_information=information, supported_configs=tuple(supported))


def _all_strings(items: Iterable[object]) -> bool:
    return all(isinstance(item, str) for item in items)
