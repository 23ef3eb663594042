"""Start and end of a query, and its division into offset ranges for parallel tasks. Pure.

A position is a special offset, an offset for each partition, or a timestamp.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from klamm.lazy_dataclass import dataclass
from klamm.properties import SettingsError, parse_int

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from klamm.protocol.types import PartitionTuple

EARLIEST: Final = -2
LATEST: Final = -1
"""Special timestamps of ListOffsets, which Spark's JSON of offsets uses too."""

Numbers = dict[str, dict[int, int]]
"""Offsets or timestamps by topic and partition."""


@dataclass(frozen=True, slots=True)
class Timestamps:
    """First records that are not older than a timestamp."""

    at: int | Numbers
    """Milliseconds since the epoch, of all partitions or of each."""
    is_latest_allowed: bool
    """Whether the end is used for a partition without such a record. False: it is an error."""


Positions = int | Numbers | Timestamps
"""``EARLIEST`` or ``LATEST`` for all partitions, an offset (or one of these two) for each, or timestamps."""

MAX_INT64: Final = 2**63 - 1
_WORDS: Final = {"earliest": EARLIEST, "latest": LATEST}
_STRATEGY: Final = "startingOffsetsByTimestampStrategy"


def starting_positions(options: Mapping[str, str], *, streaming: bool) -> Positions:
    """Return the start of a query.

    Args:
        options: Option values by name in lower case.
        streaming: Whether the query is a stream, which by default starts at the end.

    Raises:
        SettingsError: A value is invalid, or a batch would start at the end.
    """
    strategy = options.get(_STRATEGY.lower(), "error").strip().lower()
    if strategy not in {"error", "latest"}:
        raise SettingsError(f"{_STRATEGY}={strategy}: expected error or latest")
    default = LATEST if streaming else EARLIEST
    positions = _positions("starting", options, default, is_latest_allowed=strategy == "latest")
    if not streaming and (where := _where(positions, LATEST)) is not None:
        raise SettingsError(f"startingOffsets{where}: a batch would be empty; expected earliest, or JSON of offsets")
    return positions


def ending_positions(options: Mapping[str, str], *, streaming: bool) -> Positions:
    """Return the end of a query. See ``starting_positions`` for the arguments.

    Raises:
        SettingsError: A value is invalid, a stream has an end, or a batch ends at the beginning.
    """
    if streaming:
        for name in ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"):
            if name.lower() in options:
                raise SettingsError(f"{name}: a stream has no end; leave it out, or read a batch")
    positions = _positions("ending", options, LATEST, is_latest_allowed=True)
    if (where := _where(positions, EARLIEST)) is not None:
        raise SettingsError(f"endingOffsets{where}: expected latest, or JSON of offsets by topic and partition")
    return positions


def _positions(side: str, options: Mapping[str, str], default: int, *, is_latest_allowed: bool) -> Positions:
    """Return the positions of one side. A timestamp for all partitions takes precedence, then timestamps of each."""
    name = f"{side}Timestamp"
    if (text := options.get(name.lower())) is not None:
        try:
            timestamp = parse_int(name, text, at_least=0, at_most=MAX_INT64)
        except SettingsError as error:
            raise SettingsError(f"{name}={text}: expected milliseconds since the epoch") from error
        return Timestamps(timestamp, is_latest_allowed)
    name = f"{side}OffsetsByTimestamp"
    if (text := options.get(name.lower())) is not None:
        expected = f'{name}={text}: expected JSON of milliseconds like {{"topic":{{"0":1700000000000}}}}'
        return Timestamps(_numbers(text, expected, at_least=0), is_latest_allowed)
    name = f"{side}Offsets"
    if (text := options.get(name.lower())) is None:
        return default
    if (word := text.strip().lower()) in _WORDS:
        return _WORDS[word]
    expected = (
        f'{name}={text}: expected earliest, latest or JSON like {{"topic":{{"0":23,"1":-2}}}}; -2 means earliest, '
        "-1 latest"
    )
    return _numbers(text, expected, at_least=EARLIEST)


