"""Error response of any request, derived from the message classes of the request and of its response.

A request lists parts, for example the partitions of topics. Its response has one result for each part. Both are arrays
of structs, nested in the same way, and their elements share the fields that identify a part:

    ProduceRequest    topic_data[name, topic_id]    partition_data[index]
    ProduceResponse   responses[name, topic_id]     partition_responses[index, error_code]

Such a pair of arrays is a ``Level``. A response can have an error code at several levels. OffsetFetch v8 has one for a
group and one for each of its partitions; Fetch v7 has one for the whole response and one for each partition.

=============================  ===================================================================================
Error                          Level
=============================  ===================================================================================
of the whole request           the outermost one that has an error code, for example the group in OffsetFetch v8
(``_OF_THE_REQUEST``)
any other                      the innermost one: each partition, topic, resource or member
=============================  ===================================================================================

A response without a result for each part of its request has one error code for everything.
"""

from __future__ import annotations

import copy
import sys
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from klamm.lazy_dataclass import dataclass
from klamm.protocol.api import api_name
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import ZERO_UUID
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from klamm.protocol.schema import Field, Message, Struct

ERROR_FIELDS: Final = ("error_code", "partition_error_code")
"""Names of the fields that report the outcome of a struct's part. ``topic_config_error_code`` is not one of them."""
_NOT_PARTS: Final = frozenset({"forgotten_topics_data"})
"""Arrays of requests that look like parts, but have no results in the response."""
_PARTITION_NAMES: Final = frozenset({"index", "partition", "partition_index", "partition_id"})
_SAME_NAMES: Final = (_PARTITION_NAMES, frozenset({"name", "topic", "user"}))
"""Names that different messages use for the same thing."""
_ALL_IF_EMPTY: Final = frozenset({("MetadataRequest", 0), ("DescribeTopicPartitionsRequest", 0)})
"""Requests, by class and version, that ask for all topics by an empty list. In other requests, only null does so."""
_INTEGERS: Final = frozenset({"int8", "int16", "int32", "int64"})


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
        elements: list[Any] | None = getattr(response, self.answered.name)
        return elements or []

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


@cache
def request_class(api_key: int) -> type[Message] | None:
    """Return the request class of an API, by Kafka's name of the API; None if klamm has no such message.

    Of the keys with two kinds of requests, 50 and 51, it is that of the SCRAM API.
    """
    name = api_name(api_key)
    try:
        module = import_module(f"klamm.protocol.messages.{name.lower()}")
    except ModuleNotFoundError:
        return None
    request: type[Message] = getattr(module, name.title().replace("_", "") + "Request")
    return request


def response_class(request: type[Message]) -> type[Message]:
    """Return the class of a request's response."""
    module = sys.modules[request.__module__]
    response: type[Message] = getattr(module, request.__name__.removesuffix("Request") + "Response")
    return response


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
        identities = [(field, _identity(field, answered.struct, version)) for field in _arrays(request, version)]
        matching = [(field, identity) for field, identity in identities if identity is not None]
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
    request_fields = [each for each in field.struct.FIELDS if each.in_version(version)]
    shared = tuple((one.name, other.name) for one in request_fields for other in fields if _is_identity(one, other))
    if shared:
        return shared
    has_own_identity = any(not each.is_array for each in fields)
    return None if has_own_identity else ()


def _same_kind(one: str, other: str) -> bool:
    return one == other or (one in _INTEGERS and other in _INTEGERS)


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


Choice: TypeAlias = "Callable[[Part], ErrorCode | None]"
"""Function that returns the error of a part, None if it has none."""

_UNKNOWN_SUFFIXES: Final = (
    "offset",
    "watermark",
    "epoch",
    "timestamp",
    "node_id",
    "port",
    "producer_id",
    "generation_id",
    "leader_id",
    "controller_id",
)
"""Ends of the names of numbers that are -1 in a result with an error."""
_NUMBERS: Final = frozenset({"int16", "int32", "int64"})
_OF_THE_REQUEST: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)
_OF_A_MEMBER: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})
"""Errors that LeaveGroup reports for each member, although they concern the whole request in other APIs."""

AnyStruct = TypeVar("AnyStruct", bound="Struct")


