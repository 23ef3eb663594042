"""Progress as a task reports it."""

from __future__ import annotations

from typing import Any


def progress_row(**fields: Any) -> dict[str, Any]:
    """Return the row of one partition, with other values where ``fields`` says so."""
    return {
        "flow": "A->B",
        "topic": "orders",
        "partition": 0,
        "remote_topic": "A.orders",
        "next_offset": 10,
        "end_offset": 100,
        "records": 0,
        "bytes": 0,
        "last_timestamp": -1,
        "state": "COPYING",
        "reason": "",
        **fields,
    }
