"""Connection pool with its own thread, for calls from many threads and coroutines, with retries until a deadline.

The thread runs an asyncio event loop. Work is written as coroutines that run on it; callers get futures. Connections
are opened by ``open_connection`` in short-lived threads, because it blocks, and are then driven by the event loop. Each
connection carries any number of requests at a time; the broker answers them in order.

States of a node, seen from the pool:

===========  ===========  ==========================================================================================
From         To           On
===========  ===========  ==========================================================================================
unknown      opening      A call needs the node. Calls that need it meanwhile wait for the same attempt.
opening      open         The connection is ready. The node's backoff ends.
opening      backing off  It could not be opened. The backoff doubles with each failure in a row.
backing off  opening      A call needs the node and the backoff has passed. Until then calls prefer other nodes.
open         unknown      The connection broke, a request timed out, or the SASL session is about to expire. The
                          cached controller is forgotten in the first two cases.
===========  ===========  ==========================================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import os
import random
import socket
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.login import open_connection
from klamm.kafka_client.errors import CLOSED, FATAL_ERRORS, RETRIABLE_CODES, ConnectionLostError, api_error, error_text
from klamm.kafka_client.pool.calls import Deadline, Outcome
from klamm.kafka_client.pool.node import NotReadyError, PooledConnection, PoolNode
from klamm.kafka_client.pool.rights import name_right
from klamm.properties import split_address
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.metadata import MetadataRequest, MetadataResponse
from klamm.retries import backoff_s

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from concurrent.futures import Future

    from klamm.kafka_client.connection.connection import Connection
    from klamm.kafka_client.connection.security import Security
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.schema import Message

AnyResponse = TypeVar("AnyResponse", bound="Message")
AnyResult = TypeVar("AnyResult")

CONTROLLER: Final = -1
"""Node id that stands for the controller named in Metadata responses."""
_DEFAULT_PORT: Final = 9092
_RETRY_BACKOFF_MAX_S: Final = 1.0
"""Kafka's default of ``retry.backoff.max.ms`` (KIP-580)."""
_JITTER: Final = 0.2
_RANDOM: Final = random.Random()  # noqa: S311 - no secret; of our own, because programs may seed the global one
_CALL_TIMEOUT: Final = "timeout_ms"
"""Field of requests that limits the time that the broker works on them."""


