"""Requests of one connection: which of them are forwarded unread, and the treatment of the others.

=================================  ===================================================================================
API                                Treatment
=================================  ===================================================================================
not served, or in this version     The connection is closed, as Kafka does. ApiVersions is answered (KIP-511).
with a filter or an interceptor    Kept until it is complete, decoded, and given to them (``interceptors``).
SaslHandshake, SaslAuthenticate    Kept, read for the principal, and forwarded.
Produce                            Only ``acks`` is read: a request with ``acks=0`` has no response.
Produce, JoinGroup,                With a ``ConnectionWatch``, one value is patched in place.
ConsumerGroupHeartbeat
all others                         Forwarded as they arrive. Responses that carry addresses are rewritten.
=================================  ===================================================================================
"""

from __future__ import annotations

import contextlib
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from klamm.client_configs.enforcement import ALL_REPLICAS
from klamm.gateway.frames.addresses import CARRIERS, replace_addresses
from klamm.gateway.frames.cutter import NEED, PASS, STOP, TAKE
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.precedents import BEGINNING_AT, Precedent, is_unchanged
from klamm.gateway.frames.versions import intersect, read_api_versions, unsupported_version
from klamm.gateway.frames.wire import (
    INT32,
    REQUEST_HEAD,
    RESPONSE_HEAD,
    SIZE_BYTES,
    RequestHead,
    acks_of,
    decode_request,
    end_of_client_id,
    heartbeat_interval_at,
    put_acks,
    replaced_frame,
    response_body,
    response_frame,
    session_timeout_at,
)
from klamm.gateway.relay.calls import InterceptedRequest
from klamm.gateway.relay.interceptors import DividedRequest, Interceptor, Postponed
from klamm.gateway.relay.logins import LOGIN_APIS, OwnLogin, PassedLogin
from klamm.gateway.relay.refusals import ADMITTED_APIS, TWO_REQUESTS, rejected, rejection_frame
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.error_response import request_class
from klamm.protocol.errors import ProtocolError, TooManyElementsError
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.server.attempt import ApiError
from klamm.server.codec import ELEMENTS_AT_ONCE, LARGE_FRAME_BYTES, coded

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from klamm.gateway.frames.addresses import Carrier
    from klamm.gateway.frames.cutter import Judgement, Piece
    from klamm.gateway.frames.exchange import OnResponse
    from klamm.gateway.relay.interceptors import InterceptedCall, RequestFilter
    from klamm.gateway.relay.shared import OpenRelay, Shared
    from klamm.protocol.schema import Message

MOST_IN_FLIGHT: Final = 1024
"""Maximum number of requests without a response. Beyond it, the gateway reads no further request of the connection."""
MOST_HELD_BYTES: Final = 64 * 1024
"""Number of bytes kept for the requests in flight of a connection, above all the gateway's own responses, beyond which
no further request of the connection is read.
"""
MOST_DECODED_BYTES: Final = 32 * 1024 * 1024
"""Largest frame that is decoded. Frames that are forwarded unread are limited by ``socket.request.max.bytes``."""
_DECODED_WEIGHT: Final = 8
"""Bytes of memory for each byte of a request that an interceptor works at."""
_LEAST_FRAME: Final = REQUEST_HEAD.size - SIZE_BYTES
_MOST_LOGIN_BYTES: Final = 524_288
"""Largest request before the login (``sasl.server.max.receive.size``)."""
_ACKS_WITHIN: Final = 128 * 1024
"""Number of bytes at the beginning of a Produce request that contain ``acks``: two strings of 32 KiB come before it."""


