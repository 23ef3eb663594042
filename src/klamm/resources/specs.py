"""Checks of declared resources: each section's keys, values and what is allowed."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.client_configs.entities import alterable_entity
from klamm.configs.durations import without_unit
from klamm.configs.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    QUOTA_RESOURCE,
    REQUEST_PERCENTAGE,
    QuotaChange,
    parse_quota_resource,
    plan_quotas,
    quota_resource,
    quota_text,
)
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.properties import SettingsError, did_you_mean
from klamm.protocol.errors import InvalidRequestError
from klamm.resources.acl_text import acl_text
from klamm.resources.model import ANY_ITERATIONS, DEFAULT_BROKER, Declared, Kind, Secret, is_internal
from klamm.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    PatternType,
    check_new_acl,
)
from klamm.security.scram import MIN_ITERATIONS, ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Member = TypeVar("Member", bound=IntEnum)

STATE: Final = "state"
MARKS: Final = (STATE, "prune", "ignore")
"""Keys that every resource may have beside its own."""
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "topics": (PARTITIONS, REPLICATION_FACTOR, "configs"),
        "brokers": ("configs",),
        "users": ("authentication", "authorization", "quotas"),
        "quotas": ("quotas",),
        "acls": ("acls",),
        "groups": ("configs",),
        "client_metrics": ("configs",),
        "client_configs": ("configs",),
    }
)
"""Sections of a file with the keys of their resources."""
CONFIG_SECTIONS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "brokers": Kind.BROKER,
        "groups": Kind.GROUP,
        "client_metrics": Kind.CLIENT_METRICS,
        "client_configs": Kind.CLIENT_CONFIGS,
    }
)
"""Sections whose resources only have configs."""
QUOTA_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "producerByteRate": PRODUCER_BYTE_RATE,
        "consumerByteRate": CONSUMER_BYTE_RATE,
        "requestPercentage": REQUEST_PERCENTAGE,
        "controllerMutationRate": CONTROLLER_MUTATION_RATE,
        "connectionCreationRate": CONNECTION_CREATION_RATE,
    }
)
"""Strimzi's names of quotas, and Kafka's."""
SCRAM_TYPES: Final[Mapping[str, ScramMechanism]] = MappingProxyType(
    {"scram-sha-256": ScramMechanism.SCRAM_SHA_256, "scram-sha-512": ScramMechanism.SCRAM_SHA_512}
)
TLS_TYPES: Final = ("tls", "tls-external")
"""Types of ``authentication`` for which Strimzi's user is the common name of a certificate."""
_ACL_KEYS: Final = ("type", "resource", "operations", "operation", "host")
_MAX_REPLICATION_FACTOR: Final = 2**15 - 1
_MAX_PARTITIONS: Final = 2**31 - 1
BROKER_DEFAULT_NUMBER: Final = -1
"""Partitions or replication factor that the broker chooses for a new topic, as in Kafka's CreateTopics."""


def declared_resources(section: str, name: str, content: Any, place: str) -> list[Declared]:
    """Return the resources of one entry of a section. A user has up to one of each kind.

    Raises:
        SettingsError: A key or value is invalid. The message has the place, the key, the value and what is allowed.
    """
    spec = checked_mapping(place, content, (*SECTIONS[section], *MARKS))
    common = {"place": place, **_marks(place, spec)}
    if section == "topics":
        return [_topic(name, spec, common)]
    if section == "users":
        return _user(name, spec, common)
    if section == "quotas":
        return [_quotas(name, spec.get("quotas", {}), common)]
    if section == "acls":
        return [_acls(name, spec.get("acls", []), common)]
    values, secrets = _configs(f"{place}.configs", spec.get("configs"))
    kind = CONFIG_SECTIONS[section]
    if kind is Kind.BROKER and name != DEFAULT_BROKER and not name.isdecimal():
        raise SettingsError(f"{place}: {name}: expected the id of a broker in quotes, or {DEFAULT_BROKER}")
    if secrets and kind is not Kind.BROKER:
        raise SettingsError(f"{place}.configs.{next(iter(secrets))}: expected a value; only brokers have secrets")
    if kind is Kind.CLIENT_CONFIGS:
        name = _entity_name(name, place, is_client=True)
    return [Declared(kind=kind, name=name, values=values, secrets=secrets, **common)]


