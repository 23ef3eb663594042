"""Client quotas (KIP-546): entities, validation of changes, filters, and the quota that applies to a client.

Error texts are those of Kafka's ClientQuotaControlManager and ClientQuotasImage, so that Kafka's tools show the same.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import quote, unquote

from klamm.hosts import host_forms
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import InvalidRequestError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)

QuotaEntity: TypeAlias = "tuple[tuple[str, str | None], ...]"
"""Quota entity: (type, name) pairs in the order of ENTITY_TYPES. The name None means the default entity of its type."""

QUOTA_RESOURCE: Final = "QUOTA"
"""Prefix of a quota entity's name in the history of changes."""
_DEFAULT: Final = "<default>"
_ESCAPES: Final = {ord(char): quote(char, safe="") for char in "%,<"}
_USER_PRINCIPAL: Final = re.compile("(?<![^,])user=User:(<?)")
"""Beginning of a user that is written as a principal in the text of an entity."""

MATCH_EXACT: Final = 0
MATCH_DEFAULT: Final = 1
MATCH_SPECIFIED: Final = 2
_LONG_MAX: Final = float(2**63 - 1)
"""Upper bound for LONG quotas as a double, so that Long.MAX_VALUE itself is accepted."""
_INT_MAX: Final = 2**31 - 1
_FRACTION: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quota:
    maximum: float | None
    """Upper bound of an integer quota. None means that any number is valid."""
    type_name: str


PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
"""Quota name: percentage of the time of one processor."""
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
"""Quota name: partitions created and deleted per second."""
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

_CLIENT_QUOTAS: Final = {
    PRODUCER_BYTE_RATE: _Quota(maximum=_LONG_MAX, type_name="a LONG"),
    CONSUMER_BYTE_RATE: _Quota(maximum=_LONG_MAX, type_name="a LONG"),
    REQUEST_PERCENTAGE: _Quota(maximum=None, type_name="a DOUBLE"),
    CONTROLLER_MUTATION_RATE: _Quota(maximum=None, type_name="a DOUBLE"),
}
_IP_QUOTAS: Final = {CONNECTION_CREATION_RATE: _Quota(maximum=_INT_MAX, type_name="an INT")}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """Change of one quota of one entity."""

    name: str
    value: float | None
    """New value. None means that the quota is removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaComponent:
    """Condition of a filter on one entity type."""

    entity_type: str
    match_type: int
    match: str | None


def make_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """Return a quota entity in its stored form.

    Raises:
        InvalidRequestError: The entity is empty, or a type is duplicate, unknown or not allowed together with another
            one.
    """
    if not parts:
        raise InvalidRequestError("Invalid empty client quota entity")
    entity: dict[str, str | None] = {}
    for entity_type, name in parts:
        if entity_type in entity:
            raise InvalidRequestError(f"Invalid client quota entity, duplicate entity entry {entity_type}")
        if entity_type not in ENTITY_TYPES:
            raise InvalidRequestError(f"Unhandled client quota entity type: {entity_type}")
        if name == "":
            raise InvalidRequestError(f"Empty {entity_type} not supported")
        entity[entity_type] = name
    if IP in entity:
        if len(entity) > 1:
            raise InvalidRequestError(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        address = entity[IP]
        if address is not None and not _is_host(address):
            raise InvalidRequestError(f"{address} is not a valid IP or resolvable host.")
    return tuple((entity_type, entity[entity_type]) for entity_type in ENTITY_TYPES if entity_type in entity)


def quota_resource(entity: QuotaEntity) -> str:
    """Return the name of an entity in the history of changes, such as ``QUOTA:user=alice,client-id=<default>``."""
    return f"{QUOTA_RESOURCE}:" + ",".join(
        f"{entity_type}={_DEFAULT if name is None else name.translate(_ESCAPES)}" for entity_type, name in entity
    )


def entity_text(entity: QuotaEntity) -> str:
    """Return the text of an entity in files and flags, such as ``user=alice,client-id=<default>``.

    It differs from the name in the history by an escape in a user's name that begins with ``User:``, because
    ``parse_entity_text`` takes this for the type of a principal.
    """
    return shown_quota_resource(quota_resource(entity)).removeprefix(f"{QUOTA_RESOURCE}:")


def shown_quota_resource(resource: str) -> str:
    """Return a name from the history of changes with the text of its entity in files and flags."""
    kind, colon, text = resource.partition(":")
    return kind + colon + _USER_PRINCIPAL.sub(r"user=User%3A\1", text) if kind == QUOTA_RESOURCE else resource


def parse_entity_text(text: str) -> QuotaEntity:
    """Return the entity for its text in a file or flag. A user may be a principal, such as ``user=User:alice``.

    The name after ``User:`` is that of a user, even if it is ``<default>``.

    Raises:
        InvalidRequestError: The text is not an entity.
    """
    return parse_quota_resource(_USER_PRINCIPAL.sub(lambda start: f"user={start[1].translate(_ESCAPES)}", text))


def quota_text(value: float | None) -> str | None:
    """Return the value of a quota as text for the history. Parsing the text gives the same number."""
    if value is None:
        return None
    return str(int(value)) if value.is_integer() else repr(value)


def parse_quota_resource(name: str) -> QuotaEntity:
    """Return the entity for a name from the history of changes, without its prefix ``QUOTA:``.

    Raises:
        InvalidRequestError: The text is not the name of a quota entity.
    """
    parts: list[tuple[str, str | None]] = []
    for part in name.split(","):
        entity_type, _, of_type = part.partition("=")
        parts.append((entity_type, None if of_type == _DEFAULT else unescaped_name(of_type)))
    return make_entity(parts)


def unescaped_name(text: str) -> str:
    """Return the name of a user or client for its text with escapes, such as ``%2C`` for a comma.

    Raises:
        InvalidRequestError: The escapes are not UTF-8.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            f"{text!r} has escapes that are not UTF-8; write %25 for a percent sign in a name"
        ) from error


