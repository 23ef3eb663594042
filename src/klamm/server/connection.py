"""Broker side of one client connection: frames in, one request at a time, responses out in request order.

As in Kafka, requests of a connection are processed one after the other. The next request starts only after the
response of the previous one was handed to the transport and the peer has read most of it.

Reading from the socket:

=============  ====================================================  ==========================================
State          Entered when                                          Left when
=============  ====================================================  ==========================================
reading        connection made                                       too much waits (next row)
reading        64 frames wait (2 before login), or more than 64 MiB  half of the frame limit or fewer frames
paused         wait, or the frame reader keeps bytes that hold       wait, of at most 64 MiB, and the kept bytes
               further frames                                        are processed (``_take_more``)
=============  ====================================================  ==========================================

While reading is paused, the kernel's receive buffer fills and TCP slows the client down.

Serving (the loop in ``_serve``; each step is passed before the next request starts):

==============  =================================================  =============================================
State           Meaning                                            Left when
==============  =================================================  =============================================
muted           A quota throttles the client (KIP-219): the        the throttle time is over
                response was sent at once, then the connection
                waits. ``is_idle`` is true.
waiting for     No frame is queued.                                ``_take`` queues a frame
a frame
waiting for     The connection used up its time slice and has      all other connections with queued requests
its turn        more frames queued (``turns.Turns``).              had a turn
waiting for     The transport's buffer is full, or the broker's    the peer reads, or the broker aborts peers
the outbox      budget of unread responses is exceeded             that read too slowly
                (``outbox.Outbox``).                               (``outbox.UnreadBudget``)
busy            The request is decoded, handled and encoded.       the handler returns
sending         The response is handed over piece by piece.        the transport has the last piece
==============  =================================================  =============================================

Closing:

=======================================================  ======================================================
Reason                                                   How
=======================================================  ======================================================
broken frame, API or version not served, failed login,   ``close``: bytes already written are still sent
error in a handler
the peer closes (``connection_lost``)                    complete requests already received; no response is sent
idle for ``connections.max.idle.ms``                     ``close``; ``abort`` when the peer left bytes unread
the server closes (``finish``)                           ``close`` after the responses; ``abort`` after a while
no login within ``LOGIN_TIMEOUT_S``                      ``abort``
peer reads too slowly while the budget is exceeded       ``abort`` (``give_up``)
log cannot be read after the size was sent               ``abort``: the client must notice the cut response
certificate without a principal                          the transport is aborted before serving starts
=======================================================  ======================================================

Connections beyond a connection limit, or beyond the connection rate of their address, do not get this far: the server
closes them before a TLS handshake.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import field
from typing import TYPE_CHECKING, cast

from klamm.lazy_dataclass import dataclass
from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, ProtocolError, StorageError
from klamm.protocol.frames import SCRATCH_BYTES, FrameReader, RequestHeader, read_request_header, response_header
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.security.certificates import CertificateError
from klamm.server.codec import (
    LARGE_FRAME_BYTES,
    LONG_PAUSES,
    Body,
    free,
    read_large_request,
    read_request,
    write,
    write_large,
)
from klamm.server.outbox import STALLED_S, Outbox, plain_socket
from klamm.server.quotas.throttles import timed
from klamm.server.security.login import LoginState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from klamm.protocol.schema import Message
    from klamm.server.client_registry import ClientRegistry
    from klamm.server.connection_limits import ConnectionSlot
    from klamm.server.context import HandlerContext
    from klamm.server.outbox import UnreadBudget
    from klamm.server.quotas.throttles import Throttles
    from klamm.server.route import RawResponse, Route
    from klamm.server.security.endpoints import Endpoint
    from klamm.server.security.login import Login
    from klamm.server.session import Session
    from klamm.server.time_slice import Turns

logger = logging.getLogger(__name__)


class Traffic:
    """Frame bytes received and sent by all connections, counted without TLS overhead. Used on the event loop only."""

    __slots__ = ("received_bytes", "sent_bytes")

    def __init__(self) -> None:
        self.received_bytes = 0
        self.sent_bytes = 0


MAX_WAITING_FRAMES = 64
"""Number of requests a client may send ahead before the broker stops reading from its connection."""
MAX_WAITING_FRAMES_BEFORE_LOGIN = 2
LOGIN_TIMEOUT_S = 30.0
"""Seconds that a client has for its login. Kafka has no such limit."""
FINISH_S = 30.0
"""Seconds in which requests of a client that has closed its connection must be completed."""
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""Number of bytes of waiting requests above which the broker does not read from a connection."""

