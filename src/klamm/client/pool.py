"""Connection pool with its own thread, kafka-python's connection manager, and retries until a deadline.

Work is written as coroutines that run on kafka-python's event loop (``kafka.net.selector``, not asyncio). They may
await only what this module provides. Callers get ``concurrent.futures.Future`` objects.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from klamm.client.bridge import BridgedRequest, BridgedResponse
from klamm.client.errors import RETRIABLE_CODES, ConnectionLostError, api_error
from klamm.client.outcome import Outcome
from klamm.client.versions import negotiate
from klamm.protocol.errors import KafkaApiError, ProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from concurrent.futures import Future

    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")
AnyResult = TypeVar("AnyResult")

CONTROLLER: Final = -1
"""Node id that stands for the controller named in Metadata responses."""

_RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""Kafka's default of ``reconnect.backoff.max.ms``. With kafka-python's 30 s, a recovered node would stay unused for
long.
"""

_SETTINGS: Final[frozenset[str]] = frozenset(KafkaConnectionManager.DEFAULT_CONFIG) - {"metrics", "metric_group_prefix"}


class ConnectionPool:
    """Connections to the brokers of one cluster, driven by one thread. Thread-safe.

    Args:
        bootstrap_servers: One or several addresses ``host:port``, as in kafka-python.
        timeout_ms: Default limit for one unit of work in milliseconds, including retries (``default.api.timeout.ms``).
        retry_backoff_ms: Pause before a retry in milliseconds.
        settings: Connection and security settings with kafka-python's names, and ``client_id``.

    Raises:
        ValueError: A setting is unknown.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        *,
        timeout_ms: int = 60_000,
        retry_backoff_ms: int = 100,
        **settings: Any,
    ) -> None:
        unknown = sorted(set(settings) - _SETTINGS)
        if unknown:
            raise ValueError(f"Unknown connection settings: {', '.join(unknown)}")
        settings.setdefault("receive_message_max_bytes", 100_000_000)
        settings.setdefault("reconnect_backoff_max_ms", _RECONNECT_BACKOFF_MAX_MS)
        self._bootstrap_servers = bootstrap_servers
        self._timeout_ms = timeout_ms
        self._retry_backoff_s = retry_backoff_ms / 1000
        self._net = NetworkSelector(**settings)
        self._manager = KafkaConnectionManager(self._net, bootstrap_servers=bootstrap_servers, **settings)
        self._lock = threading.Lock()
        self._open: set[Future[Any]] = set()
        self._closed = False
        self._controller_id: int | None = None
        self._rebootstraps = 0
        self._net.start()

    def submit(
        self, work: Callable[[Deadline], Coroutine[Any, Any, AnyResult]], *, timeout_ms: int | None = None
    ) -> Outcome[AnyResult]:
        """Run ``work(deadline)`` on the pool's thread and return a future of its result or exception.

        Args:
            work: Function that returns a coroutine. The coroutine awaits only what the pool provides.
            timeout_ms: Limit in milliseconds. None means the pool's own limit.

        Raises:
            RuntimeError: The pool is closed.
        """
        outcome: Outcome[AnyResult] = Outcome()
        outcome.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise RuntimeError("The connection pool is closed")
            self._open.add(outcome)
        outcome.add_done_callback(self._forget)
        deadline = Deadline(self._timeout_ms if timeout_ms is None else timeout_ms)

        async def run() -> None:
            try:
                value = await work(deadline)
            except GeneratorExit:
                raise  # the loop is closed: close() settles the future
            except BaseException as error:  # noqa: BLE001  # reported through the future
                _settle(outcome, error=_translated(error))
            else:
                _settle(outcome, value=value)

        self._net.call_soon_threadsafe(run)
        return outcome

    @property
    def is_searching(self) -> bool:
        """Return whether the pool is open and no broker has responded yet."""
        return not self._closed and not self._manager.bootstrapped

    def _forget(self, outcome: Future[Any]) -> None:
        with self._lock:
            self._open.discard(outcome)

    def close(self) -> None:
        """Close all connections and stop the thread. Work in progress fails. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._net.call_soon_threadsafe(self._manager.close)
        self._net.stop()
        self._net.close()
        with self._lock:
            unfinished = list(self._open)
        for outcome in unfinished:
            _settle(outcome, error=ConnectionLostError("The connection pool was closed before the response arrived"))

    # --- awaitable by coroutines on the pool's thread ---

    async def send(
        self,
        request: Message,
        response_class: type[AnyResponse],
        *,
        deadline: Deadline,
        node_id: int | None = None,
        looked_up: bool = False,
        min_version: int = 0,
        max_version: int = 0x7FFF,
        retry_on: Callable[[AnyResponse], int] = lambda _: 0,
    ) -> AnyResponse:
        """Send a request to one broker and return its response. Retry after lost connections and transient errors.

        Args:
            request: The message. It may be sent several times.
            response_class: Class that decodes the response.
            deadline: Deadline of all attempts.
            node_id: The broker's id, ``CONTROLLER``, or None for any broker.
            looked_up: Whether the caller found ``node_id`` as a leader or coordinator. If that node fails, the error is
                raised immediately, so that the caller looks it up again.
            min_version: Lowest version that can carry the request.
            max_version: Highest version that the caller supports.
            retry_on: Function that returns the error code of a response that decides about a retry, or 0 to accept the
                response.

        Raises:
            UnsupportedVersionError: The broker does not offer the API in a usable version.
            TimeoutError: The deadline has passed.
            ConnectionLostError: The cluster has no broker ``node_id``, or ``looked_up`` is set and the node failed.
            KafkaApiError: Authentication failed.
            ProtocolError: The response could not be decoded.
        """

        async def attempt() -> AnyResponse:
            target = await self._node(node_id, deadline)
            response = await self._attempt(
                request, response_class, target, deadline, min_version=min_version, max_version=max_version
            )
            if (code := retry_on(response)) in RETRIABLE_CODES:
                raise _RefusedForNowError(str(api_error(code)))
            return response

        return await self._until_answered(attempt, deadline, what=type(request).__name__, looked_up=looked_up)

    async def _until_answered(
        self, attempt: Callable[[], Awaitable[AnyResult]], deadline: Deadline, *, what: str, looked_up: bool
    ) -> AnyResult:
        """Repeat an attempt until it succeeds or the deadline has passed.

        Every failure clears the cached controller. Its broker may be gone for good, and then a Metadata response names
        another one.
        """
        last: BaseException | None = None
        while not deadline.passed():
            try:
                return await attempt()
            except ConnectionLostError:
                raise
            except (kafka_errors.KafkaError, OSError) as error:
                self._controller_id = None
                if not _worth_retrying(error):
                    raise
                if looked_up:
                    raise ConnectionLostError(str(error)) from error
                last = error
            await self.pause(min(self._retry_backoff_s, deadline.left_s()))
        limit = f"within {deadline.limit_ms} ms"
        if not self._manager.bootstrapped:
            servers = self._bootstrap_servers
            named = servers if isinstance(servers, str) else ",".join(servers)
            raise TimeoutError(f"No broker at {named} responded {limit}: {last}") from last
        raise TimeoutError(f"{what}: no response {limit}: {last}") from last

    async def _attempt(
        self,
        request: Message,
        response_class: type[AnyResponse],
        node_id: int | str,
        deadline: Deadline,
        *,
        min_version: int = 0,
        max_version: int = 0x7FFF,
    ) -> AnyResponse:
        connection = self._manager.get_connection(node_id)
        await self._manager.wait_for(connection.init_future, deadline.left_ms())
        version = negotiate(
            type(request),
            connection.broker_version_data.api_versions,
            min_version=min_version,
            max_version=max_version,
        )
        bridged = BridgedRequest(request, response_class, version)
        answer: BridgedResponse[AnyResponse] = await connection.send_request(
            bridged, request_timeout_ms=min(deadline.left_ms(), self._manager.config["request_timeout_ms"])
        )
        return answer.unwrap()

    async def _node(self, node_id: int | None, deadline: Deadline) -> int | str:
        if not self._manager.bootstrapped:
            await self._manager.wait_for(self._manager.bootstrap_async(deadline.left_ms()), deadline.left_ms())
        if node_id is None:
            return await self._any_node()
        is_controller = node_id == CONTROLLER
        if is_controller:
            if self._controller_id is None:
                self._controller_id = await self._find_controller(deadline)
            node_id = self._controller_id
        if self._manager.cluster.broker_metadata(node_id) is None:
            await self._manager.cluster.refresh_metadata()
            if self._manager.cluster.broker_metadata(node_id) is None:
                message = f"The cluster has no broker {node_id}"
                # A broker may become controller soon, so a later attempt may succeed.
                raise kafka_errors.NodeNotReadyError(message) if is_controller else ConnectionLostError(message)
        return node_id

    async def _any_node(self) -> int | str:
        brokers = self._manager.cluster.brokers()
        if all(self._manager.connection_delay(broker.node_id) > 0 for broker in brokers):
            await self._rebootstrap()
        chosen = self._manager.least_loaded_node()
        if chosen is None:
            raise kafka_errors.NodeNotReadyError("no broker is reachable")
        return chosen  # type: ignore[no-any-return]

    async def _rebootstrap(self) -> None:
        """Refresh the metadata from a bootstrap server, because all known brokers are unreachable (KIP-899)."""
        servers = self._manager.cluster.bootstrap_brokers()
        self._rebootstraps += 1
        server = servers[self._rebootstraps % len(servers)].node_id
        try:
            await self._manager.cluster.refresh_metadata(server)
        finally:
            self._manager.close(server)

    async def _find_controller(self, deadline: Deadline) -> int:
        from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse  # noqa: PLC0415  # on first use

        response = await self._attempt(
            MetadataRequest(topics=[], allow_auto_topic_creation=False),
            MetadataResponse,
            await self._node(None, deadline),
            deadline,
            min_version=1,
        )
        if response.controller_id < 0:
            raise kafka_errors.NodeNotReadyError("the cluster has no controller yet")
        return response.controller_id

    async def offered_versions(
        self, deadline: Deadline, node_id: int | None = None, *, looked_up: bool = False
    ) -> Mapping[int, tuple[int, int]]:
        """Return the first and last version per API key that a broker offers.

        Args:
            deadline: Deadline of all attempts.
            node_id: The broker's id, or None for any broker.
            looked_up: See ``send``, which raises the same errors.
        """

        async def attempt() -> Mapping[int, tuple[int, int]]:
            connection = self._manager.get_connection(await self._node(node_id, deadline))
            await self._manager.wait_for(connection.init_future, deadline.left_ms())
            return connection.broker_version_data.api_versions  # type: ignore[no-any-return]

        return await self._until_answered(attempt, deadline, what="ApiVersions", looked_up=looked_up)

    def spawn(self, work: Callable[[], Awaitable[AnyResult]]) -> Awaitable[AnyResult]:
        """Start another coroutine on the pool's thread, to be awaited later."""
        return self._net.call_soon_with_future(work)  # type: ignore[no-any-return]

    async def pause(self, seconds: float) -> None:
        """Sleep on the pool's event loop."""
        await self._net.sleep(max(seconds, 0.0))


