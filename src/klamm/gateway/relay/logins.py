"""SASL logins of clients: those that pass through the gateway, and those that end at it.

A login that passes is forwarded unchanged, checked by the upstream, and read for the principal. A login that ends at
the gateway is checked by the gateway itself, and the upstream sees the gateway's own credentials.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from klamm.gateway.frames.cutter import PASS, TAKE
from klamm.gateway.frames.exchange import RelayedExchange
from klamm.gateway.frames.wire import SIZE_BYTES, decode_request, response_body, response_frame
from klamm.gateway.relay.identity import PASSED_MECHANISMS, SaslReader
from klamm.protocol.api import ApiKey
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.server.security.login import LoginState, TokenAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.frames.cutter import Judgement, Piece
    from klamm.gateway.frames.exchange import OnResponse
    from klamm.gateway.frames.wire import RequestHead
    from klamm.gateway.relay.shared import OpenRelay
    from klamm.server.security.login import Login

logger = logging.getLogger(__name__)

LOGIN_APIS: Final = frozenset({ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})
"""APIs that are served before the login."""
_NO_LOGIN: Final = TokenAnswer(
    error_code=ErrorCode.ILLEGAL_SASL_STATE,
    error_message="SaslAuthenticate request received after successful authentication",
)


class PassedLogin:
    """SASL logins of one connection, checked by the upstream.

    Args:
        relay: Relay of the connection.
        principal_claim: Claim of an OAUTHBEARER token that names the user.
        is_needed: Whether clients must log in before any other request.
    """

    expires = False
    """Whether a login is valid for some time only. The upstream closes the connection then, not the gateway."""

    def __init__(self, relay: OpenRelay, principal_claim: str, *, is_needed: bool) -> None:
        self._relay = relay
        self._reader = SaslReader(principal_claim)
        self._is_needed = is_needed
        self.is_waiting = False
        """Whether a request of the login is in flight. Later requests wait for its response."""

    @property
    def is_open(self) -> bool:
        """Return whether every request is allowed."""
        return not self._is_needed or self._reader.principal is not None

    def check(self, api_key: int) -> None:
        """Reject a request that is not allowed before the login, unless ``leave_to_upstream`` may have it.

        Raises:
            ProtocolError: The request is not allowed.
        """
        if self.is_open or api_key in LOGIN_APIS:
            return
        if self._relay.exchanges or not self._reader.is_under_way:
            raise ProtocolError(f"Unexpected Kafka request with key {api_key} during SASL login")

    def leave_to_upstream(self, head: RequestHead) -> Judgement:
        """Forward a request in the middle of a login. Kafka refuses it by a response of its API, then closes.

        No other request is in flight: after a token, the upstream could have accepted the login meanwhile.
        """
        self._reader.start("")
        self._relay.exchanges.append(RelayedExchange(head.correlation_id))
        return PASS, head.size + SIZE_BYTES, ()

    def handshake(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Forward a SaslHandshake. The client is not offered mechanisms whose principal cannot be read.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslHandshakeRequest = decode_request(SaslHandshakeRequest, head, frame, body)
        mechanism = request.mechanism
        if is_refused := mechanism not in PASSED_MECHANISMS:
            logger.warning(
                "Connection of %s: SASL mechanism %r cannot pass the gateway, only %s",
                self._relay.peer.name,
                mechanism[:40],
                ", ".join(PASSED_MECHANISMS),
            )

        def on_response(answer: memoryview) -> Sequence[Piece]:
            self.is_waiting = False
            position = response_body(SaslHandshakeResponse, head.api_version, answer)
            response = decode(SaslHandshakeResponse, head.api_version, answer, position)
            if not is_refused:
                if response.error_code == ErrorCode.NONE:
                    self._reader.start(mechanism)
                return [answer]
            self._reader.start("")
            refusal = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                mechanisms=[name for name in response.mechanisms if name in PASSED_MECHANISMS],
            )
            return [response_frame(refusal, head.api_version, head.correlation_id)]

        return self._forward(head, frame, on_response)

    def authenticate(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Forward a SaslAuthenticate.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslAuthenticateRequest = decode_request(SaslAuthenticateRequest, head, frame, body)
        token = bytes(request.auth_bytes)

        def on_response(answer: memoryview) -> Sequence[Piece]:
            self.is_waiting = False
            position = response_body(SaslAuthenticateResponse, head.api_version, answer)
            response = decode(SaslAuthenticateResponse, head.api_version, answer, position)
            self._reader.on_answer(token, response.error_code, bytes(response.auth_bytes))
            if self._reader.principal is not None:
                self._relay.peer.principal = self._reader.principal
            return [answer]

        return self._forward(head, frame, on_response)

    def _forward(self, head: RequestHead, frame: memoryview, on_response: OnResponse) -> Judgement:
        self.is_waiting = True
        self._relay.exchanges.append(RelayedExchange(head.correlation_id, on_response))
        return TAKE, len(frame), (frame,)


class OwnLogin:
    """SASL logins of one connection, checked by the gateway. None of it is forwarded.

    Args:
        relay: Relay of the connection.
        login: State of the login; None if the clients of the listener do not log in by SASL.
    """

    is_waiting = False
    """Whether a request of the login is in flight. The gateway answers at once."""

    def __init__(self, relay: OpenRelay, login: Login | None) -> None:
        self._relay = relay
        self._login = login

    @property
    def is_open(self) -> bool:
        """Return whether every request is allowed."""
        return self._login is None or self._login.is_open

    @property
    def expires(self) -> bool:
        """Return whether the login is valid for some time only."""
        return self._login is not None and self._login.expires

    def check(self, api_key: int) -> None:
        """Reject a request that is not allowed before the login, or after its time.

        Raises:
            ProtocolError: The request is not allowed.
        """
        if self._login is not None:
            self._login.check(api_key)

    def handshake(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Answer a SaslHandshake.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslHandshakeRequest = decode_request(SaslHandshakeRequest, head, frame, body)
        login = self._login
        error_code = ErrorCode.ILLEGAL_SASL_STATE
        if login is not None:
            error_code = login.handshake(request.mechanism, head.api_version)
        offered = [] if login is None or error_code == ErrorCode.ILLEGAL_SASL_STATE else list(login.settings.mechanisms)
        if error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            logger.warning(
                "Connection of %s: SASL mechanism %r is not enabled, only %s",
                self._relay.peer.name,
                request.mechanism[:40],
                ", ".join(offered),
            )
        return self._answer(head, SaslHandshakeResponse(error_code=error_code, mechanisms=offered), len(frame))

    def authenticate(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Answer a SaslAuthenticate.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslAuthenticateRequest = decode_request(SaslAuthenticateRequest, head, frame, body)
        answer = _NO_LOGIN if self._login is None else self._login.authenticate(bytes(request.auth_bytes))
        if self._login is not None and self._login.is_open and self._login.principal is not None:
            self._relay.peer.principal = self._login.principal
        response = SaslAuthenticateResponse(
            error_code=answer.error_code,
            error_message=answer.error_message or "",
            auth_bytes=answer.auth_bytes,
            session_lifetime_ms=answer.session_lifetime_ms,
        )
        return self._answer(head, response, len(frame))

    def _answer(
        self, head: RequestHead, response: SaslHandshakeResponse | SaslAuthenticateResponse, count: int
    ) -> Judgement:
        answer = response_frame(response, head.api_version, head.correlation_id)
        exchange = RelayedExchange(head.correlation_id, answer=answer)
        if self._login is not None and self._login.state is LoginState.FAILED:
            self._relay.run(self._end(exchange, self._login.settings.failure_delay_s))
        else:
            self._relay.exchanges.append(exchange)
        return TAKE, count, ()

    async def _end(self, exchange: RelayedExchange, delay_s: float) -> None:
        """Answer a failed login after a delay, then close the connection, as Kafka does."""
        await asyncio.sleep(delay_s)
        self._relay.exchanges.append(exchange)
        self._relay.drain()
