"""Many concurrent writers of the same few configs: the result equals some serial order of their requests.

The order is taken from the broker's own history and then doubted: it must hold each request once, put none before one
that had ended when it began, and lead from nothing to exactly what is described, at every moment that a reader saw.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import klamm
from klamm.protocol.types import ConfigOperation
from klamm.storage.metadata.history import read_config_history
from tests.support.wire import WireClient
from tests.support.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WRITERS: Final = 16
REQUESTS_EACH: Final = 2_500 if os.environ.get("KLAMM_SOAK") else 210
TOPIC: Final = "crowded"
NUMBER: Final = "flush.ms"
"""Every request sets it to a number of its own."""
LISTS: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
ELEMENTS: Final = tuple(f"{partition}:1" for partition in range(8))
"""So few that everybody meddles with everybody's."""
SET, DELETE, APPEND, SUBTRACT = ConfigOperation

Change = tuple[str, int, str | None]
State = dict[str, str]


@dataclass(slots=True, kw_only=True)
class Request:
    """One acknowledged request, by the clock of the one process in which all writers are."""

    changes: Sequence[Change]
    began: float
    ended: float


class Writer(Worker):
    """Sends its requests one after the other on a connection of its own."""

    def __init__(self, address: str, number: int) -> None:
        self._address = address
        self._first = 1 + number * REQUESTS_EACH
        self._random = random.Random(number)
        self.requests: dict[str, Request] = {}
        super().__init__(f"writer {number}")

    def _work(self) -> None:
        with WireClient(self._address, timeout_s=60) as client:
            for number in range(self._first, self._first + REQUESTS_EACH):
                changes = [(NUMBER, int(SET), str(number)), *map(self._change, LISTS)]
                began = time.monotonic()
                client.alter_topic(TOPIC, changes)
                self.requests[str(number)] = Request(changes=changes, began=began, ended=time.monotonic())

    def _change(self, name: str) -> Change:
        operation = self._random.choices([SET, DELETE, APPEND, SUBTRACT], weights=[1, 1, 8, 6])[0]
        some = ",".join(self._random.sample(ELEMENTS, self._random.randint(1, 3)))
        return name, int(operation), None if operation == DELETE else some


class Reader(Worker):
    """Describes the topic again and again."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.seen: list[tuple[float, float, Mapping[str, str | None]]] = []
        super().__init__("reader")

    def _work(self) -> None:
        with WireClient(self._address, timeout_s=60) as client:
            while not self._stop.is_set():
                began = time.monotonic()
                configs = client.topic_configs(TOPIC)
                self.seen.append((began, time.monotonic(), {name: configs[name] for name in (NUMBER, *LISTS)}))


def after(state: State, changes: Sequence[Change]) -> State:
    """Apply one request by the rules of KIP-339, independently of the broker's code."""
    outcome = dict(state)
    for name, operation, value in changes:
        if operation == DELETE:
            outcome.pop(name, None)
        elif operation == SET:
            outcome[name] = value or ""
        else:
            elements = [element for element in outcome.get(name, "").split(",") if element]
            for element in (value or "").split(","):
                if operation == APPEND and element not in elements:
                    elements.append(element)
                if operation == SUBTRACT and element in elements:
                    elements.remove(element)
            outcome[name] = ",".join(elements)
    return outcome


def as_described(state: State) -> Mapping[str, str | None]:
    return {NUMBER: state[NUMBER], **{name: state.get(name, "") for name in LISTS}}


def test_concurrent_config_changes_are_serializable(tmp_path: Path) -> None:
    """K339-23: No lost update: concurrent alterations of different keys of one resource all survive.

    K339-18: All-or-nothing per resource: any bad op means no op of that resource is applied.
    """
    # given
    with klamm.Broker(data_dir=tmp_path) as broker:
        address = broker.bootstrap_servers
        with WireClient(address) as client:
            client.create_topic(TOPIC)
            client.alter_topic(TOPIC, [(NUMBER, int(SET), "0")])
        # when
        reader = Reader(address)
        writers = [Writer(address, number) for number in range(WRITERS)]
        for writer in writers:
            writer.join(timeout_s=600)
        reader.stop()
        with WireClient(address) as client:
            final = client.topic_configs(TOPIC)
    requests = {number: request for writer in writers for number, request in writer.requests.items()}
    assert len(requests) == WRITERS * REQUESTS_EACH
    # then: the history has an order with every request in it once
    history = read_config_history(tmp_path, resource=f"TOPIC:{TOPIC}", limit=10 * len(requests))
    order = [line.new for line in reversed(history) if line.name == NUMBER][1:]
    assert sorted(map(str, order)) == sorted(requests)
    # then: none of them is before one that had ended when it began, and the sum of them is what is described
    states = [after({}, [(NUMBER, int(SET), "0")])]
    last_began = 0.0
    for number in map(str, order):
        request = requests[number]
        assert request.ended >= last_began, f"{number} ended before one began that stands before it"
        last_began = max(last_began, request.began)
        states.append(after(states[-1], request.changes))
    assert {name: final[name] for name in (NUMBER, *LISTS)} == as_described(states[-1])
    _check_readings(reader.seen, states, requests)


def _check_readings(
    seen: Sequence[tuple[float, float, Mapping[str, str | None]]],
    states: Sequence[State],
    requests: Mapping[str, Request],
) -> None:
    """Check that every reader saw the whole state after some request, and never an older state than before."""
    assert seen
    places = {state[NUMBER]: place for place, state in enumerate(states)}
    reached = 0
    for _, ended, configs in seen:
        number = str(configs[NUMBER])
        place = places[number]
        assert configs == as_described(states[place])
        assert place >= reached, "went back in time"
        assert number == "0" or requests[number].began <= ended, "saw what nobody had asked for yet"
        reached = place