class Deadline:
    """Deadline of a unit of work, on the monotonic clock."""

    __slots__ = ("_ends_at", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._ends_at = time.monotonic() + limit_ms / 1000

    def left_s(self) -> float:
        """Remaining seconds, never below 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def left_ms(self) -> int:
        """Remaining milliseconds, never below 0."""
        return int(self.left_s() * 1000)

    def passed(self) -> bool:
        """Return whether the deadline has passed."""
        return self.left_ms() == 0


def _settle(outcome: Future[Any], *, value: Any = None, error: BaseException | None = None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(value)


class _RefusedForNowError(kafka_errors.RetriableError):  # type: ignore[misc]  # kafka-python has no types
    """A broker responded with one of ``RETRIABLE_CODES``."""


def _worth_retrying(error: Exception) -> bool:
    """Return whether a later attempt may succeed: yes for connection errors, no for failed authentication."""
    if isinstance(error, (kafka_errors.SaslAuthenticationFailedError, kafka_errors.AuthorizationError)):
        return False
    return isinstance(
        error,
        (
            OSError,
            kafka_errors.RetriableError,
            kafka_errors.KafkaConnectionError,
            kafka_errors.Cancelled,
            # The broker disappeared from the metadata between being chosen and being connected to.
            kafka_errors.UnknownBrokerIdError,
        ),
    )


def _translated(error: BaseException) -> BaseException:
    """Convert kafka-python's exceptions into klamm's. The original remains the cause."""
    if not isinstance(error, kafka_errors.KafkaError) or isinstance(error, (KafkaApiError, ProtocolError)):
        return error
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        translated: BaseException = UnsupportedVersionError(str(error))
    elif isinstance(error, kafka_errors.KafkaTimeoutError):
        translated = TimeoutError(str(error))
    elif isinstance(error, kafka_errors.BrokerResponseError):
        translated = api_error(error.errno, str(error))
    else:
        translated = ConnectionLostError(str(error))
    translated.__cause__ = error
    return translated
