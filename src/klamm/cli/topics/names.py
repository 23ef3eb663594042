"""Pure parsing of topic names, configs, assignments and topic ids in flag values."""

from __future__ import annotations

import argparse
import base64
import binascii
import re
from typing import TYPE_CHECKING, Final
from uuid import UUID

from klamm.cli.arguments import INT32_MAX
from klamm.cli.connection import RequestError
from klamm.configs.durations import without_unit
from klamm.configs.names import INTERNAL_TOPICS
from klamm.patterns import compile_pattern
from klamm.server.arguments import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_UUID_BYTES: Final = 16
_LONGEST_UUID: Final = 24


def matching(names: Iterable[str], pattern: str | None, *, exclude_internal: bool) -> tuple[str, ...]:
    """Return the names, sorted, that a ``--topic`` value matches: a regular expression in which commas mean "or".

    Raises:
        RequestError: The value is not a regular expression.
    """
    allowed = None if pattern is None else parse_pattern(pattern)
    return tuple(
        name
        for name in sorted(names)
        if (allowed is None or allowed.fullmatch(name)) and not (exclude_internal and name in INTERNAL_TOPICS)
    )


def parse_pattern(text: str) -> re.Pattern[str]:
    """Parse a regular expression for topic names, in which commas mean "or".

    Raises:
        RequestError: The text is not a regular expression.
    """
    plain = text.strip().replace(",", "|").replace(" ", "").strip("\"'")
    try:
        return compile_pattern(plain)
    except re.error as error:
        raise RequestError(f"{plain} is an invalid regex.") from error


def parse_configs(texts: Sequence[str]) -> dict[str, str]:
    """Parse ``--config name=value`` values. Durations and sizes may have units.

    Raises:
        RequestError: A value is not of the form ``name=value``.
    """
    pairs = [re.split(r"\s*=\s*", text) for text in texts]
    for pair in pairs:
        while pair and not pair[-1]:
            pair.pop()
    if any(len(pair) != 2 for pair in pairs):  # noqa: PLR2004  # a pair
        raise RequestError(
            'requirement failed: Invalid topic config: all configs to be added must be in the format "key=val".'
        )
    return {name.strip(): without_unit(name.strip(), value.strip()) for name, value in pairs}


_broker_id: Final = whole_number(INT32_MAX)


def parse_assignment(text: str) -> dict[int, tuple[int, ...]]:
    """Parse ``--replica-assignment``: the broker ids of each partition, separated by colons.

    Raises:
        RequestError: An id is not a number, a partition lists a broker twice, or the partitions have different numbers
            of replicas.
    """
    assignment: dict[int, tuple[int, ...]] = {}
    for partition, part in enumerate(text.split(",")):
        try:
            brokers = tuple(_broker_id(broker) for broker in part.split(":"))
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise RequestError(f"--replica-assignment {text}: expected ids like 1:2,2:1, not {part!r}") from error
        duplicates = [broker for broker in dict.fromkeys(brokers) if brokers.count(broker) > 1]
        if duplicates:
            listed = ",".join(map(str, duplicates))
            raise RequestError(f"Partition replica lists may not contain duplicate entries: {listed}")
        assignment[partition] = brokers
        if len(brokers) != len(assignment[0]):
            raise RequestError(f"Partition {partition} has different replication factor: {list(brokers)}")
    return assignment


def parse_topic_id(text: str) -> UUID:
    """Parse a topic id in Kafka's text form, which is URL-safe base64.

    Raises:
        RequestError: The text is not a topic id.
    """
    if len(text) > _LONGEST_UUID:
        raise RequestError(
            f"Input string with prefix `{text[:_LONGEST_UUID]}` is too long to be decoded as a base64 UUID"
        )
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"Input string `{text}` is not a base64-encoded UUID: {error}") from error
    if len(decoded) != _UUID_BYTES:
        raise RequestError(
            f"Input string `{text}` decoded as {len(decoded)} bytes, "
            "which is not equal to the expected 16 bytes of a base64-encoded UUID"
        )
    return UUID(bytes=decoded)


def format_topic_id(topic_id: UUID) -> str:
    """Format a topic id as Kafka does."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
