"""Parts of a request that is divided among the policies and the upstream, and the order of their responses. Pure."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

from klamm.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from klamm.protocol.schema import Struct
    from klamm.server.attempt import ApiError

Entry = TypeVar("Entry")
AnyStruct = TypeVar("AnyStruct", bound="Struct")


def replaced(struct: AnyStruct, **fields: Any) -> AnyStruct:
    """Return a copy of a message, or of a part of one, with other values of some fields."""
    return type(struct)(**{field.name: getattr(struct, field.name) for field in struct.FIELDS} | fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartedApi:
    """API whose request has parts that are decided on one by one, and whose response has an entry for each of them."""

    parts: str
    """Name of the field with the parts of a request."""
    entries: str
    """Name of the field with the entries of a response."""
    response: type[Any]
    """Class of the response, which has no fields but the entries and ``throttle_time_ms``."""
    entry: type[Any]
    """Class of the entries. They have an error code and an error message."""
    key: tuple[str, ...]
    """Names of the fields that identify a part, and its entry."""

    def parts_of(self, request: Any) -> Sequence[Any]:
        """Return the parts of a request."""
        parts: Sequence[Any] = getattr(request, self.parts)
        return parts

    def entries_of(self, response: Any) -> Sequence[Any]:
        """Return the entries of a response."""
        entries: Sequence[Any] = getattr(response, self.entries)
        return entries

    def key_of(self, part: Any) -> Any:
        """Return what identifies a part or an entry: the value of its key, or the values if the key has several."""
        return operator.attrgetter(*self.key)(part)

    def with_parts(self, request: Any, parts: Sequence[Any], *, validate_only: bool) -> Any:
        """Return a request for some of its parts, or the request itself if nothing changes."""
        own = self.parts_of(request)
        if validate_only == request.validate_only and len(parts) == len(own) and all(map(operator.is_, parts, own)):
            return request
        return replaced(request, **{self.parts: list(parts), "validate_only": validate_only})

    def denied(self, part: Any, error: ApiError) -> Any:
        """Return the entry of a part that is denied."""
        names = {name: getattr(part, name) for name in self.key}
        return self.entry(error_code=error.error_code, error_message=error.error_message, **names)

    def merged(self, request: Any, entries: Iterable[Any], *, throttle_time_ms: int) -> Any:
        """Return a response with these entries in the order of the request."""
        ordered = in_order(map(self.key_of, self.parts_of(request)), entries, self.key_of)
        return self.response(**{self.entries: ordered, "throttle_time_ms": throttle_time_ms})


def in_order(order: Iterable[Hashable], entries: Iterable[Entry], key_of: Callable[[Entry], Hashable]) -> list[Entry]:
    """Return entries of a response in the order of the request.

    Args:
        order: Keys of the parts of the request, in its order. A repeated key gets as many entries as there are.
        entries: Entries of the response, in any order: those of denied parts and those of the upstream.
        key_of: Function that returns the key of an entry.

    Returns:
        Each entry once. Entries with a key that the request does not have are last.
    """
    waiting: dict[Hashable, list[Entry]] = {}
    for entry in entries:
        waiting.setdefault(key_of(entry), []).append(entry)
    for group in waiting.values():
        group.reverse()  # the first is last, from where it is taken
    ordered = [left.pop() for key in order if (left := waiting.get(key))]
    for rest in waiting.values():
        ordered.extend(reversed(rest))
    return ordered
