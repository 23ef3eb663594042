"""A pool of connections with a thread of its own: kafka-python's manager, our messages, retries until a deadline.

Work is written as coroutines that run on kafka-python's event loop (``kafka.net.selector``, not asyncio) and only
await what this module offers. The outside sees ``concurrent.futures.Future``.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from klamm.connections.bridge import BridgedRequest, BridgedResponse
from klamm.connections.errors import RETRIABLE_CODES, BrokerUnavailableError, api_error
from klamm.connections.outcome import Outcome
from klamm.connections.versions import negotiate
from klamm.protocol.errors import KafkaApiError, ProtocolError, UnsupportedVersionError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from concurrent.futures import Future

    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")
AnyResult = TypeVar("AnyResult")

CONTROLLER: Final = -1
"""Stands for the broker that Metadata names as controller."""

_RECONNECT_BACKOFF_MAX_MS: Final = 1_000
"""Kafka's default of ``reconnect.backoff.max.ms``. kafka-python's is 30 s, so a node that is back would go unused."""

_SETTINGS: Final[frozenset[str]] = frozenset(KafkaConnectionManager.DEFAULT_CONFIG) - {"metrics", "metric_group_prefix"}


class ConnectionPool:
    """Connections to the brokers of one cluster, driven by one thread. Thread-safe.

    Args:
        bootstrap_servers: ``host:port`` or several of them, as in kafka-python.
        timeout_ms: How long a piece of work may take, retries included (``default.api.timeout.ms``).
        retry_backoff_ms: Wait before the next attempt.
        settings: kafka-python's names for connections and security, and ``client_id``.

    Raises:
        ValueError: A setting that connections do not know.
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
        """Run ``work(deadline)`` on the pool's thread; its result or its exception is the future's.

        Args:
            work: Makes a coroutine that awaits only what the pool offers.
            timeout_ms: How long it may take; None means the pool's own limit.

        Raises:
            RuntimeError: The pool is closed.
        """
        outcome: Outcome[AnyResult] = Outcome()
        outcome.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise RuntimeError("The connections are closed")
            self._open.add(outcome)
        outcome.add_done_callback(self._forget)
        deadline = Deadline(self._timeout_ms if timeout_ms is None else timeout_ms)

        async def run() -> None:
            try:
                value = await work(deadline)
            except GeneratorExit:
                raise  # the loop is closed: close() tells the outcome
            except BaseException as error:  # noqa: BLE001  # belongs to whoever waits for the outcome
                _settle(outcome, error=_translated(error))
            else:
                _settle(outcome, value=value)

        self._net.call_soon_threadsafe(run)
        return outcome

    @property
    def is_searching(self) -> bool:
        """Whether the pool is open and no broker has answered yet."""
        return not self._closed and not self._manager.bootstrapped

    def _forget(self, outcome: Future[Any]) -> None:
        with self._lock:
            self._open.discard(outcome)

    def close(self) -> None:
        """Close every connection and end the thread; work under way fails. Idempotent."""
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
            _settle(outcome, error=BrokerUnavailableError("The connections were closed before the answer came"))

    # --- what coroutines on the pool's thread may await ---

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
        """Send to one broker and return its answer; lost connections and transient errors are tried again.

        Args:
            request: The message; it may be sent several times.
            response_class: What the answer is read as.
            deadline: Until when to try.
            node_id: The broker's id, ``CONTROLLER``, or None for any broker.
            looked_up: The caller found ``node_id`` as a leader or coordinator. If that node fails, raise at once, so
                that the caller looks it up again.
            min_version: The lowest version that can carry the request.
            max_version: The highest version that the caller understands.
            retry_on: Finds the error code of an answer that decides whether to try again; 0 to take the answer.

        Raises:
            UnsupportedVersionError: The broker does not offer the API in a version that serves.
            TimeoutError: The deadline passed.
            BrokerUnavailableError: The cluster has no broker ``node_id``, or ``looked_up`` is set and it failed.
            KafkaApiError: Logging in was refused.
            ProtocolError: The answer could not be read.
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
        """Repeat an attempt until it succeeds.

        Every failure forgets the cached controller. Its broker may be gone for good, and a Metadata response names
        another one then.
        """
        last: BaseException | None = None
        while not deadline.passed():
            try:
                return await attempt()
            except BrokerUnavailableError:
                raise
            except (kafka_errors.KafkaError, OSError) as error:
                self._controller_id = None
                if not _worth_retrying(error):
                    raise
                if looked_up:
                    raise BrokerUnavailableError(str(error)) from error
                last = error
            await self.pause(min(self._retry_backoff_s, deadline.left_s()))
        limit = f"within {deadline.limit_ms} ms"
        if not self._manager.bootstrapped:
            servers = self._bootstrap_servers
            named = servers if isinstance(servers, str) else ",".join(servers)
            raise TimeoutError(f"No broker answers at {named} {limit}: {last}") from last
        raise TimeoutError(f"{what}: no answer {limit}: {last}") from last

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
                # Another broker may be the controller soon, so a later attempt may succeed.
                raise kafka_errors.NodeNotReadyError(message) if is_controller else BrokerUnavailableError(message)
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
        """Ask a bootstrap server for the brokers: all those of the last Metadata response are away (KIP-899)."""
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
            deadline: Until when to try.
            node_id: The broker's id, or None for any broker.
            looked_up: See ``send``, which raises the same errors.
        """

        async def attempt() -> Mapping[int, tuple[int, int]]:
            connection = self._manager.get_connection(await self._node(node_id, deadline))
            await self._manager.wait_for(connection.init_future, deadline.left_ms())
            return connection.broker_version_data.api_versions  # type: ignore[no-any-return]

        return await self._until_answered(attempt, deadline, what="ApiVersions", looked_up=looked_up)

    def spawn(self, work: Callable[[], Awaitable[AnyResult]]) -> Awaitable[AnyResult]:
        """Start a second coroutine on the pool's thread, to be awaited later."""
        return self._net.call_soon_with_future(work)  # type: ignore[no-any-return]

    async def pause(self, seconds: float) -> None:
        """Let others run for a while."""
        await self._net.sleep(max(seconds, 0.0))