class ConnectionPool:
    """Connections to the brokers of one cluster, driven by one thread. Thread-safe.

    Args:
        settings: Addresses and settings of connections.
        timeout_ms: Default limit for one unit of work in milliseconds, including retries (``default.api.timeout.ms``).

    Raises:
        ValueError: A bootstrap server is not of the form ``host:port``.
    """

    def __init__(self, settings: ConnectionSettings, *, timeout_ms: int = 60_000) -> None:
        self._settings = settings
        self._timeout_ms = timeout_ms
        self._buffers = BufferPool(max_free_bytes=0)
        if not settings.bootstrap_servers:
            raise ValueError("bootstrap_servers is empty: expected host:port, or several of them")
        self._servers = [PoolNode(_address(server), self._open, settings) for server in settings.bootstrap_servers]
        self._bootstraps = 0
        self._nodes: dict[int, PoolNode] = {}
        self._controller_id: int | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._lock = threading.RLock()
        self._connecting: set[socket.socket] = set()
        """Duplicates of the sockets of connections that are not ready yet."""
        self._unsettled: set[Future[Any]] = set()
        self._closed = False
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._run, name=f"klamm-connections-{settings.client_id}", daemon=True)
        self._thread.start()

    def submit(
        self, work: Callable[[Deadline], Coroutine[Any, Any, AnyResult]], *, timeout_ms: int | None = None
    ) -> Outcome[AnyResult]:
        """Run ``work(deadline)`` on the pool's thread and return a future of its result or exception.

        Args:
            work: Function that returns a coroutine.
            timeout_ms: Limit in milliseconds. None means the pool's own limit.

        Raises:
            RuntimeError: The pool is closed, or this process is a fork of the one that created it.
        """
        if os.getpid() != self._pid:
            raise RuntimeError("This client belongs to the process that created it. Create another one after a fork")
        outcome: Outcome[AnyResult] = Outcome()
        outcome.set_running_or_notify_cancel()
        deadline = Deadline(self._timeout_ms if timeout_ms is None else timeout_ms)

        async def run() -> None:
            try:
                value = await work(deadline)
            except asyncio.CancelledError:
                raise  # close() settles the future
            except BaseException as error:  # noqa: BLE001  # reported through the future
                self._settle(outcome, error=error)
            else:
                self._settle(outcome, value=value)

        with self._lock:
            if self._closed:
                raise RuntimeError("The connection pool is closed")
            self._unsettled.add(outcome)
            self._loop.call_soon_threadsafe(lambda: self._start(run()))
        return outcome

    def _start(self, work: Coroutine[Any, Any, AnyResult]) -> asyncio.Task[AnyResult]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _settle(self, outcome: Future[Any], *, value: Any = None, error: BaseException | None = None) -> None:
        with self._lock:
            if outcome not in self._unsettled:
                return
            self._unsettled.discard(outcome)
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(value)

    @property
    def security(self) -> Security:
        """Return the security settings of the connections."""
        return self._settings.security

    @property
    def is_closed(self) -> bool:
        """Return whether the pool is closed."""
        return self._closed

    @property
    def controller_id(self) -> int | None:
        """Node id for ``CONTROLLER``, as a Metadata response named it; None if it is unknown at present."""
        return self._controller_id

    @property
    def is_searching(self) -> bool:
        """Return whether the pool is open and no broker has responded yet."""
        return not self._closed and not self._nodes

    def close(self) -> None:
        """Close all connections and stop the thread. Work in progress fails. Idempotent."""
        self.abandon()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def abandon(self) -> None:
        """Close the pool without waiting for its thread. Idempotent.

        A garbage collector may call this in any thread, even in one that holds the lock or on which the pool's thread
        waits.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                for connecting in self._connecting:
                    _shut_down(connecting)
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._end())
        with self._lock:  # a thread that holds it may still use the loop
            self._loop.close()
        for outcome in list(self._unsettled):
            error = ConnectionLostError("The connection pool was closed before the response arrived")
            self._settle(outcome, error=error)

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in (*self._servers, *self._nodes.values()):
            node.disconnect()
        await asyncio.sleep(0)  # connections that were opened in the last moment are closed by their callbacks

    # --- for coroutines on the pool's thread ---

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
        require: Callable[[PooledConnection], None] = lambda _: None,
        is_whole: bool = False,
    ) -> AnyResponse:
        """Send a request to one broker and return its response. Retry after lost connections and transient errors.

        A retriable error code of the whole response is an error of the attempt. Codes of single resources are the
        caller's. The request's own ``timeout_ms`` is set to the time that is left.

        Args:
            request: The message. It may be sent several times.
            response_class: Class that decodes the response.
            deadline: Deadline of all attempts.
            node_id: The broker's id, ``CONTROLLER``, or None for any broker.
            looked_up: Whether the caller found ``node_id`` as a leader or coordinator. If that node fails, the error is
                raised immediately, so that the caller looks it up again.
            min_version: Lowest version that can carry the request.
            max_version: Highest version that the caller supports.
            require: Function that raises an error for a connection on which the request must not be sent.
            is_whole: See ``Connection.submit``.

        Raises:
            UnsupportedVersionError: The broker does not offer the API in a usable version.
            TimeoutError: The deadline has passed.
            ConnectionLostError: The cluster has no broker ``node_id``, or ``looked_up`` is set and the node failed, or
                the login or a certificate is rejected.
            ProtocolError: The response could not be decoded.
        """

        async def attempt() -> AnyResponse:
            link = await self.connection(deadline, node_id)
            require(link)
            version = link.version_of(type(request), at_least=min_version, at_most=max_version)
            response = await link.call(
                self._limited(request, deadline),
                response_class,
                version,
                timeout_s=deadline.left_s(),
                is_whole=is_whole,
            )
            code = getattr(response, "error_code", ErrorCode.NONE)
            if code in RETRIABLE_CODES:
                raise NotReadyError(error_text(api_error(code, getattr(response, "error_message", None))))
            return response

        return await self.until_answered(attempt, deadline, what=type(request).__name__, looked_up=looked_up)

    def _limited(self, request: Message, deadline: Deadline) -> Message:
        """Return the request with the time that the broker may work on it, if it has such a field."""
        if not hasattr(request, _CALL_TIMEOUT):
            return request
        limited = copy.copy(request)
        limit_s = min(deadline.left_s(), self._settings.request_timeout_s)
        setattr(limited, _CALL_TIMEOUT, int(limit_s * 1000))
        return limited

    def check(self, response: Message) -> None:
        """Check the error code of a response as a whole.

        Raises:
            KafkaApiError: The code is not 0. It names the missing right if there is one.
        """
        code = getattr(response, "error_code", ErrorCode.NONE)
        if code != ErrorCode.NONE:
            error = api_error(code, getattr(response, "error_message", None))
            name_right(error, type(response).__name__.removesuffix("Response"), None, self.security)
            raise error

    async def check_connection(self, deadline: Deadline) -> None:
        """Request the metadata from the first bootstrap server that responds, without retries.

        Raises:
            ConnectionLostError: None responds, or one rejects the login or the certificate.
        """
        for number in range(1, len(self._servers) + 1):
            try:
                await self._refresh(deadline)
            except FATAL_ERRORS:
                raise
            except (ConnectionLostError, TimeoutError) as error:
                if number == len(self._servers):
                    servers = ",".join(self._settings.bootstrap_servers)
                    raise ConnectionLostError(f"No broker of {servers} responds: {error_text(error)}") from error
            else:
                return

    async def offered_versions(
        self, deadline: Deadline, node_id: int | None = None, *, looked_up: bool = False
    ) -> Mapping[int, tuple[int, int]]:
        """Return the first and last version per API key that a broker offers. See ``send`` for arguments and errors."""

        async def attempt() -> Mapping[int, tuple[int, int]]:
            return (await self.connection(deadline, node_id)).versions

        return await self.until_answered(attempt, deadline, what="ApiVersions", looked_up=looked_up)

    async def features(
        self, deadline: Deadline, node_id: int | None = None
    ) -> tuple[Mapping[str, tuple[int, int]], Mapping[str, int]]:
        """Return the lowest and highest version per supported feature of a broker, and the level per finalized one.

        See ``send`` for arguments and errors.
        """

        async def attempt() -> tuple[Mapping[str, tuple[int, int]], Mapping[str, int]]:
            link = await self.connection(deadline, node_id)
            return link.features, link.finalized_features

        return await self.until_answered(attempt, deadline, what="ApiVersions", looked_up=False)

    async def pause(self, seconds: float) -> None:
        """Sleep on the pool's event loop."""
        await asyncio.sleep(max(seconds, 0.0))

    async def back_off(self, retries: int, deadline: Deadline) -> None:
        """Sleep before a retry, at most until the deadline, and forget the controller.

        The controller may be gone for good, and then a Metadata response names another one.

        Args:
            retries: Number of earlier retries. The pause doubles with each, up to one second (KIP-580).
            deadline: Deadline of the call.
        """
        self._controller_id = None
        first_s = self._settings.retry_backoff_s
        pause_s = backoff_s(retries, first_s, max(_RETRY_BACKOFF_MAX_S, first_s))
        await self.pause(min(pause_s * _RANDOM.uniform(1 - _JITTER, 1 + _JITTER), deadline.left_s()))

    async def until_answered(
        self,
        attempt: Callable[[], Awaitable[AnyResult]],
        deadline: Deadline,
        *,
        what: str,
        looked_up: bool = False,
    ) -> AnyResult:
        """Repeat an attempt until it succeeds or the deadline has passed.

        Args:
            attempt: Function that raises ConnectionLostError or TimeoutError if it must be repeated.
            deadline: Deadline of all attempts.
            what: Name of the request, for messages.
            looked_up: See ``send``.

        Raises:
            TimeoutError: The deadline has passed.
            ConnectionLostError: A retry does not help.
        """
        last: Exception | None = None
        retries = 0
        while not deadline.passed():
            try:
                return await attempt()
            except FATAL_ERRORS:
                raise
            except (ConnectionLostError, TimeoutError) as error:
                if looked_up:
                    self._controller_id = None
                    raise ConnectionLostError(str(error)) from error
                if isinstance(error, _UnknownNodeError) or (isinstance(error, _NoBrokerError) and deadline.passed()):
                    raise
                # A wait that ends with the deadline says nothing of the cause.
                if last is None or not isinstance(error, TimeoutError):
                    last = error
            await self.back_off(retries, deadline)
            retries += 1
        limit = f"within {deadline.limit_ms} ms"
        if not self._nodes:
            servers = ",".join(self._settings.bootstrap_servers)
            reason = _reason(last) or _SILENT
            hint = _OTHER_PROTOCOL if reason.endswith(CLOSED) else ""
            raise _NoBrokerError(f"No broker at {servers} responded {limit}{reason}{hint}") from last
        raise TimeoutError(f"{what}: no response {limit}{_reason(last)}") from last

    async def connection(self, deadline: Deadline, node_id: int | None = None) -> PooledConnection:
        """Return an open connection to a node.

        Raises:
            ConnectionLostError: There is none at present.
            TimeoutError: The deadline passed first.
        """
        if not self._nodes:
            await self._refresh(deadline)
        if node_id is None:
            return await self._any_node(deadline)
        is_controller = node_id == CONTROLLER
        if is_controller:
            if self._controller_id is None:
                await self._refresh(deadline, await self._any_node(deadline))
            if self._controller_id is None:
                raise NotReadyError("the cluster has no controller yet")
            node_id = self._controller_id
        if node_id not in self._nodes or not self._nodes[node_id].is_ready:
            await self._refresh(deadline, await self._any_node(deadline))
            if node_id not in self._nodes:
                # A broker may become controller soon, so a later attempt may succeed.
                raise (NotReadyError if is_controller else _UnknownNodeError)(f"The cluster has no broker {node_id}")
        return await self._nodes[node_id].link(deadline)

    async def _any_node(self, deadline: Deadline) -> PooledConnection:
        """Return a connection to the least loaded node: one that is not throttled, and an open one, if possible.

        Nodes that failed are left out. If all have, a bootstrap server is asked for other nodes (KIP-899).
        """
        ready = [node for node in self._nodes.values() if node.is_ready]
        if not ready:
            await self._refresh(deadline)
            ready = list(self._nodes.values())
        node = min(ready, key=lambda each: (each.is_throttled, not each.is_open, each.in_flight, _RANDOM.random()))
        return await node.link(deadline)

    async def _refresh(self, deadline: Deadline, link: PooledConnection | None = None) -> None:
        """Update nodes and controller from a Metadata response of ``link``, or else of the next bootstrap server.

        Calls that need it at the same time share one request.
        """
        if self._refreshing is None:
            self._refreshing = self._start(self._refresh_once(link))
            self._refreshing.add_done_callback(self._on_refreshed)
        async with asyncio.timeout(deadline.left_s()):
            await asyncio.shield(self._refreshing)

    def _on_refreshed(self, refreshing: asyncio.Task[None]) -> None:
        self._refreshing = None
        if not refreshing.cancelled():
            refreshing.exception()  # for asyncio, which else logs errors that no call waits for

    async def _refresh_once(self, link: PooledConnection | None) -> None:
        server: PoolNode | None = None
        if link is None:
            server = self._servers[self._bootstraps % len(self._servers)]
            self._bootstraps += 1
            link = await server.link(Deadline(int(self._settings.request_timeout_s * 1000)))
        try:
            request = MetadataRequest(topics=[], allow_auto_topic_creation=False)
            version = link.version_of(MetadataRequest, at_least=1)
            self._update(await link.call(request, MetadataResponse, version), server)
        finally:
            if server is not None:
                server.disconnect()

    def _update(self, response: MetadataResponse, server: PoolNode | None) -> None:
        """Replace the nodes. Nodes with an unchanged address keep their connections; all others are discarded.

        Args:
            response: The latest Metadata response.
            server: Bootstrap server that sent it. The node with its address takes over its connection.
        """
        if not response.brokers:  # a cluster that starts has registered none yet
            raise NotReadyError("The cluster has no broker yet")
        previous, self._nodes = self._nodes, {}
        for broker in response.brokers:
            address = (broker.host, broker.port)
            node = previous.get(broker.node_id)
            if node is None or node.address != address:
                node = PoolNode(address, self._open, self._settings)
            else:
                del previous[broker.node_id]
            if server is not None and server.address == address:
                node.take_over(server)
            self._nodes[broker.node_id] = node
        for gone in previous.values():
            gone.discard()
        self._controller_id = response.controller_id if response.controller_id >= 0 else None

    def _open(self, host: str, port: int) -> asyncio.Future[PooledConnection]:
        """Open a connection in a thread."""
        opened: asyncio.Future[PooledConnection] = self._loop.create_future()

        def settle(connection: Connection | None, error: BaseException | None) -> None:
            if connection is not None:
                try:
                    opened.set_result(PooledConnection(connection, self._loop, self._settings.request_timeout_s))
                except Exception as failure:  # noqa: BLE001  # reported through the future, which calls wait for
                    connection.close()
                    error = failure
            if not opened.done():
                opened.set_exception(error or ConnectionLostError("unknown"))

        def run() -> None:
            connection: Connection | None = None
            failure: BaseException | None = None
            with contextlib.ExitStack() as stack:
                on_connected = functools.partial(self._on_connected, stack)
                try:
                    connection = open_connection(host, port, self._settings, self._buffers, on_connected)
                except BaseException as error:  # noqa: BLE001  # reported through the future
                    failure = error
            with self._lock:
                is_closed = self._closed
                if not is_closed:
                    self._loop.call_soon_threadsafe(settle, connection, failure)
            if is_closed and connection is not None:
                connection.close()

        threading.Thread(target=run, name=f"klamm-connect-{host}:{port}", daemon=True).start()
        return opened

    def _on_connected(self, stack: contextlib.ExitStack, connected: socket.socket) -> None:
        """Let ``close`` end the handshakes on a TCP connection, for which the broker has up to ten seconds."""
        duplicate = stack.enter_context(connected.dup())  # TLS takes the descriptor of the socket itself
        with self._lock:
            self._connecting.add(duplicate)
            if self._closed:
                _shut_down(duplicate)
        stack.callback(self._forget, duplicate)

    def _forget(self, duplicate: socket.socket) -> None:
        with self._lock:
            self._connecting.discard(duplicate)


_OTHER_PROTOCOL: Final = "; check that security.protocol matches its listener"
_SILENT: Final = ": no answer and no error; check that it is a Kafka listener, and that security.protocol matches it"


def _reason(error: Exception | None) -> str:
    """Return an error as the end of a message. Errors of time limits have no text."""
    return f": {error}" if str(error or "") else ""


def _shut_down(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the broker has closed the connection
        connected.shutdown(socket.SHUT_RDWR)


def _address(server: str) -> tuple[str, int]:
    address = split_address(server if ":" in server else f"{server}:{_DEFAULT_PORT}")
    if address is None:
        raise ValueError(f"bootstrap_servers={server!r}: expected host:port")
    return address


class _NoBrokerError(TimeoutError):
    """No bootstrap server responded in time. Attempts of several requests pass it on with its message."""


class _UnknownNodeError(ConnectionLostError):
    """The cluster has no such broker."""
