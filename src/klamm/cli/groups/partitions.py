"""Pure parsing of partitions, durations and files of offsets in flag values, and the order of partitions."""

from __future__ import annotations

import argparse
import csv
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from klamm.cli.arguments import INT32_MAX, INT64_MAX
from klamm.cli.connection import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from klamm.admin import TopicPartition

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DURATION: Final = re.compile(
    r"(?P<sign>[-+]?)P(?:(?P<days>[-+]?[0-9]+)D)?"
    r"(?:T(?=[-+0-9])(?:(?P<hours>[-+]?[0-9]+)H)?(?:(?P<minutes>[-+]?[0-9]+)M)?(?:(?P<seconds>[-+]?[0-9]+(?:[.,][0-9]{0,9})?)S)?)?",
    re.IGNORECASE,
)
_MS_PER: Final = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000}
_WITHOUT_GROUP: Final = 3
_WITH_GROUP: Final = 4


class ChosenTopic(NamedTuple):
    """A topic of a ``--topic`` flag."""

    name: str
    partitions: tuple[int, ...] | None
    """None means all partitions."""


class PlannedOffset(NamedTuple):
    """One line of a file of offsets."""

    group: str | None
    """None means the only group of the command."""
    topic: str
    partition: int
    offset: int


def parse_topic(text: str) -> ChosenTopic:
    """Parse a ``--topic`` value: a topic, or a topic and some of its partitions.

    Raises:
        RequestError: The value is neither of them. The message is Kafka's.
    """
    if ":" not in text:
        return ChosenTopic(text, None)
    parts = text.split(":")
    if len(parts) != 2:  # noqa: PLR2004 - a topic and its partitions
        raise RequestError(f"Invalid topic arg '{text}', expected topic name and partitions")
    for part in parts[1].split(","):
        if not _NUMBER.fullmatch(part) or abs(int(part)) > INT32_MAX:
            raise RequestError(f"Invalid partition '{part}' specified in topic arg '{text}''")
    return ChosenTopic(parts[0], tuple(map(int, parts[1].split(","))))


def duration_ms(text: str) -> int:
    """Parse a duration as in ISO 8601, such as ``P1DT2H`` or ``PT1.5S``, and return milliseconds.

    Raises:
        argparse.ArgumentTypeError: The text is not a duration, or milliseconds of 64 bits do not suffice.
    """
    match = _DURATION.fullmatch(text)
    parts = {unit: match[unit] for unit in _MS_PER if match[unit]} if match else {}
    if match is None or not parts:
        raise argparse.ArgumentTypeError(f"{text}: Text cannot be parsed to a Duration; expected PnDTnHnMnS")
    total = sum(float(number.replace(",", ".")) * _MS_PER[unit] for unit, number in parts.items())
    if not abs(total) < INT64_MAX:
        raise argparse.ArgumentTypeError(f"{text}: the duration is too long")
    return round(-total if match["sign"] == "-" else total)


def parse_offsets(text: str, *, has_one_group: bool) -> tuple[PlannedOffset, ...]:
    """Parse a file of offsets: CSV with or without a group in the first column.

    Args:
        text: Contents of the file.
        has_one_group: Whether the command is for one group, so that lines without a group are allowed.

    Raises:
        RequestError: The text is not CSV, a line has the wrong number of columns, or a partition or an offset is not a
            number.
    """
    planned = []
    try:
        rows = list(csv.reader(text.splitlines()))
    except csv.Error as error:
        raise RequestError(str(error)) from error
    for number, row in enumerate(rows, 1):
        if not row:
            continue
        allowed = {_WITH_GROUP, _WITHOUT_GROUP} if has_one_group else {_WITH_GROUP}
        if len(row) not in allowed or not all(_NUMBER.fullmatch(cell.strip()) for cell in row[-2:]):
            columns = "topic,partition,offset or " if has_one_group else ""
            raise RequestError(f"line {number}: expected {columns}group,topic,partition,offset, got {','.join(row)}")
        *group, topic, partition, offset = row
        planned.append(PlannedOffset(group[0] if group else None, topic, int(partition), int(offset)))
    return tuple(planned)


def in_order(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return partitions by topic and number."""
    return sorted(partitions, key=lambda each: (each.topic, each.partition))
