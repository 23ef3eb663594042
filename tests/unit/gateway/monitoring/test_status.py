"""Status of several processes of a gateway together."""

from __future__ import annotations

import asyncio
from typing import Any

from klamm.gateway.monitoring.status import merged_status

ACTIVITY = [[1000.0, [7.0, 1, 3.0]]]


def status(**facts: Any) -> dict[str, Any]:
    return {
        "clients": [],
        "clients_left_out": 0,
        "policies": [],
        "warnings": [],
        "connections": {},
        "attempts": [],
        "activity": [],
    } | facts


def test_status_of_processes_is_merged_and_silent_processes_are_counted() -> None:
    plain = {"principal": "User:alice", "client_id": "app", "host": "h", "connections": 1}
    first = status(
        warnings=["a", "b"],
        clients=[plain],
        connections={"1": 2},
        attempts=[["kafka:9092", True, 3]],
        activity=ACTIVITY,
    )
    other = status(
        warnings=["b"],
        clients=[plain],
        clients_left_out=7,
        connections={"1": 1, "2": 1},
        attempts=[["kafka:9092", False, 1]],
        activity=ACTIVITY,
    )
    # when
    merged = asyncio.run(merged_status([first, None, other]))
    # then
    assert [client["connections"] for client in merged["clients"]] == [2]
    assert (merged["clients_left_out"], merged["silent"]) == (7, 1)
    assert merged["warnings"] == ["a", "b"]
    assert merged["connections"] == {"1": 3, "2": 1}
    assert merged["activity"] == [(1000.0, (14.0, 2, 3.0))]
    assert sorted(merged["attempts"]) == [["kafka:9092", False, 1], ["kafka:9092", True, 3]]
