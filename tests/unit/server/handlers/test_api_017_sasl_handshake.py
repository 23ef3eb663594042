from __future__ import annotations

import asyncio

import pytest

from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest
from klamm.security.sasl import PlainExchange
from klamm.server.context import HandlerContext
from klamm.server.handlers import api_017_sasl_handshake, api_036_sasl_authenticate
from klamm.server.security.login import Login, LoginSettings
from klamm.server.session import Session


def context(*, with_login: bool) -> HandlerContext:
    settings = LoginSettings(mechanisms={"PLAIN": lambda: PlainExchange({"a": "b"})}, now=lambda: 0.0)
    session = Session(connection_id=1, node_id=1, login=Login(settings) if with_login else None)
    return HandlerContext(session=session, api_version=1, client_id=None)


@pytest.mark.parametrize(
    ("mechanism", "error_code"), [("PLAIN", ErrorCode.NONE), ("GSSAPI", ErrorCode.UNSUPPORTED_SASL_MECHANISM)]
)
def test_handshake_returns_enabled_mechanisms(mechanism: str, error_code: ErrorCode) -> None:
    request = SaslHandshakeRequest(mechanism=mechanism)
    answer = asyncio.run(api_017_sasl_handshake.handle(request, context(with_login=True)))
    assert (answer.error_code, answer.mechanisms) == (error_code, ["PLAIN"])


def test_sasl_request_on_a_plaintext_listener_is_illegal_state() -> None:
    here = context(with_login=False)
    handshake = asyncio.run(api_017_sasl_handshake.handle(SaslHandshakeRequest(mechanism="PLAIN"), here))
    token = asyncio.run(api_036_sasl_authenticate.handle(SaslAuthenticateRequest(auth_bytes=b""), here))
    assert handshake.error_code == token.error_code == ErrorCode.ILLEGAL_SASL_STATE
