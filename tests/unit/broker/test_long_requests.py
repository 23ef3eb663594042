"""Requests with many parts of any kind: each holds the event loop for some milliseconds at a time."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.held_loop import HeldLoop, a_held_broker
from tests.support.long_requests import PARTITIONS, TOPIC, LongRequest, largest_requests, long_requests
from tests.support.wire import WireClient

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT: Final = 20_000 if os.environ.get("KLAMM_SOAK") else 5_000
MAX_S: Final = 0.05
"""Of processor time. A slice is 5 ms; what has to happen at once, for all or none, comes to less than 20, and to twice
as much where others share the core."""
TRIES: Final = 3
"""The processor's time is not the same from one time to the next either."""
ELSEWHERE: Final = (
    "CREATE_TOPICS",
    "DELETE_TOPICS",
    "METADATA",
    "CREATE_PARTITIONS",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "INCREMENTAL_ALTER_CONFIGS",
)
"""Have tests of their own, which count slices."""


@pytest.fixture(scope="module")
def held_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldLoop]:
    with a_held_broker(tmp_path_factory.mktemp("held") / "data") as broker:
        with WireClient(broker.address) as client:
            client.create_topic(TOPIC, partitions=PARTITIONS)
        yield broker


def longest_hold(held_broker: HeldLoop, request: LongRequest) -> float:
    holds = []
    for _ in range(TRIES):
        held_broker.begin()
        with WireClient(held_broker.address, timeout_s=60) as client:
            client.time_raw(request.request, request.version)
        holds.append(held_broker.longest())
        if holds[-1].seconds < MAX_S:
            break
    return min(holds).seconds


@pytest.mark.long
@pytest.mark.process
def test_no_long_request_blocks_the_event_loop(held_broker: HeldLoop) -> None:
    """All parts are valid or rejected one by one; their number is at most the limit of the API."""
    holds = {request.name: longest_hold(held_broker, request) for request in long_requests(COUNT, without=ELSEWHERE)}
    assert len(holds) > 50
    assert not {name: f"{seconds * 1000:.0f} ms" for name, seconds in holds.items() if seconds >= MAX_S}


LARGEST: Final = (
    "CREATE_TOPICS topics",
    "OFFSET_DELETE topics.partitions",
    "DESCRIBE_TOPIC_PARTITIONS topics",
    "ALTER_USER_SCRAM_CREDENTIALS upsertions",
)
"""Requests that once held the loop longest. The long tests take those of all APIs."""


@pytest.mark.long
@pytest.mark.process
def test_request_of_maximum_size_does_not_block_the_event_loop(
    held_broker: HeldLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("klamm.server.codec.granted_elements", lambda _, most: most)  # frames that are padded
    wanted = () if os.environ.get("KLAMM_SOAK") else LARGEST
    holds = {request.name: longest_hold(held_broker, request) for request in largest_requests(wanted)}
    assert len(holds) > 50 or holds.keys() == set(LARGEST)
    assert not {name: f"{seconds * 1000:.0f} ms" for name, seconds in holds.items() if seconds >= MAX_S}


def left_by(held_broker: HeldLoop, request: LongRequest) -> int:
    """Count what only a garbage collection ends after a request."""
    held_broker.longest()
    gc.collect()
    gc.freeze()  # the next collection visits new objects only
    gc.disable()
    try:
        with WireClient(held_broker.address) as client:
            client.time_raw(request.request, request.version)
        held_broker.longest()
        return gc.collect()
    finally:
        gc.enable()


@pytest.mark.long
def test_requests_leave_no_reference_cycles(held_broker: HeldLoop) -> None:
    """An error that is kept with the frames it came through, which hold what keeps it, would hold them all for long."""
    few = 300
    left: dict[str, int] = {}
    for request in long_requests(few):
        for _ in range(TRIES):  # what came before may be counted as well
            left[request.name] = left_by(held_broker, request)
            if left[request.name] < few:
                break
    assert not {name: count for name, count in left.items() if count >= few}
