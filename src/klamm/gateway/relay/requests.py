"""Requests of one connection: which of them are forwarded unread, and who decides about the others.

If a feature admits clients by their client id (``admission``), that comes first.

=================================  ===================================================================================
API                                Treatment
=================================  ===================================================================================
not served, or in this version     The connection is closed, as Kafka does. ApiVersions is answered (KIP-511).
with filters                       Kept until it is complete, and given to them (``filter_chain``), if one of them is
                                   exclusive once no earlier request is in flight.
with ``acks``                      Only ``acks`` is read: a request with ``acks=0`` has no response.
with ``patch_request``             With a ``ConnectionWatch``, kept until it is complete, up to 32 MiB. A value is
                                   patched in place.
in a login that the upstream does  Forwarded, also with filters: the upstream rejects it.
all others                         Forwarded as they arrive. Responses that carry addresses are rewritten.
=================================  ===================================================================================
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.cutter import NEED, PASS, STOP, TAKE
from klamm.gateway.frames.exchange import BEGINNING_AT, ForwardedRequest
from klamm.gateway.frames.wire import REQUEST_HEAD, SIZE_BYTES, RequestHead, end_of_client_id
from klamm.gateway.relay.admission import ClientAdmission
from klamm.gateway.relay.current_request import MAX_DECODED_BYTES, CurrentRequest, decodable
from klamm.gateway.relay.filter_chain import FilterChain
from klamm.gateway.relay.forwarding import Forwarder
from klamm.gateway.relay.logins import OwnLogin, PassedLogin
from klamm.protocol.errors import ProtocolError

if TYPE_CHECKING:
    from klamm.gateway.frames.cutter import Cut
    from klamm.gateway.frames.peer import ConnectionWatch
    from klamm.gateway.relay.api import ServedApi
    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.gateway.relay.shared import Shared

MAX_IN_FLIGHT: Final = 1024
"""Maximum number of requests without a response. Beyond it, the gateway reads no further request of the connection."""
MAX_HELD_BYTES: Final = 64 * 1024
"""Number of bytes kept for the requests in flight of a connection, above all the gateway's own responses, beyond which
no further request of the connection is read.
"""
_MIN_FRAME: Final = REQUEST_HEAD.size - SIZE_BYTES
_ACKS_WITHIN: Final = 128 * 1024
"""Number of bytes at the beginning of a request that contain ``acks``: two strings of 32 KiB come before it."""


class RequestReader:
    """Reader of the requests of one connection, for a ``FrameCutter``."""

    def __init__(self, shared: Shared, relay: OpenRelay) -> None:
        self._relay = relay
        self._apis = shared.apis
        self._counts = shared.figures.requests
        self._max_frame_bytes = shared.memory.max_frame_bytes
        logins = shared.logins
        self._login: OwnLogin | PassedLogin = PassedLogin(relay, logins.principal_claim, is_needed=logins.is_needed)
        if logins.endpoint is not None:
            self._login = OwnLogin(relay, logins.endpoint.new_login())
        self._watch = next((each.watch(relay.peer) for each in shared.features if each.opens_watch), None)
        relay.peer.watch = self._watch
        self._forwarder = Forwarder(relay, shared.book, self._watch)
        self._current = CurrentRequest(shared, relay, self._login, self._forwarder)
        self._admission = ClientAdmission(shared, self._current)
        self._filters = FilterChain(relay, self._current, self._forwarder)
        self._latest: ForwardedRequest | None = None

    def __call__(self, chunk: memoryview, position: int, available: int) -> Cut:
        """Decide about the request at a position of a chunk.

        Raises:
            ProtocolError: The request is malformed or not served.
        """
        relay = self._relay
        if (
            relay.is_busy
            or self._login.is_waiting
            or len(relay.exchanges) >= MAX_IN_FLIGHT
            or relay.held_bytes > MAX_HELD_BYTES
            or relay.is_turn_over()
            or self._renews()
        ):
            return STOP, 0, ()
        if available < REQUEST_HEAD.size:
            if available < SIZE_BYTES:
                return NEED, SIZE_BYTES, ()  # a frame that is shorter than a header is rejected at once
            self._check_size(int.from_bytes(chunk[position : position + SIZE_BYTES], signed=True))
            return NEED, REQUEST_HEAD.size, ()
        size, api_key, api_version, correlation_id, id_length = REQUEST_HEAD.unpack_from(chunk, position)
        body = end_of_client_id(id_length)
        served = self._check(size, api_key, api_version, body)
        if available < body:
            return NEED, body, ()
        if served.is_exclusive and relay.has_responses_due:
            return STOP, 0, ()
        client_id = None
        if id_length >= 0:
            client_id = str(chunk[position + REQUEST_HEAD.size : position + body], "utf-8", "replace")
        relay.peer.client_id = client_id
        head = RequestHead(size, api_key, api_version, correlation_id, client_id)
        cut = None
        if self._login.is_open:
            cut = self._admission.check(served.api, head, chunk, position, available=available, body=body)
        if cut is None:
            cut = self._forward(served, head, chunk, position, available=available, body=body)
        if self._admission.is_by_request and cut[0] in {PASS, TAKE}:
            self._admission.forget_request()  # the next one may have the same header, and be decided on differently
        return cut

    @property
    def awaits_login(self) -> bool:
        """Return whether the client must log in before any other request."""
        return not self._login.is_open

    def end_of_run(self, chunk: memoryview, position: int, end: int) -> int:
        """Forward the requests from a position on that begin like the one before, and return the position after them.

        Nothing is forwarded in cases that need a decision. The watch learns of the first of these requests only: they
        arrived at the same time.
        """
        relay, latest = self._relay, self._latest
        if (
            latest is None
            or relay.is_busy
            or relay.held_bytes > MAX_HELD_BYTES
            or (relay.session is not None and relay.session.is_due)
        ):
            return position
        if self._watch is not None:
            if not latest.is_at(chunk, position, end):
                return position
            if latest.acks is not None and self._watch.acks(latest.acks, latest.client_id) != latest.acks:
                self._latest = None
                return position
            self._observe(self._watch, self._apis[latest.api_key], latest.client_id)
        exchanges = relay.exchanges
        position, count = latest.run(chunk, position, end, exchanges, MAX_IN_FLIGHT - len(exchanges))
        if count:
            self._counts.counts[latest.count_key] += count
            relay.peer.client_id = latest.client_id
        return position

    def on_close(self) -> None:
        """Fail the calls in flight, because the connection is closed."""
        if self._watch is not None:
            self._watch.close()
        self._current.on_close()

    def _forward(
        self, served: ServedApi, head: RequestHead, chunk: memoryview, position: int, *, available: int, body: int
    ) -> Cut:
        """Decide about a request whose header is complete and valid."""
        api, total = served.api, head.size + SIZE_BYTES
        if isinstance(self._login, PassedLogin) and not self._login.is_open and not api.is_before_login:
            self._login.give_up()
            self._forwarder.expect_unread(head)
            return PASS, total, ()
        is_repeated = self._current.is_repeated
        if self._watch is not None and self._login.is_open and not is_repeated:
            self._observe(self._watch, served, head.client_id)
            if api.patch_request is not None:
                if available < total <= MAX_DECODED_BYTES:
                    return NEED, total, ()
                self._forwarder.patch_request(api, head, chunk[position : position + total], body)
        if served.filters:
            if available < decodable(head):
                return NEED, total, ()
            if not is_repeated:
                self._counts.count(head.api_key, head.client_id)
            if api.changes_principal:
                self._latest = None
                self._admission.forget_client()
            return self._filters.apply(served, head, chunk[position : position + total], body)
        if api.acks is not None:
            return self._read_acks(served, head, chunk[position : position + min(total, available, _ACKS_WITHIN)])
        return self._pass(served, head, chunk, position, body)

    def _read_acks(self, served: ServedApi, head: RequestHead, frame: memoryview) -> Cut:
        """Forward a request of which only the first bytes are known, at least up to ``acks``."""
        try:
            acks, enforced, end = self._forwarder.enforce_acks(served.api, head, frame)
        except (IndexError, struct.error, ProtocolError) as error:
            most = min(head.size + SIZE_BYTES, _ACKS_WITHIN)
            if len(frame) >= most:
                raise ProtocolError("Produce request ends before its acks") from error
            return NEED, min(most, 2 * len(frame)), ()
        self._forwarder.drop_if_raised(served.api, head, acks, enforced)
        return self._pass(served, head, frame, 0, end, acks=acks, is_unchanged=enforced == acks)

    def _pass(
        self,
        served: ServedApi,
        head: RequestHead,
        chunk: memoryview,
        position: int,
        end: int,
        *,
        acks: int | None = None,
        is_unchanged: bool = True,
    ) -> Cut:
        """Forward a request unread. Unless it was changed, forward all that begin like it up to ``end`` bytes, too."""
        count_key = head.api_key, self._counts.counted_id(head.client_id)
        self._counts.counts[count_key] += 1
        on_response = self._forwarder.expect(served.api, head) if acks != 0 else None
        is_admitted = not self._admission.is_by_request
        if is_unchanged and is_admitted and served.api.patch_request is None and not self._login.expires:
            beginning = bytes(chunk[position + BEGINNING_AT : position + end])
            self._latest = ForwardedRequest(
                head, beginning, count_key, self._max_frame_bytes, acks=acks, on_response=on_response
            )
        return PASS, head.size + SIZE_BYTES, ()

    def _renews(self) -> bool:
        """Start a new login at the upstream before the next request if it is due; return whether it is."""
        session = self._relay.session
        if session is None or not session.is_due:
            return False
        self._current.renew(session)
        return True

    @staticmethod
    def _observe(watch: ConnectionWatch, served: ServedApi, client_id: str | None) -> None:
        watch.on_request(served.api.key, client_id, is_heartbeat=served.api.is_heartbeat)

    def _check_size(self, size: int) -> None:
        most = self._max_frame_bytes
        if not self._login.is_open:
            most = min(most, self._login.max_token_bytes)
        if not _MIN_FRAME <= size <= most:
            raise ProtocolError(f"Frame of {size} bytes is outside {_MIN_FRAME}..{most}")

    def _check(self, size: int, api_key: int, api_version: int, body: int) -> ServedApi:
        """Return the API of a request.

        Raises:
            ProtocolError: The request is malformed, not served, or not allowed before the login.
        """
        self._check_size(size)
        served = self._apis.get(api_key)
        self._login.check(api_key, is_before_login=served is not None and served.api.is_before_login)
        if body > size + SIZE_BYTES:
            raise ProtocolError(f"Frame of {size} bytes ends in its header")
        if served is None:
            raise ProtocolError(f"API key {api_key} v{api_version} is not served, in no version")
        if not (served.first_version <= api_version <= served.last_version or served.api.answers_any_version):
            versions = f"only v{served.first_version}-{served.last_version}"
            raise ProtocolError(f"API key {api_key} v{api_version} is not served, {versions}")
        return served
