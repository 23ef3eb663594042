"""Who waits, and how long: producers and consumers by their bytes, connections by their number."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.broker.quotas.rates import RateWindow
from klamm.configs.quotas import CONNECTION_CREATION_RATE, CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from klamm.protocol.api import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from klamm.broker.configs.quotas import QuotaService
    from klamm.broker.configs.service import ConfigService
    from klamm.broker.network.session import Session

MAX_CONNECTION_CREATION_RATE: Final = "max.connection.creation.rate"
_NO_LIMIT: Final = 2**31 - 1
_MANY_WINDOWS: Final = 1_000
_LONGEST_REFUSAL_S: Final = 1.0
"""How long a connection that is refused is left waiting at most, as in Kafka."""


class Welcome(NamedTuple):
    """What a new connection gets."""

    delay_s: float
    """How long it waits before its first request is looked at."""
    is_refused: bool
    """Closed then."""


_AT_ONCE: Final = Welcome(0.0, is_refused=False)


class Throttles:
    """Measures what is limited, and nothing else. Loop-confined.

    Args:
        quotas: What is set for users, client ids and addresses.
        configs: ``max.connection.creation.rate`` and its form for a listener.
        now_s: A clock that never goes back.
    """

    def __init__(
        self, quotas: QuotaService, configs: ConfigService, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._quotas = quotas
        self._configs = configs
        self._now_s = now_s
        self._windows: dict[Hashable, RateWindow] = {}

    def after(
        self, api_key: int, session: Session, client_id: str | None, *, request_bytes: int, response: Any
    ) -> float:
        """Charge an answered request; returns how many seconds its connection is not read from.

        The answer says so as well (``throttle_time_ms``). Produce is charged with the request, Fetch with the records.
        """
        if self._quotas.is_empty or api_key not in (ApiKey.PRODUCE, ApiKey.FETCH):
            return 0.0
        name, amount = PRODUCER_BYTE_RATE, request_bytes
        if api_key == ApiKey.FETCH:
            name, amount = CONSUMER_BYTE_RATE, response.records_bytes
        found = self._quotas.limit(name, session.principal_name, client_id or "")
        if found is None:
            return 0.0
        now_s = self._now_s()
        window = self._window((name, found.shared_by), now_s)
        window.add(amount, now_s)
        wait_s = window.wait_s(found.value, now_s)
        if response is not None:
            response.throttle_time_ms = int(wait_s * 1000)
        return wait_s

    def welcome(self, session: Session) -> Welcome:
        """Count a new connection; one from an address that makes too many is refused, others wait their turn."""
        now_s = self._now_s()
        limit = self._quotas.limit_of_address(session.client_host)
        if limit is not None:
            window = self._window((CONNECTION_CREATION_RATE, session.client_host), now_s)
            window.add(1, now_s)
            wait_s = window.wait_s(limit, now_s)
            if wait_s > 0:
                window.add(-1, now_s)  # what is refused does not keep the next one out
                return Welcome(min(wait_s, _LONGEST_REFUSAL_S), is_refused=True)
        listener = f"listener.name.{session.listener.lower()}.{MAX_CONNECTION_CREATION_RATE}"
        waits = [self._wait_s(key, now_s) for key in (MAX_CONNECTION_CREATION_RATE, listener)]
        return Welcome(max(waits), is_refused=False) if any(waits) else _AT_ONCE

    def _wait_s(self, key: str, now_s: float) -> float:
        value = self._configs.broker_value(key)
        if value is None:
            return 0.0
        limit = int(str(value))
        if limit >= _NO_LIMIT:
            return 0.0
        window = self._window(key, now_s)
        window.add(1, now_s)
        return window.wait_s(limit, now_s) if limit > 0 else _LONGEST_REFUSAL_S

    def _window(self, key: Hashable, now_s: float) -> RateWindow:
        window = self._windows.get(key)
        if window is None:
            if len(self._windows) >= _MANY_WINDOWS:
                self._windows = {k: w for k, w in self._windows.items() if not w.is_empty(now_s)}
            window = self._windows[key] = RateWindow()
        return window
