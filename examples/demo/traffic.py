"""Producer of the demo: sends flights at full speed first, then at a constant rate from a thread."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from examples.demo.flights import FlightRecord

_TICK_S: Final = 0.05


class RecordProducer(Protocol):
    """The part of a producer that is used here."""

    def send(self, topic: str, *, key: bytes | None, value: bytes, timestamp_ms: int) -> Any:
        """Send a record. The future has the result."""

    def flush(self) -> None:
        """Wait until all records are acknowledged or have failed."""


class DemoTraffic:
    """Sender of flights to a topic that records failures. Sends one series at a time."""

    def __init__(
        self,
        producer: RecordProducer,
        topic: str,
        flights: Iterator[FlightRecord],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._flights = flights
        self._clock = clock
        self._sleep = sleep
        self._thread: threading.Thread | None = None
        self.sent = 0
        """Number of records passed to the producer."""
        self.errors: list[BaseException] = []
        """Errors in order."""

    @property
    def is_sending(self) -> bool:
        """Return whether the paced series is still running."""
        return self._thread is not None and self._thread.is_alive()

    def send(self, count: int) -> None:
        """Send a number of flights at full speed and wait until they are acknowledged."""
        for flight in islice(self._flights, count):
            self._send_one(flight)
        self._producer.flush()

    def start_paced(self, seconds: float, count: int) -> None:
        """Start a thread that sends a number of flights evenly over a time."""
        self._thread = threading.Thread(target=self._paced, args=(seconds, count), name="flights", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the paced series."""
        if self._thread is not None:
            self._thread.join()

    def _paced(self, seconds: float, count: int) -> None:
        try:
            begun, done = self._clock(), 0
            while done < count:
                due = min(count, int(count * (self._clock() - begun) / seconds))
                for flight in islice(self._flights, due - done):
                    self._send_one(flight)
                done = due
                self._sleep(_TICK_S)
            self._producer.flush()
        except Exception as error:  # noqa: BLE001 - recorded in errors, because a thread has no caller
            self.errors.append(error)

    def _send_one(self, flight: FlightRecord) -> None:
        future = self._producer.send(self._topic, key=flight.key, value=flight.value, timestamp_ms=flight.timestamp_ms)
        future.add_errback(self.errors.append)
        self.sent += 1