def checked_mapping(place: str, content: object, allowed: Sequence[str] | None) -> dict[str, Any]:
    """Return a mapping with string keys.

    Args:
        place: Place of the content, for the message.
        content: Content of the file.
        allowed: Allowed keys. None allows every string.

    Raises:
        SettingsError: The content is no mapping, or has another key.
    """
    if not isinstance(content, dict):
        expected = "a mapping" if allowed is None else f"a mapping with {', '.join(allowed)}"
        raise SettingsError(f"{place}: {content!r}: expected {expected}")
    for key in content:
        if not isinstance(key, str):
            raise SettingsError(f"{place}: key {key!r}: expected a string; put it in quotes")
        if allowed is not None and key not in allowed:
            raise SettingsError(
                f"{place}: unknown key {key}: expected one of {', '.join(allowed)}{did_you_mean(key, allowed)}"
            )
    return content


def _marks(place: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    state, prune, ignore = spec.get(STATE, "present"), spec.get("prune", False), spec.get("ignore", [])
    if state not in ("present", "absent"):
        raise SettingsError(f"{place}.{STATE}: {state!r}: expected present or absent")
    if not isinstance(prune, bool):
        raise SettingsError(f"{place}.prune: {prune!r}: expected true or false")
    if not isinstance(ignore, list) or not all(isinstance(pattern, str) for pattern in ignore):
        raise SettingsError(f"{place}.ignore: {ignore!r}: expected a list of keys, in which * stands for any text")
    return {"is_absent": state == "absent", "owns_all": prune, "ignored": tuple(ignore)}


def _topic(name: str, spec: Mapping[str, Any], common: Mapping[str, Any]) -> Declared:
    place = common["place"]
    if common["is_absent"] and is_internal(name):
        raise SettingsError(f"{place}.{STATE}: absent: {name} is an internal topic, which is never deleted from files")
    numbers = {
        PARTITIONS: _count(f"{place}.{PARTITIONS}", spec.get(PARTITIONS), _MAX_PARTITIONS),
        REPLICATION_FACTOR: _count(
            f"{place}.{REPLICATION_FACTOR}", spec.get(REPLICATION_FACTOR), _MAX_REPLICATION_FACTOR
        ),
    }
    values, secrets = _configs(f"{place}.configs", spec.get("configs"))
    if secrets:
        raise SettingsError(f"{place}.configs.{next(iter(secrets))}: expected a value; topics have no secrets")
    texts = {key: str(number) for key, number in numbers.items() if number is not None}
    return Declared(kind=Kind.TOPIC, name=name, values=MappingProxyType({**texts, **values}), **common)


def _user(name: str, spec: Mapping[str, Any], common: Mapping[str, Any]) -> list[Declared]:
    """Return the credential, the quotas and the ACLs of a user, as far as they are declared."""
    place = common["place"]
    content = spec.get("authentication")
    entries = content if isinstance(content, list) else [] if content is None else [content]
    values, secrets, is_tls = {}, {}, False
    for entry in entries:
        fields = checked_mapping(f"{place}.authentication", entry, ("type", "password", "iterations"))
        if fields.get("type") in TLS_TYPES:
            is_tls = is_tls or fields["type"] == "tls"
            continue
        mechanism = SCRAM_TYPES.get(str(fields.get("type")))
        if mechanism is None:
            allowed = ", ".join((*SCRAM_TYPES, *TLS_TYPES))
            raise SettingsError(f"{place}.authentication.type: {fields.get('type')!r}: expected one of {allowed}")
        values[mechanism.mechanism_name] = _iterations(place, fields.get("iterations"))
        if "password" in fields:
            secrets[mechanism.mechanism_name] = _secret(f"{place}.authentication.password", fields["password"])
    user = f"CN={name}" if is_tls else name
    found = []
    is_absent = common["is_absent"]
    if "quotas" in spec or is_absent:
        found.append(_quotas(f"user={_escaped(user)}", spec.get("quotas", {}), common))
    if "authorization" in spec or is_absent:
        keys = ("type", "acls")
        authorization = checked_mapping(f"{place}.authorization", spec.get("authorization", {}), keys)
        if authorization.get("type", "simple") != "simple":
            raise SettingsError(f"{place}.authorization.type: {authorization['type']!r}: expected simple")
        found.append(_acls(f"User:{user}", authorization.get("acls", []), common))
    if values or is_absent:
        frozen = MappingProxyType(values), MappingProxyType(secrets)
        found.append(Declared(kind=Kind.SCRAM, name=user, values=frozen[0], secrets=frozen[1], **common))
    return found


def _escaped(user: str) -> str:
    return quota_resource((("user", user),)).removeprefix(f"{QUOTA_RESOURCE}:user=")


def _iterations(place: str, value: Any) -> str:
    if value is None:
        return ANY_ITERATIONS
    if not isinstance(value, int) or isinstance(value, bool) or value < MIN_ITERATIONS:
        raise SettingsError(f"{place}.authentication.iterations: {value!r}: expected a number from {MIN_ITERATIONS}")
    return str(value)


def _secret(place: str, content: Any) -> Secret:
    """Return the reference to a secret: a variable, a file, or a key of a Kubernetes secret that is mounted."""
    expected = "expected {env: NAME} or {file: PATH}"
    if not isinstance(content, dict):
        raise SettingsError(f"{place}: {expected}; a secret does not belong into the file itself")
    source = content.get("valueFrom", content)
    match source:
        case {"env": str(name), **others} if not others and name:
            return Secret(variable=name)
        case {"file": str(path), **others} if not others and path:
            return Secret(path=Path(path).expanduser())
        case {"secretKeyRef": {"name": str(name), "key": str(key)}}:
            return Secret(variable=f"{name}_{key}".upper().replace("-", "_").replace(".", "_"))
    raise SettingsError(f"{place}: {expected}, or Strimzi's valueFrom.secretKeyRef with name and key")


def _quotas(entity: str, content: Any, common: Mapping[str, Any]) -> Declared:
    place = f"{common['place']}.quotas"
    values: dict[str, str] = {}
    name = _entity_name(entity, common["place"])
    parts = parse_quota_resource(name)
    for key, value in checked_mapping(place, content, (*QUOTA_NAMES, *QUOTA_NAMES.values())).items():
        quota = QUOTA_NAMES.get(key, key)
        try:
            number = float(str(value))
            plan_quotas(parts, {}, [QuotaChange(name=quota, value=number)])
        except (ValueError, OverflowError) as error:
            raise SettingsError(f"{place}.{key}: {value!r}: expected a number") from error
        except InvalidRequestError as error:
            raise SettingsError(f"{place}.{key}: {value!r}: {error}") from error
        values[quota] = quota_text(number) or ""
    return Declared(kind=Kind.QUOTA, name=name, values=MappingProxyType(values), **common)


def _entity_name(text: str, place: str, *, is_client: bool = False) -> str:
    """Return the name of an entity in one spelling, such as ``user=alice,client-id=<default>``."""
    try:
        parts = parse_quota_resource(text)
        if is_client:
            alterable_entity(parts)
    except InvalidRequestError as error:
        example = "user=alice,client-id=<default>"
        raise SettingsError(f"{place}: {error}; expected an entity such as {example}") from error
    return quota_resource(parts).removeprefix(f"{QUOTA_RESOURCE}:")


def _acls(principal: str, content: Any, common: Mapping[str, Any]) -> Declared:
    place = f"{common['place']}.acls"
    if not isinstance(content, list):
        raise SettingsError(f"{place}: {content!r}: expected a list")
    acls = [acl for index, entry in enumerate(content) for acl in _acl(principal, entry, f"{place}[{index}]")]
    values = MappingProxyType(dict.fromkeys(map(acl_text, acls), ""))
    return Declared(kind=Kind.ACLS, name=principal, values=values, **common)


def _acl(principal: str, content: Any, place: str) -> Iterator[Acl]:
    rule = checked_mapping(place, content, _ACL_KEYS)
    resource = checked_mapping(f"{place}.resource", rule.get("resource"), ("type", "name", "patternType"))
    resource_type = _member(AclResourceType, f"{place}.resource.type", resource.get("type"))
    is_cluster = resource_type is AclResourceType.CLUSTER
    pattern = resource.get("patternType", "literal")
    pattern_types = {"prefix": PatternType.PREFIXED, "prefixed": PatternType.PREFIXED, "literal": PatternType.LITERAL}
    if pattern not in pattern_types:
        raise SettingsError(f"{place}.resource.patternType: {pattern!r}: expected literal or prefix")
    name, host = resource.get("name", CLUSTER_NAME if is_cluster else None), rule.get("host", "*")
    for key, text in (("resource.name", name), ("host", host)):
        if not isinstance(text, str | int) or not str(text):
            raise SettingsError(f"{place}.{key}: {text!r}: expected a text")
    operations = rule.get("operations", [rule.get("operation")])
    if not isinstance(operations, list) or not operations:
        raise SettingsError(f"{place}.operations: {operations!r}: expected a list such as [Read, Describe]")
    for operation in operations:
        acl = Acl(
            resource_type=resource_type,
            resource_name=str(name),
            pattern_type=pattern_types[pattern],
            principal=principal,
            host=str(host),
            operation=_member(AclOperation, f"{place}.operations", operation),
            permission=_member(AclPermission, f"{place}.type", rule.get("type", "allow")),
        )
        try:
            check_new_acl(acl)
        except InvalidRequestError as error:
            raise SettingsError(f"{place}: {error}") from error
        yield acl


def _member(members: type[Member], place: str, value: Any) -> Member:
    """Return the member of an enumeration, spelled with or without underscores in any case."""
    by_name = {name.replace("_", "").lower(): member for name, member in members.__members__.items() if member > 1}
    found = by_name.get(str(value).replace("_", "").replace("-", "").lower())
    if found is None:
        allowed = ", ".join(member.name.replace("_", " ").title().replace(" ", "") for member in by_name.values())
        raise SettingsError(f"{place}: {value!r}: expected one of {allowed}")
    return found


def _count(place: str, value: object, highest: int) -> int | None:
    if value is None or value == BROKER_DEFAULT_NUMBER:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= highest:
        raise SettingsError(
            f"{place}: {value!r}: expected a whole number from 1 to {highest}, or -1 for the broker's default"
        )
    return value


def _configs(place: str, content: Any) -> tuple[Mapping[str, str], Mapping[str, Secret]]:
    values, secrets = {}, {}
    for key, value in checked_mapping(place, {} if content is None else content, None).items():
        if isinstance(value, dict) and len(value) == 1 and not {"env", "file", "valueFrom"}.isdisjoint(value):
            secrets[key] = _secret(f"{place}.{key}", value)
        else:
            values[key] = without_unit(key, _config(f"{place}.{key}", value))
    return MappingProxyType(values), MappingProxyType(secrets)


def _config(place: str, value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, (str, int)) for item in value):
        return ",".join(map(str, value))
    raise SettingsError(
        f"{place}: {value!r}: expected a string, a number, true, false or a list of strings (a key that is left out"
        " keeps its value)"
    )