def is_of_the_request(code: ErrorCode) -> bool:
    """Return whether an error concerns a request as a whole, if its response can report that."""
    return code in _OF_THE_REQUEST


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """A request, with the structure of its response.

    Args:
        request: The decoded request.
        version: Version of the request.
        name_of: Function that returns the name of a topic by its id, None if the id is unknown.
        message: Message of the errors, in responses that have a field for it.
    """

    request: Message
    version: int
    name_of: Callable[[UUID], str | None] = lambda _: None
    message: str | None = None

    @cached_property
    def response_class(self) -> type[Message]:
        """Class of the response."""
        return response_class(type(self.request))

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """Levels of the response, outer levels first."""
        return levels(type(self.request), self.response_class, self.version)

    @cached_property
    def lists_parts(self) -> bool:
        """Return whether the request lists the parts that the response answers one by one.

        Metadata of all topics and OffsetFetch of all offsets of a group, for example, do not.
        """
        return bool(self.levels) and _is_listed(self.request, self.levels)

    def parts(self) -> Iterator[Part]:
        """Yield the innermost parts of the request."""
        if self.levels:
            yield from _parts(self.request, self.levels, Part(), self.name_of)

    def named_parts(self, kind: PartKind) -> list[Part] | None:
        """Return the innermost parts that the request names, None if it asks for all topics or partitions instead.

        The list is empty for a request without names, such as Heartbeat, or Metadata with an empty list of topics.

        Args:
            kind: TOPIC or PARTITION. Metadata of all topics, for example, asks for all topics, but for no partition.
        """
        parts = list(self.parts())
        if kind not in {level.kind for level in self.levels}:
            return parts
        is_empty_all = not parts and (type(self.request).__name__, self.version) in _ALL_IF_EMPTY
        return None if is_empty_all or _has_null(self.request, self.levels) else parts

    # ---- errors of the whole request

    def whole_response(self, code: ErrorCode) -> Message:
        """Return a response that reports an error of the whole request at the outermost level that can report it."""
        if error_field(self.response_class, self.version) is not None:
            response = self.response_class()
            if hasattr(response, "member_id"):
                response.member_id = self.request.member_id  # type: ignore[attr-defined]  # JoinGroup
            for field in self.response_class.FIELDS:
                if field.is_array and field.is_nullable(self.version):
                    setattr(response, field.name, None)
            return self.failed(response, code)
        depths = [depth for depth, level in enumerate(self.levels) if error_field(level.result, self.version)]
        if depths:
            return _merged_message(self, self.levels[: depths[0] + 1], lambda _: code, served=None)
        return self._single_result(code)

    def _single_result(self, code: ErrorCode) -> Message:
        """Return a response with one result, for a response without an error code and without results of parts."""
        response = self.response_class()
        for field in self.response_class.FIELDS:
            if field.is_array and field.struct is not None and error_field(field.struct, self.version):
                setattr(response, field.name, [self.failed(field.struct(), code)])
        return response

    def failed(self, result: AnyStruct, code: ErrorCode) -> AnyStruct:
        """Return a result, or a whole response, after its error was set. Its identity remains."""
        for field in result.FIELDS:
            if field.kind == "records":
                setattr(result, field.name, b"")  # librdkafka cannot parse null
            elif field.name == "error_message":
                setattr(result, field.name, self.message)
            elif field.kind in _NUMBERS and not field.is_array and field.name.endswith(_UNKNOWN_SUFFIXES):
                setattr(result, field.name, -1)
        name = error_field(type(result), self.version)
        if name is None:
            raise AssertionError(f"{type(result).__name__} v{self.version} has no error code")
        setattr(result, name, code)
        return result

    # ---- errors of parts

    def reports_parts(self, code: ErrorCode) -> bool:
        """Return whether an error is reported for each part, rather than for the whole request."""
        if not self.levels:
            return False
        if code in _OF_A_MEMBER and any(name == "member_id" for _, name in self.levels[-1].identity):
            return True
        return not is_of_the_request(code)

    def without(self, choose: Choice) -> Message | None:
        """Return the request without the parts that get an error, None if no part is left."""
        return _without(self.request, self.levels, choose, Part(), self.name_of)

    def merged(self, choose: Choice, served: Message | None, *, is_whole: bool = False) -> Message:
        """Return the response to all parts of the request, in the order of the request.

        Args:
            choose: Function that returns the error of a part, None if it has none.
            served: Response to the other parts; None if there are none.
            is_whole: Whether ``served`` is the response to all parts. Errors then replace results.
        """
        return _merged_message(self, self.levels, choose, served, is_whole=is_whole)

    def rewritten(self, choose: Choice, served: Message) -> Message:
        """Return a response in which results are replaced by errors. The results need not be parts of the request."""
        _rewrite(served, self.levels, choose, Part(), self)
        return served


def error_response(request: Message, version: int, code: ErrorCode, message: str | None) -> Message | None:
    """Return the response that reports an error of everything that a request asks for.

    Args:
        request: The decoded request.
        version: Version of the request.
        code: The error.
        message: Its message, for responses that have a field for it.

    Returns:
        The response; None if it cannot report the error, because this version has no error code, or has one only for
        parts that the request does not list.
    """
    exchange = Exchange(request=request, version=version, message=message)
    if exchange.reports_parts(code) and exchange.lists_parts:
        return exchange.merged(lambda _: code, None)
    if error_field(exchange.response_class, version) is not None:
        return exchange.whole_response(code)
    response = exchange.whole_response(code)
    lists_none = bool(exchange.levels) and all(
        getattr(request, field.name) is not None for field in exchange.levels[0].requested
    )
    return response if lists_none or _has_error(response, version) else None


def _has_error(struct: Struct, version: int) -> bool:
    """Return whether a response has an error at any level."""
    name = error_field(type(struct), version)
    return (name is not None and bool(getattr(struct, name))) or any(
        _has_error(each, version)
        for field in type(struct).FIELDS
        if field.is_array and field.struct is not None
        for each in getattr(struct, field.name) or ()
    )


