"""Resources from the entries of files: values as Kafka writes them, and checks that no shape expresses."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.client_configs.definitions import ENFORCEMENT, Switch
from klamm.client_configs.entities import alterable_entity
from klamm.configs.durations import without_unit
from klamm.configs.quotas import (
    USER,
    QuotaChange,
    entity_text,
    parse_entity_text,
    plan_quotas,
    quota_text,
)
from klamm.policy.answers import PARTITIONS, REPLICATION_FACTOR
from klamm.properties import SettingsError
from klamm.protocol.errors import InvalidRequestError
from klamm.resources.equality import acl_text
from klamm.resources.kinds import (
    BROKER_DEFAULT_NUMBER,
    KIND_OF,
    PATTERN_TYPES,
    QUOTA_NAMES,
    RESOURCES,
    SCRAM_TYPES,
    STATE,
)
from klamm.resources.model import ANY_ITERATIONS, Declared, Kind, Secret, is_internal
from klamm.resources.shapes import check
from klamm.security.acls import CLUSTER_NAME, Acl, AclOperation, AclPermission, AclResourceType, check_new_acl
from klamm.security.principals import user_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Member = TypeVar("Member", bound=IntEnum)


def declared_resources(section: str, name: str, content: Any, place: str) -> list[Declared]:
    """Return the resources of one entry of a section. A user has up to one of each kind.

    Raises:
        SettingsError: A key or value is invalid. The message has the place, the key, the value and what is allowed.
    """
    is_mapping = isinstance(content, dict)
    spec = {key: value for key, value in content.items() if value is not None} if is_mapping else content
    check(place, spec, RESOURCES[section])
    common = {
        "place": place,
        "is_absent": spec.get(STATE) == "absent",
        "owns_all": spec.get("prune", False),
        "ignored": tuple(spec.get("ignore", ())),
    }
    kind = KIND_OF[section]
    match kind:
        case Kind.SCRAM:
            return _user(name, spec, common)
        case Kind.QUOTA:
            return [_quotas(name, spec.get("quotas", {}), common)]
        case Kind.ACLS:
            return [_acls(name, spec.get("acls", []), common)]
        case Kind.TOPIC if common["is_absent"] and is_internal(name):
            raise SettingsError(
                f"{place}.{STATE}: absent: {name} is an internal topic, which is never deleted from files"
            )
        case Kind.CLIENT_CONFIGS:
            name = _entity_name(name, place, is_client=True)
    values = {
        key: str(spec[key])
        for key in (PARTITIONS, REPLICATION_FACTOR)
        if spec.get(key, BROKER_DEFAULT_NUMBER) != BROKER_DEFAULT_NUMBER
    }
    secrets = {}
    for key, value in spec.get("configs", {}).items():
        if isinstance(value, dict):
            secrets[key] = _secret(value)
        else:
            values[key] = _switch(value) if key == ENFORCEMENT else without_unit(key, _text(value))
    frozen = MappingProxyType(values), MappingProxyType(secrets)
    return [Declared(kind=kind, name=name, values=frozen[0], secrets=frozen[1], **common)]


def unmanaged_resources(section: str, name: str, content: Any, place: str) -> list[Declared]:
    """Return the resources of one entry that is left as it is. Of its content only the kind of principal matters.

    Raises:
        SettingsError: The authentication of a user, or the name of an entity, is invalid.
    """
    kind = KIND_OF[section]
    if kind is not Kind.SCRAM:
        return [Declared(kind=kind, name=name, place=place, is_managed=False)]
    spec = {key: value for key, value in (content or {}).items() if key == "authentication"}
    resources = declared_resources(section, name, {**spec, STATE: "absent"}, place)  # absent: one of each kind
    return [Declared(kind=user.kind, name=user.name, place=place, is_managed=False) for user in resources]


def _switch(value: Any) -> str:
    """Return on or off, which YAML reads as true and false."""
    return (Switch.ON if value else Switch.OFF).value if isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _secret(content: Mapping[str, Any]) -> Secret:
    """Return the reference to a secret: a variable, a file, or a key of a Kubernetes secret that is mounted."""
    match content.get("valueFrom", content):
        case {"env": variable}:
            return Secret(variable=variable)
        case {"file": path}:
            return Secret(path=Path(path))
        case {"secretKeyRef": {"name": name, "key": key}}:
            return Secret(variable=f"{name}_{key}".upper().replace("-", "_").replace(".", "_"))
    raise AssertionError(content.keys())


def _user(name: str, spec: Mapping[str, Any], common: Mapping[str, Any]) -> list[Declared]:
    """Return the credential, the quotas and the ACLs of a user, as far as they are declared.

    The user may be given as a principal, ``User:alice``.
    """
    name = user_name(name)
    if not name:
        raise SettingsError(f"{common['place']}: expected the name of a user, such as alice or User:alice")
    content = spec.get("authentication", [])
    values, secrets, user = {}, {}, name
    for entry in content if isinstance(content, list) else [content]:
        mechanism = SCRAM_TYPES.get(entry["type"])
        if mechanism is None:
            user = f"CN={name}"  # subject of a client certificate (tls, tls-external)
            continue
        values[mechanism.mechanism_name] = str(entry.get("iterations", ANY_ITERATIONS))
        if "password" in entry:
            secrets[mechanism.mechanism_name] = _secret(entry["password"])
    resources = []
    is_absent = common["is_absent"]
    if "quotas" in spec or is_absent:
        entity = entity_text(((USER, user),))
        resources.append(_quotas(entity, spec.get("quotas", {}), common))
    if "authorization" in spec or is_absent:
        resources.append(_acls(f"User:{user}", spec.get("authorization", {}).get("acls", []), common))
    if values or is_absent:
        frozen = MappingProxyType(values), MappingProxyType(secrets)
        resources.append(Declared(kind=Kind.SCRAM, name=user, values=frozen[0], secrets=frozen[1], **common))
    return resources


def _quotas(entity: str, content: Mapping[str, Any], common: Mapping[str, Any]) -> Declared:
    values: dict[str, str] = {}
    name = _entity_name(entity, common["place"])
    parts = parse_entity_text(name)
    for key, value in content.items():
        quota, number = QUOTA_NAMES.get(key, key), float(value)
        try:
            plan_quotas(parts, {}, [QuotaChange(name=quota, value=number)])
        except (InvalidRequestError, OverflowError) as error:
            raise SettingsError(f"{common['place']}.quotas.{key}: {value!r}: {error}") from error
        values[quota] = quota_text(number) or ""
    return Declared(kind=Kind.QUOTA, name=name, values=MappingProxyType(values), **common)


def _entity_name(text: str, place: str, *, is_client: bool = False) -> str:
    """Return the name of an entity in one spelling, such as ``user=alice,client-id=<default>``."""
    try:
        parts = parse_entity_text(text)
        if is_client:
            alterable_entity(parts)
    except InvalidRequestError as error:
        example = "user=alice,client-id=<default>, with %2C for a comma in a name"
        raise SettingsError(f"{place}: {error}; expected an entity such as {example}") from error
    return entity_text(parts)


def _acls(principal: str, content: list[Any], common: Mapping[str, Any]) -> Declared:
    place = f"{common['place']}.acls"
    acls = [acl for index, rule in enumerate(content) for acl in _acl(principal, rule, f"{place}[{index}]")]
    values = MappingProxyType(dict.fromkeys(map(acl_text, acls), ""))
    return Declared(kind=Kind.ACLS, name=principal, values=values, **common)


def _acl(principal: str, rule: Mapping[str, Any], place: str) -> Iterator[Acl]:
    resource = rule["resource"]
    resource_type = _member(AclResourceType, resource["type"])
    if "name" not in resource and resource_type is not AclResourceType.CLUSTER:
        raise SettingsError(f"{place}.resource.name: None: expected a text")
    for operation in rule.get("operations") or [rule["operation"]]:
        acl = Acl(
            resource_type=resource_type,
            resource_name=str(resource.get("name", CLUSTER_NAME)),
            pattern_type=PATTERN_TYPES[resource.get("patternType", "literal")],
            principal=principal,
            host=rule.get("host", "*"),
            operation=_member(AclOperation, operation),
            permission=_member(AclPermission, rule.get("type", "allow")),
        )
        try:
            check_new_acl(acl)
        except InvalidRequestError as error:
            raise SettingsError(f"{place}: {error}") from error
        yield acl


def _member(members: type[Member], name: str) -> Member:
    """Return the member of an enumeration, spelled in any case, with or without underscores."""
    key = name.replace("_", "").replace("-", "").lower()
    return next(member for member in members if member.name.replace("_", "").lower() == key)
