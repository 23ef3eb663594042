"""Throttling of clients by bytes and busy time (KIP-124), and of connections by their rate (KIP-612).

====================================  ======================  ==========================================================
Quota                                 Charged with            Effect when exceeded
====================================  ======================  ==========================================================
``producer_byte_rate``                size of the request     the connection is muted, ``throttle_time_ms`` is set
``consumer_byte_rate``                size of the records     the same, and the fetch is answered without records
                                                              and not charged, on any connection
``request_percentage``                busy seconds x 100      the same, for at most 1 s
``connection_creation_rate`` (IP)     1 per connection        the connection is closed after at most 1 s
``max.connection.creation.rate``      1 per connection        the connection is accepted later
====================================  ======================  ==========================================================
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from klamm.configs.quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaLimit,
)
from klamm.protocol.api import ApiKey
from klamm.server.quotas.rates import SAMPLE_S, ClientCounters, RateWindow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Hashable

    from klamm.server.session import Session

T = TypeVar("T")


class Stopwatch:
    """Busy time of one request of a client with a ``request_percentage`` quota."""

    __slots__ = ("limit", "seconds")

    def __init__(self, limit: QuotaLimit) -> None:
        self.limit = limit
        self.seconds = 0.0
        """Seconds since the last ``read_out``."""

    def read_out(self) -> float:
        """Return the seconds so far and restart at 0."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def call(self, step: Callable[..., T], *args: Any) -> T:
        """Call a function and measure it.

        Any thread may do this, because no other part of the request runs meanwhile.
        """
        began = time.perf_counter()
        try:
            return step(*args)
        finally:
            self.seconds += time.perf_counter() - began


def timed(work: Awaitable[T], stopwatch: Stopwatch | None) -> Awaitable[T]:
    """Return an awaitable that measures ``work``; without a stopwatch, ``work`` itself."""
    return work if stopwatch is None else _Timed(work, stopwatch)


class _Timed(Generic[T]):
    """Awaitable that measures the steps a coroutine runs, but not the time it waits between them."""

    __slots__ = ("_stopwatch", "_work")

    def __init__(self, work: Awaitable[T], stopwatch: Stopwatch) -> None:
        self._work = work
        self._stopwatch = stopwatch

    def __await__(self) -> Generator[Any, Any, T]:
        steps = self._work.__await__()
        sent: Any = None
        thrown: BaseException | None = None
        while True:
            began = time.perf_counter()
            try:
                waited_for = steps.send(sent) if thrown is None else steps.throw(thrown)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]  # StopIteration is not generic
            finally:
                thrown = None  # avoids a reference cycle: the error's traceback refers to this frame
                self._stopwatch.seconds += time.perf_counter() - began
            try:
                sent = yield waited_for
            except BaseException as error:  # noqa: BLE001  # a cancellation is passed on like all else
                thrown = error


MAX_CONNECTION_CREATION_RATE: Final = "max.connection.creation.rate"
_NO_LIMIT: Final = 2**31 - 1
_INT_MAX: Final = 2**31 - 1
_MAX_PAUSE_S: Final = 1.0
"""Maximum delay of ``request_percentage`` in seconds: one window, as in Kafka's ClientRequestQuotaManager."""
_MAX_BATCH_S: Final = 5
"""Largest batch that does not have to fit into a consumer's quota as a whole, in seconds of the quota."""
_EXEMPT: Final = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.WRITE_TXN_MARKERS})
"""APIs without a quota on busy time: SASL login, and requests between brokers."""
_MAX_REJECTION_S: Final = 1.0
"""Maximum delay in seconds before a rejected connection is closed, as in Kafka."""


class ClientQuotas(Protocol):
    """Quotas in force, by client and by address."""

    @property
    def is_empty(self) -> bool:
        """Whether there are no quotas at all. Every request reads this."""

    def limit(self, name: str, user: str, client_id: str) -> QuotaLimit | None:
        """Return the quota that applies to a client; None when there is none."""

    def limit_of_address(self, address: str) -> float | None:
        """Return the connections per second allowed for an address; None when there is no limit."""


class Admission(NamedTuple):
    """Decision on a new connection by the connection creation rates: serve, delay or close it."""

    delay_s: float
    """Seconds before its first request is processed."""
    is_rejected: bool
    """Whether the connection is closed after the delay."""


_AT_ONCE: Final = Admission(0.0, is_rejected=False)


