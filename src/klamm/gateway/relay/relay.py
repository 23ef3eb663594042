"""Relay of one client connection to one upstream connection.

Requests
    Frames of most APIs are forwarded unread as they arrive. The others are kept until they are complete, and decoded.
    They are then forwarded, changed or answered (``requests``). While the gateway works at one, no further one is read.
Responses
    They arrive in the order of the requests. A queue of ``RelayedExchange`` has the treatment of each one: relay it
    unread, rewrite its addresses, or hand it to the filter that waits for it. Responses of the gateway itself wait
    in the same queue.
Back-pressure
    Bytes that a socket does not take are kept, and nothing more is read from the other side until they are sent. A
    client that does not read its responses is not read from either, because the gateway itself answers some requests.
    Responses for a filter are read all the same: it may hold the turn of a policy, for which others wait.
Turns
    A connection whose requests or responses keep the event loop busy stops after a few milliseconds and continues when
    the others have had their turn (``server.turns``).
Ends
    When the client closes its side, requests already received are still forwarded and answered, for a limited time.
    When it resets the connection, a request that a filter serves is still completed.
    When the upstream closes, the bytes that it sent are still delivered. A malformed frame of either side closes both
    sides of this relay only. So does a side that takes no bytes for a long time (``expire``).
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import time
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.cutter import NEED, PASS, STOP, TAKE, FrameCutter
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import RESPONSE_HEAD, SIZE_BYTES
from klamm.gateway.relay.forwarding import AddressRewriter, DroppedResponse
from klamm.gateway.relay.requests import RequestReader
from klamm.gateway.relay.streams import MAX_BYTES, MIN_BYTES, RelayedSocket
from klamm.kafka_client.errors import ConnectionLostError
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from klamm.gateway.frames.cutter import Cut, Piece
    from klamm.gateway.frames.exchange import InFlight, OnResponse
    from klamm.gateway.frames.peer import Peer
    from klamm.gateway.relay.sessions import UpstreamSession
    from klamm.gateway.relay.shared import Shared
    from klamm.kafka_client.connection.transport import Transport

logger = logging.getLogger(__name__)

CROWDED_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes kept for the slow peers of all connections above which each connection reads only
``MIN_BYTES`` at a time.
"""
PACED_READS: Final = 64
"""Number of reads, after a client was seen to send a request before the response to another, during which the event
loop may pause for it. A pause would slow down a client that waits for each response.
"""
MAX_HELD_RESPONSE_BYTES: Final = 128 * 1024 * 1024
READ_BUFFER: Final = memoryview(mmap.mmap(-1, MAX_BYTES, access=mmap.ACCESS_COPY))
"""Read buffer shared by all connections. Its bytes are sent or copied before the callback that read them returns. It is
mapped, because the kernel copies to and from the beginning of a page with up to a tenth less CPU.
"""


@lru_cache(maxsize=16)
def _same_for_all(versions: frozenset[tuple[int, tuple[int, int]]]) -> Mapping[int, tuple[int, int]]:
    """Return one mapping for all connections whose brokers offer the same versions. It takes some 10 KiB."""
    return dict(versions)


