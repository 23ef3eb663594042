"""SASL logins of clients: those that pass through the gateway, and those that end at it.

A login that passes is forwarded unchanged, checked by the upstream, and read for the principal. A login that ends at
the gateway is checked by the gateway itself, and the upstream sees the gateway's own credentials.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias

from klamm.gateway.relay.identity import PASSED_MECHANISMS, SaslReader
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.server.security.login import DEFAULT_MAX_TOKEN_BYTES, LoginState, TokenAnswer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from klamm.gateway.relay.open_relay import OpenRelay
    from klamm.server.security.login import Login

logger = logging.getLogger(__name__)

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
    max_token_bytes = DEFAULT_MAX_TOKEN_BYTES
    """Size in bytes of the largest request before the login. The upstream may accept less."""

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

    def check(self, api_key: int, *, is_before_login: bool) -> None:
        """Reject a request that is not allowed before the login, unless it is left to the upstream (``give_up``).

        Raises:
            ProtocolError: The request is not allowed.
        """
        if self.is_open or is_before_login:
            return
        if self._relay.exchanges or not self._reader.is_under_way:
            raise ProtocolError(f"Unexpected Kafka request with key {api_key} during SASL login")

    def give_up(self) -> None:
        """End a login in the middle of which another request arrived. It is left to the upstream.

        Kafka rejects that request by a response of its API, then closes. No other request is in flight: after a token,
        the upstream could have accepted the login meanwhile.
        """
        self._reader.start("")

    def on_handshake(self, mechanism: str) -> None:
        """Record a SaslHandshake that is forwarded."""
        self.is_waiting = True
        if mechanism not in PASSED_MECHANISMS:
            logger.warning(
                "Connection of %s: SASL mechanism %r cannot pass the gateway, only %s",
                self._relay.peer.name,
                mechanism[:40],
                ", ".join(PASSED_MECHANISMS),
            )

    def on_handshake_response(
        self, mechanism: str, error_code: int, mechanisms: Sequence[str]
    ) -> tuple[ErrorCode, list[str]] | None:
        """Begin a login with the mechanism that the upstream has accepted.

        Returns:
            Error and mechanisms for the client in place of the upstream's: it is not offered mechanisms whose principal
            cannot be read. None relays the response as it is.
        """
        self.is_waiting = False
        if mechanism in PASSED_MECHANISMS:
            if error_code == ErrorCode.NONE:
                self._reader.start(mechanism)
            return None
        self._reader.start("")
        return ErrorCode.UNSUPPORTED_SASL_MECHANISM, [name for name in mechanisms if name in PASSED_MECHANISMS]

    def on_token(self) -> None:
        """Record a SaslAuthenticate that is forwarded."""
        self.is_waiting = True

    def on_token_response(self, token: bytes, error_code: int, answer: bytes) -> None:
        """Read the principal from a token that the upstream has accepted.

        Raises:
            ProtocolError: The token names no principal.
        """
        self.is_waiting = False
        self._reader.on_answer(token, error_code, answer)
        if self._reader.principal is not None:
            self._relay.peer.principal = self._reader.principal


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

    @property
    def max_token_bytes(self) -> int:
        """Return the size in bytes of the largest request before the login (``sasl.server.max.receive.size``)."""
        return DEFAULT_MAX_TOKEN_BYTES if self._login is None else self._login.settings.max_token_bytes

    @property
    def failure_delay_s(self) -> float | None:
        """Seconds after which a failed login is answered, and the connection closed, as in Kafka; None otherwise."""
        if self._login is None or self._login.state is not LoginState.FAILED:
            return None
        return self._login.settings.failure_delay_s

    def check(self, api_key: int, *, is_before_login: bool) -> None:
        """Reject a request that is not allowed before the login, or after its time.

        Raises:
            ProtocolError: The request is not allowed.
        """
        if self._login is not None:
            self._login.check(api_key)

    def handshake(self, mechanism: str, api_version: int) -> tuple[ErrorCode, list[str]]:
        """Return error and mechanisms of the response to a SaslHandshake."""
        login = self._login
        error_code = ErrorCode.ILLEGAL_SASL_STATE
        if login is not None:
            error_code = login.handshake(mechanism, api_version)
        offered = [] if login is None or error_code == ErrorCode.ILLEGAL_SASL_STATE else list(login.settings.mechanisms)
        if error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
            logger.warning(
                "Connection of %s: SASL mechanism %r is not enabled, only %s",
                self._relay.peer.name,
                mechanism[:40],
                ", ".join(offered),
            )
        return error_code, offered

    def authenticate(self, token: bytes) -> TokenAnswer:
        """Return the contents of the response to a SaslAuthenticate."""
        answer = _NO_LOGIN if self._login is None else self._login.authenticate(token)
        if self._login is not None and self._login.is_open and self._login.principal is not None:
            self._relay.peer.principal = self._login.principal
        return answer


ConnectionLogin: TypeAlias = PassedLogin | OwnLogin
