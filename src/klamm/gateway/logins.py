"""SASL logins that pass through the gateway. They are forwarded unchanged, and the principal is read from them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from klamm.gateway.cutter import TAKE
from klamm.gateway.exchange import RelayedExchange
from klamm.gateway.identity import PASSED_MECHANISMS, SaslReader
from klamm.gateway.wire import decode_request, response_body, response_frame
from klamm.protocol.codec import decode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.cutter import Judgement, Piece
    from klamm.gateway.shared import OpenRelay
    from klamm.gateway.wire import RequestHead

logger = logging.getLogger(__name__)


class PassedLogin:
    """SASL logins of one connection, checked by the upstream.

    Args:
        relay: Relay of the connection.
        principal_claim: Claim of an OAUTHBEARER token that names the user.
    """

    def __init__(self, relay: OpenRelay, principal_claim: str) -> None:
        self._relay = relay
        self._reader = SaslReader(principal_claim)

    @property
    def is_open(self) -> bool:
        """Return whether a login has succeeded."""
        return self._reader.principal is not None

    def handshake(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Forward a SaslHandshake. The client is not offered mechanisms whose principal cannot be read.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslHandshakeRequest = decode_request(SaslHandshakeRequest, head, frame, body)
        if request.mechanism in PASSED_MECHANISMS:
            self._reader.start(request.mechanism)
            self._relay.exchanges.append(RelayedExchange(head.correlation_id))
            return TAKE, len(frame), (frame,)
        logger.warning(
            "Connection of %s: SASL mechanism %r cannot pass the gateway, only %s",
            self._relay.peer.name,
            request.mechanism[:40],
            ", ".join(PASSED_MECHANISMS),
        )
        self._reader.start("")

        def on_response(answer: memoryview) -> Sequence[Piece]:
            position = response_body(SaslHandshakeResponse, head.api_version, answer)
            offered = decode(SaslHandshakeResponse, head.api_version, answer, position).mechanisms
            refusal = SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                mechanisms=[mechanism for mechanism in offered if mechanism in PASSED_MECHANISMS],
            )
            return [response_frame(refusal, head.api_version, head.correlation_id)]

        self._relay.exchanges.append(RelayedExchange(head.correlation_id, on_response))
        return TAKE, len(frame), (frame,)

    def authenticate(self, head: RequestHead, frame: memoryview, body: int) -> Judgement:
        """Forward a SaslAuthenticate.

        Raises:
            ProtocolError: The request is malformed.
        """
        request: SaslAuthenticateRequest = decode_request(SaslAuthenticateRequest, head, frame, body)
        self._reader.on_token(bytes(request.auth_bytes))

        def on_response(answer: memoryview) -> Sequence[Piece]:
            position = response_body(SaslAuthenticateResponse, head.api_version, answer)
            response = decode(SaslAuthenticateResponse, head.api_version, answer, position)
            self._reader.on_answer(response.error_code, bytes(response.auth_bytes))
            if self._reader.principal is not None:
                self._relay.peer.principal = self._reader.principal
            return [answer]

        self._relay.exchanges.append(RelayedExchange(head.correlation_id, on_response))
        return TAKE, len(frame), (frame,)
