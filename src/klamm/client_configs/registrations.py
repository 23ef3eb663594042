"""Client registrations: the keys that a client supports, by user, client id and software version."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.client_configs.json_records import RecordFormatError, decode_document, encode_document, excerpt, is_text
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TOPIC: Final = "__client_config_registrations"
"""Name of the internal topic for registrations."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""Configs of the topic. Records never expire and are not compacted, as one key holds all software versions of an
entity.
"""

MAX_KEYS: Final = 100
MAX_BYTES: Final = 32 * 1024
UNKNOWN_CLIENT: Final = "unknown"
_MAX_NAME_LENGTH: Final = 256
"""Characters that are kept of a client id, or of a name or version of software. Kafka allows 32 KiB for each, so that
10,000 disconnected clients could take 1 GB, and ``name/version`` might not fit into a string of a response.
"""
_RECORD_VERSION = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Registration of one software version of one ``<user, client-id>``, with the keys it supports."""

    entity: ClientConfigEntity
    client_information: str
    """``name/version`` of the client software, or ``unknown`` without a name."""
    supported_configs: tuple[str, ...]
    """Supported keys without duplicates, in the client's order. Empty means that it supports none."""


def client_information(software_name: str | None, software_version: str | None) -> str:
    """Return ``name/version`` of the client software as reported under KIP-511, or ``unknown`` without a name.

    The end of a long name or version is replaced (see ``short_name``).
    """
    if not software_name:
        return UNKNOWN_CLIENT
    return f"{short_name(software_name)}/{short_name(software_version or UNKNOWN_CLIENT)}"


def short_name(name: str) -> str:
    """Return a name of at most 256 characters. A hash keeps long names apart that begin alike."""
    if len(name) <= _MAX_NAME_LENGTH:
        return name
    end = f"...{hashlib.sha256(name.encode(errors='replace')).hexdigest()[:16]}"
    return name[: _MAX_NAME_LENGTH - len(end)] + end


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
    if not (is_text(user) and is_text(client_id)):
        raise RecordFormatError(f"Registration key must have a user and a client id: {excerpt(key)}")
    return ClientConfigEntity.of_client(user, client_id)


def decode_value(entity: ClientConfigEntity, value: bytes) -> Registration:
    """Decode a record value that is not a tombstone. Fields added by later versions are ignored.

    Earlier versions wrote names and versions of any length. They are shortened as in ``client_information``.

    Raises:
        RecordFormatError: The bytes are not the value of a registration.
    """
    document = decode_document(value)
    information, supported = document.get("client_information"), document.get("supported_configs")
    if not isinstance(information, str) or not isinstance(supported, list) or not all(map(is_text, supported)):
        raise RecordFormatError(f"Registration value must have client information and configs: {excerpt(value)}")
    name, slash, version = information.partition("/")
    information = f"{short_name(name)}{slash}{short_name(version)}"
    return Registration(entity=entity, client_information=information, supported_configs=tuple(supported))
