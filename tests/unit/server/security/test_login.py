from __future__ import annotations

import pytest

from klamm.protocol.api import ApiKey
from klamm.protocol.errors import ErrorCode, ProtocolError
from klamm.security.sasl import PlainExchange
from klamm.server.security.login import Login, LoginSettings, LoginState
from tests.support.logs import Clock


def a_login(*, max_session_ms: int = 0, clock: Clock | None = None) -> Login:
    users = {"alice": "secret", "bob": "other"}
    now = clock or Clock()
    return Login(
        LoginSettings(
            mechanisms={"PLAIN": lambda: PlainExchange(users)},
            max_session_ms={"PLAIN": max_session_ms},
            now=lambda: now() / 1000,
        )
    )


def logged_in(login: Login) -> Login:
    assert login.handshake("PLAIN", 1) == ErrorCode.NONE
    assert login.authenticate(b"\x00alice\x00secret").error_code == ErrorCode.NONE
    return login


def test_only_api_versions_and_handshake_are_served_before_login() -> None:
    login = a_login()
    login.check(ApiKey.API_VERSIONS)
    login.check(ApiKey.SASL_HANDSHAKE)
    for api_key in set(ApiKey) - {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}:
        with pytest.raises(ProtocolError):
            login.check(api_key)


def test_valid_password_permits_all_requests() -> None:
    login = logged_in(a_login())
    assert login.principal == "User:alice"
    for api_key in ApiKey:
        login.check(api_key)


def test_wrong_password_fails_the_login() -> None:
    login = a_login()
    login.handshake("PLAIN", 1)
    answer = login.authenticate(b"\x00alice\x00wrong")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert login.state is LoginState.FAILED
    with pytest.raises(ProtocolError):
        login.check(ApiKey.SASL_HANDSHAKE)


def test_disabled_mechanism_ends_the_login() -> None:
    login = a_login()
    assert login.handshake("GSSAPI", 1) == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert login.state is LoginState.FAILED


def test_second_handshake_during_login_is_an_illegal_state() -> None:
    login = a_login()
    login.handshake("PLAIN", 1)
    assert login.handshake("PLAIN", 1) == ErrorCode.ILLEGAL_SASL_STATE
    assert login.state is LoginState.FAILED


def test_raw_token_is_expected_after_sasl_handshake_v0() -> None:
    login = a_login()
    assert not login.takes_bare_token
    login.handshake("PLAIN", 0)
    assert login.takes_bare_token
    login.authenticate(b"\x00alice\x00secret")
    assert login.is_open
    assert not login.takes_bare_token


def test_session_without_limit_needs_no_re_authentication() -> None:
    login = logged_in(a_login())
    assert login.handshake("PLAIN", 1) == ErrorCode.ILLEGAL_SASL_STATE
    assert login.authenticate(b"\x00bob\x00other").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert login.principal == "User:alice"
    assert login.is_open


def test_expired_session_can_be_reauthenticated_by_the_same_user() -> None:
    clock = Clock()
    login = a_login(max_session_ms=1000, clock=clock)
    login.handshake("PLAIN", 1)
    assert login.authenticate(b"\x00alice\x00secret").session_lifetime_ms == 1000
    clock.now_ms += 999
    login.check(ApiKey.METADATA)
    clock.now_ms += 1
    with pytest.raises(ProtocolError):
        login.check(ApiKey.METADATA)
    login.check(ApiKey.SASL_HANDSHAKE)
    logged_in(login)
    login.check(ApiKey.METADATA)


def test_session_lifetime_of_another_mechanism_does_not_apply() -> None:
    settings = LoginSettings(
        mechanisms={"PLAIN": lambda: PlainExchange({"alice": "secret"})},
        max_session_ms={"SCRAM-SHA-256": 1000},
        now=lambda: 0.0,
    )
    assert not logged_in(Login(settings)).expires


def test_reauthentication_cannot_change_the_principal() -> None:
    login = logged_in(a_login(max_session_ms=1000))
    login.handshake("PLAIN", 1)
    answer = login.authenticate(b"\x00bob\x00other")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert login.principal == "User:alice"
    assert login.state is LoginState.FAILED
