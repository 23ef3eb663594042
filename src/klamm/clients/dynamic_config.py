"""State of a client's dynamic configs: when to request them and what an answer changes. No I/O; time is an argument.

Rules of KIP-649: the first request registers the supported configs, later ones register nothing. There is one request
at a time, and one per ``metadata.max.age.ms``. A set of values that does not fit the client is rejected as a whole, and
the last good values stay. A key that is no longer set reverts to its static value. A broker without the feature
disables dynamic configs for good.
"""

from __future__ import annotations

import logging
import time
import weakref
from abc import ABC, abstractmethod
from concurrent.futures import Future, wait
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.client_configs.description import MatchType
from klamm.client_configs.entities import EntityType
from klamm.lazy_dataclass import dataclass
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsRequest, DescribeClientConfigsResponse
from klamm.protocol.types import CLIENT_CONFIGS_FEATURE
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

Values: TypeAlias = "Mapping[str, str]"

_SHORTEST_PAUSE_S: Final = 0.01
"""Minimum pause in seconds when intervals and backoffs are 0, so that the client's own work is not starved."""
_OLD_BROKER_CODES: Final = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION})
MAX_WAIT_FOR_FIRST_S: Final = 5.0


class Origin(StrEnum):
    """Origin of a value."""

    STATIC = "static"
    DYNAMIC = "dynamic"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """New value of one config of the running client."""

    name: str
    old: str
    new: str
    origin: Origin
    """Origin of the new value: set centrally, or the client's own static value again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigUpdate:
    """Configs that changed together, and all values in force afterwards."""

    changes: tuple[ConfigChange, ...]
    effective: Mapping[str, str]


class DynamicConfigs:
    """Dynamic configs of one client. Not thread-safe: one thread makes all calls.

    Args:
        client_id: Id of the client.
        static: The client's own values of the configs that it can change while it runs. Their names are registered. A
            value that only the client library checks may be one that ``normalise`` rejects; it is in force as it is.
        normalise: Returns the values to apply in canonical spelling. Raises ValueError if this client cannot run with
            them.
        interval_s: Seconds between requests (``metadata.max.age.ms``).
        retry_backoff_s: Seconds before the first retry (``retry.backoff.ms``). Doubles up to the interval.
    """

    def __init__(
        self,
        *,
        client_id: str,
        static: Values,
        normalise: Callable[[Values], Values],
        interval_s: float,
        retry_backoff_s: float,
    ) -> None:
        self._client_id = client_id
        self._normalise = normalise
        self._static = MappingProxyType(dict(_canonical(static, normalise)))
        self._effective: Values = self._static
        self._interval_s = max(interval_s, _SHORTEST_PAUSE_S)
        self._retry_backoff_s = retry_backoff_s
        self._failures = 0
        self._due_at: float | None = None
        self._in_flight = False
        self._was_answered = False
        """Whether a broker has answered a request, also with an error code. Such a broker knows the API."""
        self._succeeded = False
        self._rejected: Values | None = None
        self._disabled_because: str | None = None

    @property
    def effective(self) -> Values:
        """Values in force."""
        return self._effective

    @property
    def disabled_because(self) -> str | None:
        """Reason why no more requests are sent; None while requests are sent."""
        return self._disabled_because

    def due_in_s(self, now: float) -> float | None:
        """Return the seconds until the next request, None while one is in flight or when disabled."""
        if self._disabled_because is not None or self._in_flight:
            return None
        return 0.0 if self._due_at is None else max(0.0, self._due_at - now)

    def request(self) -> DescribeClientConfigsRequest:
        """Return the request to send. It is in flight until one of the ``on_`` methods is called."""
        self._in_flight = True
        return DescribeClientConfigsRequest(
            components=[
                DescribeClientConfigsRequest.ComponentData(
                    entity_type=EntityType.CLIENT_ID.value, match_type=MatchType.EXACT, match=self._client_id
                )
            ],
            supported_configs=None if self._succeeded else list(self._static),
            resolve_entity=True,
            strict=False,
        )

    def on_features(self, features: Mapping[str, tuple[int, int]]) -> bool:
        """Return whether the broker's features allow a request. If they do not, disable dynamic configs for good."""
        lowest, highest = features.get(CLIENT_CONFIGS_FEATURE, (0, -1))
        if lowest <= 1 <= highest:
            return True
        self._disable(f"the broker does not announce the feature {CLIENT_CONFIGS_FEATURE}")
        return False

    def on_not_sent(self, now: float) -> None:
        """Record that the request was not sent: no broker was reached, or the connection was busy or closed before."""
        self._retry_later(now)

    def on_no_answer(self, now: float, error: BaseException) -> None:
        """Record that the connection closed after the request was sent, as old brokers do with unknown requests."""
        if not self._was_answered:
            self._disable(f"the broker did not answer: {error}")
        else:
            self._retry_later(now)

    def on_unreadable(self, error: BaseException) -> None:
        """Record that the answer could not be decoded."""
        self._disable(f"the broker's answer could not be read: {error}")

    def on_answer(self, now: float, response: DescribeClientConfigsResponse) -> ConfigUpdate | None:
        """Process an answer. Return the changes for the client, or None if nothing changes."""
        if response.error_code in _OLD_BROKER_CODES:
            self._disable(f"the broker answered error {response.error_code}: {response.error_message}")
            return None
        self._was_answered = True
        if response.error_code != ErrorCode.NONE:
            logger.warning("Dynamic configs: error %d: %s", response.error_code, response.error_message)
            self._retry_later(now)
            return None
        entries = response.entries or []
        if len(entries) != 1:
            self._disable(f"the broker answered {len(entries)} entries where it has to merge them into one")
            return None
        self._in_flight = False
        self._succeeded = True
        self._failures = 0
        self._due_at = now + self._interval_s
        return self._take({value.key: value.value for value in entries[0].values})

    def _take(self, values: Values) -> ConfigUpdate | None:
        """Overlay the static values. Configs that are not named revert; unknown configs are ignored."""
        dynamic = {name: value for name, value in values.items() if name in self._static}
        try:
            wanted = self._normalise({**self._static, **dynamic}) if dynamic else self._static
        except ValueError as error:
            if dynamic != self._rejected:
                logger.warning("Dynamic configs %s are rejected, the last good ones stay: %s", dynamic, error)
                self._rejected = dynamic
            return None
        self._rejected = None
        changes = tuple(
            ConfigChange(
                name=name,
                old=self._effective[name],
                new=value,
                origin=Origin.DYNAMIC if name in dynamic else Origin.STATIC,
            )
            for name, value in wanted.items()
            if value != self._effective[name]
        )
        if not changes:
            return None
        self._effective = MappingProxyType(dict(wanted))
        for change in changes:
            logger.info(
                "%s of client %s changed from %s to %s (%s)",
                change.name,
                self._client_id,
                change.old,
                change.new,
                change.origin,
            )
        return ConfigUpdate(changes=changes, effective=self._effective)

    def _retry_later(self, now: float) -> None:
        self._in_flight = False
        pause_s = backoff_s(self._failures, self._retry_backoff_s, self._interval_s)
        self._due_at = now + max(pause_s, _SHORTEST_PAUSE_S)
        self._failures += 1

    def _disable(self, reason: str) -> None:
        self._in_flight = False
        self._disabled_because = reason
        logger.info("Dynamic configs are off for client %s: %s", self._client_id, reason)