class Relay:
    """Relay of one client connection. Used on the event loop only.

    Args:
        shared: Objects that all relays share.
        peer: Facts about the client connection.
        client: Socket of the client.
        upstream: Socket of the upstream broker.
        session: Session of the gateway's own login there; None if it does not expire, or there is none.
    """

    def __init__(
        self,
        shared: Shared,
        peer: Peer,
        client: Transport,
        upstream: Transport,
        session: UpstreamSession | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.peer = peer
        self.session = session
        self.exchanges: deque[InFlight] = deque()
        self.held_bytes = 0
        self._shared = shared
        self._traffic = shared.figures.traffic
        self._pacer = shared.pacer
        self._backlog = shared.memory.backlog
        self._turns = shared.turns
        self._turn_ends_at = 0.0
        self._is_turn_unused = False
        """Whether nothing was relayed in this turn yet. A turn may be over before that, when thousands wait."""
        self._waits_for_turn = False
        self._loop = loop
        self._client = RelayedSocket(
            client, loop, shared.memory.backlog, on_readable=self._on_client_readable, on_drained=self._on_drained
        )
        self._upstream = RelayedSocket(
            upstream, loop, shared.memory.backlog, on_readable=self._on_upstream_readable, on_drained=self._on_drained
        )
        self._reader = RequestReader(shared, self)
        self._requests = FrameCutter(self._reader, shared.memory.request_budget, self, self._reader.end_of_run)
        self._responses = FrameCutter(self._take_response, shared.memory.response_budget, self, self._pass_responses)
        self._task: asyncio.Task[None] | None = None
        self._rewriting: asyncio.Task[Sequence[Piece]] | None = None
        """Decodes the next response, which is long, and rewrites or drops it. The responses are stopped meanwhile."""
        self._rewritten: Sequence[Piece] | None = None
        self._client_ended = False
        self._upstream_ended = False
        self._is_draining = False
        self._paced = 0
        """Number of further reads after which the event loop may pause."""
        self._is_flowing = False
        """Whether both sides are being read. While it is set, no check is needed until a side is blocked or ends."""
        self._waiting: tuple[int | None, ...] | None = None
        """Number of bytes kept at the last check, of those that slow sides had taken, and of those received from the
        upstream if responses are waited for. None if nothing delayed the connection.
        """
        self._received = 0
        """Number of bytes received from the upstream."""
        self._waits_since = 0.0
        self._awaits_login_since: float | None = None
        """Time of the first check since which a login is missing."""
        self.is_closed = False
        # After a session has expired, the upstream closes the connection at any request but a login, ApiVersions too.
        self.upstream_versions: Mapping[int, tuple[int, int]] | None = None if session is None else session.versions
        """Versions by API key that the upstream offers on this connection; None before ApiVersions was answered."""

    def start(self) -> None:
        """Start to read requests."""
        self._shared.connections.add(self)
        self._update()

    @property
    def is_idle(self) -> bool:
        """Return whether no request is in flight, and no byte of a request is kept."""
        return not self.exchanges and self._task is None and self._requests.is_empty and self._responses.is_empty

    def drain(self) -> None:
        """Serve the requests received so far, then close."""
        self._is_draining = True
        self._is_flowing = False
        self._update()

    @property
    def has_ended(self) -> bool:
        """Return whether the client sends no further request."""
        return self._client_ended

    @property
    def kept_bytes(self) -> int:
        """Number of bytes that the two sides have not taken so far, and of those kept for requests in flight."""
        return self._client.kept_bytes + self._upstream.kept_bytes + self.held_bytes

    def expire(self, now: float, stuck_s: float, ended_s: float) -> None:
        """Close the connection if it has waited too long for one of its sides. Called from time to time.

        Args:
            now: Time of the event loop, in seconds.
            stuck_s: Seconds after which a side that takes none of its bytes is given up.
            ended_s: Seconds after which a client that has closed its side gets no further response, and one that has
                sent a part of a request, or has to log in, is given up.
        """
        if not self._reader.awaits_login:
            self._awaits_login_since = None
        elif self._awaits_login_since is None:
            self._awaits_login_since = now
        elif now - self._awaits_login_since >= ended_s:
            self._shared.figures.closed["login"] += 1
            self.close(f"no login within {ended_s:g} s")
            return
        kept = self._client.kept_bytes, self._upstream.kept_bytes, self.held_bytes
        # A client whose requests are not read can have gone unseen. The connection waits for responses.
        waits = self.held_bytes or (self._requests.is_stopped and self.exchanges)
        received = self._received if waits else None
        unfinished = self._requests.unfinished_bytes
        is_idle = not any(kept) and received is None  # apart from the client
        if is_idle and not self._client_ended and not unfinished:
            self._waiting = None
            return
        state = (*kept, self._client.late_bytes, self._upstream.late_bytes, received, unfinished)
        if state != self._waiting:
            self._waiting, self._waits_since = state, now
        elif now - self._waits_since >= (min(stuck_s, ended_s) if self._client_ended or is_idle else stuck_s):
            self._shared.figures.closed["waiting"] += 1
            self.close("one side does not take or send its bytes, or the upstream does not respond")

    def give_up(self) -> None:
        """Close the connection, because others need the memory of its requests and responses."""
        self._shared.figures.closed["waiting"] += 1
        logger.warning("Connection of %s closed: its requests and responses hold the most memory", self.peer.name)
        self.close(None)

    # -- used by the reader of requests

    def expect(self, exchange: RelayedExchange) -> None:
        """Add a request in flight for which the gateway keeps bytes."""
        self.exchanges.append(exchange)
        self._hold(exchange.kept_bytes)

    def _hold(self, change: int) -> None:
        self.held_bytes += change
        self._shared.memory.backlog.kept_bytes += change

    def send_upstream(self, frame: Piece, exchange: RelayedExchange | None) -> None:
        """Send a request of the gateway itself. Only while no request of the client is being forwarded.

        Args:
            frame: Frame of the request.
            exchange: Treatment of its response; None if there is no response.

        Raises:
            ConnectionLostError: The connection is closed.
        """
        if self.is_closed:
            raise ConnectionLostError("The client's connection was closed")
        if exchange is not None:
            self.exchanges.append(exchange)
        try:
            self._traffic.to_upstream += self._upstream.send([frame])
        except OSError as error:
            self.close(f"the upstream connection broke: {error}")
            raise ConnectionLostError(str(error)) from error
        self._update()

    def is_turn_over(self) -> bool:
        """Return whether other connections have their turn next. If so, this one continues after them."""
        if self._is_turn_unused or time.perf_counter() < self._turn_ends_at:
            self._is_turn_unused = False
            return False
        if not self._waits_for_turn:
            self._waits_for_turn = True
            self._turns.wait()
            self._loop.call_soon(self._take_turn)
        return True

    def run(self, work: Coroutine[None, None, None]) -> None:
        """Run the work at a request; no further request is read until it is done."""
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._on_done)

    def keep_versions(self, versions: Mapping[int, tuple[int, int]]) -> None:
        """Set ``upstream_versions``."""
        self.upstream_versions = _same_for_all(frozenset(versions.items()))

    def end_requests(self, error: ProtocolError) -> None:
        """End the stream of requests at a malformed one. Those before it are still answered."""
        logger.warning("Connection of %s closed: %s", self.peer.name, error)
        self._shared.figures.closed["request"] += 1
        self._client_ended = True
        self._is_flowing = False
        self._requests.drop()

    @property
    def has_responses_due(self) -> bool:
        """Return whether a request is in flight, or its response has arrived in part."""
        return bool(self.exchanges) or not self._responses.is_between_frames

    @property
    def is_busy(self) -> bool:
        """Return whether the gateway works at a request."""
        return self._task is not None

    # -- events

    def _start_turn(self) -> None:
        if not self._waits_for_turn:
            self._turn_ends_at = self._turns.ends_at()
            self._is_turn_unused = True

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._turn_ends_at = self._turns.take()
        self._is_turn_unused = True
        if self._may_resume or self._may_resume_responses:
            self._resume()

    def _on_client_readable(self) -> None:
        self._start_turn()
        try:
            try:
                count = self._client.stream.receive_into(self._room(self._upstream))
            except OSError:
                if self._task is None:
                    raise
                count = 0  # the filter needs the upstream's response, for example to record a change
            if count is None:
                return
            if count == 0:
                self._client_ended = True
                self._is_flowing = False
                self._update()
                return
            self._traffic.from_clients += count
            self._cut_once(READ_BUFFER[:count])
            if self._requests.is_stopped:
                self._cut_kept()
            # None in flight: the request needs no response, unless it waits for the connection's next turn.
            if len(self.exchanges) > 1 or not (self.exchanges or self._requests.is_stopped):
                self._paced = PACED_READS
            self._after_read(self._client, count)
        except Exception as error:  # noqa: BLE001 - see _break
            self._break(error)

    def _after_read(self, side: RelayedSocket, count: int) -> None:
        if self._paced:
            self._paced -= 1
            self._pacer.on_read(count, self._loop)
        if side.may_hide:
            side.read_pending_soon()
        is_stopped = self._requests.is_stopped or self._responses.is_stopped
        if not self._is_flowing or self._client.is_blocked or self._upstream.is_blocked or is_stopped:
            self._update()

    def _cut_kept(self) -> None:
        """Forward the kept requests, as far as possible now.

        Requests are kept while the gateway works at one, while many are in flight, and while the client does not read.
        The gateway's own responses are sent here too: requests that were kept because of them have no other trigger.
        """
        while self._may_resume and not self.has_responses_due and not self.is_turn_over():
            self._cut_once(None)

    @property
    def _may_resume(self) -> bool:
        return self._requests.is_stopped and self._task is None and not self._client.is_blocked and not self.is_closed

    @property
    def _may_resume_responses(self) -> bool:
        is_free = self._rewriting is None and not self._client.is_blocked
        return self._responses.is_stopped and is_free and not self.is_closed

    def _cut_once(self, chunk: memoryview | None) -> None:
        """Forward the requests in a chunk, or in the kept bytes."""
        out: list[Piece] = []
        try:
            if chunk is None:
                self._requests.resume(out)
            else:
                self._requests.cut(chunk, out)
        except ProtocolError as error:
            self.end_requests(error)
        if out:
            self._traffic.to_upstream += self._upstream.send(out)
        if self._answers_next:
            self._flush_answers()

    def _cut_responses(self, chunk: memoryview | None) -> None:
        """Relay the responses in a chunk, or in the kept bytes."""
        out: list[Piece] = []
        if chunk is None:
            self._responses.resume(out)
        else:
            self._responses.cut(chunk, out)
        if self._answers_next and self._responses.is_between_frames:
            out.extend(self._ready_answers())
        if out:
            self._traffic.to_clients += self._client.send(out)

    def _on_upstream_readable(self) -> None:
        self._start_turn()
        try:
            count = self._upstream.stream.receive_into(self._room(self._client))
            if count is None:
                return
            if count == 0:
                self._upstream_ended = True
                self._is_flowing = False
                self._update()
                return
            self._traffic.from_upstream += count
            self._received += count
            self._cut_responses(READ_BUFFER[:count])
            if self._requests.is_stopped and self._may_resume:
                self._cut_once(None)
                self._cut_kept()
            self._after_read(self._upstream, count)
        except Exception as error:  # noqa: BLE001 - see _break
            self._break(error)

    def _on_drained(self, error: OSError | None) -> None:
        if error is not None:
            self.close(f"the connection broke: {error}")
        elif self._may_resume or self._may_resume_responses:
            self._start_turn()
            self._resume()
        else:
            self._update()

    def _resume(self) -> None:
        """Relay the kept responses, send the gateway's own whose turn it is, and forward the kept requests."""
        try:
            if self._may_resume_responses:
                self._cut_responses(None)
            self._flush_answers()
            self._cut_once(None)
            self._cut_kept()
        except Exception as error:  # noqa: BLE001 - see _break
            self._break(error)
        else:
            self._update()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()  # asyncio logs an exception that is not retrieved
        if self.is_closed or task.cancelled():
            return
        if error is None:
            self._start_turn()
            self._resume()
        elif isinstance(error, ProtocolError):
            self._break(error)
        elif isinstance(error, ConnectionLostError):
            self.close(f"the upstream connection broke: {error}")
        else:
            logger.error("Connection of %s: a filter failed", self.peer.name, exc_info=error)
            self.close("a filter failed")

    # -- responses

    def _pass_responses(self, chunk: memoryview, position: int, end: int) -> int:
        """Relay the responses from a position on that need no treatment, and return the position after them."""
        exchanges, unpack = self.exchanges, RESPONSE_HEAD.unpack_from
        last = end - RESPONSE_HEAD.size
        while position <= last and exchanges:
            size, correlation_id = unpack(chunk, position)
            if correlation_id != exchanges[0] or size < SIZE_BYTES:
                break
            exchanges.popleft()
            position += size + SIZE_BYTES
        return position

    def _take_response(self, chunk: memoryview, position: int, available: int) -> Cut:
        exchange = self.exchanges[0] if self.exchanges else None
        if isinstance(exchange, int):
            exchange = RelayedExchange(exchange)
        if exchange is not None and exchange.answer is not None:
            return TAKE, 0, self._ready_answers()
        if available < RESPONSE_HEAD.size:
            return NEED, RESPONSE_HEAD.size, ()
        size, correlation_id = RESPONSE_HEAD.unpack_from(chunk, position)
        if exchange is None or correlation_id != exchange.correlation_id or size < SIZE_BYTES:
            raise ProtocolError("The upstream sent a response that belongs to no request")
        total = size + SIZE_BYTES
        on_response = exchange.on_response
        if on_response is None:
            self.exchanges.popleft()
            return PASS, total, ()
        if total > MAX_HELD_RESPONSE_BYTES:
            raise ProtocolError(f"The upstream sent a response of {size} bytes where one of a few is expected")
        if available < total:
            return NEED, total, ()
        frame = chunk[position : position + total]
        if self.is_turn_over() or self._rewrites_slowly(on_response, frame):
            return STOP, 0, ()
        rewritten, self._rewritten = self._rewritten, None
        self.exchanges.popleft()
        self._hold(-exchange.kept_bytes)
        return TAKE, total, on_response(frame) if rewritten is None else rewritten

    def _rewrites_slowly(self, on_response: OnResponse, frame: memoryview) -> bool:
        """Start to rewrite a long response while other connections are served; return False if it need not be done."""
        if (
            self._rewritten is not None
            or not isinstance(on_response, AddressRewriter | DroppedResponse)
            or not on_response.is_slow(frame)
        ):
            return False
        self._rewriting = self._loop.create_task(self._rewrite(on_response, memoryview(bytes(frame))))
        self._rewriting.add_done_callback(self._on_rewritten)
        return True

    async def _rewrite(self, rewriter: AddressRewriter | DroppedResponse, frame: memoryview) -> Sequence[Piece]:
        async with self._shared.memory.rewriting:
            return await rewriter.rewrite_slowly(frame)

    def _on_rewritten(self, task: asyncio.Task[Sequence[Piece]]) -> None:
        self._rewriting = None
        error = None if task.cancelled() else task.exception()
        if self.is_closed or task.cancelled():
            return
        if isinstance(error, Exception):
            self._break(error)
            return
        self._rewritten = task.result()
        self._start_turn()
        self._resume()

    def _ready_answers(self) -> Sequence[bytes]:
        """Remove and return the gateway's own responses whose turn it is."""
        ready: list[bytes] = []
        while self.exchanges:
            first = self.exchanges[0]
            if isinstance(first, int) or first.answer is None:
                break
            ready.append(first.answer)
            self._hold(-first.kept_bytes)
            self.exchanges.popleft()
        return ready

    @property
    def _answers_next(self) -> bool:
        """Whether the next response is one of the gateway itself."""
        first = self.exchanges[0] if self.exchanges else 0
        return not isinstance(first, int) and first.answer is not None

    def _flush_answers(self) -> None:
        if self._responses.is_between_frames and (ready := self._ready_answers()):
            self._traffic.to_clients += self._client.send(ready)

    # -- state

    def _room(self, receiver: RelayedSocket) -> memoryview:
        if self._backlog.kept_bytes >= CROWDED_BYTES:
            return READ_BUFFER[:MIN_BYTES]
        return READ_BUFFER if receiver.max_bytes == MAX_BYTES else READ_BUFFER[: receiver.max_bytes]

    def _update(self) -> None:
        """Resume reading where there is room for the bytes, and close the connection when an end is reached."""
        is_stopped = self._requests.is_stopped or self._responses.is_stopped
        is_free = not (self._client.is_blocked or self._upstream.is_blocked or is_stopped)
        if self.is_closed or (is_free and self._is_flowing):
            return
        if self._upstream_ended:
            if not self._client.is_blocked and not self._responses.is_stopped:
                self.close(None)
                return
        elif (self._client_ended or self._is_draining) and not self._upstream.is_blocked:
            # A response that is relayed unread has left the queue when its first bytes have arrived.
            is_busy = self._task is not None or self._waits_for_turn
            is_done = not self.exchanges and self._responses.is_empty and not is_busy
            if is_done and not self._client.is_blocked and (self._client_ended or self._requests.is_empty):
                self.close(None)
                return
        self._is_flowing = is_free and not (self._client_ended or self._upstream_ended or self._is_draining)
        self._client.set_reading(
            not (
                self._client_ended
                or self._upstream_ended
                or self._client.is_blocked
                or self._upstream.is_blocked
                or self._requests.is_stopped
                or (self._is_draining and self._requests.is_empty)
            )
        )
        is_late = self._client.is_blocked and not self._call_is_next
        self._upstream.set_reading(not (self._upstream_ended or is_late or self._responses.is_stopped))

    @property
    def _call_is_next(self) -> bool:
        """Whether the upstream's next bytes are for a filter, which a client that does not read cannot delay."""
        first = self.exchanges[0] if self.exchanges else 0
        return not isinstance(first, int) and first.is_call and self._responses.is_between_frames

    def _break(self, error: Exception) -> None:
        """Close the connection after an error of any kind, because requests and responses may no longer match."""
        if isinstance(error, ProtocolError):
            logger.warning("Connection of %s closed: %s", self.peer.name, error)
            self._shared.figures.closed["response"] += 1
            self.close(None)
        elif isinstance(error, OSError):
            self.close(f"the connection broke: {error}")
        else:
            logger.error("Connection of %s: the relay failed", self.peer.name, exc_info=error)
            self._shared.figures.closed["failure"] += 1
            self.close("the relay failed")

    def close(self, reason: str | None) -> None:
        """Close both sides at once. Requests in flight get no response.

        Args:
            reason: Reason for the log at debug level; None for an orderly end.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if reason is not None:
            logger.debug("Connection of %s closed: %s", self.peer.name, reason)
        self._shared.connections.remove(self)
        self._client.close()
        self._upstream.close()
        self._requests.drop()
        self._responses.drop()
        self.exchanges.clear()
        self._hold(-self.held_bytes)
        self._reader.on_close()
        for task in (self._task, self._rewriting):
            if task is not None:
                task.cancel()
