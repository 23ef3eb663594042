"""kafka-python's producer and consumer with configs that can be changed centrally while they run (KIP-649).

Requests of ``DynamicConfigs`` go over the client's own connections and event loop.

Nothing in kafka-python is replaced. A coroutine on the client's event loop sends its requests between the client's own.
It requests ApiVersions once per connection, because kafka-python drops the broker's features.
"""

from __future__ import annotations

import functools
import logging
import time
from struct import Struct as Packer
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import kafka
import kafka.errors as kafka_errors
from kafka.coordinator.base import MemberState
from kafka.future import Future
from kafka.net.compat import KafkaNetClient

from klamm import __version__
from klamm.client_configs.definitions import ACKS, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS
from klamm.clients.dynamic_config import (
    MAX_WAIT_FOR_FIRST_S,
    ConfigUpdate,
    DynamicConfigLoop,
    DynamicConfigs,
    Values,
    normalise_consumer,
    normalise_producer,
    notify,
)
from klamm.kafka_client.connection.connection import negotiate
from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode, ProtocolError, UnsupportedVersionError
from klamm.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from klamm.protocol.messages.describe_client_configs import DescribeClientConfigsResponse
from klamm.protocol.primitives import skip_tagged_fields
from klamm.protocol.schema import Message

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

AnyResponse = TypeVar("AnyResponse", bound=Message)

API_VERSIONS_KEY = 18
_HEADER = Packer(">hhi")
_INT32 = Packer(">i")
_INT16 = Packer(">h")

SOFTWARE: Final = ("klamm-kafka-python", __version__)
"""Software name of our clients in ApiVersions (KIP-511). It shows operators which clients can follow."""
MAX_IN_FLIGHT: Final = "max_in_flight"
"""kafka-python's reason for pausing a connection that has reached its maximum of requests in flight."""
FIRST_VERSION_WITH_FEATURES: Final = 3
_WIRE_ACKS: Final = {"all": -1, "0": 0, "1": 1}


class BridgedResponse(Generic[AnyResponse]):
    """A response, or the error that decoding raised, which kafka-python must not mistake for its own failure."""

    __slots__ = ("_content",)

    def __init__(self, content: AnyResponse | ProtocolError) -> None:
        self._content = content

    @property
    def throttle_time_ms(self) -> int:
        """Throttle time that ``KafkaConnection`` reads to honour quotas (KIP-219); 0 if the message has none."""
        return max(0, getattr(self._content, "throttle_time_ms", 0))

    def unwrap(self) -> AnyResponse:
        """Return the message.

        Raises:
            ProtocolError: The bytes could not be decoded.
        """
        if isinstance(self._content, ProtocolError):
            raise self._content
        return self._content

    def __repr__(self) -> str:
        """Return the message type without its values, which may be secrets: kafka-python logs this text."""
        return f"{type(self).__name__}({type(self._content).__name__})"


class _Correlation:
    """Correlation id of a response header, which ``KafkaProtocol`` compares with the request's."""

    __slots__ = ("correlation_id",)

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id


class _ResponseReader(Generic[AnyResponse]):
    """Response decoder in the place of a kafka-python response class."""

    def __init__(self, response_class: type[AnyResponse], version: int, *, is_whole: bool) -> None:
        self._response_class = response_class
        self._version = version
        self._is_whole = is_whole

    def parse_header(self, buffer: Any) -> _Correlation:
        return _Correlation(_INT32.unpack(buffer.read(4))[0])

    def decode(self, buffer: Any) -> BridgedResponse[AnyResponse]:
        body = memoryview(buffer.read())
        try:
            offset = 0
            if self._response_class.is_flexible(self._version) and self._response_class.API_KEY != API_VERSIONS_KEY:
                offset = skip_tagged_fields(body, 0, len(body))
            return BridgedResponse(decode(self._response_class, self._version, body, offset, is_whole=self._is_whole))
        except (ProtocolError, IndexError) as error:
            return BridgedResponse(ProtocolError(f"Cannot decode {self._response_class.__name__}: {error}"))