class Deadline:
    """Until when a piece of work may go on, by the monotonic clock."""

    __slots__ = ("_ends_at", "limit_ms")

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._ends_at = time.monotonic() + limit_ms / 1000

    def left_s(self) -> float:
        """Seconds that are left, never below 0."""
        return max(0.0, self._ends_at - time.monotonic())

    def left_ms(self) -> int:
        """Milliseconds that are left, never below 0."""
        return int(self.left_s() * 1000)

    def passed(self) -> bool:
        """Tell whether nothing is left."""
        return self.left_ms() == 0


def _settle(outcome: Future[Any], *, value: Any = None, error: BaseException | None = None) -> None:
    if outcome.done():
        return
    if error is not None:
        outcome.set_exception(error)
    else:
        outcome.set_result(value)


class _RefusedForNowError(kafka_errors.RetriableError):  # type: ignore[misc]  # kafka-python has no types
    """A broker answered with one of ``RETRIABLE_CODES``."""


def _worth_retrying(error: Exception) -> bool:
    """Return whether a later attempt may succeed: connection trouble passes, a refused login does not."""
    if isinstance(error, (kafka_errors.SaslAuthenticationFailedError, kafka_errors.AuthorizationError)):
        return False
    return isinstance(
        error,
        (
            OSError,
            kafka_errors.RetriableError,
            kafka_errors.KafkaConnectionError,
            kafka_errors.Cancelled,
            # The broker left the metadata between being chosen and being connected to.
            kafka_errors.UnknownBrokerIdError,
        ),
    )


def _translated(error: BaseException) -> BaseException:
    """Turn kafka-python's exceptions into ours; the original stays as the cause."""
    if not isinstance(error, kafka_errors.KafkaError) or isinstance(error, (KafkaApiError, ProtocolError)):
        return error
    if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
        translated: BaseException = UnsupportedVersionError(str(error))
    elif isinstance(error, kafka_errors.KafkaTimeoutError):
        translated = TimeoutError(str(error))
    elif isinstance(error, kafka_errors.BrokerResponseError):
        translated = api_error(error.errno, str(error))
    else:
        translated = BrokerUnavailableError(str(error))
    translated.__cause__ = error
    return translated
