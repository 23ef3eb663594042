"""Opening of connections to brokers, and their SASL login: SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

Every connection of klamm to a broker is opened by ``open_connection``, in these steps: TCP connection, TLS handshake,
ApiVersions, SASL login. kafka-python implements the SASL mechanisms. It is imported only at the first login.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from klamm.kafka_client.connection.connection import Connection
from klamm.kafka_client.connection.transport import TlsRejectedError, connect
from klamm.kafka_client.errors import (
    CLOSED,
    ConnectionLostError,
    SaslAuthenticationFailedError,
    SslAuthenticationFailedError,
)
from klamm.protocol.errors import ErrorCode, ProtocolError, error_name
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from socket import socket

    from klamm.kafka_client.connection.buffers import BufferPool
    from klamm.kafka_client.connection.security import Security
    from klamm.kafka_client.connection.transport import ConnectionSettings
    from klamm.protocol.schema import Message

HANDSHAKE_TIMEOUT_S: Final = 10.0
_SERVER_ERROR: Final = 500
_RETRYABLE_CLIENT_ERRORS: Final = frozenset({408, 429})
"""Request Timeout and Too Many Requests: HTTP client errors of a token server that Kafka's clients retry."""
RENEW_AT: Final = 0.85
"""Fraction of the session lifetime after which the client re-authenticates (KIP-368)."""


def open_connection(
    host: str,
    port: int,
    settings: ConnectionSettings,
    pool: BufferPool,
    on_connected: Callable[[socket], None] | None = None,
) -> Connection:
    """Open a connection that is ready for requests. Blocks for some seconds at most.

    Args:
        host: Name or address of the broker.
        port: Port of the broker.
        settings: Settings of the connection.
        pool: Memory for responses.
        on_connected: Callback for the TCP connection, before the TLS handshake.

    Raises:
        SaslAuthenticationFailedError: The broker rejects the login.
        SslAuthenticationFailedError: One side rejects the other's certificate.
        ConnectionLostError: The broker cannot be reached or does not respond.
    """
    where = f"{host}:{port}"
    try:
        transport = connect(host, port, settings, on_connected)
    except TlsRejectedError as error:
        raise SslAuthenticationFailedError(f"SSL_AUTHENTICATION_FAILED: {where}: {error}") from error
    except OSError as error:
        raise ConnectionLostError(f"{where}: {error.strerror or error}") from error
    connection = Connection(transport, client_id=settings.client_id, pool=pool, software_name=settings.software_name)
    try:
        connection.handshake(min(HANDSHAKE_TIMEOUT_S, settings.request_timeout_s))
        if settings.security.uses_sasl:
            log_in(connection, settings.security, host=host, timeout_s=HANDSHAKE_TIMEOUT_S)
    except SaslAuthenticationFailedError as error:
        raise SaslAuthenticationFailedError(f"{where}: {error}") from error
    except (ConnectionLostError, ProtocolError) as error:
        connection.close()
        if isinstance(error.__cause__, TlsRejectedError):
            raise SslAuthenticationFailedError(f"SSL_AUTHENTICATION_FAILED: {where}: {error}") from error
        raise ConnectionLostError(f"{where}: {error}") from error
    if connection.closed:  # the end of the stream came with the broker's last response
        raise ConnectionLostError(f"{where}: {CLOSED}")
    return connection


def log_in(connection: Connection, security: Security, *, host: str, timeout_s: float) -> None:
    """Authenticate the connection and set the time of its next authentication.

    No other request may be sent meanwhile.

    Raises:
        SaslAuthenticationFailedError: The broker rejects the login or does not support the mechanism. The connection
            is closed.
        ConnectionLostError: The connection broke.
    """
    try:
        lifetime_s = _log_in(connection, security, host, timeout_s) / 1000
    except ConnectionLostError:  # a rejected login, too
        connection.close()
        raise
    except Exception as error:
        connection.close()
        raise _failure(security, error) from error
    connection.login_due_at = time.monotonic() + lifetime_s * RENEW_AT if lifetime_s > 0 else float("inf")


