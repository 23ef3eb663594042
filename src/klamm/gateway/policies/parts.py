"""Parts of a request that is divided among the policies and the upstream, and the order of their responses. Pure."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable

Entry = TypeVar("Entry")
TopicsRequest = TypeVar("TopicsRequest", bound=Any)


def with_topics(request: TopicsRequest, topics: Collection[Any], *, validate_only: bool | None = None) -> TopicsRequest:
    """Return a request for some of its topics, or the request itself if nothing changes.

    Args:
        request: The request.
        topics: Topics to keep.
        validate_only: Whether the result only validates; None keeps that of the request.
    """
    only = request.validate_only if validate_only is None else validate_only
    if only == request.validate_only and are_same(topics, request.topics):
        return request
    made: TopicsRequest = type(request)(topics=list(topics), timeout_ms=request.timeout_ms, validate_only=only)
    return made


def are_same(parts: Collection[object], others: Collection[object]) -> bool:
    """Return whether two collections have the same objects in the same order."""
    return len(parts) == len(others) and all(map(operator.is_, parts, others))


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
    for found in waiting.values():
        found.reverse()  # the first is last, from where it is taken
    ordered = [left.pop() for key in order if (left := waiting.get(key))]
    for rest in waiting.values():
        ordered.extend(reversed(rest))
    return ordered
