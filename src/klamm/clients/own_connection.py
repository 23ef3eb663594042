"""Requests for dynamic configs on a separate connection, for clients whose connections cannot be shared.

librdkafka and aiokafka cannot send a request of ours, so a thread with one connection does. It logs in as the same user
with the same client id, so the broker resolves the same values, and sleeps between requests.
"""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Final

from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from klamm import __version__
from klamm.clients.kafka_python_loop import DynamicConfigLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs

logger = logging.getLogger(__name__)

_BOOTSTRAP_TIMEOUT_MS: Final = 10_000


class OwnConnection:
    """Thread that requests the dynamic configs of one client until it is closed or the client is garbage collected.

    Args:
        owner: The client. ``apply`` and ``on_change`` must not refer to it, because that would keep it alive.
        settings: kafka-python's settings for servers, security and ``client_id``.
        software_name: Name that the broker stores with the registration.
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client. Called in the connection's thread.
        on_change: The application's callback, called after ``apply`` in the same thread.
    """

    def __init__(
        self,
        *,
        owner: object,
        settings: dict[str, Any],
        software_name: str,
        configs: DynamicConfigs,
        apply: Callable[[ConfigUpdate], None],
        on_change: Callable[[ConfigUpdate], None] | None,
    ) -> None:
        software = (software_name, __version__)
        self._configs = configs
        self._net = NetworkSelector(client_id=settings["client_id"])
        self._manager = KafkaConnectionManager(
            self._net, client_software_name=software[0], client_software_version=software[1], **settings
        )
        self._loop = _OwnLoop(
            manager=self._manager, configs=configs, apply=apply, on_change=on_change, software=software
        )
        self._end = weakref.finalize(owner, _end, self._net, self._manager)

    @property
    def is_on(self) -> bool:
        """Whether requests are sent or will be."""
        return self._configs.disabled_because is None

    def start(self) -> bool:
        """Start the thread and wait some seconds for the first answer. Return whether it has arrived.

        If dynamic configs are disabled for good, the thread ends at once.
        """
        self._net.start()
        came = self._loop.start()
        if not self.is_on:
            self.close()
        return came

    def close(self) -> None:
        """Stop the thread and close its connection. Idempotent. Must not be called from the thread itself."""
        self._end()


class _OwnLoop(DynamicConfigLoop):
    """Event loop that discovers the cluster itself, because no client shares its metadata."""

    async def _connection(self) -> Any | None:
        if not self._manager.bootstrapped:
            await self._manager.wait_for(self._manager.bootstrap_async(_BOOTSTRAP_TIMEOUT_MS), _BOOTSTRAP_TIMEOUT_MS)
        return await super()._connection()


def _end(net: Any, manager: Any) -> None:
    net.call_soon_threadsafe(manager.close)
    net.stop()
    net.close()