def plan_quotas(
    entity: QuotaEntity, current: Mapping[str, float], operations: Sequence[QuotaChange]
) -> tuple[QuotaChange, ...]:
    """Return the changes of an entity's quotas. Either all apply or none.

    Raises:
        InvalidRequestError: A quota appears twice or is unknown for this entity, or a value is invalid.
    """
    quotas = _IP_QUOTAS if entity[0][0] == IP else _CLIENT_QUOTAS
    seen: set[str] = set()
    for operation in operations:
        if operation.name in seen:
            shown = ", ".join(f"{entity_type}={name}" for entity_type, name in entity)
            raise InvalidRequestError(
                f"Duplicate quota key {operation.name} not updating quota for this entity {shown}"
            )
        seen.add(operation.name)
    for operation in operations:
        if operation.value is not None:
            _check(quotas, operation.name, operation.value)
    return tuple(operation for operation in operations if current.get(operation.name) != operation.value)


def check_filter(components: Sequence[QuotaComponent]) -> None:
    """Check the filter of a DescribeClientQuotas request.

    Raises:
        InvalidRequestError: A type is empty or appears twice, a match string contradicts its match type, or ip is
            combined with another type.
        UnsupportedVersionError: A type is unknown.
    """
    seen: set[str] = set()
    for component in components:
        kind, match = component.entity_type, component.match
        if not kind:
            raise InvalidRequestError("Invalid empty entity type.")
        if kind in seen:
            raise InvalidRequestError(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise UnsupportedVersionError(f"Unsupported entity type {kind}")
        seen.add(kind)
        if component.match_type == MATCH_EXACT:
            if match is None:
                raise InvalidRequestError("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        elif component.match_type in (MATCH_DEFAULT, MATCH_SPECIFIED):
            if match is not None:
                word = "DEFAULT" if component.match_type == MATCH_DEFAULT else "SPECIFIED"
                raise InvalidRequestError(f"Request specified MATCH_TYPE_{word}, but also specified a match string.")
        else:
            raise InvalidRequestError(f"Unknown match type {component.match_type}")
    if IP in seen and len(seen) > 1:
        raise InvalidRequestError(
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component."
        )


def matches(entity: QuotaEntity, components: Sequence[QuotaComponent], *, strict: bool) -> bool:
    """Return whether a filter matches an entity. A strict filter rejects entities with additional types."""
    parts = dict(entity)
    if strict and len(parts) != len(components):
        return False
    for component in components:
        if component.entity_type not in parts:
            return False
        if component.match_type != MATCH_SPECIFIED and parts[component.entity_type] != component.match:
            return False
    return True


@dataclass(frozen=True, slots=True)
class QuotaLimit:
    """The quota that applies to a client."""

    value: float
    """Limit per second."""
    shared_by: tuple[str | None, str | None]
    """User and client id that share the limit. None for either means that it does not matter."""


def find_limit(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], name: str, user: str, client_id: str
) -> QuotaLimit | None:
    """Return the most specific quota of a client, in the precedence of KIP-55 (Kafka's DefaultQuotaCallback)."""
    for entity, shared_by in (
        (((USER, user), (CLIENT_ID, client_id)), (user, client_id)),
        (((USER, user), (CLIENT_ID, None)), (user, client_id)),
        (((USER, user),), (user, None)),
        (((USER, None), (CLIENT_ID, client_id)), (user, client_id)),
        (((USER, None), (CLIENT_ID, None)), (user, client_id)),
        (((USER, None),), (user, None)),
        (((CLIENT_ID, client_id),), (None, client_id)),
        (((CLIENT_ID, None),), (None, client_id)),
    ):
        value = quotas.get(entity, {}).get(name)
        if value is not None:
            return QuotaLimit(value, shared_by)
    return None


def find_address_limit(quotas: Mapping[QuotaEntity, Mapping[str, float]], address: str) -> float | None:
    """Return the limit of new connections per second for an IP address, or None without a quota."""
    for entity in (*(((IP, form),) for form in host_forms(address)), ((IP, None),)):
        value = quotas.get(entity, {}).get(CONNECTION_CREATION_RATE)
        if value is not None:
            return value
    return None


def _check(quotas: Mapping[str, _Quota], name: str, value: float) -> None:
    quota = quotas.get(name)
    if quota is None:
        raise InvalidRequestError(f"Invalid configuration key {name}")
    if not value > 0:  # written so that NaN is rejected too
        raise InvalidRequestError(f"Quota {name} must be greater than 0")
    if quota.maximum is None:
        return
    if value > quota.maximum:
        raise InvalidRequestError(f"Proposed value for {name} is too large for {quota.type_name}.")
    if abs(math.fmod(value, 1.0)) > _FRACTION:
        raise InvalidRequestError(f"{name} cannot be a fractional value.")


def _is_host(text: str) -> bool:
    """Return whether a text has only characters valid in IP addresses and host names. The name is not resolved."""
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:%_")
    return bool(text) and set(text) <= allowed