class _Header:
    """Request header, kept by ``KafkaProtocol`` until the response arrives."""

    __slots__ = ("_reader", "api_key", "api_version", "correlation_id")

    def __init__(self, correlation_id: int, api_key: int, api_version: int, reader: _ResponseReader[Any]) -> None:
        self.correlation_id = correlation_id
        self.api_key = api_key
        self.api_version = api_version
        self._reader = reader

    def get_response_class(self) -> _ResponseReader[Any]:
        return self._reader


class BridgedRequest(Generic[AnyResponse]):
    """A request in one version. It can be sent only once.

    Args:
        message: The request.
        response_class: Class that decodes the response.
        version: A version that the broker offers.
        is_whole: Whether to reject a response with extra bytes after its end. Needed for API keys that two APIs share.
    """

    name: str
    API_KEY: int
    API_VERSION: int

    def __init__(
        self, message: Message, response_class: type[AnyResponse], version: int, *, is_whole: bool = False
    ) -> None:
        self.name = type(message).__name__
        self.API_KEY = message.API_KEY
        self.API_VERSION = version
        self.header: _Header | None = None
        """Set by ``KafkaProtocol`` when it sends the request. None: nothing was sent."""
        self._message = message
        self._reader = _ResponseReader(response_class, version, is_whole=is_whole)
        self._client_id: str | None = None

    def expect_response(self) -> bool:
        """Return True: every request has a response, because Produce with ``acks`` 0 is never sent this way."""
        return True

    def with_header(self, correlation_id: int = 0, client_id: str | None = None) -> None:
        """Set the header fields that ``KafkaProtocol`` provides."""
        self.header = _Header(correlation_id, self.API_KEY, self.API_VERSION, self._reader)
        self._client_id = client_id

    def encode(self, version: int | None = None, *, header: bool = False, framed: bool = False) -> bytes:
        """Return the bytes of the request, optionally with header and length."""
        del version  # the version was chosen when the request was created
        parts = bytearray()
        if header:
            if self.header is None:
                raise ValueError("Call with_header before encode")
            parts += _HEADER.pack(self.API_KEY, self.API_VERSION, self.header.correlation_id)
            parts += _nullable_string(self._client_id)
            if self._message.is_flexible(self.API_VERSION):
                parts.append(0)
        parts += encode(self._message, self.API_VERSION)
        return (_INT32.pack(len(parts)) if framed else b"") + bytes(parts)

    def __repr__(self) -> str:
        """Return the message type without its values, which may be secrets: kafka-python logs this text."""
        return f"{self.name}(version={self.API_VERSION})"


def _nullable_string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data


class KafkaPythonLoop(DynamicConfigLoop):
    """Loop on the connections of a kafka-python client.

    Everything except ``start`` runs in the thread that drives the client's event loop.

    Args:
        client: The client.
        manager: kafka-python's ``KafkaConnectionManager`` of the client.
        configs: State that decides when to send a request and what an answer changes.
        apply: Applies an update to the client and notifies the application.
    """

    def __init__(
        self, *, client: object, manager: Any, configs: DynamicConfigs, apply: Callable[[Any, ConfigUpdate], None]
    ) -> None:
        super().__init__(client, configs, apply)
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
        return self._wait_for_first(min(MAX_WAIT_FOR_FIRST_S, self._manager.config["request_timeout_ms"] / 1000))

    @property
    def _is_closed(self) -> bool:
        return bool(self._net._closed)

    async def _sleep(self, seconds: float) -> None:
        await self._net.sleep(seconds)

    async def _ask_once(self) -> None:
        try:
            connection = await self._connection()
        except Exception as error:
            # Also what the application's token provider raises, or its certificate files: kafka-python passes it on.
            if self._is_closed:
                raise
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
        except Exception as error:  # of any class if a new login on this connection failed
            if self._is_closed:
                raise
            if request.header is None:
                self._configs.on_not_sent(time.monotonic())
            else:
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
    connection is paused for another reason (throttled, buffer full); nothing is sent then. Nor is it if the future
    fails before the request has a header: that response closed or paused the connection.
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


