"""Prefixes of the properties of the mirror's clients in ``mm2.properties``, and their precedence."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FILE: Final = {
    "clusters": "A,B",
    "A.bootstrap.servers": "a:1",
    "B.bootstrap.servers": "b:1",
    "A->B.enabled": "true",
}
OF_SECURITY: Final = "ssl.provider"
OTHER: Final = "request.timeout.ms"
ALIASES: Final = {"source": "A", "target": "B"}


def places(client: str) -> tuple[str, ...]:
    """Return the prefixes of a client's keys, such as ``source.consumer``, and many prefixes without a meaning."""
    side, role = client.split(".")
    alias = ALIASES[side]
    behind = ("", f"{role}.", f"{side}.", f"{side}.{role}.", f"{side}.cluster.", f"{role}.override.")
    return tuple(before + each for before in ("", f"{alias}.", "A->B.") for each in behind)


def strongest_first(client: str, key: str, ask: Callable[[Mapping[str, str]], str | None]) -> tuple[str, ...]:
    """Return the effective prefixes in order of precedence: find the winner, remove it, and repeat.

    Args:
        client: Name of the client, such as ``source.consumer``.
        key: Property of the client. Each prefix gives it another integer.
        ask: Function that returns the value that a file's keys and values give the property.
    """
    left = dict(zip(map(str, count(1)), places(client), strict=False))
    order = []
    while (winner := ask({**FILE, **{place + key: value for value, place in left.items()}})) is not None:
        order.append(left.pop(winner))
    return tuple(order)


def mirrormakers_order(client: str, key: str) -> tuple[str, ...]:
    """Return Kafka 4.1's precedence for every client except the producer of records."""
    side, role = client.split(".")
    alias = ALIASES[side]
    if key == OF_SECURITY:
        return (f"A->B.{client}.", f"{alias}.{role}.", f"{alias}.", "", f"A->B.{role}.", f"A->B.{side}.cluster.")
    return (f"A->B.{client}.", f"{alias}.{role}.", f"A->B.{role}.")


ORDER_OF_RECORDS: Final = {
    OF_SECURITY: ("A->B.producer.override.", "B.producer.", "B.", ""),
    OTHER: ("A->B.producer.override.", "B.producer."),
}
"""Kafka 4.1's precedence for the producer of records, which belongs to Connect's worker."""
WORKERS_ORDER: Final = {
    "offset.storage.topic": ("", "B."),
    "offset.storage.replication.factor": ("", "B."),
    "offset.flush.interval.ms": ("B.",),
    "group.id": ("B.",),
}
"""Kafka 4.1's precedence for keys of Connect's worker."""
