"""Responses with an injected error: built from the request, with the error at the level that its code belongs to.

=============================  ===================================================================================
Error                          Level
=============================  ===================================================================================
of the whole request           the outermost one that has an error code, for example the group in OffsetFetch v8. A
(``_OF_THE_REQUEST``)          fault with a filter by topic or partition reports it for these parts instead.
any other                      the innermost one: each partition, topic, resource or member
=============================  ===================================================================================

A response without a result for each part of its request has one error code for everything.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from klamm.faults.levels import Level, Part, error_field, levels, response_class
from klamm.protocol.errors import ErrorCode
from klamm.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from uuid import UUID

    from klamm.protocol.schema import Field, Message, Struct

Choice: TypeAlias = "Callable[[Part], ErrorCode | None]"
"""Function that returns the error of a part, None if it has none."""

MESSAGE: Final = "Error injected by a test"
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
    """

    request: Message
    version: int
    name_of: Callable[[UUID], str | None]

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

    def listed_parts(self) -> list[Part] | None:
        """Return the innermost parts of the request, None if it does not list them."""
        return list(self.parts()) if self.lists_parts else None

    def with_request(self, request: Message) -> Exchange:
        """Return the exchange for another request of the same kind."""
        return replace(self, request=request)

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
            return _failed(response, code, self.version)
        depths = [depth for depth, level in enumerate(self.levels) if error_field(level.result, self.version)]
        if depths:
            return _merged_message(self, self.levels[: depths[0] + 1], lambda _: code, served=None)
        return self._single_result(code)

    def _single_result(self, code: ErrorCode) -> Message:
        """Return a response with one result, for a response without an error code and without results of parts."""
        response = self.response_class()
        for field in self.response_class.FIELDS:
            if field.is_array and field.struct is not None and error_field(field.struct, self.version):
                setattr(response, field.name, [_failed(field.struct(), code, self.version)])
        return response

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


def _is_listed(request: Struct, inner: Sequence[Level]) -> bool:
    level, *rest = inner
    elements = list(level.elements(request))
    return bool(elements) and (not rest or all(_is_listed(element, rest) for element in elements))


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
                found = _take(served, level, key)
                result = _identified(level, element) if found is None else found
                self.merge(result, element, rest, part)
                if found is not None or rest[0].results(result):
                    results.append(result)
            elif (code := self.choose(part)) is not None:
                if self.is_whole:
                    _take(served, level, key)
                results.append(_failed(_identified(level, element), code, self.exchange.version))
            else:
                found = _take(served, level, key)
                results += [] if found is None else [found]
        setattr(response, level.answered.name, results + served)


def _rewrite(response: Struct, inner: Sequence[Level], choose: Choice, outer: Part, exchange: Exchange) -> None:
    level, *rest = inner
    results = level.results(response)
    for index, result in enumerate(results):
        part = level.part(level.key_of_result(result), outer, exchange.name_of)
        if rest:
            _rewrite(result, rest, choose, part, exchange)
        elif (code := choose(part)) is not None:
            results[index] = _failed(_same(level, result), code, exchange.version)


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


def _failed(result: AnyStruct, code: ErrorCode, version: int) -> AnyStruct:
    """Return a result, or a whole response, after its error was set. Its identity remains."""
    for field in result.FIELDS:
        if field.kind == "records":
            setattr(result, field.name, b"")  # librdkafka cannot parse null
        elif field.name == "error_message":
            setattr(result, field.name, MESSAGE)
        elif field.kind in _NUMBERS and not field.is_array and field.name.endswith(_UNKNOWN_SUFFIXES):
            setattr(result, field.name, -1)
    name = error_field(type(result), version)
    if name is None:
        raise AssertionError(f"{type(result).__name__} v{version} has no error code")
    setattr(result, name, code)
    return result