def _canonical(static: Values, normalise: Callable[[Values], Values]) -> Values:
    try:
        return normalise(static)
    except ValueError as error:
        logger.info("The client's own configs are unusual and stay as they are: %s", error)
        return static


def normalise_producer(values: Values, *, is_idempotent: bool) -> Values:
    """Return a producer's values in canonical spelling.

    Raises:
        ValueError: ``acks`` is invalid, or not ``all`` while idempotence or transactions are on.
    """
    acks = values[ACKS].strip()
    if acks not in {"all", "-1", "0", "1"}:
        raise ValueError(f"acks={acks!r}: expected all, -1, 0 or 1")
    canonical = "all" if acks == "-1" else acks
    if is_idempotent and canonical != "all":
        raise ValueError(f"acks={acks!r}: an idempotent or transactional producer needs all")
    return {ACKS: canonical}


def normalise_consumer(values: Values) -> Values:
    """Return a consumer's values in canonical spelling.

    Raises:
        ValueError: A value is not a positive integer, or the heartbeat interval is not below the session timeout.
    """
    session_timeout_ms = _positive(SESSION_TIMEOUT_MS, values[SESSION_TIMEOUT_MS])
    heartbeat_interval_ms = _positive(HEARTBEAT_INTERVAL_MS, values[HEARTBEAT_INTERVAL_MS])
    if heartbeat_interval_ms >= session_timeout_ms:
        raise ValueError(
            f"{HEARTBEAT_INTERVAL_MS}={heartbeat_interval_ms} is not below {SESSION_TIMEOUT_MS}={session_timeout_ms}"
        )
    return {SESSION_TIMEOUT_MS: str(session_timeout_ms), HEARTBEAT_INTERVAL_MS: str(heartbeat_interval_ms)}


