"""SASL authentication on a data connection: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152), by kafka-python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from klamm.client.errors import SaslAuthenticationFailedError
from klamm.protocol.errors import ErrorCode, UnsupportedVersionError, error_name
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
        SaslAuthenticationFailedError: The broker rejects the login or does not support the mechanism. The connection
            is closed.
        ConnectionLostError: The connection broke.
    """
    try:
        return _log_in(connection, security, timeout_s)
    except SaslAuthenticationFailedError:
        connection.close()
        raise
    except (UnsupportedVersionError, ValueError, KeyError) as error:
        connection.close()
        raise _rejected(security, str(error)) from error


def _rejected(
    security: Security, reason: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED
) -> SaslAuthenticationFailedError:
    """Return the error of a login. It names the code, by which the mirror recognizes that an operator is needed."""
    who = f"Login as {security.username} by {security.mechanism}"
    return SaslAuthenticationFailedError(f"{code.name}: {who} failed: {reason}")


def _log_in(connection: Connection, security: Security, timeout_s: float) -> float | None:
    from kafka.net.sasl import get_sasl_mechanism  # noqa: PLC0415  # only logins pay for importing kafka-python

    asked = SaslHandshakeRequest(mechanism=security.mechanism)
    # From SaslHandshake version 1 on, tokens are sent in SaslAuthenticate, whose response has an error message.
    version = connection.version_of(SaslHandshakeRequest, at_least=1)
    offered = connection.call(asked, SaslHandshakeResponse, version=version, timeout_s=timeout_s)
    if offered.error_code != ErrorCode.NONE:
        reason = f"the broker offers {', '.join(offered.mechanisms) or 'no mechanism'}"
        raise _rejected(security, reason, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
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
            raise _rejected(security, answer.error_message or error_name(answer.error_code))
        mechanism.receive(bytes(answer.auth_bytes))
        lifetime_ms = answer.session_lifetime_ms
    if not mechanism.is_authenticated():
        raise _rejected(security, "the broker's final token is invalid")
    return lifetime_ms / 1000 * _RENEW_AT if lifetime_ms > 0 else None
