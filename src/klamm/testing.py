"""Assertions for tests with ``klamm.Broker(control=True)`` or the pytest fixtures.

Each one waits until it holds, because clients send in the background, and fails with the broker's contents. They block
the calling thread: in an asyncio test, use ``await in_thread(assert_topic_contains, broker, "orders", b"1")``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final, ParamSpec, TypeAlias, TypeVar

from klamm.display import counted
from klamm.embedded.controls import BrokerFault, MemberAssignment, SeenRequest, StoredRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import EllipsisType

    from klamm.embedded.broker import Broker
    from klamm.embedded.controls import IsolationLevel

__tracebackhide__ = True
__all__ = [
    "BrokerFault",
    "MemberAssignment",
    "SeenRequest",
    "StoredRecord",
    "assert_assigned",
    "assert_committed_offset",
    "assert_requested",
    "assert_topic_contains",
    "in_thread",
]

P = ParamSpec("P")
T = TypeVar("T")

Expected: TypeAlias = "bytes | str | Callable[[bytes | None], bool] | None"
"""Expected bytes: as bytes, as text in UTF-8, None for null, or a function that accepts them."""

WITHIN_S: Final = 5.0
"""Default time in seconds that an assertion waits until it holds."""
_PAUSE_S: Final = 0.01
_STABLE: Final = "Stable"
"""State of a group that is not in a rebalance."""
_SHOWN: Final = 10


def assert_topic_contains(
    broker: Broker,
    topic: str,
    *values: Expected,
    key: Expected | EllipsisType = ...,
    headers: Mapping[str, Expected] | None = None,
    partition: int | None = None,
    in_order: bool = False,
    only: bool = False,
    isolation_level: IsolationLevel = "read_committed",
    within_s: float = WITHIN_S,
) -> list[StoredRecord]:
    """Assert that a topic has a record for each value, and return these records.

    Args:
        broker: Running broker with control.
        topic: Name of the topic. It need not exist yet.
        values: Expected values, in any order. Equal ones need as many records. None at all means any record, and all
            are returned.
        key: Expected key of all these records. The default, an ellipsis, means any.
        headers: Expected headers of all these records. They may have further ones.
        partition: Partition of these records; None means any.
        in_order: Whether the records must have the order of the values. Records of several partitions have none, so
            give ``partition`` unless the topic has a single one.
        only: Whether there may be no further records with this key, these headers and in this partition. An assertion
            that fails for a surplus record fails at once.
        isolation_level: ``read_committed`` ignores records of aborted and open transactions.
        within_s: Time to wait, in seconds.

    Raises:
        AssertionError: A record was missing to the end, or there was one too many. The message shows the records of
            the topic.
        TypeError: An expected value, key or header is not bytes, text, None or a function.
        ValueError: ``in_order`` for a topic with several partitions without ``partition``.
    """
    for expected in (*values, *(() if key is ... else (key,)), *(headers or {}).values()):
        if not (expected is None or isinstance(expected, bytes | str) or callable(expected)):
            raise TypeError(f"expected bytes, str, None or a function that accepts bytes, got {expected!r}")
    deadline = time.monotonic() + within_s
    while True:
        records = _records(broker, topic, partition, isolation_level)
        if in_order and len({record.partition for record in records or ()}) > 1:
            raise ValueError(f"in_order: topic {topic} has records in several partitions, so give partition")
        candidates = [
            record
            for record in records or ()
            if (key is ... or _matches(record.key, key)) and _has_headers(record, headers or {})
        ]
        matching, missing = _assign(values, candidates, in_order=in_order)
        if not missing and (values or candidates) and not (only and len(matching) < len(candidates)):
            return matching
        is_surplus = only and len(candidates) > len(values) > 0
        if is_surplus or time.monotonic() > deadline:
            order = " in this order" if in_order and missing else ""
            wanted = ", ".join(map(_text, missing)) or ("any record" if not values else "")
            lacks = f"lacks {wanted}{order}" if wanted else "has further records"
            with_key = "" if key is ... else f" with key {_text(key)}"
            with_headers = "" if not headers else f" with headers {_texts(headers)}"
            raise AssertionError(f"{_place(topic, partition)} {lacks}{with_key}{with_headers} {_shown(records)}")
        time.sleep(_PAUSE_S)


def assert_assigned(
    broker: Broker,
    group_id: str,
    *topics: str,
    members: int | None = None,
    within_s: float = WITHIN_S,
) -> list[MemberAssignment]:
    """Assert that all partitions of some topics are assigned to the members of a group, and return its members.

    The group must be stable: during a rebalance, its members still have their previous partitions.

    Args:
        broker: Running broker with control.
        group_id: Group id.
        topics: Topics all of whose partitions must be assigned. None at all means any partition.
        members: Expected number of members; None means at least one.
        within_s: Time to wait, in seconds.

    Raises:
        AssertionError: A partition was assigned to no member to the end, the number of members is another, or the group
            is not stable. The message shows the assignments of the group.
        LookupError: A topic does not exist.
    """
    expected = {(topic, index) for topic in topics for index in range(broker.partition_count(topic))}
    deadline = time.monotonic() + within_s
    while True:
        state, group = broker._state_and_members(group_id)
        assigned = {each for member in group for each in member.partitions}
        is_assigned = bool(assigned) and expected <= assigned
        if state == _STABLE and is_assigned and (members is None or len(group) == members):
            return group
        if time.monotonic() > deadline:
            missing = ", ".join(f"{topic}-{index}" for topic, index in sorted(expected - assigned)) or "none"
            shown = "\n".join(
                f"  {member.client_id}: {', '.join(f'{topic}-{index}' for topic, index in member.partitions) or 'none'}"
                for member in group
            )
            raise AssertionError(
                f"Group {group_id} is {state} and has {counted(len(group), 'member')},"
                f" expected {_STABLE} and {members or 'at least one'}."
                f" Partitions without a member: {missing}\n{shown}"
            )
        time.sleep(_PAUSE_S)


async def in_thread(assertion: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Run one of these assertions, or a method of the broker, in a thread, and return its result.

    The event loop continues to run the clients whose records or requests the assertion waits for::

        records = await in_thread(assert_topic_contains, broker, "orders", b"1")
    """
    return await asyncio.to_thread(assertion, *arguments, **options)