def assigned_partitions(text: str) -> dict[str, tuple[int, ...]]:
    """Return the partitions of the option ``assign`` by topic.

    Raises:
        SettingsError: The value is not JSON of partitions by topic, or names none.
    """
    expected = f'assign={text}: expected JSON of partitions by topic, like {{"topic":[0,1]}}'
    try:
        document = json.loads(text)
        partitions = {topic: tuple(sorted(set(_whole_numbers(each)))) for topic, each in document.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(expected) from error
    if not any(partitions.values()) or any(each < 0 for numbers in partitions.values() for each in numbers):
        raise SettingsError(expected)
    return partitions


def check_names(side: str, positions: Positions, topics: Collection[str]) -> None:
    """Reject positions of topics that the query does not read: such a name is misspelt.

    Raises:
        SettingsError: The message names the topics.
    """
    numbers = positions.at if isinstance(positions, Timestamps) else positions
    others = sorted(numbers.keys() - set(topics)) if isinstance(numbers, dict) else []
    if others:
        by_timestamp = "ByTimestamp" * isinstance(positions, Timestamps)
        raise SettingsError(
            f"{side}Offsets{by_timestamp}: {', '.join(others)}: not among the topics {','.join(sorted(topics))}"
        )


def check_order(starting: Positions, ending: Positions) -> None:
    """Reject an end before the start, which would be taken for a topic that was created again.

    Raises:
        SettingsError: The message names both values.
    """
    if isinstance(starting, Timestamps) and isinstance(ending, Timestamps):
        if isinstance(starting.at, int) and isinstance(ending.at, int) and starting.at > ending.at:
            raise SettingsError(f"endingTimestamp={ending.at}: before startingTimestamp={starting.at}")
        starting, ending, suffix = starting.at, ending.at, "ByTimestamp"
    else:
        suffix = ""
    if not isinstance(starting, dict) or not isinstance(ending, dict):
        return
    for topic, by in ending.items():
        for partition, end in by.items():
            start = starting.get(topic, {}).get(partition, EARLIEST)
            if 0 <= end < start:
                raise SettingsError(
                    f"endingOffsets{suffix}: {topic}-{partition} ends at {end}, before startingOffsets{suffix}="
                    f"{start}: expected a later end"
                )


def _where(positions: Positions, special: int) -> str | None:
    """Return the rest of a message that says where a special offset is set. None: nowhere."""
    (word,) = (word for word, offset in _WORDS.items() if offset == special)
    if positions == special:
        return f"={word}"
    if not isinstance(positions, dict):
        return None
    partitions = (f"{topic}-{number}" for topic, by in positions.items() for number, at in by.items() if at == special)
    first = next(partitions, None)
    return None if first is None else f": {first} is {special} ({word})"


def _numbers(text: str, expected: str, *, at_least: int) -> Numbers:
    try:
        document = json.loads(text)
        numbers = {topic: {int(one): _number(at) for one, at in by.items()} for topic, by in document.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(expected) from error
    if any(not at_least <= at <= MAX_INT64 for by in numbers.values() for at in by.values()):
        raise SettingsError(expected)
    return numbers


def _whole_numbers(values: object) -> list[int]:
    if not isinstance(values, list):  # such as offsets by partition, whose keys could be iterated over, too
        raise TypeError(f"{values!r} is not a list")
    return [_number(value) for value in values]


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):  # a fraction would be rounded
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """Records of one partition from ``start`` (inclusive) to ``end`` (exclusive)."""

    topic: str
    partition: int
    start: int
    end: int


def split(
    bounds: Mapping[PartitionTuple, tuple[int, int]],
    *,
    records_per_range: int | None = None,
    min_ranges: int | None = None,
) -> tuple[OffsetRange, ...]:
    """Split each partition into ranges of nearly equal size.

    Args:
        bounds: First offset and end offset by partition.
        records_per_range: Maximum number of offsets of a range, at least 1; None means one range per partition.
        min_ranges: Approximate number of ranges if there would be fewer. The largest ranges are split, as Spark's
            ``KafkaOffsetRangeCalculator`` does. None means any number.
    """
    ranges = [
        piece
        for (topic, partition), (first, end) in sorted(bounds.items())
        if end > first
        for piece in _pieces(
            OffsetRange(topic=topic, partition=partition, start=first, end=end),
            1 if records_per_range is None else -(-(end - first) // records_per_range),
        )
    ]
    if min_ranges is None or len(ranges) >= min_ranges:
        return tuple(ranges)
    total = sum(map(_size, ranges))
    large = [each for each in ranges if _share(each, total, min_ranges) > 1]
    total, wanted = sum(map(_size, large)), max(1, min_ranges - (len(ranges) - len(large)))
    return tuple(
        piece
        for each in ranges
        for piece in _pieces(each, _share(each, total, wanted) if each in large else 1)
        if _size(piece)
    )


def _size(piece: OffsetRange) -> int:
    return piece.end - piece.start


def _share(piece: OffsetRange, total: int, count: int) -> int:
    """Return the rounded share of a range in a number of ranges, at least 1."""
    return max(1, (2 * _size(piece) * count + total) // (2 * total))


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    borders = [whole.start + _size(whole) * number // count for number in range(count + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(borders)]


def limited(
    start: Mapping[PartitionTuple, int], end: Mapping[PartitionTuple, int], most: int
) -> dict[PartitionTuple, int]:
    """Return end offsets so that about ``most`` records are read, each partition in proportion to its backlog.

    Every partition with new records advances by at least one, so none is starved.
    """
    waiting = {where: max(0, to - start.get(where, to)) for where, to in end.items()}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    return {
        where: min(to, start.get(where, to) + max(1, waiting[where] * most // total)) if waiting[where] else to
        for where, to in end.items()
    }
