"""Limits for enforced values: those of the upstream brokers, narrowed by those in the gateway's settings."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from klamm.admin import ConfigResource
from klamm.client_configs.definitions import MAX_INT, BrokerLimits
from klamm.client_configs.enforcement import TimingLimits
from klamm.gateway.definitions import MAX_INTERVAL, MAX_SESSION, MIN_INTERVAL, MIN_SESSION
from klamm.kafka_client.errors import CLUSTER_ERRORS
from klamm.protocol.types import ResourceType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from klamm.admin import AdminClient
    from klamm.gateway.settings import ClientConfigSettings

logger = logging.getLogger(__name__)

REFRESH_S: Final = 30.0
_ASK_MS: Final = 2_000
_DEFAULTS: Final[Mapping[str, int]] = MappingProxyType(
    {
        MIN_SESSION: BrokerLimits().min_session_timeout_ms,
        MAX_SESSION: BrokerLimits().max_session_timeout_ms,
        MIN_INTERVAL: TimingLimits().min_heartbeat_interval_ms,
        MAX_INTERVAL: TimingLimits().max_heartbeat_interval_ms,
    }
)
_MAX_DIGITS: Final = len(str(MAX_INT))
_PAIRS: Final = ((MIN_SESSION, MAX_SESSION), (MIN_INTERVAL, MAX_INTERVAL))


def narrowed(own: Mapping[str, int], brokers: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the limits that hold on every broker, by config.

    Args:
        own: Limits in the gateway's settings. A pair of them outside the limits of the brokers is ignored.
        brokers: Limits of each broker. Missing ones have Kafka's defaults. Without brokers, the settings apply.
    """
    merged = {**_DEFAULTS, **own}
    if not brokers:
        return merged
    for least, most in _PAIRS:
        low = max(limits.get(least, _DEFAULTS[least]) for limits in brokers)
        high = min(limits.get(most, _DEFAULTS[most]) for limits in brokers)
        own_low, own_high = max(low, own.get(least, low)), min(high, own.get(most, high))
        merged |= {least: own_low, most: own_high} if own_low <= own_high else {least: low, most: high}
    return merged


class UpstreamLimits:
    """Limits for enforced values, read from the brokers every so often. Used on the event loop only.

    Until the brokers have been read, the settings and Kafka's defaults apply. If they cannot be read later, the limits
    that were read last stay in force.

    Args:
        settings: Settings of client configs.
    """

    def __init__(self, settings: ClientConfigSettings) -> None:
        self._settings = settings
        self._is_denied = False
        self._task: asyncio.Task[None] | None = None
        self._limits = narrowed(settings.own_limits, ())
        self.on_change: Callable[[], None] = lambda: None
        """Called when a limit has changed."""

    @property
    def values(self) -> BrokerLimits:
        """Limits for values of client configs."""
        return BrokerLimits(
            min_session_timeout_ms=self._limits[MIN_SESSION],
            max_session_timeout_ms=self._limits[MAX_SESSION],
            allowed_keys=self._settings.allowed_keys,
        )

    @property
    def timings(self) -> TimingLimits:
        """Limits for the heartbeat intervals of members of the consumer protocol."""
        return TimingLimits(
            min_heartbeat_interval_ms=self._limits[MIN_INTERVAL], max_heartbeat_interval_ms=self._limits[MAX_INTERVAL]
        )

    async def start(self, admin: AdminClient) -> None:
        """Read the limits, and start to read them again every so often."""
        await self.refresh(admin)
        self._task = asyncio.create_task(self._keep_reading(admin))

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def refresh(self, admin: AdminClient) -> None:
        """Read the limits of all brokers. If one of them cannot be read, those known so far stay in force."""
        try:
            brokers = await _read(admin)
        except CLUSTER_ERRORS as error:
            if not self._is_denied:
                logger.warning("Limits of the brokers for enforced client configs cannot be read: %s", error)
            self._is_denied = True
            return
        self._is_denied = False
        values = narrowed(self._settings.own_limits, brokers)
        if values != self._limits:
            self._limits = values
            self.on_change()

    async def _keep_reading(self, admin: AdminClient) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh(admin)
            except Exception:
                logger.exception("Limits of the brokers cannot be read, trying again in %g s", REFRESH_S)


async def _read(admin: AdminClient) -> list[dict[str, int]]:
    """Return the limits of each broker.

    Raises:
        KafkaApiError: The gateway may not describe the configs of brokers.
        ConnectionError: A broker cannot be reached.
        TimeoutError: A broker does not respond.
    """
    nodes = (await admin.describe_cluster(timeout_ms=_ASK_MS)).nodes
    brokers = {ConfigResource(ResourceType.BROKER, str(node.id)): tuple(_DEFAULTS) for node in nodes}
    described = await admin.describe_configs(brokers, timeout_ms=_ASK_MS)
    return [
        {name: int(entry.value or "") for name, entry in entries.items() if _is_java_int(entry.value or "")}
        for entries in described.values()
    ]


def _is_java_int(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS and int(text) <= MAX_INT