def assert_committed_offset(
    broker: Broker, group_id: str, topic: str, offset: int, *, partition: int = 0, within_s: float = WITHIN_S
) -> None:
    """Assert that a group has committed an offset of a partition.

    Args:
        broker: Running broker with control.
        group_id: Group id.
        topic: Name of the topic.
        offset: Expected offset, which is the offset of the next record to consume.
        partition: Partition of the topic.
        within_s: Time to wait, in seconds.

    Raises:
        AssertionError: The group has another offset, or none. The message shows the offsets of the group.
    """
    deadline = time.monotonic() + within_s
    while (committed := broker.committed_offsets(group_id)).get((topic, partition)) != offset:
        if time.monotonic() > deadline:
            offsets = ", ".join(f"{name}-{index}: {at}" for (name, index), at in sorted(committed.items()))
            raise AssertionError(
                f"Group {group_id} has not committed offset {offset} of {_place(topic, partition)}."
                f" Its committed offsets: {offsets or 'none'}"
            )
        time.sleep(_PAUSE_S)


def assert_requested(
    broker: Broker,
    api: str,
    *,
    times: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    client_id: str | None = None,
    within_s: float = WITHIN_S,
) -> list[SeenRequest]:
    """Assert that clients have sent requests of an API, and return them.

    Args:
        broker: Running broker with control.
        api: Kafka's name of the API.
        times: Exact number of requests. None means at least one.
        topic: Only requests that name this topic.
        partition: Only requests that name this partition.
        client_id: Only requests with this client id.
        within_s: Time to wait until there are enough requests, in seconds.

    Raises:
        AssertionError: There are too few requests, or too many. The message shows the last requests of the broker.
    """
    deadline = time.monotonic() + within_s
    while True:
        requests = broker.requests(api, topic=topic, partition=partition, client_id=client_id)
        if len(requests) == times or (times is None and requests):
            return requests
        if time.monotonic() > deadline or (times is not None and len(requests) > times):
            wanted = "at least one" if times is None else str(times)
            seen = ", ".join(f"{one.api} v{one.version}" for one in broker.requests()[-_SHOWN:]) or "none"
            raise AssertionError(
                f"The broker has received {counted(len(requests), f'such {api} request')}, expected {wanted}."
                f" Its last ones: {seen}"
            )
        time.sleep(_PAUSE_S)