_LOGIN_APIS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})

_SCRATCH = memoryview(bytearray(SCRATCH_BYTES))
"""Buffer for small reads. One for all connections: a transport requests it, fills it and reports that in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedByConnections:
    """Objects that all connections of a server share."""

    new_context: Callable[..., HandlerContext]
    """Function that creates the context of a request from ``session``, ``api_version`` and ``client_id``."""
    routes: Mapping[int, Route]
    client_registry: ClientRegistry
    throttles: Throttles
    traffic: Traffic
    budget: UnreadBudget
    turns: Turns
    max_frame_bytes: int
    """``socket.request.max.bytes``."""
    on_rejected: Callable[[Session, str], None] = lambda _, __: None
    """Called with a client that could not log in, or whose certificate has no principal, and the reason."""
    connections: set[ClientConnection] = field(default_factory=set)
    """Open connections, and closed ones with requests to complete. Each one adds and removes itself."""


class ClientConnection(asyncio.BufferedProtocol):
    """Broker side of one client connection; see the module's tables for its states. Used on the event loop only.

    Args:
        session: Facts about the connection.
        endpoint: Settings of its listener.
        shared: Objects that all connections of the server share.
        slot: Its place among the connection limits, which it releases when it is lost.
        delay_s: Seconds before its first request is processed.
    """

    def __init__(
        self,
        session: Session,
        endpoint: Endpoint,
        shared: SharedByConnections,
        slot: ConnectionSlot,
        *,
        delay_s: float = 0.0,
    ) -> None:
        self.session = session
        self._slot = slot
        self._endpoint = endpoint
        self._shared = shared
        self._muted_s = delay_s
        self._is_muted = False
        self._was_active = True
        self._active_at = 0.0
        self._opened_at = 0.0
        login = session.login
        max_frame_bytes = shared.max_frame_bytes
        self._reader = FrameReader(
            max_frame_bytes=max_frame_bytes if login is None else min(max_frame_bytes, login.settings.max_token_bytes)
        )
        self._max_waiting_frames = MAX_WAITING_FRAMES if login is None else MAX_WAITING_FRAMES_BEFORE_LOGIN
        self._transport: asyncio.Transport | None = None
        self._frames: deque[bytearray] = deque()
        self._frames_bytes = 0
        self._reading_paused = False
        self._is_finishing = False
        self._direct = False
        self._arrived: asyncio.Future[None] | None = None
        self._outbox: Outbox | None = None
        self._is_busy = False
        self._is_sending = False
        self._may_wait = False
        self._is_lost = False
        self._taken_before = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Return whether the transport has reported the connection. If so, it reports the loss of it as well."""
        return self._transport is not None

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in progress and none is queued, apart from those held back by a quota."""
        return (not self._frames or self._is_muted) and not self._is_busy

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses kept in memory because the peer has not read them."""
        return 0 if self._outbox is None else self._outbox.unread_bytes

    @property
    def taken_bytes(self) -> int:
        """Bytes of responses that the kernel has accepted so far."""
        return 0 if self._outbox is None else self._outbox.taken_bytes

    def stalled_s(self, now: float) -> float:
        """Return for how many seconds the transport has been full. ``now`` is a time of the event loop's clock."""
        return 0.0 if self._outbox is None else self._outbox.stalled_s(now)

    def is_stalled(self, now: float) -> bool:
        """Return whether the peer has not caught up with its responses for ``STALLED_S`` seconds."""
        return self.stalled_s(now) >= STALLED_S

    def close_if_not_logged_in(self, now: float) -> None:
        """Abort the connection if its client has not logged in for ``LOGIN_TIMEOUT_S``, whatever it has sent."""
        login = self.session.login
        if login is not None and login.principal is None and now - self._opened_at >= LOGIN_TIMEOUT_S:
            logger.info("Connection of %s closed: no login within %g s", self._peer(), LOGIN_TIMEOUT_S)
            self.abort()

    def close_if_idle(self, now: float, idle_s: float) -> None:
        """Close the connection when nothing was received, read by the peer or answered for ``idle_s`` seconds.

        A request in progress keeps the connection open. A response that the peer does not read does not keep it: the
        connection is then aborted, because an orderly close would wait until the peer has read all of it.

        Args:
            now: Current time of the event loop's clock, in seconds.
            idle_s: ``connections.max.idle.ms``, in seconds.
        """
        taken = self.taken_bytes
        has_read, self._taken_before = taken > self._taken_before, taken
        if self._was_active or has_read or (self._is_busy and not self._is_sending):
            self._was_active = False
            self._active_at = now
        elif now - self._active_at >= idle_s:
            logger.info("Connection of %s closed: idle for connections.max.idle.ms", self._peer())
            if self.unread_bytes or (self._transport is not None and self._transport.is_closing()):
                self.abort()
            else:
                self.close()

    def give_up(self) -> None:
        """Abort the connection because its peer reads too slowly while the budget of unread responses is exceeded."""
        logger.warning(
            "Connection of %s closed: %d bytes of responses are not read, and the broker's limit is exceeded",
            self._peer(),
            self.unread_bytes,
        )
        self.abort()

    def finish(self) -> None:
        """Close the connection if it is idle; otherwise drop further requests, so that it becomes idle.

        A consumer sends its next Fetch request as soon as it has the response to the last one, and would never be seen
        to be idle. Dropped bytes are still read: the kernel resets a connection that is closed with unread bytes, and
        the peer would lose the end of a response.
        """
        self._is_finishing = True
        if self.is_idle:
            self.close()

    def abort(self) -> None:
        """Close the connection at once and drop bytes that were not sent."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close the connection after the bytes already written have been sent."""
        if self._transport is not None:
            self._transport.close()
        if self._task is not None:
            self._task.cancel()

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start serving, unless the client certificate forbids it."""
        transport = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from asyncio.Transport
        self._transport = transport
        self._opened_at = asyncio.get_running_loop().time()
        # Encrypted bytes pass through the transport. Its own word for it is checked as well.
        socket = plain_socket(transport) if self._endpoint.tls is None else None
        self._outbox = Outbox(transport, self._shared.budget, self, socket)
        if self._endpoint.tls is not None and not self._has_principal(transport):
            transport.abort()
            return
        self._shared.connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def connection_lost(self, exc: Exception | None) -> None:
        """Complete the requests already received, then unregister the connection.

        As in Kafka, a producer with acks=0 may send records and close the connection at once. The connection counts for
        the limits until its requests are completed. A request that may wait for others is canceled, and so is one whose
        response is being sent.
        """
        self._is_lost = True
        task = self._task
        if task is None or not self._can_finish(task):
            self._unregister()
            if task is not None:
                task.cancel()
            return
        if self._outbox is not None:
            self._outbox.resume()  # requests no longer wait until the peer reads
        limit = asyncio.get_running_loop().call_later(FINISH_S, task.cancel)

        def on_finished(_: asyncio.Task[None]) -> None:
            limit.cancel()
            self._unregister()

        task.add_done_callback(on_finished)

    def _can_finish(self, task: asyncio.Task[None]) -> bool:
        """Return whether requests of a lost connection remain, and can be completed without the peer."""
        login = self.session.login
        if task.done() or task.cancelling() or (login is not None and not login.is_open):
            return False
        if self._is_busy:
            return not self._is_sending and not self._may_wait
        return bool(self._frames)

    def _unregister(self) -> None:
        self._shared.connections.discard(self)
        self._shared.budget.remove(self)
        self._shared.client_registry.left(self.session)
        self._slot.release()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read: the frame itself while a large one arrives, else the shared one."""
        direct = self._reader.direct_buffer()
        self._direct = direct is not None
        return _SCRATCH if direct is None else direct

    def buffer_updated(self, nbytes: int) -> None:
        """Process ``nbytes`` bytes that the transport wrote into the buffer."""
        if self._is_finishing:
            return
        self._was_active = True
        try:
            if self._direct:
                frames = self._reader.received_directly(nbytes)
            else:
                frames = self._reader.receive(_SCRATCH[:nbytes], max_frames=self._room())
        except ProtocolError as error:
            self._reject(error)
            return
        self._take(frames)

    def pause_writing(self) -> None:
        """Start no further request: the transport's buffer is full because the peer reads slowly."""
        if self._outbox is not None:
            self._outbox.pause()

    def resume_writing(self) -> None:
        """Continue to start requests: the peer has read most of the transport's buffer."""
        if self._outbox is not None:
            self._outbox.resume()

    def _room(self) -> int:
        """Return how many more frames may be queued."""
        return max(self._max_waiting_frames - len(self._frames), 0)

    def _take(self, frames: list[bytearray]) -> None:
        """Queue frames for ``_serve``, and pause reading when enough of them wait."""
        if frames:
            self._frames.extend(frames)
            size = sum(map(len, frames))
            self._frames_bytes += size
            self._shared.traffic.received_bytes += size
            if self._arrived is not None and not self._arrived.done():
                self._arrived.set_result(None)
        if self._reader.has_kept or not self._room() or self._frames_bytes > MAX_WAITING_BYTES:
            self._pause_reading()

    # -- serving

    async def _serve(self) -> None:
        turn_ends = 0.0
        while self._frames or not self._is_lost:
            await self._sit_out()
            if not self._frames:
                while not self._frames:
                    self._arrived = asyncio.get_running_loop().create_future()
                    await self._arrived
                turn_ends = self._shared.turns.ends_at()
            elif time.perf_counter() >= turn_ends:
                turn_ends = await self._shared.turns.next()
            if self._outbox is not None and not self._outbox.is_ready:
                await self._outbox.ready()
            frame = self._frames.popleft()
            self._frames_bytes -= len(frame)
            self._is_busy = True
            try:
                await self._answer(frame)
                if self._reading_paused and len(self._frames) <= self._max_waiting_frames // 2:
                    self._take_more()
            except ProtocolError as error:
                self._reject(error)
                return
            except StorageError as error:
                # The response's size was already sent, so the client can only notice the error by the end of the
                # connection.
                logger.warning("Connection of %s closed: %s", self._peer(), error)
                self.abort()
                return
            except Exception:
                # The one place that catches everything: a bug in one handler must not end other connections.
                logger.exception("Request of %s failed", self._peer())
                self.close()
                return
            finally:
                self._is_busy = False
            self._was_active = True

    def _take_more(self) -> None:
        """Queue the frames that the reader kept; resume reading from the socket when there is still room after that.

        Raises:
            ProtocolError: The kept bytes are not a valid frame.
        """
        if self._reader.has_kept:
            self._take(self._reader.receive(max_frames=self._room()))
        if not self._reader.has_kept and self._room() and self._frames_bytes <= MAX_WAITING_BYTES:
            self._resume_reading()

    async def _sit_out(self) -> None:
        """Wait until the quota's throttle time is over.

        Meanwhile no request is answered. Frames are still queued until the limit pauses reading.
        """
        while self._muted_s > 0:
            muted_s, self._muted_s = self._muted_s, 0.0
            self._is_muted = True
            try:
                await asyncio.sleep(muted_s)
            finally:
                self._is_muted = False

    async def _answer(self, frame: bytearray) -> None:
        login = self.session.login
        if login is not None and login.takes_bare_token:
            await self._take_bare_token(login, bytes(frame))
            return
        header = read_request_header(frame)
        if login is not None:
            login.check(header.api_key)
        if login is None or login.is_open:
            self._shared.client_registry.seen(self.session, header.client_id, header.api_key)
        route = self._shared.routes.get(header.api_key)
        if route is None:
            raise ProtocolError(f"API key {header.api_key} is not served")
        if not route.api.serves(header.api_version):
            await self._answer_unserved_version(route, header)
            return
        if self._is_lost and route.may_wait:
            return
        self._may_wait = route.may_wait
        await self._respond(route, header, frame)
        if login is not None and login.state is LoginState.FAILED:
            raise ProtocolError(f"Login failed: {login.failure}")

    async def _respond(self, route: Route, header: RequestHeader, frame: bytearray) -> None:
        """Decode a request, call its handler and send the response. The quotas of its client are charged."""
        throttles, session, client_id = self._shared.throttles, self.session, header.client_id
        stopwatch = throttles.stopwatch(header.api_key, session, client_id)
        if len(frame) >= LARGE_FRAME_BYTES:
            request = await timed(read_large_request(route, header, memoryview(frame), stopwatch), stopwatch)
        elif stopwatch is None:
            request = read_request(route, header, memoryview(frame))
        else:
            request = stopwatch.call(read_request, route, header, memoryview(frame))
        context = self._shared.new_context(session=session, api_version=header.api_version, client_id=client_id)
        response = await timed(route.handle(request, context), stopwatch)
        self._muted_s = throttles.after(
            header.api_key, session, client_id, request_bytes=len(frame), response=response, stopwatch=stopwatch
        )
        if session.login is not None and header.api_key in _LOGIN_APIS:
            await self._after_login_step(session.login)
        if response is not None:
            if context.time_slice.pauses >= LONG_PAUSES:
                body = await timed(write_large(response, header.api_version, stopwatch), stopwatch)
            elif stopwatch is None:
                body = write(response, header.api_version)
            else:
                body = stopwatch.call(write, response, header.api_version)
            await self._send(header, response, body)
        if stopwatch is not None:
            throttles.after_writing(stopwatch)
        if context.time_slice.pauses >= LONG_PAUSES:
            await free((request, response), context.time_slice)

    async def _take_bare_token(self, login: Login, token: bytes) -> None:
        """Process a token of a login started with SaslHandshake v0.

        Such tokens have no request header, and a failure is answered by closing the connection only.
        """
        answer = login.authenticate(token)
        await self._after_login_step(login)
        if answer.error_code != ErrorCode.NONE:
            raise ProtocolError(f"Login failed: {answer.error_message}")
        if self._outbox is not None:
            self._outbox.write([len(answer.auth_bytes).to_bytes(4) + answer.auth_bytes])

    async def _after_login_step(self, login: Login) -> None:
        """Apply the principal and the normal limits after a successful login; delay after a failed one.

        The delay slows down password guessing (``connection.failed.authentication.delay.ms``).
        """
        if login.state is LoginState.FAILED:
            await asyncio.sleep(login.settings.failure_delay_s)
        elif login.is_open and login.principal is not None:
            self.session.principal = login.principal
            self._reader.max_frame_bytes = self._shared.max_frame_bytes
            self._max_waiting_frames = MAX_WAITING_FRAMES

    def _has_principal(self, transport: asyncio.Transport) -> bool:
        """Map the client certificate to a principal, and return whether there is one."""
        tls = transport.get_extra_info("ssl_object")
        try:
            principal = self._endpoint.principal_of(tls.getpeercert(binary_form=True))
        except CertificateError as error:
            principal, reason = None, str(error)
        else:
            reason = "no rule of ssl.principal.mapping.rules matches its certificate"
        if principal is None:
            logger.warning("Connection of %s closed: %s", self._peer(), reason)
            self._shared.on_rejected(self.session, reason)
            return False
        self.session.principal = principal
        return True

    async def _answer_unserved_version(self, route: Route, header: RequestHeader) -> None:
        """Answer a request whose version is not served.

        ApiVersions reports the served versions in a v0 response (KIP-511). For any other API the connection is closed,
        as Kafka does.

        Raises:
            ProtocolError: The API is not ApiVersions.
        """
        if header.api_key != ApiKey.API_VERSIONS:
            raise ProtocolError(
                f"{route.api.key.name} v{header.api_version} is not served,"
                f" only v{route.api.min_version}-{route.api.max_version}"
            )
        own = ApiVersionsResponse.ApiVersion(
            api_key=route.api.key, min_version=route.api.min_version, max_version=route.api.max_version
        )
        response = ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION, api_keys=[own])
        await self._send(header._replace(api_version=0), response, write(response, 0))

    async def _send(self, header: RequestHeader, response: Message | RawResponse, body: Body) -> None:
        if self._outbox is None or self._is_lost:
            return
        # The header of an ApiVersions response never has tagged fields: the client does not know the broker's versions
        # yet.
        flexible = header.api_key != ApiKey.API_VERSIONS and response.is_flexible(header.api_version)
        size = sum(map(len, body))
        self._shared.traffic.sent_bytes += size
        head = response_header(header.correlation_id, size, flexible=flexible)
        self._is_sending = True
        try:
            await self._outbox.send([head, *body], size + len(head))
        finally:
            self._is_sending = False

    # -- helpers

    def _reject(self, error: ProtocolError) -> None:
        logger.warning("Connection of %s closed: %s", self._peer(), error)
        login = self.session.login
        if login is not None and (login.failure or not login.is_open):
            self._shared.on_rejected(self.session, str(error))
        self.close()

    def _peer(self) -> str:
        return f"{self.session.client_host}:{self.session.client_port}"

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
