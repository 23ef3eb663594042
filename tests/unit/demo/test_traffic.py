"""The demo's producer."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from examples.demo.flights import FlightRecord
from examples.demo.traffic import DemoTraffic

FLIGHT = FlightRecord(key=b"N1", value=b"{}", timestamp_ms=7)


class FakeFuture:
    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def add_errback(self, tell: Any) -> None:
        if self._error is not None:
            tell(self._error)


class FakeProducer:
    """Keeps what it is given, and the time of the fake clock."""

    def __init__(self, clock: FakeClock, error: Exception | None = None) -> None:
        self.sent: list[tuple[float, str, dict[str, Any]]] = []
        self.flushed = 0
        self._clock = clock
        self._error = error

    def send(self, topic: str, **fields: Any) -> FakeFuture:
        self.sent.append((self._clock.now, topic, fields))
        return FakeFuture(self._error)

    def flush(self) -> None:
        self.flushed += 1


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def traffic_with(error: Exception | None = None) -> tuple[DemoTraffic, FakeProducer]:
    clock = FakeClock()
    producer = FakeProducer(clock, error)
    return DemoTraffic(producer, "flights", repeat(FLIGHT), clock=clock, sleep=clock.sleep), producer


def test_flight_is_sent_with_its_key_and_timestamp() -> None:
    traffic, producer = traffic_with()
    traffic.send(1)
    assert producer.sent == [(0.0, "flights", {"key": b"N1", "value": b"{}", "timestamp_ms": 7})]
    assert producer.flushed == 1


def test_paced_flights_are_spread_evenly_over_the_time() -> None:
    # given
    traffic, producer = traffic_with()
    # when
    traffic.start_paced(10.0, 1000)
    traffic.join()
    # then
    seconds = [int(at) for at, _, _ in producer.sent]
    assert len(seconds) == traffic.sent == 1000
    assert all(80 <= seconds.count(second) <= 120 for second in range(1, 9))


def test_rejected_records_are_collected() -> None:
    error = RuntimeError("no")
    traffic, _ = traffic_with(error)
    traffic.send(2)
    assert traffic.errors == [error, error]