def _positive(name: str, value: str) -> int:
    number = int(value)
    if number < 1:
        raise ValueError(f"{name}={value!r}: expected an integer of at least 1")
    return number


def notify(on_change: Callable[[ConfigUpdate], None] | None, update: ConfigUpdate) -> None:
    """Call the application's callback, if it has one. Log its error: the change has taken effect nevertheless."""
    if on_change is None:
        return
    try:
        on_change(update)
    except Exception:
        logger.exception("on_dynamic_config_change failed; the change itself is in force")


class DynamicConfigLoop(ABC):
    """Coroutine that requests dynamic configs until they are disabled permanently. It runs on one event loop.

    It ends when its client is garbage collected, so neither the loop nor ``apply`` keeps the client alive. The client
    itself holds the application's callback, which often refers to the object that owns the client.

    Args:
        client: The client.
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client and notifies the application.
    """

    def __init__(self, client: object, configs: DynamicConfigs, apply: Callable[[Any, ConfigUpdate], None]) -> None:
        self._client = weakref.ref(client)
        self._configs = configs
        self._apply = apply
        self._first: Future[None] = Future()

    async def _run(self) -> None:
        try:
            while self._client() is not None and (delay_s := self._configs.due_in_s(time.monotonic())) is not None:
                if delay_s > 0:
                    await self._sleep(delay_s)
                else:
                    await self._ask_once()
        except Exception:
            if not self._is_closed:  # otherwise the client is closing and its event loop accepts no further waits
                logger.exception("Dynamic configs have stopped: the client keeps %s", dict(self._configs.effective))
        finally:
            self._end_first_wait()

    @property
    @abstractmethod
    def _is_closed(self) -> bool:
        """Return whether the event loop is closed."""

    @abstractmethod
    async def _sleep(self, seconds: float) -> None:
        """Sleep on the event loop."""

    @abstractmethod
    async def _ask_once(self) -> None:
        """Send one request and call ``_answered``, or report to ``DynamicConfigs`` why there is no answer."""

    def _answered(self, response: DescribeClientConfigsResponse) -> None:
        self._take_effect(response)
        self._end_first_wait()  # after the call that refers to the client: the waiting thread may delete it now

    def _take_effect(self, response: DescribeClientConfigsResponse) -> None:
        update = self._configs.on_answer(time.monotonic(), response)
        client = self._client()
        if update is not None and client is not None:
            self._apply(client, update)

    def _wait_for_first(self, timeout_s: float) -> bool:
        """Return whether an answer arrives, or dynamic configs are disabled for good, within ``timeout_s`` seconds."""
        return bool(wait([self._first], timeout_s).done)

    def _end_first_wait(self) -> None:
        if not self._first.done():
            self._first.set_result(None)
