"""SaslAuthenticate on the wire."""

from __future__ import annotations

import asyncio

import pytest

from klamm.protocol.codec import decode, encode
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.security.sasl import PlainExchange
from klamm.server.context import HandlerContext
from klamm.server.handlers import api_017_sasl_handshake
from klamm.server.handlers.api_036_sasl_authenticate import API, ROUTE, handle
from klamm.server.security.login import Login, LoginSettings
from klamm.server.session import Session


def begun(*, version: int = 2, max_session_ms: int = 0) -> HandlerContext:
    """Return a connection after SaslHandshake."""
    settings = LoginSettings(
        mechanisms={"PLAIN": lambda: PlainExchange({"alice": "secret"})},
        max_session_ms={"PLAIN": max_session_ms},
        now=lambda: 0.0,
    )
    session = Session(connection_id=1, node_id=1, login=Login(settings))
    context = HandlerContext(session=session, api_version=version, client_id=None)
    asyncio.run(api_017_sasl_handshake.handle(SaslHandshakeRequest(mechanism="PLAIN"), context))
    return context


def answer(token: bytes, context: HandlerContext) -> SaslAuthenticateResponse:
    version = context.api_version
    request = decode(
        SaslAuthenticateRequest, version, bytes(encode(SaslAuthenticateRequest(auth_bytes=token), version))
    )
    return decode(SaslAuthenticateResponse, version, bytes(encode(asyncio.run(handle(request, context)), version)))


def test_versions_0_to_2_are_served() -> None:
    assert (API.key, API.min_version, API.max_version, ROUTE.request) == (36, 0, 2, SaslAuthenticateRequest)


@pytest.mark.parametrize("version", range(3))
def test_valid_token_logs_in(version: int) -> None:
    context = begun(version=version)
    response = answer(b"\x00alice\x00secret", context)
    assert (response.error_code, response.error_message, response.auth_bytes) == (ErrorCode.NONE, "", b"")
    assert context.session.login is not None
    assert context.session.login.principal == "User:alice"


@pytest.mark.parametrize("version", range(3))
def test_failed_login_does_not_reveal_existing_users(version: int) -> None:
    messages = {
        answer(token, begun(version=version)).error_message for token in (b"\x00alice\x00x", b"\x00nobody\x00x")
    }
    assert messages == {"Authentication failed: Invalid username or password"}


@pytest.mark.parametrize(("version", "lifetime_ms"), [(0, 0), (1, 5000), (2, 5000)])
def test_session_lifetime_is_returned_since_v1(version: int, lifetime_ms: int) -> None:
    context = begun(version=version, max_session_ms=5000)
    assert answer(b"\x00alice\x00secret", context).session_lifetime_ms == lifetime_ms


def test_token_after_login_is_an_illegal_state() -> None:
    context = begun()
    answer(b"\x00alice\x00secret", context)
    assert answer(b"\x00alice\x00secret", context).error_code == ErrorCode.ILLEGAL_SASL_STATE


@pytest.mark.parametrize("token", [b"", b"\x00", b"\x00\x00\x00\x00", b"\xff" * 1000, b"\x00alice\x00"])
def test_garbage_is_a_failed_login(token: bytes) -> None:
    response = answer(token, begun())
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert response.error_message is not None
    assert "secret" not in response.error_message