class RequestJudge:
    """Judge of the requests of one connection, for a ``FrameCutter``."""

    def __init__(self, shared: Shared, relay: OpenRelay) -> None:
        self._shared = shared
        self._relay = relay
        self._login: OwnLogin | PassedLogin = PassedLogin(relay, shared.principal_claim, is_needed=shared.needs_login)
        if shared.endpoint is not None:
            self._login = OwnLogin(relay, shared.endpoint.new_login())
        self._calls: InterceptedRequest | None = None
        self._learned: object = None
        """Result of the work for which a filter postponed its decision on the next request; None at all other times."""
        self._request: Any = None
        """The next request, if it was decoded before its judgement began or was postponed; None at all other times. It
        refers to bytes of its own: the frame is in a buffer that all connections share.
        """
        self._occupied = 0
        """Bytes of the budget that the request at work takes."""
        interception = shared.interception
        self._watch = None if interception.watch is None else interception.watch(relay.peer)
        relay.peer.watch = self._watch
        self._decoded = LOGIN_APIS | interception.filters.keys() | interception.interceptors.keys()
        self._precedent: Precedent | None = None
        self._judged_id: tuple[tuple[str | None, tuple[int, int] | None], ApiError | None] | None = None
        """Latest client id that was judged, and the error with which it is refused. With API key and correlation id if
        each request is judged.
        """

    def __call__(self, chunk: memoryview, position: int, available: int) -> Judgement:
        """Decide about the request at a position of a chunk.

        Raises:
            ProtocolError: The request is malformed or not served.
        """
        relay = self._relay
        if (
            relay.is_intercepting
            or self._login.is_waiting
            or len(relay.exchanges) >= MOST_IN_FLIGHT
            or relay.held_bytes > MOST_HELD_BYTES
            or relay.is_turn_over()
            or self._renews()
        ):
            return STOP, 0, ()
        if available < REQUEST_HEAD.size:
            if available < SIZE_BYTES:
                return NEED, SIZE_BYTES, ()  # a frame that is shorter than a header is refused at once
            self._check_size(int.from_bytes(chunk[position : position + SIZE_BYTES], signed=True))
            return NEED, REQUEST_HEAD.size, ()
        size, api_key, api_version, correlation_id, id_length = REQUEST_HEAD.unpack_from(chunk, position)
        body = end_of_client_id(id_length)
        self._check(size, api_key, api_version, body)
        if available < body:
            return NEED, body, ()
        client_id = None
        if id_length >= 0:
            client_id = str(chunk[position + REQUEST_HEAD.size : position + body], "utf-8", "replace")
        relay.peer.client_id = client_id
        head = RequestHead(size, api_key, api_version, correlation_id, client_id)
        return self._refuse(head, chunk, position, available, body) or self._forward(
            head, chunk, position, available, body
        )

    def pass_run(self, chunk: memoryview, position: int, end: int) -> int:
        """Forward the requests from a position on that begin like the one before, and return the position after them.

        Nothing is forwarded in cases that need a judgement. The watch learns of the first of these requests only: they
        arrived at the same time.
        """
        relay, known = self._relay, self._precedent
        if (
            known is None
            or relay.is_intercepting
            or relay.held_bytes > MOST_HELD_BYTES
            or (relay.session is not None and relay.session.is_due)
        ):
            return position
        if self._watch is not None:
            if not known.is_at(chunk, position, end):
                return position
            if not is_unchanged(known, self._watch):
                self._precedent = None
                return position
        exchanges = relay.exchanges
        position, count = known.run(chunk, position, end, exchanges, MOST_IN_FLIGHT - len(exchanges))
        if count:
            self._shared.counts.counts[known.count_key] += count
            relay.peer.client_id = known.client_id
        return position

    def _forward(self, head: RequestHead, chunk: memoryview, position: int, available: int, body: int) -> Judgement:
        """Decide about a request whose header is complete and valid."""
        total = head.size + SIZE_BYTES
        if isinstance(self._login, PassedLogin) and not self._login.is_open and head.api_key not in LOGIN_APIS:
            return self._login.leave_to_upstream(head)
        if self._watch is not None and self._login.is_open and not self._is_repeated:
            self._watch.on_request(head.api_key, head.client_id)
            if head.api_key == ApiKey.JOIN_GROUP:
                if available < total <= MOST_DECODED_BYTES:
                    return NEED, total, ()
                self._patch_session_timeout(head, chunk[position : position + total], body)
        if head.api_key in self._decoded:
            if available < self._decodable(head):
                return NEED, total, ()
            if not self._is_repeated:
                self._shared.counts.count(head.api_key, head.client_id)
            return self._decode(head, chunk[position : position + total], body)
        if head.api_key == ApiKey.PRODUCE:
            return self._produce(head, chunk[position : position + min(total, available, _ACKS_WITHIN)], total, body)
        return self._pass(head, chunk, position, body)

    @property
    def _is_repeated(self) -> bool:
        """Whether the next request was seen before, because its judgement was postponed."""
        return self._learned is not None or self._request is not None

    def _decodable(self, head: RequestHead) -> int:
        """Return the size of a request that must be decoded.

        Raises:
            ProtocolError: It is too large.
        """
        total = head.size + SIZE_BYTES
        if total > MOST_DECODED_BYTES:
            raise ProtocolError(f"A request of {total} bytes with key {head.api_key} is too large to be decoded")
        return total

    def _refuse(
        self, head: RequestHead, chunk: memoryview, position: int, available: int, body: int
    ) -> Judgement | None:
        """Answer a request whose client id is refused; return None if the client is admitted with it.

        Raises:
            ProtocolError: The client is refused, and a response to this request cannot say so.
        """
        admit = self._shared.interception.admit
        if admit is None or head.api_key in ADMITTED_APIS or not self._login.is_open:
            return None
        by_api = self._shared.interception.admits_by_api
        judged_id = head.client_id, (head.api_key, head.correlation_id) if by_api else None
        if self._judged_id is None or self._judged_id[0] != judged_id:
            context = InterceptedRequest(self._shared, self._relay, head, learned=self._learned)
            self._learned = None
            judged = admit(context)
            if isinstance(judged, Postponed):
                return self._postpone(judged)
            self._judged_id = judged_id, judged
        error = self._judged_id[1]
        if error is None:
            return None
        if available < (total := self._decodable(head)):
            return NEED, total, ()
        frame = chunk[position : position + total]
        message = None if head.api_key in TWO_REQUESTS else request_class(head.api_key)
        if message is None or not _has_response(head, frame, body):
            raise rejected(head, error)
        request = self._read(message, head, frame, body)
        if request is None:
            return STOP, 0, ()
        self._request = None
        self._shared.counts.count(head.api_key, head.client_id)
        return self._reject(head, request, error, total)

    def _pass(
        self,
        head: RequestHead,
        chunk: memoryview,
        position: int,
        end: int,
        *,
        acks: int | None = None,
        is_unchanged: bool = True,
    ) -> Judgement:
        """Forward a request unread. Unless it was changed, forward all that begin like it up to ``end`` bytes, too."""
        count_key = head.api_key, self._shared.counts.counted_id(head.client_id)
        self._shared.counts.counts[count_key] += 1
        on_response = self._expect(head) if acks != 0 else None
        is_admitted = not self._shared.interception.admits_by_api  # else for a moment only, as the policy remembers it
        if is_unchanged and is_admitted and head.api_key != ApiKey.JOIN_GROUP and not self._login.expires:
            beginning = bytes(chunk[position + BEGINNING_AT : position + end])
            most_bytes = self._shared.max_frame_bytes
            self._precedent = Precedent(head, beginning, count_key, most_bytes, acks=acks, on_response=on_response)
        return PASS, head.size + SIZE_BYTES, ()

    def _renews(self) -> bool:
        """Start a new login at the upstream before the next request if it is due; return whether it is."""
        session = self._relay.session
        if session is None or not session.is_due:
            return False
        head = RequestHead(0, ApiKey.SASL_HANDSHAKE, 1, 0, None)
        self._calls = InterceptedRequest(self._shared, self._relay, head)
        self._relay.run(session.renew(self._calls.call))
        return True

    def on_close(self) -> None:
        """Fail the calls of an interceptor at work, because the connection is closed."""
        if self._watch is not None:
            self._watch.close()
        if self._calls is not None:
            self._calls.lose()
        self._vacate()

    def _occupy(self, count: int) -> None:
        """Count the memory of a request that is at work until it is answered or forwarded.

        Raises:
            ProtocolError: The requests of all connections take too much.
        """
        self._occupied = count
        self._shared.request_budget.change(0, count)

    def _vacate(self) -> None:
        self._shared.request_budget.change(self._occupied, 0)
        self._occupied = 0

    def _check_size(self, size: int) -> None:
        most = self._shared.max_frame_bytes
        if not self._login.is_open:
            most = min(most, _MOST_LOGIN_BYTES)
        if not _LEAST_FRAME <= size <= most:
            raise ProtocolError(f"Frame of {size} bytes is outside {_LEAST_FRAME}..{most}")

    def _check(self, size: int, api_key: int, api_version: int, body: int) -> None:
        self._check_size(size)
        self._login.check(api_key)
        if body > size + SIZE_BYTES:
            raise ProtocolError(f"Frame of {size} bytes ends in its header")
        if api_key == ApiKey.API_VERSIONS:
            return  # an unserved version is answered
        first, last = self._shared.served.get(api_key, (1, 0))
        if not first <= api_version <= last:
            served = f"only v{first}-{last}" if first <= last else "in no version"
            raise ProtocolError(f"API key {api_key} v{api_version} is not served, {served}")

    def _expect(self, head: RequestHead) -> OnResponse | None:
        """Add a forwarded request to the queue of those in flight, and return the treatment of its response."""
        carrier = CARRIERS.get(head.api_key)
        on_response: OnResponse | None = None
        if carrier is not None and head.api_version >= carrier.since:
            on_response = partial(self._rewrite, carrier, head.api_version)
        elif self._watch is not None and head.api_key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            on_response = partial(self._patch_heartbeat_interval, head.client_id)
        in_flight = head.correlation_id if on_response is None else RelayedExchange(head.correlation_id, on_response)
        self._relay.exchanges.append(in_flight)
        return on_response

    def _rewrite(self, carrier: Carrier, api_version: int, frame: memoryview) -> Sequence[Piece]:
        """Replace the addresses in a response frame."""
        body = response_body(carrier.response, api_version, frame)
        received = frame[body:]
        pieces = carrier.rewrite(received, api_version, self._shared.book)
        if len(pieces) == 1 and pieces[0] is received:
            return [frame]
        size = sum(map(len, pieces)) + body - SIZE_BYTES
        return [size.to_bytes(SIZE_BYTES), frame[SIZE_BYTES:body], *pieces]

    def _answer_with(self, make: Callable[[], bytes], head: RequestHead, size: int) -> Judgement:
        """Answer a request of ``size`` bytes; in the codec thread if it is long.

        Args:
            make: Function that returns the frame of the response.
            head: Header of the request.
            size: Size of the request in bytes. The response is about as long.
        """

        async def answer() -> None:
            try:
                frame = await coded(make, size)
            except ProtocolError as error:
                self._relay.end_requests(error)
                return
            self._relay.expect(RelayedExchange(head.correlation_id, answer=frame, kept_bytes=len(frame)))

        if size >= LARGE_FRAME_BYTES:
            self._relay.run(answer())
        else:
            frame = make()
            self._relay.expect(RelayedExchange(head.correlation_id, answer=frame, kept_bytes=len(frame)))
        return TAKE, size, ()

    def _reject(self, head: RequestHead, request: Message, error: ApiError, size: int) -> Judgement:
        """Answer a request of ``size`` bytes with an error.

        Raises:
            ProtocolError: No response to this request can report the error.
        """
        return self._answer_with(partial(rejection_frame, head, request, error), head, size)

    def _produce(self, head: RequestHead, frame: memoryview, total: int, body: int) -> Judgement:
        """Forward a Produce request of which only the first bytes are known, at least up to ``acks``."""
        try:
            acks, end = acks_of(frame, head.api_version, body)
        except (IndexError, struct.error, ProtocolError) as error:
            most = min(total, _ACKS_WITHIN)
            if len(frame) >= most:
                raise ProtocolError("Produce request ends before its acks") from error
            return NEED, min(most, 2 * len(frame)), ()
        held = self._held_acks(head, frame, end, acks)
        self._swallow_if_raised(head, acks, held)
        return self._pass(head, frame, 0, end, acks=acks, is_unchanged=held == acks)

    # -- values that are replaced for the watch

    def _held_acks(self, head: RequestHead, frame: memoryview, end: int, acks: int) -> int:
        """Return the acks by which a Produce request is served, and write them into the frame if they differ.

        Args:
            head: Header of the request.
            frame: Bytes of the request, up to ``end`` at least.
            end: Position after ``acks``.
            acks: Acks in the request.
        """
        if self._watch is None:
            return acks
        held = self._watch.acks(acks, head.client_id)
        if held != acks:
            put_acks(frame, end, held)
        return held

    def _swallow_if_raised(self, head: RequestHead, requested: int, held: int) -> None:
        """Drop the response to a Produce request whose acks were raised from 0: the client expects none."""
        if requested == 0 and held != 0:
            self._relay.exchanges.append(RelayedExchange(head.correlation_id, _swallow))

    def _patch_session_timeout(self, head: RequestHead, frame: memoryview, body: int) -> None:
        """Replace the session timeout in a JoinGroup request. The upstream rejects a malformed one."""
        if self._watch is None:
            return
        with contextlib.suppress(IndexError, struct.error, ProtocolError):
            position = session_timeout_at(frame, head.api_version, body)
            (requested,) = INT32.unpack_from(frame, position)
            INT32.pack_into(frame, position, self._watch.session_timeout_ms(requested, head.client_id))

    def _patch_heartbeat_interval(self, client_id: str | None, frame: memoryview) -> Sequence[Piece]:
        """Replace the interval in a ConsumerGroupHeartbeat response."""
        if self._watch is not None:
            try:
                position = heartbeat_interval_at(frame)
                if position is not None:
                    (offered,) = INT32.unpack_from(frame, position)
                    INT32.pack_into(frame, position, self._watch.heartbeat_interval_ms(offered, client_id))
            except (IndexError, struct.error) as error:
                raise ProtocolError("ConsumerGroupHeartbeat response ends before its interval") from error
        return [frame]

    # -- decoded requests

    def _decode(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        match head.api_key:
            case ApiKey.API_VERSIONS:
                return self._api_versions(head, frame, body)
            case ApiKey.SASL_HANDSHAKE:
                return self._login.handshake(head, frame, body)
            case ApiKey.SASL_AUTHENTICATE:
                self._precedent = self._judged_id = None  # the principal may change
                return self._login.authenticate(head, frame, body)
            case _:
                return self._filter(head, frame, body)

    def _api_versions(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        served = self._shared.served
        first, last = served[ApiKey.API_VERSIONS]
        if not first <= head.api_version <= last:
            return self._answer_with(
                partial(response_frame, unsupported_version(served), 0, head.correlation_id), head, len(frame)
            )

        if self._watch is not None:
            request: ApiVersionsRequest = decode_request(ApiVersionsRequest, head, frame, body)
            self._watch.on_software(request.client_software_name, request.client_software_version)
        features = self._shared.interception.features

        def on_response(answer: memoryview) -> Sequence[Piece]:
            response, version = read_api_versions(answer[RESPONSE_HEAD.size :], head.api_version)
            return [response_frame(intersect(response, served, features), version, head.correlation_id)]

        self._relay.exchanges.append(RelayedExchange(head.correlation_id, on_response))
        return TAKE, len(frame), (frame,)

    def _filter(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Ask the filter of the API, then its interceptor."""
        interception = self._shared.interception
        asked = interception.filters.get(head.api_key)
        interceptor = interception.interceptors.get(head.api_key)
        if asked is not None:
            is_long = self._request is not None and len(frame) >= LARGE_FRAME_BYTES
            request = self._read(asked.request, head, frame, body)
            if request is None:
                return STOP, 0, ()
            context = InterceptedRequest(self._shared, self._relay, head, learned=self._learned)
            self._learned = None
            judged = asked.judge(request, context)
            if isinstance(judged, Postponed):
                return self._postpone(judged)
            self._request = None
            if isinstance(judged, ApiError):
                return self._reject(head, request, judged, len(frame))
            if judged is not None:
                return self._judged(head, frame, body, asked, judged, is_long=is_long)
        while interceptor is not None and interceptor.claims is not None and not interceptor.claims(frame[body:]):
            interceptor = interceptor.otherwise
        if interceptor is not None:
            self._occupy(_DECODED_WEIGHT * len(frame))
            kept = memoryview(bytes(frame))  # the request outlives this callback
            self._relay.run(self._intercept(head, interceptor, kept, body))
            return TAKE, len(frame), ()
        return self._pass_whole(head, frame, body)

    def _read(self, request_class: type[Message], head: RequestHead, frame: memoryview, body: int) -> Any:
        """Return the decoded request; None while the codec thread decodes one with many elements.

        Raises:
            ProtocolError: The request is malformed.
        """
        if self._request is not None:
            return self._request
        if len(frame) < LARGE_FRAME_BYTES:
            self._request = decode_request(request_class, head, memoryview(bytes(frame)), body)
            return self._request
        with contextlib.suppress(TooManyElementsError):
            return decode_request(request_class, head, frame, body, max_elements=ELEMENTS_AT_ONCE)
        kept = memoryview(bytes(frame))  # the thread reads it after this callback

        async def read() -> None:
            try:
                self._request = await coded(partial(decode_request, request_class, head, kept, body), len(kept))
            except ProtocolError as error:
                self._relay.end_requests(error)
            finally:
                self._vacate()

        self._occupy(_DECODED_WEIGHT * len(frame))
        self._relay.run(read())
        return None

    def _postpone(self, postponed: Postponed) -> Judgement:
        """Stop the requests until a filter has learned what it needs, and have it judge this one again."""

        async def learn() -> None:
            try:
                self._learned = await postponed.work()
            finally:
                self._vacate()

        self._occupy(postponed.kept_bytes)
        self._relay.run(learn())
        return STOP, 0, ()

    def _pass_whole(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        acks, held = ALL_REPLICAS, ALL_REPLICAS
        if head.api_key == ApiKey.PRODUCE:
            acks, end = acks_of(frame, head.api_version, body)
            held = self._held_acks(head, frame, end, acks)
        if acks != 0:
            self._expect(head)
        self._swallow_if_raised(head, acks, held)
        return PASS, len(frame), ()

    def _judged(
        self,
        head: RequestHead,
        frame: memoryview,
        body: int,
        asked: RequestFilter,
        judged: Message | DividedRequest,
        *,
        is_long: bool,
    ) -> Judgement:
        """Forward the message with which a filter replaced a request, or answer with it."""
        has_response = _has_response(head, frame, body)
        if isinstance(judged, asked.response):
            if not has_response:
                raise ProtocolError("A policy refused a Produce request with acks=0")
            return self._answer_with(
                partial(response_frame, judged, head.api_version, head.correlation_id), head, len(frame)
            )
        if is_long:
            self._occupy(_DECODED_WEIGHT * len(frame))
            self._relay.run(self._forward_long(head, asked, judged, len(frame), has_response=has_response))
            return TAKE, len(frame), ()
        if isinstance(judged, DividedRequest):
            return self._divided(head, frame, body, asked, judged)
        forwarded, held = self._forwarded(head, replaced_frame(head, judged))
        if has_response:
            self._expect(head)
        self._swallow_if_raised(head, ALL_REPLICAS if has_response else 0, held)
        return TAKE, len(frame), (forwarded,)

    async def _forward_long(
        self,
        head: RequestHead,
        asked: RequestFilter,
        judged: Message | DividedRequest,
        size: int,
        *,
        has_response: bool,
    ) -> None:
        """Forward the message with which a filter replaced a long request of ``size`` bytes, beside other requests.

        No further request of the connection is read until the response is complete.
        """
        request, merge = (judged.request, judged.merge) if isinstance(judged, DividedRequest) else (judged, None)
        try:
            frame, held = self._forwarded(head, await coded(partial(replaced_frame, head, request), size))
            if not has_response:
                swallowed = RelayedExchange(head.correlation_id, _swallow) if held != 0 else None
                self._relay.send_upstream(frame, swallowed)
                return
        finally:
            self._vacate()

        async def handle(request: Message, context: InterceptedCall) -> Message:
            response: Message = await context.forward(request)
            return response if merge is None else await coded(partial(merge, response), size)

        self._occupy(_DECODED_WEIGHT * size)
        interceptor = Interceptor(request=asked.request, response=asked.response, handle=handle)
        await self._handle(head, interceptor, request, memoryview(frame))

    def _forwarded(self, head: RequestHead, encoded: bytes) -> tuple[bytearray, int]:
        """Return the frame of a request that a filter made, and the acks by which Produce is served."""
        frame = bytearray(encoded)
        if head.api_key != ApiKey.PRODUCE:
            return frame, ALL_REPLICAS
        view = memoryview(frame)
        # Longer than the client's id if that is not valid UTF-8.
        id_length = REQUEST_HEAD.unpack_from(frame)[-1]
        acks, end = acks_of(view, head.api_version, end_of_client_id(id_length))
        return frame, self._held_acks(head, view, end, acks)

    def _divided(
        self, head: RequestHead, frame: memoryview, body: int, asked: RequestFilter, divided: DividedRequest
    ) -> Judgement:
        """Forward the request that a filter made, and let it change the response."""
        merge = divided.merge  # and not the request, which would keep its records until the response arrives

        def on_response(answer: memoryview) -> Sequence[Piece]:
            kept = memoryview(bytes(answer))  # parts of the response outlive this callback
            version = head.api_version
            response = merge(decode(asked.response, version, kept, response_body(asked.response, version, kept)))
            replace_addresses(response, self._shared.book)
            merged = response_frame(response, version, head.correlation_id)
            if head.api_key != ApiKey.CONSUMER_GROUP_HEARTBEAT:
                return [merged]
            return self._patch_heartbeat_interval(head.client_id, memoryview(bytearray(merged)))

        self._relay.expect(RelayedExchange(head.correlation_id, on_response, kept_bytes=divided.kept_bytes))
        forwarded, _ = self._forwarded(head, replaced_frame(head, divided.request))
        return TAKE, len(frame), (forwarded,)

    async def _intercept(self, head: RequestHead, interceptor: Interceptor, frame: memoryview, body: int) -> None:
        try:
            request = await coded(partial(_claimed, interceptor, head, frame, body), len(frame))
        except ProtocolError as error:
            self._vacate()
            self._relay.end_requests(error)
            return
        await self._handle(head, interceptor, request, frame)

    async def _handle(self, head: RequestHead, interceptor: Interceptor, request: Message, frame: memoryview) -> None:
        """Have an interceptor answer a request, whose frame it forwards."""
        try:
            calls = InterceptedRequest(self._shared, self._relay, head, interceptor, received=(request, frame))
            self._calls = calls
            response = await interceptor.handle(request, calls)
            replace_addresses(response, self._shared.book)
            work = partial(response_frame, response, head.api_version, head.correlation_id)
            answer = await coded(work, calls.longest)
        finally:
            self._calls = None
            self._vacate()
        self._relay.expect(RelayedExchange(head.correlation_id, answer=answer, kept_bytes=len(answer)))


def _claimed(interceptor: Interceptor, head: RequestHead, frame: memoryview, body: int) -> Any:
    return decode_request(interceptor.request, head, frame, body, is_whole=interceptor.claims is not None)


def _swallow(_frame: memoryview) -> Sequence[Piece]:
    return ()


def _has_response(head: RequestHead, frame: memoryview, body: int) -> bool:
    return head.api_key != ApiKey.PRODUCE or acks_of(frame, head.api_version, body)[0] != 0
