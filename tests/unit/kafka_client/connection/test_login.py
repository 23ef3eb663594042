"""Opening of connections to brokers, and their SASL login."""

from __future__ import annotations

import contextlib
from email.message import Message
from typing import TYPE_CHECKING, Never
from unittest.mock import Mock
from urllib.error import HTTPError

import pytest

from klamm.kafka_client.connection.buffers import BufferPool
from klamm.kafka_client.connection.connection import Connection
from klamm.kafka_client.connection.login import log_in, login_steps, open_connection
from klamm.kafka_client.connection.security import Security
from klamm.kafka_client.connection.transport import ConnectionSettings, PlainTransport
from klamm.kafka_client.errors import CLOSED, ConnectionLostError, SaslAuthenticationFailedError
from klamm.protocol.errors import ErrorCode
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from klamm.security.sasl import PlainExchange
from klamm.security.scram import ScramExchange, ScramMechanism, credential_from_salted_password, salt_password
from klamm.server.security.login import Login, LoginSettings
from tests.support.logs import Clock
from tests.support.stub_broker import closed_after_versions

if TYPE_CHECKING:
    from klamm.security.sasl import SaslExchange

PLAIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="alice", password="a-secret")  # noqa: S106  # test password


@pytest.mark.parametrize("security", [Security(), PLAIN], ids=["PLAINTEXT", "SASL_PLAINTEXT"])
def test_connection_closed_after_api_versions_is_lost(security: Security, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ConnectionSettings(bootstrap_servers=("broker:1",), client_id="me", security=security)
    with closed_after_versions() as connected:
        monkeypatch.setattr("klamm.kafka_client.connection.login.connect", lambda *_: PlainTransport(connected))
        # when
        with pytest.raises(ConnectionLostError) as caught:
            open_connection("broker", 1, settings, BufferPool(max_free_bytes=0))
    # then
    assert type(caught.value) is ConnectionLostError  # no rejected login
    assert str(caught.value) == f"broker:1: {CLOSED}"


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_name_with_separators_logs_in(mechanism: str) -> None:
    # given
    name, password = "a=b,c=2C", "pass,word="
    broker = broker_login(mechanism, name, password)
    security = Security(protocol="SASL_PLAINTEXT", mechanism=mechanism, username=name, password=password)
    # when
    steps = login_steps(security, "broker")
    handshake = next(steps)
    assert isinstance(handshake, SaslHandshakeRequest)
    assert broker.handshake(handshake.mechanism, 1) == ErrorCode.NONE
    request = steps.send(SaslHandshakeResponse())
    while not broker.is_open:
        assert isinstance(request, SaslAuthenticateRequest)
        answer = broker.authenticate(bytes(request.auth_bytes))
        response = SaslAuthenticateResponse(error_code=answer.error_code, auth_bytes=answer.auth_bytes)
        with contextlib.suppress(StopIteration):
            request = steps.send(response)
    # then
    assert broker.principal == f"User:{name}"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, SaslAuthenticationFailedError),
        (401, SaslAuthenticationFailedError),
        (408, ConnectionLostError),
        (429, ConnectionLostError),
        (503, ConnectionLostError),
    ],
)
def test_login_is_rejected_unless_the_token_server_may_respond_later(
    status: int, error: type[ConnectionLostError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object) -> Never:
        raise HTTPError("http://tokens/", status, "no token", Message(), None)

    monkeypatch.setattr("klamm.kafka_client.connection.login._log_in", answer)
    security = Security(protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER")
    # when
    with pytest.raises(ConnectionLostError, match="no token") as caught:
        log_in(Mock(spec=Connection), security, host="broker", timeout_s=1.0)
    # then
    assert type(caught.value) is error


def broker_login(mechanism: str, name: str, password: str) -> Login:
    """Return a login at a broker with one user."""
    scram = ScramMechanism.from_name(mechanism)

    def begin() -> SaslExchange:
        if not scram:
            return PlainExchange({name: password})
        salted = salt_password(scram, password, salt=b"salt", iterations=4096)
        credential = credential_from_salted_password(scram, salted_password=salted, salt=b"salt", iterations=4096)
        return ScramExchange(scram, find={name: credential}.get, new_nonce=lambda: "nonce")

    return Login(LoginSettings(mechanisms={mechanism: begin}, max_session_ms={}, now=Clock()))
