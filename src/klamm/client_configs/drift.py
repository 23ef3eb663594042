"""Comparison of the configs that a client's requests reveal with those that are set for it."""

from __future__ import annotations

from typing import Final

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS
from klamm.client_configs.enforcement import ALL_REPLICAS, acks_of

_TOLERANCE: Final = 1.5
"""Factor by which a heartbeat interval may be off, because it is the measured time between two heartbeats."""


def value_text(key: str, value: int) -> str:
    """Return a reported value as it would be set."""
    return "all" if key == ACKS and value == ALL_REPLICAS else str(value)


def differs(key: str, *, reported: int, wanted: str) -> bool:
    """Return whether a client reports another value than the one that is set for it."""
    if key == ACKS:
        return reported != acks_of(wanted)
    if key == HEARTBEAT_INTERVAL_MS:
        return not int(wanted) / _TOLERANCE <= reported <= int(wanted) * _TOLERANCE
    return reported != int(wanted)