class KafkaConsumer(kafka.KafkaConsumer):  # type: ignore[misc]  # kafka-python is untyped
    """A ``kafka.KafkaConsumer`` that follows ``session.timeout.ms`` and ``heartbeat.interval.ms`` (KIP-649).

    The constructor makes the first request, before the first JoinGroup, and waits for it at most five seconds. With the
    next ``poll``, the consumer joins again to send a changed session timeout to the coordinator. A consumer without a
    group has neither config and sends no requests. Even without dynamic configs, a join whose outcome arrives between
    two calls of ``poll`` is not lost.

    Args:
        topics: As in kafka-python.
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change in the consumer's network thread. It must not block.
        configs: All arguments of kafka-python's consumer.
    """

    def __init__(
        self,
        *topics: str,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **configs: Any,
    ) -> None:
        if enable_dynamic_config:
            configs.setdefault("kafka_client", named_kafka_client())
        super().__init__(*topics, **configs)
        self._on_dynamic_config_change = on_dynamic_config_change
        self._joins: _Joins | None = None
        if self.config["group_id"] is None:
            return
        self._joins = _Joins(self._coordinator)
        if enable_dynamic_config:
            KafkaPythonLoop(
                client=self,
                manager=self._manager,
                configs=self._dynamic_configs(),
                apply=KafkaConsumer._apply_dynamic_configs,
            ).start()

    def _dynamic_configs(self) -> DynamicConfigs:
        config = self._coordinator.config
        return DynamicConfigs(
            client_id=self.config["client_id"],
            static={
                SESSION_TIMEOUT_MS: str(config["session_timeout_ms"]),
                HEARTBEAT_INTERVAL_MS: str(config["heartbeat_interval_ms"]),
            },
            normalise=normalise_consumer,
            interval_s=self.config["metadata_max_age_ms"] / 1000,
            retry_backoff_s=self.config["retry_backoff_ms"] / 1000,
        )

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        """Apply values to the next heartbeat and JoinGroup, then call the application's callback.

        Runs in the network thread, which sends both.
        """
        coordinator = self._coordinator
        effective = {
            "session_timeout_ms": int(update.effective[SESSION_TIMEOUT_MS]),
            "heartbeat_interval_ms": int(update.effective[HEARTBEAT_INTERVAL_MS]),
        }
        for config in (self.config, coordinator.config, coordinator.heartbeat.config):
            config.update(effective)
        if any(change.name == SESSION_TIMEOUT_MS for change in update.changes):
            coordinator.request_rejoin()
        notify(self._on_dynamic_config_change, update)

    def poll(self, *args: Any, **kwargs: Any) -> Any:
        """Fetch records, as kafka-python does."""
        if self._joins is not None:
            self._joins.catch_up()
        return super().poll(*args, **kwargs)