def _is_listed(request: Struct, inner: Sequence[Level]) -> bool:
    level, *rest = inner
    elements = list(level.elements(request))
    return bool(elements) and (not rest or all(_is_listed(element, rest) for element in elements))


def _has_null(request: Struct, inner: Sequence[Level]) -> bool:
    """Return whether a request, or an outer part of it, has null in place of a list of parts."""
    level, *rest = inner
    if any(getattr(request, field.name) is None for field in level.requested):
        return True
    return bool(rest) and any(_has_null(element, rest) for element in level.elements(request))


def _parts(
    request: Struct, inner: Sequence[Level], outer: Part, name_of: Callable[[UUID], str | None]
) -> Iterator[Part]:
    level, *rest = inner
    for element in level.elements(request):
        part = level.part(level.key_of(element), outer, name_of)
        if rest:
            yield from _parts(element, rest, part, name_of)
        else:
            yield part


def _without(
    request: AnyStruct, inner: Sequence[Level], choose: Choice, outer: Part, name_of: Callable[[UUID], str | None]
) -> AnyStruct | None:
    level, *rest = inner
    left = copy.copy(request)
    is_empty = True
    for field in level.requested:
        kept = []
        for element in getattr(request, field.name) or ():
            part = level.part(level.key_of(element), outer, name_of)
            if rest:
                inner_left = _without(element, rest, choose, part, name_of)
                kept += [] if inner_left is None else [inner_left]
            elif choose(part) is None:
                kept.append(element)
        setattr(left, field.name, kept)
        is_empty = is_empty and not kept
    return None if is_empty else left


def _merged_message(
    exchange: Exchange, inner: Sequence[Level], choose: Choice, served: Message | None, *, is_whole: bool = False
) -> Message:
    response = exchange.response_class() if served is None else served
    _Merger(choose, exchange, is_whole).merge(response, exchange.request, inner, Part())
    return response


@dataclass(frozen=True, slots=True)
class _Merger:
    choose: Choice
    exchange: Exchange
    is_whole: bool

    def merge(self, response: Struct, request: Struct, inner: Sequence[Level], outer: Part) -> None:
        """Set the results of ``inner``'s first level: errors, and results that ``response`` already has."""
        level, *rest = inner
        served = level.results(response)
        results: list[Struct] = []
        for element in level.elements(request):
            key = level.key_of(element)
            part = level.part(key, outer, self.exchange.name_of)
            if rest:
                element_served = _take(served, level, key)
                result = _identified(level, element) if element_served is None else element_served
                self.merge(result, element, rest, part)
                if element_served is not None or rest[0].results(result):
                    results.append(result)
            elif (code := self.choose(part)) is not None:
                if self.is_whole:
                    _take(served, level, key)
                results.append(self.exchange.failed(_identified(level, element), code))
            else:
                element_served = _take(served, level, key)
                results += [] if element_served is None else [element_served]
        setattr(response, level.answered.name, results + served)


def _rewrite(response: Struct, inner: Sequence[Level], choose: Choice, outer: Part, exchange: Exchange) -> None:
    level, *rest = inner
    results = level.results(response)
    for index, result in enumerate(results):
        part = level.part(level.key_of_result(result), outer, exchange.name_of)
        if rest:
            _rewrite(result, rest, choose, part, exchange)
        elif (code := choose(part)) is not None:
            results[index] = exchange.failed(_same(level, result), code)


def _take(served: list[Struct], level: Level, key: tuple[Any, ...]) -> Struct | None:
    """Remove and return the result of a part. An id or a name that the request leaves out matches any."""
    for index, result in enumerate(served):
        values = level.key_of_result(result)
        if all(_plain(one) in {None, "", ZERO_UUID, _plain(other)} for one, other in zip(key, values, strict=True)):
            return served.pop(index)
    return None


def _plain(value: Any) -> Any:
    """Return a hashable form of an identity. An entity is a list of structs of different classes on both sides."""
    if isinstance(value, list):
        return tuple((each.entity_type, each.entity_name) for each in value)
    return value


def _identified(level: Level, element: Any) -> Struct:
    """Return a result with nothing but the identity of a part."""
    result = level.result()
    fields = {field.name: field for field in level.result.FIELDS}
    for name, result_name in level.identity:
        value = element if name is None else getattr(element, name)
        setattr(result, result_name, _converted(value, fields[result_name]))
    return result


def _converted(value: Any, field: Field) -> Any:
    """Return a value for a field of the response; the structs of an entity have a class of their own there."""
    if field.struct is None or value is None:
        return value
    names = [each.name for each in field.struct.FIELDS]
    return [field.struct(**{name: getattr(each, name) for name in names if hasattr(each, name)}) for each in value]


def _same(level: Level, result: Struct) -> Struct:
    """Return a result with nothing but the identity of another one."""
    copied = level.result()
    for _, name in level.identity:
        setattr(copied, name, getattr(result, name))
    return copied
