"""Comparison of written and arrived records, where each record must arrive once and in order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.support.mirror import Seen, read

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN = 10
_SHOWN_BYTES = 40
_LATE_S = 60.0


class RecordsDifferError(AssertionError):
    """Records are lost, doubled, changed or out of order."""


def assert_exactly_once(
    address: str, topic: str, expected: Mapping[int, Sequence[Any]], *, source: tuple[str, str] | None = None
) -> None:
    """Fail unless each partition of a topic holds exactly the expected records in order.

    Args:
        address: Address of the target.
        topic: Topic on the target.
        expected: Records by partition.
        source: Address and topic that they were mirrored from. It is read to find out whether the source differs, too.

    Raises:
        RecordsDifferError: Records are lost, late, doubled, out of order or foreign. The message lists partitions.
    """
    counts = {partition: len(records) for partition, records in expected.items()}
    arrived = read(address, topic, counts)
    if arrived == expected:
        return
    parts = [
        f"{topic}: {len(differing(expected, arrived))} of {len(expected)} partitions differ",
        *differences(expected, arrived),
    ]
    again = read(address, topic, counts, timeout_s=_LATE_S)
    parts += [
        f"Read again, for up to {_LATE_S:g} s:",
        *(differences(expected, again) or ["  no difference: it was late"]),
    ]
    if source is not None:
        written = read(*source, counts, timeout_s=_LATE_S)
        parts += ["The source:", *(differences(expected, written) or ["  as expected"])]
    raise RecordsDifferError("\n".join(parts))


def assert_same(topic: str, expected: Mapping[int, Sequence[Any]], arrived: Mapping[int, Sequence[Any]]) -> None:
    """Fail unless the read records are the written ones.

    Raises:
        RecordsDifferError: Records are lost, doubled, out of order or foreign. The message lists partitions.
    """
    if lines := differences(expected, arrived):
        raise RecordsDifferError("\n".join([f"{topic} has other records than expected", *lines]))


def differing(expected: Mapping[int, Sequence[Any]], arrived: Mapping[int, Sequence[Any]]) -> list[int]:
    """Return the partitions whose records are not the expected ones."""
    return [partition for partition, records in expected.items() if list(arrived.get(partition, ())) != list(records)]


def differences(expected: Mapping[int, Sequence[Any]], arrived: Mapping[int, Sequence[Any]]) -> list[str]:
    """Return a line for each of the first partitions that differ."""
    lines = [
        f"  {partition}: {_difference(expected[partition], arrived.get(partition, ()))}"
        for partition in differing(expected, arrived)
    ]
    return lines if len(lines) <= _SHOWN else [*lines[:_SHOWN], f"  and {len(lines) - _SHOWN} more"]


def _difference(expected: Sequence[Any], arrived: Sequence[Any]) -> str:
    wanted, seen = Counter(expected), Counter(arrived)
    parts = [f"{len(arrived)} records instead of {len(expected)}"]
    doubled = {record: count - wanted[record] for record, count in seen.items() if 0 < wanted[record] < count}
    strange = {record: count for record, count in seen.items() if record not in wanted}
    for name, records in (("lost or late", wanted - seen), ("doubled", doubled), ("strange", strange)):
        if records:
            numbers = ", ".join(_shown(record, expected) for record in list(records)[:_SHOWN])
            parts.append(f"{sum(records.values())} {name} ({numbers})")
    places = {record: at for at, record in reversed(list(enumerate(expected)))}
    order = [places[record] for record in dict.fromkeys(arrived) if record in places]
    if any(later < earlier for earlier, later in pairwise(order)):
        parts.append(f"out of order: {order[: 3 * _SHOWN]}")
    return "; ".join(parts)


def _shown(record: Any, expected: Sequence[Any]) -> str:
    value = record.value if isinstance(record, Seen) else record
    short = value[:_SHOWN_BYTES] if isinstance(value, bytes) else value
    return f"#{expected.index(record)} {short!r}" if record in expected else f"{short!r}"
