"""Logins that end at the gateway: sessions at the upstream are renewed, and SCRAM users known by their passwords."""

from __future__ import annotations

import asyncio

import pytest

from klamm.gateway.frames.wire import response_frame
from klamm.gateway.listener.users import ScramUsers
from klamm.gateway.relay.sessions import UpstreamSession
from klamm.kafka_client.connection.security import Security
from klamm.properties import SettingsError
from klamm.protocol.messages.api_versions import ApiVersionsResponse
from klamm.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from klamm.protocol.messages.sasl_handshake import SaslHandshakeResponse
from klamm.security.sasl import PlainExchange
from klamm.security.scram import ScramMechanism, credential_from_salted_password, salt_password
from klamm.server.security.endpoints import Endpoint
from klamm.server.security.login import LoginSettings
from tests.support.relay_rig import RelayRig, request, response, shared_objects
from tests.support.security import SCRAM_MODULE

LOGIN = Security(protocol="SASL_PLAINTEXT", mechanism="PLAIN", username="gateway", password="secret")  # noqa: S106
VERSIONS = ApiVersionsResponse(
    api_keys=[ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=1) for key in (17, 36)]
)


async def _renewal(rig: RelayRig, answer: SaslAuthenticateResponse) -> bytes:
    """Play the upstream during a login; return the token of the gateway."""
    await rig.upstream.read_frame()
    await rig.upstream.send(response_frame(VERSIONS, 3, 0))
    assert (await rig.upstream.read_frame())[:4] == b"\0\x11\0\1"
    await rig.upstream.send(response_frame(SaslHandshakeResponse(mechanisms=["PLAIN"]), 1, 0))
    token = await rig.upstream.read_frame()
    await rig.upstream.send(response_frame(answer, 1, 0))
    return token


@pytest.mark.parametrize("lifetime_ms", [0, 3_600_000])
async def test_request_waits_until_the_gateway_has_logged_in_again(lifetime_ms: int) -> None:
    with RelayRig(shared_objects()) as rig:
        # given: a request in flight, and a session that ends soon
        assert await rig.is_served()
        await rig.client.send(request(12, 0, b"first", correlation_id=5))
        assert (await rig.upstream.read_frame())[-5:] == b"first"
        rig.relay.session = session = UpstreamSession(LOGIN, "broker", 0.0)
        # when
        await rig.client.send(request(12, 0, b"second", correlation_id=6))
        renewing = asyncio.create_task(
            _renewal(rig, SaslAuthenticateResponse(auth_bytes=b"", session_lifetime_ms=lifetime_ms))
        )
        await rig.upstream.send(response(5, b"one"))
        # then
        assert (await rig.client.read_frame())[4:] == b"one"
        assert b"\0gateway\0secret" in await renewing
        assert (await rig.upstream.read_frame())[-6:] == b"second"
        assert (session.is_due, session.expires) == (False, bool(lifetime_ms))


async def test_rejected_login_closes_the_connection() -> None:
    with RelayRig(shared_objects()) as rig:
        rig.relay.session = UpstreamSession(LOGIN, "broker", 0.0)
        await rig.client.send(request(12, 0, b"request"))
        await _renewal(rig, SaslAuthenticateResponse(error_code=58, error_message="no", auth_bytes=b""))
        assert await rig.client.is_closed()


@pytest.mark.parametrize("max_token_bytes", [100, 1_000_000])
async def test_request_before_the_login_is_limited_by_the_setting(
    caplog: pytest.LogCaptureFixture, max_token_bytes: int
) -> None:
    mechanisms = {"PLAIN": lambda: PlainExchange({"anna": "secret"})}
    settings = LoginSettings(mechanisms=mechanisms, max_token_bytes=max_token_bytes, now=lambda: 0.0)
    with RelayRig(shared_objects(endpoint=Endpoint(name="SASL_SSL", login=settings))) as rig:
        await rig.client.send((2_000_000).to_bytes(4))
        assert await rig.client.is_closed()
    assert f"Frame of 2000000 bytes is outside 10..{max_token_bytes}" in caplog.text


def test_credentials_of_scram_users_match_their_passwords() -> None:
    # given
    name = "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"
    configs = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256", name: f'{SCRAM_MODULE} required user_a="b";'}
    mechanism = ScramMechanism.SCRAM_SHA_256
    # when
    users = ScramUsers("SASL_SSL", configs)
    credential = users.find("a", mechanism)
    # then
    assert credential is not None
    salted = salt_password(mechanism, "b", salt=credential.salt, iterations=credential.iterations)
    assert credential == credential_from_salted_password(
        mechanism, salted_password=salted, salt=credential.salt, iterations=credential.iterations
    )
    assert users.find("a", mechanism) is credential
    assert users.find("c", mechanism) is None
    assert users.find("a", ScramMechanism.SCRAM_SHA_512) is None


def test_scram_user_without_password_is_rejected() -> None:
    key = "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config"
    with pytest.raises(SettingsError, match="user_a of SCRAM-SHA-256: the password must not be empty"):
        ScramUsers("SASL_SSL", {"sasl.enabled.mechanisms": "SCRAM-SHA-256", key: f'{SCRAM_MODULE} required user_a="";'})


def test_scram_listener_without_users_is_rejected() -> None:
    with pytest.raises(SettingsError, match="enables SCRAM-SHA-512 but names no users"):
        ScramUsers("SASL_SSL", {"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