def _failure(security: Security, error: Exception) -> ConnectionLostError:
    """Return the error of a login that ended early: a rejection, unless the broker or the token server is away."""
    from http.client import HTTPException  # noqa: PLC0415 - only after an error
    from urllib.error import HTTPError, URLError  # noqa: PLC0415

    is_away = isinstance(error, URLError | TimeoutError | ConnectionError | HTTPException)
    if isinstance(error, HTTPError):
        is_away = error.code >= _SERVER_ERROR or error.code in _RETRYABLE_CLIENT_ERRORS
    if is_away:
        return ConnectionLostError(f"No login by {security.mechanism}: {error}")
    return _rejected(security, str(error))


def _rejected(
    security: Security, reason: str, code: ErrorCode = ErrorCode.SASL_AUTHENTICATION_FAILED
) -> SaslAuthenticationFailedError:
    """Return the error of a login. It names the code, by which the mirror recognizes that an operator is needed."""
    who = f"Login as {security.username} by" if security.username else "Login by"
    return SaslAuthenticationFailedError(f"{code.name}: {who} {security.mechanism} failed: {reason}")


def _log_in(connection: Connection, security: Security, host: str, timeout_s: float) -> int:
    """Authenticate and return the lifetime of the session in milliseconds, 0 if it does not expire."""
    # From SaslHandshake version 1 on, tokens are sent in SaslAuthenticate, whose response has an error message.
    version = connection.version_of(SaslHandshakeRequest, at_least=1)
    steps = login_steps(security, host)
    handshake = next(steps)
    answer: Message = connection.call(handshake, SaslHandshakeResponse, version=version, timeout_s=timeout_s)
    try:
        while True:
            answer = connection.call(steps.send(answer), SaslAuthenticateResponse, timeout_s=timeout_s)
    except StopIteration as end:
        lifetime_ms: int = end.value
        return lifetime_ms


def login_steps(security: Security, host: str) -> Generator[Message, Any, int]:
    """Yield the requests of a login, SaslHandshake first; take the response to each of them.

    Returns:
        The lifetime of the session in milliseconds, 0 if it does not expire.

    Raises:
        SaslAuthenticationFailedError: The broker rejects the login or does not support the mechanism.
    """
    offered = yield SaslHandshakeRequest(mechanism=security.mechanism)
    if offered.error_code != ErrorCode.NONE:
        reason = f"the broker offers {', '.join(offered.mechanisms) or 'no mechanism'}"
        raise _rejected(security, reason, ErrorCode.UNSUPPORTED_SASL_MECHANISM)
    mechanism = _mechanism(security, host)
    lifetime_ms: int = 0
    while not mechanism.is_done():
        answer = yield SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes())
        if answer.error_code != ErrorCode.NONE:
            raise _rejected(security, answer.error_message or error_name(answer.error_code))
        mechanism.receive(bytes(answer.auth_bytes))
        lifetime_ms = answer.session_lifetime_ms
    if not mechanism.is_authenticated():
        raise _rejected(security, "the broker's final token is invalid")
    return lifetime_ms


def _mechanism(security: Security, host: str) -> Any:
    """Return kafka-python's object of the SASL mechanism, which has no types."""
    from kafka.net.sasl import get_sasl_mechanism  # noqa: PLC0415  # only logins pay for importing kafka-python

    return get_sasl_mechanism(security.mechanism)(host=host, **login_settings(security))


def login_settings(security: Security) -> dict[str, Any]:
    """Return the settings of the login under kafka-python's names."""
    username = security.username
    if security.mechanism.startswith("SCRAM-"):
        # kafka-python sends the name as it is. RFC 5802 escapes the two characters that separate attributes.
        username = username.replace("=", "=3D").replace(",", "=2C")
    settings = {
        "sasl_mechanism": security.mechanism,
        "sasl_plain_username": username,
        "sasl_plain_password": security.password,
    }
    if security.mechanism != "OAUTHBEARER":
        return {**settings, **security.login}
    from klamm.kafka_client.connection.bearer_tokens import (  # noqa: PLC0415  # only logins import kafka-python
        BearerTokenProvider,
    )

    provider = security.login.get("sasl_oauth_token_provider") or BearerTokenProvider(security.login)
    return {**settings, "sasl_oauth_token_provider": provider}
