"""SASL authentication on a data connection: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), by kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kafka.net.sasl import get_sasl_mechanism

from klamm.client.connection import ApiMissingError, ConnectionLostError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from klamm.client.connection import Connection
    from klamm.client.security import Security

_RENEW_AT: Final = 0.85
"""Fraction of the session lifetime after which the client re-authenticates (KIP-368)."""


def log_in(connection: Connection, security: Security, *, timeout_s: float) -> float | None:
    """Authenticate the connection. No other request may be sent meanwhile.

    Returns:
        Seconds until the next authentication. None means that the session does not expire.

    Raises:
        ConnectionLostError: Authentication failed, or the broker does not support the mechanism. The connection is
            closed.
    """
    try:
        return _log_in(connection, security, timeout_s)
    except (ConnectionLostError, ApiMissingError, ValueError, KeyError) as error:
        connection.close()
        # klamm.mirror.progress recognizes "Login as ... failed" as an error that only an operator can fix.
        raise ConnectionLostError(f"Login as {security.username} by {security.mechanism} failed: {error}") from error


def _log_in(connection: Connection, security: Security, timeout_s: float) -> float | None:
    asked = SaslHandshakeRequest(mechanism=security.mechanism)
    # From SaslHandshake version 1 on, tokens are sent in SaslAuthenticate, whose response has an error message.
    version = connection.version_of(SaslHandshakeRequest, at_least=1)
    offered = connection.call(asked, SaslHandshakeResponse, version=version, timeout_s=timeout_s)
    if offered.error_code != ErrorCode.NONE:
        raise ConnectionLostError(f"the broker offers {', '.join(offered.mechanisms) or 'no mechanism'}")
    mechanism = get_sasl_mechanism(security.mechanism)(
        sasl_mechanism=security.mechanism,
        sasl_plain_username=security.username,
        sasl_plain_password=security.password,
    )
    lifetime_ms = 0
    while not mechanism.is_done():
        token = SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes())
        answer = connection.call(token, SaslAuthenticateResponse, timeout_s=timeout_s)
        if answer.error_code != ErrorCode.NONE:
            raise ConnectionLostError(answer.error_message or f"error code {answer.error_code}")
        mechanism.receive(bytes(answer.auth_bytes))
        lifetime_ms = answer.session_lifetime_ms
    if not mechanism.is_authenticated():
        raise ConnectionLostError("the broker's final token is invalid")
    return lifetime_ms / 1000 * _RENEW_AT if lifetime_ms > 0 else None
