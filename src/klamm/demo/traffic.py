"""The demo's producer: flights, first as fast as they go, then paced, from a thread of its own."""

from __future__ import annotations

import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from klamm.demo.flights import FlightRecord

_TICK_S: Final = 0.05


class Producer(Protocol):
    """What traffic needs of a producer."""

    def send(self, topic: str, *, key: bytes | None, value: bytes, timestamp_ms: int) -> Any:
        """Send a record; the future tells what became of it."""

    def flush(self) -> None:
        """Wait until all that was sent is acknowledged or failed."""


class DemoTraffic:
    """Sends flights to a topic and remembers what failed. One sending at a time."""

    def __init__(
        self,
        producer: Producer,
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
        """How many records were handed to the producer."""
        self.errors: list[BaseException] = []
        """What went wrong, in order."""

    @property
    def is_sending(self) -> bool:
        """Tell whether the paced sending goes on."""
        return self._thread is not None and self._thread.is_alive()

    def send(self, count: int) -> None:
        """Send that many flights as fast as they go, and wait until they are acknowledged."""
        for flight in islice(self._flights, count):
            self._send_one(flight)
        self._producer.flush()

    def start_paced(self, seconds: float, count: int) -> None:
        """Begin to send that many flights evenly over that time, in a thread."""
        self._thread = threading.Thread(target=self._paced, args=(seconds, count), name="flights", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the paced sending."""
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
        except Exception as error:  # noqa: BLE001 - told to whoever looks at errors; a thread has no caller
            self.errors.append(error)

    def _send_one(self, flight: FlightRecord) -> None:
        future = self._producer.send(self._topic, key=flight.key, value=flight.value, timestamp_ms=flight.timestamp_ms)
        future.add_errback(self.errors.append)
        self.sent += 1