class _Joins:
    """Workaround for four behaviours of kafka-python that disturb a group, above all on a busy machine.

    First, an assignment that arrives between two short polls is discarded and requested again; if the leader does that,
    the whole group rebalances. Second, a join that fails between two polls, for example because the group rebalances,
    may never be repeated; without heartbeats the member is then removed from its group. Third, a request to join is
    forgotten while a join is in progress, although that join may carry an old session timeout. Fourth, a leader assumes
    that the group takes every assignment that it computes. If it joins with a changed session timeout, the group does
    not rebalance and keeps the earlier assignment, without partitions that were added since. The leader then has to
    join once more.

    As in Kafka's Java client, an assignment counts only if the consumer is still the member that joined: it has not
    left, and the broker cannot have removed it. kafka-python sends no heartbeats before it has taken the assignment, so
    the broker removes the member a session timeout after the join.

    Args:
        coordinator: kafka-python's ``ConsumerCoordinator`` of a consumer that has not joined yet.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._protocols = coordinator.group_protocols
        self._read_sync_response = coordinator._process_sync_group_response
        self._joined_with: int | None = None
        """Session timeout of the latest JoinGroup, in milliseconds."""
        self._joined_at = 0.0
        """Time in seconds of the latest response with an assignment, on the monotonic clock."""
        self._generation_before: int | None = None
        """Generation before the latest JoinGroup."""
        self._snapshot_before: Any = None
        """kafka-python's partition counts of the leader's assignment in that generation. None: not the leader."""
        coordinator.group_protocols = self._note
        coordinator._process_sync_group_response = self._end_join

    def _note(self) -> Any:
        self._joined_with = self._coordinator.config["session_timeout_ms"]
        self._generation_before = self._coordinator._generation.generation_id
        self._snapshot_before = self._coordinator._assignment_snapshot
        return self._protocols()

    def _end_join(self, *response: Any) -> Any:
        """Return the assignment in a response to SyncGroup.

        Raises:
            KafkaError: The join failed, or the consumer left its group after it had sent the request.
        """
        assignment = self._read_sync_response(*response)
        if self._coordinator.state is not MemberState.REBALANCING:
            raise kafka_errors.IllegalGenerationError("the member left its group while it joined")
        if self._snapshot_before is not None and self._coordinator._generation.generation_id == self._generation_before:
            self._coordinator._assignment_snapshot = self._snapshot_before  # it joins again if partitions were added
        self._joined_at = time.monotonic()
        return assignment

    def catch_up(self) -> None:
        """Finish a join whose outcome was lost, or repeat it. Runs in the application's thread, before a poll."""
        coordinator = self._coordinator
        join = coordinator._join_task
        if coordinator.rejoining and join is not None and join.is_done:
            if join.succeeded():
                coordinator._net.run(self._finish, join.value)
            else:
                coordinator.request_rejoin()
        if not coordinator.rejoining and self._joined_with not in {None, coordinator.config["session_timeout_ms"]}:
            coordinator.request_rejoin()

    async def _finish(self, assignment: bytes) -> None:
        coordinator = self._coordinator
        coordinator._join_task = None
        removed_at = self._joined_at + (self._joined_with or 0) / 1000
        with coordinator._lock:
            if coordinator.state is not MemberState.REBALANCING or time.monotonic() >= removed_at:
                coordinator.request_rejoin()
                return
            coordinator.rejoining = coordinator.rejoin_needed = False
            coordinator.state = MemberState.STABLE
            coordinator._enable_heartbeat()
            coordinator.heartbeat.last_reset = self._joined_at  # the broker, too, counts from the join
            generation = coordinator._generation
        await coordinator._on_join_complete_async(
            generation.generation_id, generation.member_id, generation.protocol, assignment
        )


class KafkaProducer(kafka.KafkaProducer):  # type: ignore[misc]  # kafka-python is untyped
    """A ``kafka.KafkaProducer`` that follows the dynamic config ``acks`` (KIP-649).

    The constructor makes the first request and waits for it at most five seconds, so that the first record already uses
    the dynamic value. A producer with idempotence or transactions accepts only ``all``.

    Args:
        enable_dynamic_config: Whether to request dynamic configs (``enable.dynamic.config``).
        on_dynamic_config_change: Called after each change in the producer's network thread. It must not block.
        configs: All arguments of kafka-python's producer.
    """

    def __init__(
        self,
        *,
        enable_dynamic_config: bool = True,
        on_dynamic_config_change: Callable[[ConfigUpdate], None] | None = None,
        **configs: Any,
    ) -> None:
        if enable_dynamic_config:
            configs.setdefault("kafka_client", named_kafka_client())
        super().__init__(**configs)
        self._on_dynamic_config_change = on_dynamic_config_change
        if enable_dynamic_config:
            KafkaPythonLoop(
                client=self,
                manager=self._sender._client._manager,
                configs=self._dynamic_configs(),
                apply=KafkaProducer._apply_dynamic_configs,
            ).start()

    def _dynamic_configs(self) -> DynamicConfigs:
        is_idempotent = bool(self.config["enable_idempotence"])

        def normalise(values: Values) -> Values:
            return normalise_producer(values, is_idempotent=is_idempotent)

        return DynamicConfigs(
            client_id=self.config["client_id"],
            static={ACKS: str(self.config["acks"])},
            normalise=normalise,
            interval_s=self.config["metadata_max_age_ms"] / 1000,
            retry_backoff_s=self.config["retry_backoff_ms"] / 1000,
        )

    def _apply_dynamic_configs(self, update: ConfigUpdate) -> None:
        """Apply the value to later Produce requests, then call the application's callback.

        Runs in the sender's thread, which creates them.
        """
        acks = _WIRE_ACKS[update.effective[ACKS]]
        self.config["acks"] = acks
        self._sender.config["acks"] = acks
        notify(self._on_dynamic_config_change, update)
