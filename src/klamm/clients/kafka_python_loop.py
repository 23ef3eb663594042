"""Requests of ``DynamicConfigs`` on a kafka-python client's own connections and event loop.

Nothing in kafka-python is replaced. A coroutine on the client's event loop sends its requests between the client's own.
It requests ApiVersions once per connection, because kafka-python drops the broker's features.
"""

from __future__ import annotations

import functools
import logging
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.compat import KafkaNetClient

from klamm import __version__
from klamm.clients.dynamic_config_loop import MAX_WAIT_FOR_FIRST_S, DynamicConfigLoop
from klamm.clients.kafka_python_bridge import BridgedRequest, BridgedResponse
from klamm.kafka_client.connection.versions import negotiate
from klamm.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from klamm.clients.dynamic_config import ConfigUpdate, DynamicConfigs
    from klamm.protocol.schema import Message

logger = logging.getLogger(__name__)
AnyResponse = TypeVar("AnyResponse", bound="Message")

SOFTWARE: Final = ("klamm-kafka-python", __version__)
"""Software name of our clients in ApiVersions (KIP-511). It shows operators which clients can follow."""
MAX_IN_FLIGHT: Final = "max_in_flight"
"""kafka-python's reason for pausing a connection that has reached its maximum of requests in flight."""
FIRST_VERSION_WITH_FEATURES: Final = 3


class KafkaPythonLoop(DynamicConfigLoop):
    """Loop on the connections of a kafka-python client.

    Everything except ``start`` runs in the thread that drives the client's event loop.

    Args:
        manager: kafka-python's ``KafkaConnectionManager`` of the client.
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client.
        on_change: The application's callback, called after ``apply``.
    """

    def __init__(
        self,
        *,
        manager: Any,
        configs: DynamicConfigs,
        apply: Callable[[ConfigUpdate], None],
        on_change: Callable[[ConfigUpdate], None] | None,
    ) -> None:
        super().__init__(configs, apply, on_change)
        self._manager = manager
        self._net = manager._net  # kafka-python has no public access to its event loop
        self._asked_connection: Any = None

    def start(self) -> bool:
        """Start the coroutine on the client's event loop and wait until the first answer has taken effect.

        The wait ends with the request timeout or after five seconds: a client can start without its dynamic configs.
        Call this from any thread except the one that drives the client's event loop.

        Returns:
            Whether an answer arrived, or dynamic configs were disabled for good.
        """
        self._net.call_soon_threadsafe(self._run)
        return self._first.wait(min(MAX_WAIT_FOR_FIRST_S, self._manager.config["request_timeout_ms"] / 1000))

    @property
    def _is_closed(self) -> bool:
        return bool(self._net._closed)

    async def _sleep(self, seconds: float) -> None:
        await self._net.sleep(seconds)

    async def _ask_once(self) -> None:
        try:
            connection = await self._connection()
        except (kafka_errors.KafkaError, ProtocolError) as error:
            logger.debug("Dynamic configs: no broker to ask yet: %s", error)
            self._configs.on_not_sent(time.monotonic())
            return
        if connection is None:
            return
        request = BridgedRequest(self._configs.request(), DescribeClientConfigsResponse, 0, is_whole=True)
        sent = send_in_turn(connection, request)
        if sent is None:
            self._configs.on_not_sent(time.monotonic())
            return
        try:
            answer: BridgedResponse[DescribeClientConfigsResponse] = await sent
            response = answer.unwrap()
        except ProtocolError as error:
            self._configs.on_unreadable(error)
        except kafka_errors.KafkaError as error:
            self._configs.on_no_answer(time.monotonic(), error)
        else:
            self._answered(response)

    async def _connection(self) -> Any | None:
        """Return a connection to a broker that supports the feature, or None."""
        connection = self._asked_connection
        if connection is None or not connection.connected:
            connection = self._manager.get_connection(self._node_id())
            await connection
        if connection is not self._asked_connection:
            if not self._configs.on_features(await self._features(connection)):
                return None
            self._asked_connection = connection
        return connection

    def _node_id(self) -> Any:
        """Return a broker to send to. While all are busy kafka-python returns none; then a busy one is used."""
        node_id = self._manager.least_loaded_node()
        if node_id is None:
            node_id = next((broker.node_id for broker in self._manager.cluster.brokers()), None)
        if node_id is None:
            raise kafka_errors.NodeNotReadyError("no broker is known")
        return node_id

    async def _features(self, connection: Any) -> dict[str, tuple[int, int]]:
        """Return the features of the broker, empty for a broker that is too old to have any."""
        try:
            api_version = negotiate(
                ApiVersionsRequest,
                connection.broker_version_data.api_versions,
                min_version=FIRST_VERSION_WITH_FEATURES,
            )
        except UnsupportedVersionError:
            return {}
        name, software_version = SOFTWARE
        sent = send_in_turn(
            connection,
            BridgedRequest(
                ApiVersionsRequest(client_software_name=name, client_software_version=software_version),
                ApiVersionsResponse,
                api_version,
            ),
        )
        if sent is None:
            raise kafka_errors.NodeNotReadyError("the connection is paused")
        answer: BridgedResponse[ApiVersionsResponse] = await sent
        response = answer.unwrap()
        if response.error_code != ErrorCode.NONE:
            return {}
        return {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}


def named_kafka_client() -> Callable[..., Any]:
    """Return the factory of kafka-python's network client that sets our software name and version."""
    name, software_version = SOFTWARE
    return functools.partial(KafkaNetClient, client_software_name=name, client_software_version=software_version)


def send_in_turn(connection: Any, request: BridgedRequest[Any]) -> Any | None:
    """Send now, or as soon as one of the client's own requests is answered. Return kafka-python's future.

    A producer under load always has the maximum number of requests in flight, and reuses a free slot before any
    coroutine runs. So the slot is taken inside the callback of the response that frees it. Return None if the
    connection is paused for another reason (throttled, buffer full); nothing is sent then.
    """
    if not connection.paused:
        return connection.send_request(request)
    if connection.paused != {MAX_IN_FLIGHT} or not connection.in_flight_requests:
        return None
    outcome = Future()

    def send(_: Any) -> None:
        if connection.closed:
            outcome.failure(kafka_errors.KafkaConnectionError("closed"))
            return
        connection.unpause(MAX_IN_FLIGHT)
        sent = connection.send_request(request)
        sent.add_callback(outcome.success)
        sent.add_errback(outcome.failure)

    _, oldest, *_ = connection.in_flight_requests[0]
    oldest.add_callback(send)
    oldest.add_errback(outcome.failure)
    return outcome
