"""Levels of a response at which errors are reported, found by comparing the message classes of request and response.

A request lists parts, for example the partitions of topics. Its response has one result for each part. Both are arrays
of structs, nested in the same way, and their elements share the fields that identify a part:

    ProduceRequest    topic_data[name, topic_id]    partition_data[index]
    ProduceResponse   responses[name, topic_id]     partition_responses[index, error_code]

Such a pair of arrays is a ``Level``. A response can have an error code at several levels. OffsetFetch v8 has one for a
group and one for each of its partitions; Fetch v7 has one for the whole response and one for each partition.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from klamm.protocol.schema import Field, Message, Struct

ERROR_FIELDS: Final = ("error_code", "partition_error_code")
"""Names of the fields that report the outcome of a struct's part. ``topic_config_error_code`` is not one of them."""
_NOT_PARTS: Final = frozenset({"forgotten_topics_data"})
"""Arrays of requests that look like parts, but have no results in the response."""
_PARTITION_NAMES: Final = frozenset({"index", "partition", "partition_index", "partition_id"})
_SAME_NAMES: Final = (_PARTITION_NAMES, frozenset({"name", "topic", "user"}))
"""Names that different messages use for the same thing."""
_NUMBERS: Final = frozenset({"int8", "int16", "int32", "int64"})


class PartKind(Enum):
    """Kinds of the parts of a request."""

    TOPIC = "topic"
    PARTITION = "partition"
    RESOURCE = "resource"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The topic and the partition to which a part of a request belongs."""

    topic: str | None = None
    """None if the part is not in a topic, or if its topic id is unknown."""
    partition: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Arrays of a request and the array of its response with one result for each of their elements."""

    requested: tuple[Field, ...]
    """Usually one array; AlterUserScramCredentials has two."""
    answered: Field
    result: type[Struct]
    """Class of a result."""
    identity: tuple[tuple[str | None, str], ...]
    """Pairs of attributes that identify a part, in the request and in the response. None as the first attribute means
    that the request has plain values. Empty if results are in the order of the request and have no identity.
    """
    kind: PartKind

    def elements(self, request: Struct) -> Iterator[Any]:
        """Yield the parts of a request, or of an outer part."""
        for field in self.requested:
            yield from getattr(request, field.name) or ()

    def results(self, response: Struct) -> list[Any]:
        """Return the results of a response, or of an outer result."""
        found: list[Any] | None = getattr(response, self.answered.name)
        return found or []

    def key_of(self, element: Any) -> tuple[Any, ...]:
        """Return the identity of a part of the request."""
        return tuple(element if name is None else getattr(element, name) for name, _ in self.identity)

    def key_of_result(self, result: Struct) -> tuple[Any, ...]:
        """Return the identity of a result."""
        return tuple(getattr(result, name) for _, name in self.identity)

    def part(self, key: tuple[Any, ...], outer: Part, name_of: Callable[[UUID], str | None]) -> Part:
        """Return the topic and partition of the part with this key, inside of an outer part."""
        if self.kind is PartKind.PARTITION:
            return Part(topic=outer.topic, partition=key[0])
        values = dict(zip((name for _, name in self.identity), key, strict=True))
        if self.kind is PartKind.TOPIC:
            name = values.get("name") or values.get("topic")
            return Part(topic=name or (name_of(values["topic_id"]) if "topic_id" in values else None))
        if self.kind is PartKind.RESOURCE and values.get("resource_type") == ResourceType.TOPIC:
            return Part(topic=values["resource_name"])
        return outer


def response_class(request: type[Message]) -> type[Message]:
    """Return the class of a request's response."""
    module = sys.modules[request.__module__]
    found: type[Message] = getattr(module, request.__name__.removesuffix("Request") + "Response")
    return found


def error_field(struct: type[Struct], version: int) -> str | None:
    """Return the name of a struct's field with its error code, None if this version has no such field."""
    names = [field.name for field in struct.FIELDS if field.in_version(version) and field.name in ERROR_FIELDS]
    return names[0] if names else None


def levels(request: type[Struct], response: type[Struct], version: int) -> tuple[Level, ...]:
    """Return the levels at which a response has one result for each part of its request, outer levels first."""
    classes: Any = request, response
    return _levels(*classes, version)


@cache
def _levels(request: type[Struct], response: type[Struct], version: int) -> tuple[Level, ...]:
    for answered in _arrays(response, version):
        if answered.struct is None or not _reports_errors(answered.struct, version):
            continue
        found = [(field, _identity(field, answered.struct, version)) for field in _arrays(request, version)]
        matching = [(field, identity) for field, identity in found if identity is not None]
        if not matching:
            continue
        field, identity = matching[0]
        level = Level(
            requested=tuple(field for field, _ in matching),
            answered=answered,
            result=answered.struct,
            identity=identity,
            kind=_kind(field, identity),
        )
        return (level, *(levels(field.struct, answered.struct, version) if field.struct else ()))
    return ()


def _arrays(struct: type[Struct], version: int) -> Iterator[Field]:
    for field in struct.FIELDS:
        if field.is_array and field.in_version(version) and field.name not in _NOT_PARTS:
            yield field


def _reports_errors(struct: type[Struct], version: int) -> bool:
    return error_field(struct, version) is not None or any(
        field.struct is not None and _reports_errors(field.struct, version) for field in _arrays(struct, version)
    )


def _identity(field: Field, result: type[Struct], version: int) -> tuple[tuple[str | None, str], ...] | None:
    """Return the attributes that an array's elements share with a result, None if the array does not match."""
    fields = [each for each in result.FIELDS if each.in_version(version) and "error_" not in each.name]
    if field.struct is None:
        same_kind = [each.name for each in fields if not each.is_array and _same_kind(each.kind, field.kind)]
        return ((None, same_kind[0]),) if same_kind else None
    asked = [each for each in field.struct.FIELDS if each.in_version(version)]
    shared = tuple((one.name, other.name) for one in asked for other in fields if _is_identity(one, other))
    if shared:
        return shared
    has_own_identity = any(not each.is_array for each in fields)
    return None if has_own_identity else ()


def _same_kind(one: str, other: str) -> bool:
    return one == other or (one in _NUMBERS and other in _NUMBERS)


def _is_identity(one: Field, other: Field) -> bool:
    """Return whether two fields identify a part. Arrays do so only for entities of quotas and client configs."""
    if one.is_array or other.is_array:
        return one.name == other.name == "entity"
    is_same = one.name == other.name or any({one.name, other.name} <= names for names in _SAME_NAMES)
    return is_same and (one.kind in {"string", "uuid"} or one.name.endswith(("_type", "_id")) or _is_partition(one))


def _is_partition(field: Field) -> bool:
    return field.name in _PARTITION_NAMES


def _kind(field: Field, identity: tuple[tuple[str | None, str], ...]) -> PartKind:
    names = {name for _, name in identity}
    if names & _PARTITION_NAMES:
        return PartKind.PARTITION
    if "topic" in field.name:
        return PartKind.TOPIC
    return PartKind.RESOURCE if "resource_name" in names else PartKind.OTHER