class Throttles:
    """Quota enforcement. Only clients with a quota are measured. Used on the event loop only.

    Args:
        quotas: Quotas of users, client ids and addresses.
        config_value: Function that returns the current value of ``max.connection.creation.rate``, with or without the
            prefix of a listener.
        now_s: Monotonic clock, in seconds.
    """

    def __init__(
        self,
        quotas: ClientQuotas,
        config_value: Callable[[str], object],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quotas = quotas
        self._config_value = config_value
        self._now_s = now_s
        self.windows = ClientCounters(RateWindow)

    def stopwatch(self, api_key: int, session: Session, client_id: str | None) -> Stopwatch | None:
        """Return a stopwatch for a request; None when its client has no quota on busy time."""
        if self._quotas.is_empty or api_key in _EXEMPT or not (session.login is None or session.login.is_open):
            return None
        limit = self._quotas.limit(REQUEST_PERCENTAGE, session.principal_name, client_id or "")
        return None if limit is None else Stopwatch(limit)

    def after(
        self,
        api_key: int,
        session: Session,
        client_id: str | None,
        *,
        request_bytes: int,
        response: Any,
        stopwatch: Stopwatch | None = None,
    ) -> float:
        """Charge a processed request; return the seconds for which its connection is muted.

        The delay is set as ``throttle_time_ms`` of the response. A delay that the handler has set there counts as well.
        Fetched records are charged by the handler (``charge_fetch``).
        """
        if self._quotas.is_empty:
            return 0.0
        wait_s = getattr(response, "throttle_time_ms", 0) / 1000
        if api_key == ApiKey.PRODUCE:
            wait_s = self._charge(PRODUCER_BYTE_RATE, request_bytes, session, client_id)
        if stopwatch is not None:
            wait_s = max(wait_s, self._charge_time(stopwatch))
        if wait_s > 0 and hasattr(response, "throttle_time_ms"):
            response.throttle_time_ms = min(int(wait_s * 1000), _INT_MAX)
        return wait_s

    def max_fetch_bytes(self, session: Session, client_id: str | None) -> int:
        """Return the bytes of records that a fetch may return at most: one second of the quota.

        Kafka allows ten seconds (maxValueInQuotaWindow). Such a fetch is possible only while the window is nearly
        unused. So it would wait forever while other clients use the same quota, or leave nothing to them.
        """
        limit = self._fetch_limit(session, client_id)
        return _INT_MAX if limit is None else _bytes_of_one_fetch(limit)

    def charge_fetch(self, session: Session, client_id: str | None, records_bytes: int) -> float:
        """Charge the records of a fetch, unless they exceed the quota.

        Up to five seconds of the quota are charged if the client has not exceeded it so far: ``max_fetch_bytes``, or a
        larger batch. They may exceed it, and the next fetch waits for that. A batch beyond that must fit as a whole.

        Returns:
            0 if the records are charged. Otherwise the seconds until the client may fetch them: as in Kafka, the
            response must contain this throttle time and no records.
        """
        limit = self._fetch_limit(session, client_id)
        if limit is None or not records_bytes:
            return 0.0
        now_s = self._now_s()
        window = self._window((CONSUMER_BYTE_RATE, limit.shared_by), now_s)
        further = records_bytes if records_bytes > _MAX_BATCH_S * _bytes_of_one_fetch(limit) else 0
        wait_s = window.wait_s(limit.value, now_s, further)
        if wait_s <= 0:
            window.add(records_bytes, now_s)
        return wait_s

    def _fetch_limit(self, session: Session, client_id: str | None) -> QuotaLimit | None:
        if self._quotas.is_empty:
            return None
        return self._quotas.limit(CONSUMER_BYTE_RATE, session.principal_name, client_id or "")

    def after_writing(self, stopwatch: Stopwatch) -> None:
        """Charge the busy time of encoding and sending. It delays the next request."""
        now_s = self._now_s()
        self._window((REQUEST_PERCENTAGE, stopwatch.limit.shared_by), now_s).add(stopwatch.read_out() * 100, now_s)

    def _charge(self, name: str, amount: float, session: Session, client_id: str | None) -> float:
        limit = self._quotas.limit(name, session.principal_name, client_id or "")
        return 0.0 if limit is None else self._wait_for(name, amount, limit)

    def _charge_time(self, stopwatch: Stopwatch) -> float:
        """Charge the busy time. A quota of 100 is the whole time of one thread."""
        return min(self._wait_for(REQUEST_PERCENTAGE, stopwatch.read_out() * 100, stopwatch.limit), _MAX_PAUSE_S)

    def _wait_for(self, name: str, amount: float, limit: QuotaLimit) -> float:
        now_s = self._now_s()
        window = self._window((name, limit.shared_by), now_s)
        window.add(amount, now_s)
        return window.wait_s(limit.value, now_s)

    def admit(self, session: Session) -> Admission:
        """Charge a new connection.

        It is rejected when its address exceeds its rate, and delayed when the broker's is exceeded.
        """
        now_s = self._now_s()
        limit = self._quotas.limit_of_address(session.client_host)
        if limit is not None:
            window = self._window((CONNECTION_CREATION_RATE, session.client_host), now_s)
            window.add(1, now_s)
            wait_s = window.wait_s(limit, now_s)
            if wait_s > 0:
                window.add(-1, now_s)  # rejected connections do not count towards the rate
                return Admission(min(wait_s, _MAX_REJECTION_S), is_rejected=True)
        listener = f"listener.name.{session.listener.lower()}.{MAX_CONNECTION_CREATION_RATE}"
        waits = [self._wait_s(key, now_s) for key in (MAX_CONNECTION_CREATION_RATE, listener)]
        return Admission(max(waits), is_rejected=False) if any(waits) else _AT_ONCE

    def _wait_s(self, key: str, now_s: float) -> float:
        limit = self._config_value(key)
        if not isinstance(limit, int) or limit >= _NO_LIMIT:
            return 0.0
        window = self._window(key, now_s)
        window.add(1, now_s)
        return window.wait_s(limit, now_s) if limit > 0 else _MAX_REJECTION_S

    def _window(self, key: Hashable, now_s: float) -> RateWindow:
        return self.windows.of(key, now_s)


def _bytes_of_one_fetch(limit: QuotaLimit) -> int:
    return max(1, min(int(limit.value * SAMPLE_S), _INT_MAX))