def _records(
    broker: Broker, topic: str, partition: int | None, isolation_level: IsolationLevel
) -> list[StoredRecord] | None:
    """Return the records of a topic, None if it does not exist."""
    try:
        return broker.records(topic, partition=partition, isolation_level=isolation_level)
    except LookupError:
        return None


def _assign(
    values: Sequence[Expected], records: Sequence[StoredRecord], *, in_order: bool
) -> tuple[list[StoredRecord], list[Expected]]:
    """Return a record for each value, and the values without a record of their own. Without values, all records."""
    if not values:
        return list(records), []
    places = _ordered_places(values, records) if in_order else _places(values, records)
    matching = [records[places[number]] for number in range(len(values)) if number in places]
    return matching, [value for number, value in enumerate(values) if number not in places]


def _ordered_places(values: Sequence[Expected], records: Sequence[StoredRecord]) -> dict[int, int]:
    """Return the places of records that have the order of the values, by number of the value."""
    places: dict[int, int] = {}
    begin = 0
    for number, value in enumerate(values):
        for index in range(begin, len(records)):
            if _matches(records[index].value, value):
                places[number], begin = index, index + 1
                break
    return places


def _places(values: Sequence[Expected], records: Sequence[StoredRecord]) -> dict[int, int]:
    """Return the places of records by number of the value, for as many values as possible.

    A function may accept a record that another value needs. So exact values choose first: equal records serve them and
    the functions equally well. A function takes over the record of another one that accepts a further record.
    """
    unused: dict[bytes | None, list[int]] = {}
    for index in reversed(range(len(records))):
        unused.setdefault(records[index].value, []).append(index)
    places: dict[int, int] = {}
    for number, value in enumerate(values):
        if not callable(value) and (equal := unused.get(value.encode() if isinstance(value, str) else value)):
            places[number] = equal.pop()
    left = sorted(set(range(len(records))) - set(places.values()))
    number_of: dict[int, int] = {}
    for number, value in enumerate(values):
        if callable(value):
            wanted_by = _reached(number, values, records, left, number_of)
            free = next(reversed(wanted_by), None)
            if free in number_of:
                left = [index for index in left if index not in wanted_by]  # further functions get none of these, too
                continue
            while free is not None:  # each function on the way gives its record to the one that wants it
                taker = number_of[free] = wanted_by[free]
                places[taker], free = free, places.get(taker)
    return places


def _reached(
    number: int,
    values: Sequence[Expected],
    records: Sequence[StoredRecord],
    left: Sequence[int],
    number_of: Mapping[int, int],
) -> dict[int, int]:
    """Return records that a function may get, up to the first free one, with the number of the function that wants it.

    It may get those that it accepts, and those that others accept whose records it would take over.
    """
    wanted_by: dict[int, int] = {}
    numbers = [number]
    for wanting in numbers:
        for index in left:
            if index not in wanted_by and _matches(records[index].value, values[wanting]):
                wanted_by[index] = wanting
                if index not in number_of:
                    return wanted_by
                numbers.append(number_of[index])
    return wanted_by


def _has_headers(record: StoredRecord, headers: Mapping[str, Expected]) -> bool:
    return all(
        any(name == expected_name and _matches(value, expected) for name, value in record.headers)
        for expected_name, expected in headers.items()
    )


def _matches(actual: bytes | None, expected: object) -> bool:
    if callable(expected):
        return bool(expected(actual))
    return actual == (expected.encode() if isinstance(expected, str) else expected)


def _place(topic: str, partition: int | None) -> str:
    return f"topic {topic}" if partition is None else f"partition {topic}-{partition}"


def _text(value: object) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def _texts(headers: Mapping[str, Expected]) -> str:
    return ", ".join(f"{name}={_text(value)}" for name, value in headers.items())


def _shown(records: Sequence[StoredRecord] | None) -> str:
    if records is None:
        return "(it does not exist)"
    if not records:
        return "(it is empty)"
    lines = [
        f"  {one.partition}:{one.offset} key={one.key!r} value={one.value!r}{_header_text(one)}"
        for one in records[-_SHOWN:]
    ]
    return "\n".join([f"(the last {len(lines)} of its {counted(len(records), 'record')} follow)", *lines])


def _header_text(record: StoredRecord) -> str:
    return f" headers={list(record.headers)!r}" if record.headers else ""
