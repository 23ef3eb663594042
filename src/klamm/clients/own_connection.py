"""Requests for dynamic configs on a separate connection, for clients whose connections cannot be shared.

librdkafka and aiokafka cannot send a request of ours, so a thread with one connection does. It logs in as the same user
with the same client id, so the broker resolves the same values, and sleeps between requests.
"""

from __future__ import annotations

import asyncio
import logging
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from klamm.clients.dynamic_config import MAX_WAIT_FOR_FIRST_S, DynamicConfigLoop
from klamm.kafka_client.connection.transport import ConnectionSettings
from klamm.kafka_client.errors import ConnectionLostError, UnreadableResponseError
from klamm.kafka_client.pool.calls import Deadline
from klamm.kafka_client.pool.node import NotReadyError
from klamm.kafka_client.pool.pool import ConnectionPool
from klamm.protocol.errors import KafkaApiError
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs

logger = logging.getLogger(__name__)

_CONNECT_TIMEOUT_MS: Final = 10_000


class OwnConnection:
    """Thread that requests the dynamic configs of one client until it is closed or the client is garbage collected.

    Args:
        client: The client. ``apply`` must not refer to it, because that would keep it alive.
        settings: kafka-python's settings for servers, security and ``client_id``.
        software_name: Name that the broker stores with the registration.
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client and notifies the application. Called in the connection's thread.

    Raises:
        ValueError: A setting is unknown or has a wrong value.
    """

    def __init__(
        self,
        *,
        client: object,
        settings: dict[str, Any],
        software_name: str,
        configs: DynamicConfigs,
        apply: Callable[[Any, ConfigUpdate], None],
    ) -> None:
        more = {name: value for name, value in settings.items() if name != "bootstrap_servers"}
        self._configs = configs
        self._pool = ConnectionPool(
            ConnectionSettings.of_keywords(
                settings["bootstrap_servers"], more | {"client_software_name": software_name}
            )
        )
        self._loop = _OwnLoop(self._pool, client, configs, apply)
        self._end = weakref.finalize(client, self._pool.abandon)

    @property
    def is_on(self) -> bool:
        """Whether requests are sent or will be."""
        return self._configs.disabled_because is None

    def start(self) -> bool:
        """Start the requests and wait some seconds for the first answer. Return whether it has arrived.

        If dynamic configs are disabled for good, the thread ends at once.
        """
        self._loop.start()
        came = self._loop.wait_for_first()
        if not self.is_on:
            self.close()
        return came

    async def start_async(self) -> None:
        """Do the same as ``start`` without blocking the running event loop or one of its threads."""
        self._loop.start()
        await self._loop.until_first()
        if not self.is_on:
            await self.close_async()

    async def close_async(self) -> None:
        """Do the same as ``close`` without blocking the running event loop."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Stop the thread and close its connection. Idempotent. Must not be called from the thread itself."""
        self._end.detach()
        self._pool.close()


class _OwnLoop(DynamicConfigLoop):
    """Loop on a connection pool of its own."""

    def __init__(
        self,
        pool: ConnectionPool,
        client: object,
        configs: DynamicConfigs,
        apply: Callable[[Any, ConfigUpdate], None],
    ) -> None:
        super().__init__(client, configs, apply)
        self._pool = pool

    def start(self) -> None:
        self._pool.submit(lambda _: self._run())

    def wait_for_first(self) -> bool:
        return self._wait_for_first(MAX_WAIT_FOR_FIRST_S)

    async def until_first(self) -> None:
        await asyncio.wait([asyncio.wrap_future(self._first)], timeout=MAX_WAIT_FOR_FIRST_S)

    @property
    def _is_closed(self) -> bool:
        return self._pool.is_closed

    async def _sleep(self, seconds: float) -> None:
        await self._pool.pause(seconds)

    async def _ask_once(self) -> None:
        try:
            connection = await self._pool.connection(Deadline(_CONNECT_TIMEOUT_MS))
        except (KafkaApiError, ConnectionLostError, TimeoutError) as error:
            logger.debug("Dynamic configs: no broker to ask yet: %s", error)
            self._configs.on_not_sent(time.monotonic())
            return
        if not self._configs.on_features(connection.features):
            return
        request = self._configs.request()
        try:
            response = await connection.call(request, DescribeClientConfigsResponse, 0, is_whole=True)
        except UnreadableResponseError as error:
            self._configs.on_unreadable(error)
        except NotReadyError:
            self._configs.on_not_sent(time.monotonic())
        except ConnectionLostError as error:
            self._configs.on_no_answer(time.monotonic(), error)
        else:
            self._answered(response)
