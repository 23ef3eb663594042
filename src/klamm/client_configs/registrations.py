"""What a client registers: the keys it can change while it runs, under its user, client id and software version."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.entities import ClientConfigEntity, EntityType
from klamm.protocol.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

TOPIC: Final = "__client_config_registrations"
"""Name of the internal topic."""
TOPIC_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Nothing expires, and nothing is compacted: one key holds every software version of an entity."""

MAX_KEYS: Final = 100
MAX_BYTES: Final = 32 * 1024
UNKNOWN_CLIENT: Final = "unknown"
_RECORD_VERSION = 0


class RegistrationFormatError(ValueError):
    """A record of the registration topic that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One software version of one ``<user, client-id>`` and the keys it can take."""

    entity: ClientConfigEntity
    client_information: str
    """``name/version`` of the software, or ``unknown``."""
    supported_configs: tuple[str, ...]
    """In the order in which the client named them, each once; empty: it can take none."""


def client_information(software_name: str | None, software_version: str | None) -> str:
    """Return ``name/version`` as KIP-511 lets clients tell it, or ``unknown``."""
    if not software_name:
        return UNKNOWN_CLIENT
    return f"{software_name}/{software_version or UNKNOWN_CLIENT}"


def registration(entity: ClientConfigEntity, information: str, supported_configs: Sequence[str]) -> Registration:
    """Return the registration that a request asks for.

    Raises:
        InvalidRequestError: More than 100 keys, more than 32 KiB of them, or an empty one.
    """
    if len(supported_configs) > MAX_KEYS:
        raise InvalidRequestError(f"{len(supported_configs)} supported configs: at most {MAX_KEYS} can be registered")
    size = sum(len(name.encode()) for name in supported_configs)
    if size > MAX_BYTES:
        raise InvalidRequestError(f"Supported configs of {size} bytes: at most {MAX_BYTES} can be registered")
    if "" in supported_configs:
        raise InvalidRequestError("An empty name among the supported configs")
    return Registration(
        entity=entity, client_information=information, supported_configs=tuple(dict.fromkeys(supported_configs))
    )


def encode_key(entity: ClientConfigEntity) -> bytes:
    """Return the record key of a ``<user, client-id>``: JSON with sorted keys."""
    return _json({EntityType.CLIENT_ID.value: entity.client_id, EntityType.USER.value: entity.user})


def encode_value(registered: Registration) -> bytes:
    """Return the record value: JSON with sorted keys."""
    return _json(
        {
            "client_information": registered.client_information,
            "supported_configs": registered.supported_configs,
            "version": _RECORD_VERSION,
        }
    )


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_key(key: bytes | None) -> ClientConfigEntity:
    """Read a record key.

    Raises:
        RegistrationFormatError: It is no such key.
    """
    document = _document(key)
    user, client_id = document.get(EntityType.USER.value), document.get(EntityType.CLIENT_ID.value)
    if not isinstance(user, str) or not isinstance(client_id, str):
        raise RegistrationFormatError(f"A registration's key names a user and a client id: {key!r}")
    return ClientConfigEntity.of_client(user, client_id)


def decode_value(entity: ClientConfigEntity, value: bytes) -> Registration:
    """Read a record value that is no tombstone. Fields that later versions add are passed over.

    Raises:
        RegistrationFormatError: It is no such value.
    """
    document = _document(value)
    information, supported = document.get("client_information"), document.get("supported_configs")
    if not isinstance(information, str) or not isinstance(supported, list) or not _all_strings(supported):
        raise RegistrationFormatError(f"A registration's value names client information and configs: {value!r}")
    return Registration(entity=entity, client_information=information, supported_configs=tuple(supported))


def _all_strings(items: Iterable[object]) -> bool:
    return all(isinstance(item, str) for item in items)


def _document(data: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(data or b"")
    except (ValueError, RecursionError) as error:
        raise RegistrationFormatError(f"Not JSON: {data!r}") from error
    if not isinstance(document, dict):
        raise RegistrationFormatError(f"Not a JSON object: {data!r}")
    return document
