"""Assertions for tests with ``klamm.Broker(control=True)`` or the pytest fixtures.

Each one waits until it holds, because clients send in the background, and fails with the broker's contents. They block
the calling thread: in an asyncio test, use ``await asyncio.to_thread(assert_topic_contains, broker, "orders", b"1")``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.embedded.controls import BrokerFault, SeenRequest, StoredRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import EllipsisType

    from klamm.embedded.broker import Broker
    from klamm.embedded.controls import IsolationLevel

__all__ = [
    "BrokerFault",
    "SeenRequest",
    "StoredRecord",
    "assert_committed_offset",
    "assert_requested",
    "assert_topic_contains",
]

Expected: TypeAlias = "bytes | str | Callable[[bytes | None], bool] | None"
"""Expected bytes: as bytes, as text in UTF-8, None for null, or a function that accepts them."""

WITHIN_S: Final = 5.0
"""Default time in seconds that an assertion waits until it holds."""
_PAUSE_S: Final = 0.01
_SHOWN: Final = 10


def assert_topic_contains(
    broker: Broker,
    topic: str,
    *values: Expected,
    key: Expected | EllipsisType = ...,
    partition: int | None = None,
    isolation_level: IsolationLevel = "read_committed",
    within_s: float = WITHIN_S,
) -> None:
    """Assert that a topic has a record for each value, in any order. Further records are allowed.

    Args:
        broker: Running broker with control.
        topic: Name of the topic. It need not exist yet.
        values: Expected values. Equal ones need as many records.
        key: Expected key of all these records. The default, an ellipsis, means any.
        partition: Partition of these records; None means any.
        isolation_level: ``read_committed`` ignores records of aborted and open transactions.
        within_s: Time to wait, in seconds.

    Raises:
        AssertionError: A record was missing to the end. The message shows the records of the topic.
        TypeError: An expected value or key is not bytes, text, None or a function.
    """
    __tracebackhide__ = True
    for expected in values if key is ... else (*values, key):
        if not (expected is None or isinstance(expected, bytes | str) or callable(expected)):
            raise TypeError(f"expected bytes, str, None or a function that accepts bytes, got {expected!r}")
    deadline = time.monotonic() + within_s
    while True:
        records = _records(broker, topic, partition, isolation_level)
        candidates = [] if records is None else [one for one in records if key is ... or _matches(one.key, key)]
        missing = _missing(values, candidates)
        if not missing and (values or candidates):
            return
        if time.monotonic() > deadline:
            wanted = ", ".join(map(_text, missing)) or "any record"
            with_key = "" if key is ... else f" with key {_text(key)}"
            raise AssertionError(f"{_place(topic, partition)} lacks {wanted}{with_key} {_shown(records)}")
        time.sleep(_PAUSE_S)


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
    __tracebackhide__ = True
    deadline = time.monotonic() + within_s
    while (found := broker.committed_offsets(group_id)).get((topic, partition)) != offset:
        if time.monotonic() > deadline:
            offsets = ", ".join(f"{name}-{index}: {at}" for (name, index), at in sorted(found.items()))
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
    __tracebackhide__ = True
    deadline = time.monotonic() + within_s
    while True:
        found = broker.requests(api, topic=topic, partition=partition, client_id=client_id)
        if len(found) == times or (times is None and found):
            return found
        if time.monotonic() > deadline or (times is not None and len(found) > times):
            wanted = "at least one" if times is None else str(times)
            seen = ", ".join(f"{one.api} v{one.version}" for one in broker.requests()[-_SHOWN:])
            raise AssertionError(
                f"The broker has received {len(found)} such {api} requests, expected {wanted}. Its last ones: {seen}"
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


def _missing(values: Sequence[Expected], records: Sequence[StoredRecord]) -> list[Expected]:
    """Return the values without a record of their own."""
    left = [record.value for record in records]
    missing = []
    for value in values:
        index = next((index for index, found in enumerate(left) if _matches(found, value)), None)
        if index is None:
            missing.append(value)
        else:
            del left[index]
    return missing


def _matches(found: bytes | None, expected: object) -> bool:
    if callable(expected):
        return bool(expected(found))
    return found == (expected.encode() if isinstance(expected, str) else expected)


def _place(topic: str, partition: int | None) -> str:
    return f"topic {topic}" if partition is None else f"partition {topic}-{partition}"


def _text(value: object) -> str:
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def _shown(records: Sequence[StoredRecord] | None) -> str:
    if records is None:
        return "(it does not exist)"
    if not records:
        return "(it is empty)"
    lines = [f"  {one.partition}:{one.offset} key={one.key!r} value={one.value!r}" for one in records[-_SHOWN:]]
    return "\n".join([f"(the last {len(lines)} of its {len(records)} records follow)", *lines])
